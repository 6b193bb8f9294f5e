//! `Kv.Pipeline`: many calls over one stream.
//!
//! What came in one frame waits together: its writes are one future, and so are its reads of single
//! keys that ask for the same freshness; they are read when there is room for their answers. Every
//! other call is a future of its own. What has ended when the stream is polled is one frame of
//! answers.
//!
//! `dengine_protocol::checks::frame` sorts the calls of a frame, [`inbound`] begins them, here they
//! are answered, and [`outbound`] puts the answers into frames. [`waiting`] keeps those for which
//! there is no place yet, [`flight`] counts frames until they are sent, and [`stall`] ends the
//! stream of a client that does not read.
//!
//! A frame is bounded in bytes, whatever its calls return: what does not fit waits for the next
//! one. Keys are read a few at a time, so that a slow disk holds up no other for long.

mod flight;
mod inbound;
mod outbound;
mod stall;
mod waiting;

pub(super) use stall::Supervised;

use std::collections::{HashMap, VecDeque};
use std::iter::Zip;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use std::vec;

use dengine_kv::Reader;
use dengine_protocol::KvCall;
use dengine_protocol::checks::frame::{self, Asked, failed, found, framed};
use dengine_protocol::checks::status::request_status;
use dengine_protocol::v1::pipelined_call::Call;
use dengine_protocol::v1::{GetRequest, PipelineRequest, PipelineResponse, PipelinedAnswer};
use futures::future::{AbortHandle, BoxFuture};
use futures::stream::FuturesUnordered;
use futures::{Stream, StreamExt};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::{Code, Status, Streaming};

use self::flight::Flight;
use self::outbound::Outbound;
use self::waiting::Lines;
use super::{Caller, Serving, answered};
use crate::error::RequestError;
use crate::node::Written;
use crate::node::answers::Held;
use crate::node::waiters::Waiters;
use crate::server::forward::Origin;
use crate::server::gate::{Admitted, OfStream};
use crate::server::serving::writes::no_answer;
use crate::telemetry::traces::Begun;

/// How long keys are read before others have their turn on the thread.
const READ_SLICE: Duration = Duration::from_micros(250);

/// One stream of calls, as the stream of its answers.
pub(in crate::server) struct Pipeline {
    serving: Arc<Serving>,
    caller: Caller,
    inbound: Inbound,
    stopping: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    working: FuturesUnordered<BoxFuture<'static, Done>>,
    /// Ends those of them that work for a single call.
    alone: HashMap<u64, AbortHandle>,
    /// The callers of calls that are made together.
    together: Vec<Weak<Waiters>>,
    /// Writes that are decided, with answers that are in no frame yet.
    decided: VecDeque<Decided>,
    /// Reads that are fresh enough.
    readable: VecDeque<Reads>,
    /// Calls that wait until others of this stream give their places back.
    waiting: Lines,
    /// The places that its calls hold.
    places: OfStream,
    /// Calls that were taken in and are in no frame of answers yet.
    under_way: usize,
    outbound: Outbound,
    /// Whether the calls that are about to end had their chance to join the next frame.
    yielded: bool,
    /// Whether there is more to do, after others had their turn.
    paused: bool,
}

enum Inbound {
    Open(Box<Streaming<PipelineRequest>>),
    /// The client has ended its side, or broke the rules, and is told how.
    Ended(Option<Status>),
}

/// What a future of the stream came to.
enum Done {
    Answered(PipelinedAnswer, Option<Held>),
    /// Its client has given it up.
    Cancelled(u64),
    Written(Writes, Vec<WriteResult>, Option<Held>),
    Fresh(Reads, Result<(), Status>),
}

type WriteResult = Result<Written, RequestError>;

/// Writes that wait together.
struct Writes {
    /// Shared with those that the leader is to answer: they keep their places.
    admitted: Arc<Admitted>,
    arrived: Instant,
    calls: Vec<(Asked, Call)>,
    /// Those that are traced, by their ids, in the order of the calls.
    traced: VecDeque<(u64, Begun)>,
}

/// Writes that were decided together, from the first that is not answered.
struct Decided {
    admitted: Arc<Admitted>,
    arrived: Instant,
    rest: Zip<vec::IntoIter<(Asked, Call)>, vec::IntoIter<WriteResult>>,
    /// What their answers take.
    held: Option<Held>,
    /// Of the rest.
    traced: VecDeque<(u64, Begun)>,
}

impl Decided {
    /// The next call, if it is traced.
    fn traced(&mut self, id: u64) -> Option<Begun> {
        self.traced.front().filter(|(traced, _)| *traced == id)?;
        self.traced.pop_front().map(|(_, traced)| traced)
    }
}

/// Reads of single keys that wait together.
struct Reads {
    admitted: Admitted,
    /// Of all of them, those that are answered included.
    waiters: Arc<Waiters>,
    gets: VecDeque<(Asked, GetRequest)>,
}

impl Pipeline {
    pub(super) fn new(
        serving: Arc<Serving>,
        caller: Caller,
        inbound: Streaming<PipelineRequest>,
    ) -> Self {
        Self {
            stopping: Some(Box::pin(serving.stop.clone().cancelled_owned())),
            outbound: Outbound::new(&serving.answers, caller.source.address()),
            serving,
            caller,
            inbound: Inbound::Open(Box::new(inbound)),
            working: FuturesUnordered::new(),
            alone: HashMap::new(),
            together: Vec::new(),
            decided: VecDeque::new(),
            readable: VecDeque::new(),
            waiting: Lines::default(),
            places: OfStream::default(),
            under_way: 0,
            yielded: false,
            paused: false,
        }
    }

    /// Answers writes that are decided until all are answered or the frame is full.
    fn finish(&mut self) {
        while let Some(mut decided) = self.decided.pop_front() {
            while !self.outbound.is_full() {
                match decided.rest.next() {
                    Some(((asked, call), result)) => {
                        self.finish_one(&mut decided, asked, call, result);
                    }
                    None => break,
                }
            }
            if decided.rest.len() > 0 {
                self.decided.push_front(decided);
                return;
            }
            self.outbound.hold(decided.held);
        }
    }

    /// Answers a write, or has the leader answer it.
    fn finish_one(&mut self, decided: &mut Decided, asked: Asked, call: Call, result: WriteResult) {
        let id = asked.id;
        let traced = decided.traced(id);
        let method = frame::method(&call);
        let result = match result {
            Ok(Written { term, outcome, .. }) => {
                let header = self.serving.headers.in_term(term);
                frame::answer(&call, header, outcome).map_err(|why| no_answer(method, why))
            }
            Err(error) => {
                if let (RequestError::NotLeader { leader: Some(_) }, Origin::Client) =
                    (&error, self.caller.origin)
                {
                    let until = self.until(decided.arrived, asked);
                    let admitted = Arc::clone(&decided.admitted);
                    return self.forward(admitted, (id, traced), until, call, error);
                }
                Err(request_status(&error))
            }
        };
        decided.admitted.answered(method, code(&result));
        answered(traced, &result);
        self.outbound
            .answer(result.map_or_else(|status| failed(id, &status), |answer| found(id, answer)));
    }

    pub(super) fn forward(
        &mut self,
        admitted: Arc<Admitted>,
        (id, traced): (u64, Option<Begun>),
        until: Instant,
        call: Call,
        error: RequestError,
    ) {
        let serving = Arc::clone(&self.serving);
        let caller = Caller {
            until: Some(until),
            ..self.caller.clone()
        };
        let caller = caller.traced(traced.as_ref());
        self.work_alone(id, async move {
            let method = frame::method(&call);
            let forwarded = serving.forward(error, &caller, method, call).await;
            admitted.answered(method, code(&forwarded));
            answered(traced, &forwarded);
            match forwarded {
                Ok((answered, held)) => Done::Answered(found(id, answered.answer), held),
                Err(status) => Done::Answered(failed(id, &status), None),
            }
        });
    }

    /// Fills the next frame with what has ended and what can be read.
    fn collect(&mut self, context: &mut Context<'_>) {
        loop {
            self.finish();
            self.read_keys();
            self.begin_waiting();
            if self.paused || self.outbound.is_full() {
                return;
            }
            if !self.readable.is_empty() {
                continue;
            }
            match self.working.poll_next_unpin(context) {
                Poll::Ready(Some(done)) => self.done(done),
                Poll::Ready(None) | Poll::Pending => return,
            }
        }
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Answered(answered, held) => {
                self.alone.remove(&answered.id);
                self.outbound.answer(answered);
                self.outbound.hold(held);
            }
            Done::Cancelled(id) => {
                self.alone.remove(&id);
                self.outbound.answer(failed(id, &cancelled()));
            }
            Done::Written(writes, results, held) => {
                let Writes {
                    admitted,
                    arrived,
                    calls,
                    traced,
                } = writes;
                self.decided.push_back(Decided {
                    admitted,
                    arrived,
                    rest: calls.into_iter().zip(results),
                    held,
                    traced,
                });
            }
            Done::Fresh(reads, Ok(())) => self.readable.push_back(reads),
            Done::Fresh(reads, Err(status)) => {
                for (Asked { id, .. }, _) in reads.gets {
                    reads.admitted.answered(GetRequest::METHOD, status.code());
                    self.outbound.answer(failed(id, &status));
                }
            }
        }
    }

    /// Reads keys until all are read, the frame is full, or it is others' turn.
    fn read_keys(&mut self) {
        if self.readable.is_empty() {
            return;
        }
        let begun = Instant::now();
        let serving = Arc::clone(&self.serving);
        let reader = serving.reader();
        // One look at the state for all of them.
        let mut gets = reader.as_ref().map(Reader::gets);
        let header = serving.headers.now();
        let whose = self.caller.source.address();
        while let Some(mut reads) = self.readable.pop_front() {
            while let Some((asked, get)) = reads.gets.pop_front() {
                // Each time: a slow disk may take milliseconds for one.
                let now = Instant::now();
                self.paused = now - begun > READ_SLICE;
                if self.paused || self.outbound.is_full() {
                    reads.gets.push_front((asked, get));
                    self.readable.push_front(reads);
                    return;
                }
                let id = asked.id;
                let place = reads.waiters.count() - reads.gets.len() - 1;
                let result = match &mut gets {
                    _ if reads.waiters.is_cancelled(place) => Err(cancelled()),
                    _ if reads.waiters.has_left(place, now) => Err(too_late()),
                    Ok(gets) => serving.get_now(gets, header, &get, whose),
                    Err(status) => Err(status.clone()),
                };
                reads.admitted.answered(GetRequest::METHOD, code(&result));
                let (result, held) = match result {
                    Ok((response, held)) => (Ok(response), held),
                    Err(status) => (Err(status), None),
                };
                self.outbound.answer(framed::<GetRequest>(id, result));
                self.outbound.hold(held);
            }
        }
    }

    /// Asks the client to go elsewhere when this member is about to stop.
    fn tell_of_stop(&mut self, context: &mut Context<'_>) {
        if let Some(stopping) = &mut self.stopping
            && stopping.as_mut().poll(context).is_ready()
        {
            self.stopping = None;
            self.outbound.tell_of_stop();
        }
    }

    /// The frames on their way.
    pub(super) fn flight(&self) -> &Arc<Flight> {
        self.outbound.flight()
    }
}

impl Stream for Pipeline {
    type Item = Result<PipelineResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        this.tell_of_stop(context);
        this.take_in(context);
        this.collect(context);
        if std::mem::take(&mut this.paused) && !this.outbound.is_full() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if this.outbound.has_something() {
            // Without this a frame would leave with its first answer: others of the same batch end
            // right behind it.
            let more_may_end = this.under_way > this.outbound.answers();
            if more_may_end
                && !this.outbound.is_full()
                && !std::mem::replace(&mut this.yielded, true)
            {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            this.yielded = false;
            let frame = this.outbound.take_frame();
            this.under_way -= frame.answers.len();
            return Poll::Ready(Some(Ok(frame)));
        }
        match &mut this.inbound {
            Inbound::Ended(why) if this.under_way == 0 => Poll::Ready(why.take().map(Err)),
            Inbound::Ended(_) | Inbound::Open(_) => Poll::Pending,
        }
    }
}

/// What a call is told that its client has given up.
fn cancelled() -> Status {
    Status::cancelled("the client gave the call up; a write may or may not take effect")
}

/// What a call is told whose time was over before it was served.
fn too_late() -> Status {
    Status::deadline_exceeded(
        "the time that the client gave the call is over; a write may or may not take effect",
    )
}

fn code<T>(result: &Result<T, Status>) -> Code {
    result.as_ref().map_or_else(Status::code, |_| Code::Ok)
}
