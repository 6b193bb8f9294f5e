//! `Kv.Pipeline`: many calls over one stream.
//!
//! What came in one frame waits together: its writes are one future, and so are its reads of single keys that ask for
//! the same freshness; they are read when there is room for their answers. Every other call is a future of its
//! own. What has ended when the stream is polled is one frame of answers.
//!
//! `dengine_wire::frame` sorts the calls of a frame, [`inbound`] begins them, and here they are answered. [`stall`] ends
//! the stream of a client that does not read.

mod inbound;
mod stall;

pub(super) use stall::Supervised;

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use dengine_api::{
    FRAME_BYTES_MAX, KvCall,
    v1::{GetRequest, PipelineRequest, PipelineResponse, PipelinedAnswer, pipelined_call::Call},
};
use dengine_core::kv::Reader;
use dengine_wire::{
    frame::{self, failed, found, framed},
    status::request_status,
};
use futures::{Stream, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use prost::Message;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::{Code, Status, Streaming};

use super::{Serving, writes::no_answer};
use crate::{
    error::RequestError,
    node::Written,
    server::{forward::Origin, gate::Admitted},
};

/// One stream of calls, as the stream of its answers.
pub(in crate::server) struct Pipeline {
    serving: Arc<Serving>,
    origin: Origin,
    inbound: Inbound,
    stopping: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    working: FuturesUnordered<BoxFuture<'static, Done>>,
    /// Reads that are fresh enough.
    readable: VecDeque<Reads>,
    /// Calls that were taken in and are in no frame of answers yet.
    under_way: usize,
    answers: PipelineResponse,
    answer_bytes: usize,
    /// Who leads, if it is told with the next frame.
    leader: String,
    /// Whether the calls that are about to end had their chance to join the next frame.
    yielded: bool,
}

enum Inbound {
    Open(Box<Streaming<PipelineRequest>>),
    /// The client has ended its side, or broke the rules, and is told how.
    Ended(Option<Status>),
}

/// What a future of the stream came to.
enum Done {
    Answered(PipelinedAnswer),
    Written(Writes, Vec<Result<Written, RequestError>>),
    Fresh(Reads, Result<(), Status>),
}

/// Writes that wait together.
struct Writes {
    admitted: Admitted,
    calls: Vec<(u64, Call)>,
}

/// Reads of single keys that wait together.
struct Reads {
    admitted: Admitted,
    gets: VecDeque<(u64, GetRequest)>,
}

impl Pipeline {
    pub(super) fn new(
        serving: Arc<Serving>,
        origin: Origin,
        inbound: Streaming<PipelineRequest>,
    ) -> Self {
        Self {
            stopping: Some(Box::pin(serving.stop.clone().cancelled_owned())),
            serving,
            origin,
            inbound: Inbound::Open(Box::new(inbound)),
            working: FuturesUnordered::new(),
            readable: VecDeque::new(),
            under_way: 0,
            answers: PipelineResponse::default(),
            answer_bytes: 0,
            leader: String::new(),
            yielded: false,
        }
    }

    /// Answers writes, or has the leader answer them.
    fn finish(&mut self, writes: Writes, results: Vec<Result<Written, RequestError>>) {
        for ((id, call), result) in writes.calls.into_iter().zip(results) {
            let method = frame::method(&call);
            let result = match result {
                Ok(Written { term, outcome }) => {
                    let header = self.serving.headers.in_term(term);
                    frame::answer(&call, header, outcome).map_err(|why| no_answer(method, why))
                }
                Err(error) => {
                    if let (
                        RequestError::NotLeader {
                            leader: Some(leader),
                        },
                        Origin::Client,
                    ) = (&error, self.origin)
                    {
                        self.leader.clone_from(&leader.client_address);
                        self.forward(id, method, call, error);
                        continue;
                    }
                    Err(request_status(&error))
                }
            };
            writes.admitted.answered(method, code(&result));
            self.answer(
                result.map_or_else(|status| failed(id, &status), |answer| found(id, answer)),
            );
        }
    }

    fn forward(&mut self, id: u64, method: &'static str, call: Call, error: RequestError) {
        let (serving, origin) = (Arc::clone(&self.serving), self.origin);
        self.work(async move {
            let forwarded = serving.forwarder.write(error, origin, method, call);
            Done::Answered(match serving.gate.pass(method, forwarded).await {
                Ok(answer) => found(id, answer),
                Err(status) => failed(id, &status),
            })
        });
    }

    /// Fills the next frame with what has ended and what can be read.
    fn collect(&mut self, context: &mut Context<'_>) {
        loop {
            self.read_keys();
            if self.is_full() {
                return;
            }
            match self.working.poll_next_unpin(context) {
                Poll::Ready(Some(Done::Answered(answered))) => self.answer(answered),
                Poll::Ready(Some(Done::Written(writes, results))) => self.finish(writes, results),
                Poll::Ready(Some(Done::Fresh(reads, Ok(())))) => self.readable.push_back(reads),
                Poll::Ready(Some(Done::Fresh(reads, Err(status)))) => {
                    for (id, _) in reads.gets {
                        reads.admitted.answered(GetRequest::METHOD, status.code());
                        self.answer(failed(id, &status));
                    }
                }
                Poll::Ready(None) | Poll::Pending => return,
            }
        }
    }

    /// Reads keys until all are read or the frame is full.
    fn read_keys(&mut self) {
        if self.readable.is_empty() {
            return;
        }
        let serving = Arc::clone(&self.serving);
        let reader = serving.reader();
        // One look at the state for all of them.
        let mut gets = reader.as_ref().map(Reader::gets);
        let header = serving.headers.now();
        while let Some(mut reads) = self.readable.pop_front() {
            while let Some((id, get)) = reads.gets.pop_front() {
                if self.is_full() {
                    reads.gets.push_front((id, get));
                    self.readable.push_front(reads);
                    return;
                }
                let result = match &mut gets {
                    Ok(gets) => serving.get_now(gets, header, &get),
                    Err(status) => Err(status.clone()),
                };
                reads.admitted.answered(GetRequest::METHOD, code(&result));
                self.answer(framed::<GetRequest>(id, result));
            }
        }
    }

    fn answer(&mut self, answer: PipelinedAnswer) {
        self.answer_bytes += answer.encoded_len();
        self.answers.answers.push(answer);
    }

    fn is_full(&self) -> bool {
        self.answer_bytes >= FRAME_BYTES_MAX
    }

    /// Asks the client to go elsewhere when this member is about to stop.
    fn tell_of_stop(&mut self, context: &mut Context<'_>) {
        if let Some(stopping) = &mut self.stopping
            && stopping.as_mut().poll(context).is_ready()
        {
            self.stopping = None;
            self.answers.closing = true;
        }
    }

    fn take_frame(&mut self) -> PipelineResponse {
        self.answer_bytes = 0;
        self.yielded = false;
        let mut frame = std::mem::take(&mut self.answers);
        frame.leader = std::mem::take(&mut self.leader);
        self.under_way -= frame.answers.len();
        frame
    }
}

impl Stream for Pipeline {
    type Item = Result<PipelineResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        this.tell_of_stop(context);
        this.take_in(context);
        this.collect(context);
        if !this.answers.answers.is_empty() || this.answers.closing {
            // Without this a frame would leave with its first answer: others of the same batch end right behind it.
            if !this.is_full() && !std::mem::replace(&mut this.yielded, true) {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            return Poll::Ready(Some(Ok(this.take_frame())));
        }
        match &mut this.inbound {
            Inbound::Ended(why) if this.under_way == 0 => Poll::Ready(why.take().map(Err)),
            Inbound::Ended(_) | Inbound::Open(_) => Poll::Pending,
        }
    }
}

fn code<T>(result: &Result<T, Status>) -> Code {
    result.as_ref().map_or_else(Status::code, |_| Code::Ok)
}
