//! `Kv.Pipeline`: many calls over one stream.
//!
//! What came in one frame waits together: its writes are one future, and so are its reads of single keys that ask for
//! the same freshness; they are read when there is room for their answers. Every other call is a future of its
//! own. What has ended when the stream is polled is one frame of answers.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use dengine_api::{
    FRAME_BYTES_MAX, KvCall, LEADER_HINT_METADATA,
    v1::{
        CallError, Consistency, GetRequest, PipelineRequest, PipelineResponse, PipelinedAnswer,
        PipelinedCall, pipelined_answer::Answer, pipelined_call::Call,
    },
};
use dengine_core::kv::{self, Reader};
use futures::{FutureExt, Stream, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use prost::Message;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::{Code, Status, Streaming};

use super::{Serving, writes::Mutation};
use crate::{
    error::RequestError,
    node::Written,
    server::{forward::Origin, gate::Admitted, status::request_status},
};

/// Calls under way on one stream; a client beyond it waits on its own side.
const CALLS_PER_STREAM_MAX: usize = 4096;

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
#[derive(Default)]
struct Writes {
    calls: Vec<(u64, Call)>,
    /// Once they are let in.
    admitted: Option<Admitted>,
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

    /// Takes in frames as long as there is room for their calls.
    fn take_in(&mut self, context: &mut Context<'_>) {
        while self.under_way < CALLS_PER_STREAM_MAX
            && let Inbound::Open(inbound) = &mut self.inbound
        {
            match inbound.poll_next_unpin(context) {
                Poll::Ready(Some(Ok(frame))) => self.begin(frame),
                Poll::Ready(Some(Err(status))) => {
                    self.inbound = Inbound::Ended(Some(bad_frame(&status)));
                }
                Poll::Ready(None) => self.inbound = Inbound::Ended(None),
                Poll::Pending => return,
            }
        }
    }

    fn begin(&mut self, frame: PipelineRequest) {
        self.under_way += frame.calls.len();
        // By the freshness that they ask for.
        let mut gets: [VecDeque<(u64, GetRequest)>; 3] = Default::default();
        let (mut writes, mut commands) = (Writes::default(), Vec::new());
        for PipelinedCall { id, call } in frame.calls {
            match call {
                Some(Call::Get(get)) => match Consistency::try_from(get.consistency) {
                    Ok(Consistency::Eventual) => gets[0].push_back((id, get)),
                    Ok(Consistency::Lease) => gets[1].push_back((id, get)),
                    Ok(Consistency::Unspecified | Consistency::Linearizable) => {
                        gets[2].push_back((id, get));
                    }
                    // Each waits for a revision of its own.
                    Ok(Consistency::Session) | Err(_) => self.read(id, get),
                },
                Some(Call::Range(range)) => self.read(id, range),
                Some(call) => match self.serving.plan(&call) {
                    Ok(Plan::Together(command)) => {
                        writes.calls.push((id, call));
                        commands.push(command);
                    }
                    Ok(Plan::Alone) => self.write_alone(id, call),
                    Err(status) => self.answer(failed(id, &status)),
                },
                None => self.answer(failed(id, &unknown_call())),
            }
        }
        self.write_together(writes, commands);
        let levels = [
            Consistency::Eventual,
            Consistency::Lease,
            Consistency::Linearizable,
        ];
        for (gets, level) in gets.into_iter().zip(levels) {
            self.read_together(gets, level);
        }
    }

    fn write_together(&mut self, mut writes: Writes, commands: Vec<kv::Request>) {
        if commands.is_empty() {
            return;
        }
        match self.admit(writes.calls.len()) {
            Ok(admitted) => writes.admitted = Some(admitted),
            Err(full) => {
                let ids = writes.calls.iter().map(|(id, _)| *id);
                return ids.for_each(|id| self.answer(failed(id, &full)));
            }
        }
        let serving = Arc::clone(&self.serving);
        self.work(async move {
            let results = serving.node.write_all(commands).await;
            Done::Written(writes, results)
        });
    }

    /// A write that takes more than one step.
    fn write_alone(&mut self, id: u64, call: Call) {
        let (serving, origin) = (Arc::clone(&self.serving), self.origin);
        self.work(async move { Done::Answered(serving.write_framed(id, call, origin).await) });
    }

    /// Answers writes, or has the leader answer them.
    fn finish(&mut self, writes: Writes, results: Vec<Result<Written, RequestError>>) {
        for ((id, call), result) in writes.calls.into_iter().zip(results) {
            let method = method(&call);
            let result = match result {
                Ok(written) => self.serving.answer_framed(&call, written),
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
            if let Some(admitted) = &writes.admitted {
                admitted.answered(method, code(&result));
            }
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

    fn admit(&self, calls: usize) -> Result<Admitted, Status> {
        let count = u32::try_from(calls).unwrap_or(u32::MAX);
        self.serving.gate.admit(count)
    }

    fn read<R: Read>(&mut self, id: u64, request: R) {
        let serving = Arc::clone(&self.serving);
        let work = async move {
            let read = request.read(&serving);
            serving.gate.pass(R::METHOD, read).await
        };
        self.work(answered::<R>(id, work));
    }

    fn read_together(&mut self, gets: VecDeque<(u64, GetRequest)>, level: Consistency) {
        if gets.is_empty() {
            return;
        }
        let admitted = match self.admit(gets.len()) {
            Ok(admitted) => admitted,
            Err(full) => {
                gets.iter()
                    .for_each(|(id, _)| self.answer(failed(*id, &full)));
                return;
            }
        };
        let reads = Reads { admitted, gets };
        let by_lease = level == Consistency::Lease;
        if level == Consistency::Eventual || by_lease && self.serving.node.lease_covers() {
            self.readable.push_back(reads);
            return;
        }
        if by_lease
            && self.origin == Origin::Client
            && let Some(leader) = self.serving.node.other_leader()
        {
            // It could answer without a round.
            self.leader = leader.client_address;
        }
        let serving = Arc::clone(&self.serving);
        self.work(async move {
            let fresh = serving.freshen(level.into(), None).await;
            Done::Fresh(reads, fresh)
        });
    }

    fn work(&self, work: impl Future<Output = Done> + Send + 'static) {
        self.working.push(work.boxed());
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

/// How a call that writes is made.
enum Plan {
    /// With the others of its frame.
    Together(kv::Request),
    Alone,
}

/// What is done alike for every call that writes.
macro_rules! for_each_write {
    ($call:expr, $it:ident => $work:expr, otherwise $otherwise:expr) => {
        match $call {
            Call::Put($it) => $work,
            Call::Delete($it) => $work,
            Call::CompareAndSwap($it) => $work,
            Call::Batch($it) => $work,
            Call::Compact($it) => $work,
            Call::OpenSession($it) => $work,
            Call::KeepAliveSession($it) => $work,
            Call::CloseSession($it) => $work,
            Call::Get(_) | Call::Range(_) => $otherwise,
        }
    };
}

impl Serving {
    fn plan(&self, call: &Call) -> Result<Plan, Status> {
        fn plan<M: Mutation>(serving: &Serving, request: &M) -> Result<Plan, Status> {
            Ok(if request.returned().is_empty() {
                Plan::Together(serving.command(request)?)
            } else {
                Plan::Alone
            })
        }
        for_each_write!(call, it => plan(self, it), otherwise Err(unknown_call()))
    }

    fn answer_framed(&self, call: &Call, written: Written) -> Result<Answer, Status> {
        fn answer<M: Mutation>(
            serving: &Serving,
            request: &M,
            written: Written,
        ) -> Result<Answer, Status> {
            serving.answer(request, written).map(M::frame)
        }
        for_each_write!(call, it => answer(self, it, written), otherwise Err(unknown_call()))
    }

    async fn write_framed(&self, id: u64, call: Call, origin: Origin) -> PipelinedAnswer {
        async fn write<M: Mutation>(
            serving: &Serving,
            id: u64,
            request: M,
            origin: Origin,
        ) -> PipelinedAnswer {
            framed::<M>(id, serving.write(request, origin).await)
        }
        for_each_write!(call, it => write(self, id, it, origin).await,
            otherwise failed(id, &unknown_call()))
    }
}

fn method(call: &Call) -> &'static str {
    fn method<C: KvCall>(_: &C) -> &'static str {
        C::METHOD
    }
    for_each_write!(call, it => method(it), otherwise "")
}

fn code<T>(result: &Result<T, Status>) -> Code {
    result.as_ref().map_or_else(Status::code, |_| Code::Ok)
}

/// A call that changes nothing, apart from its reading.
trait Read: KvCall {
    fn read(self, serving: &Serving) -> impl Future<Output = Result<Self::Answer, Status>> + Send;
}

impl Read for GetRequest {
    async fn read(self, serving: &Serving) -> Result<Self::Answer, Status> {
        serving.get(self).await
    }
}

impl Read for dengine_api::v1::RangeRequest {
    async fn read(self, serving: &Serving) -> Result<Self::Answer, Status> {
        serving.range(self).await
    }
}

fn found(id: u64, answer: Answer) -> PipelinedAnswer {
    PipelinedAnswer {
        id,
        answer: Some(answer),
    }
}

async fn answered<C: KvCall>(
    id: u64,
    work: impl Future<Output = Result<C::Answer, Status>>,
) -> Done {
    Done::Answered(framed::<C>(id, work.await))
}

fn framed<C: KvCall>(id: u64, result: Result<C::Answer, Status>) -> PipelinedAnswer {
    match result {
        Ok(answer) => found(id, C::frame(answer)),
        Err(status) => failed(id, &status),
    }
}

fn failed(id: u64, status: &Status) -> PipelinedAnswer {
    let leader = status.metadata().get(LEADER_HINT_METADATA);
    let error = CallError {
        code: status.code().into(),
        message: status.message().to_owned(),
        leader: leader
            .and_then(|leader| leader.to_str().ok())
            .unwrap_or_default()
            .to_owned(),
    };
    PipelinedAnswer {
        id,
        answer: Some(Answer::Error(error)),
    }
}

fn unknown_call() -> Status {
    Status::unimplemented("the call is missing, or not known to this version of the server")
}

/// What the transport says of a frame that it can't read; tonic's codes mean other things in our API.
fn bad_frame(status: &Status) -> Status {
    match status.code() {
        Code::OutOfRange | Code::Internal => Status::invalid_argument(format!(
            "the stream ends at a frame that can't be read, or is larger than {FRAME_BYTES_MAX} bytes: {}",
            status.message()
        )),
        code => Status::new(code, status.message()),
    }
}
