//! Many calls over one stream to one member. What queues while a frame is written is the next frame: there is
//! no timer, and nothing waits for company.
//!
//! ```text
//! callers ──▶ queue ──▶ Outbound ──frames──▶ member
//!    ▲                     │ who waits           │
//!    └──────── read ◀──────┴─────────────────────┘
//! ```
//! A call is in one of three places: in the queue (it has not left), among those that wait (it may have been
//! served), or answered. Which one decides what is told of it when the stream breaks, or when its time is up.
//!
//! The member is told for how long each call is waited for, and which are not waited for any more, so that it
//! does nothing for nobody.

use std::{
    any::Any,
    collections::VecDeque,
    error::Error as _,
    mem,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use dengine_api::{
    FRAME_BYTES_MAX, KvCall, LEADER_HINT_METADATA, LOW_ON_SPACE_METADATA,
    v1::{
        CallError, PipelineRequest, PipelinedAnswer, PipelinedCall, kv_client::KvClient,
        pipelined_answer::Answer, pipelined_call::Call,
    },
};
use futures::Stream;
use prost::Message as _;
use slab::Slab;
use tokio::{
    runtime::Handle,
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        oneshot,
    },
    time::{Instant, timeout_at},
};
use tonic::{
    Code, Request, Status, Streaming,
    metadata::{MetadataMap, MetadataValue},
    transport::Channel,
};

use crate::pool::RESPONSE_BYTES_MAX;

/// More calls than this are not looked at for one frame: they would not fit, or make the first wait for the last.
const CALLS_PER_FRAME_MAX: usize = 1024;

/// What a call in a frame takes besides itself: tags, lengths, its id and its time.
const CALL_OVERHEAD_BYTES: usize = 32;

/// What a call takes, about, while it waits to leave, besides what is sent of it; whether its caller stays or not.
pub const QUEUED_BYTES: usize = 640;

/// More than so many are not cancelled by one frame; the time that each has ends the others.
const CANCELLED_PER_FRAME_MAX: usize = 4096;

/// One member, reached over a stream that is opened when it is needed and again when it broke. Cheap to clone.
///
/// Sends each call once. Deciding what to do about a failure is the caller's part.
#[derive(Clone, Debug)]
pub struct Pipe {
    inner: Arc<Inner>,
}

struct Inner {
    /// Where streams are served, whoever is the first to use one.
    threads: Handle,
    channel: Channel,
    metadata: MetadataMap,
    /// Into the streams that are open now, if any are.
    small: Queue,
    large: Queue,
    on_leader: Option<OnLeader>,
}

type Queue = Mutex<Option<UnboundedSender<News>>>;

impl Inner {
    fn queue(&self, size: Size) -> &Queue {
        match size {
            Size::Small => &self.small,
            Size::Large => &self.large,
        }
    }
}

/// Which stream a call takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    /// It fits into a frame.
    Small,
    /// It is a frame of its own, and one that a member may not take: that ends its stream.
    Large,
}

impl Size {
    fn of(call: &Call) -> Self {
        match call.encoded_len() + CALL_OVERHEAD_BYTES {
            0..=FRAME_BYTES_MAX => Self::Small,
            _ => Self::Large,
        }
    }
}

/// Is told the address of the leader whenever the member says that it had to pass calls on.
pub type OnLeader = Box<dyn Fn(&str) + Send + Sync>;

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipe").finish_non_exhaustive()
    }
}

/// Why a call was not answered, by what may have become of it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PipeError {
    /// It did not leave: nothing was changed.
    #[error("not sent: {0}")]
    NotSent(Arc<str>),
    /// It left, and no answer came back: it may or may not have been served.
    #[error("no answer: {0}")]
    Lost(Arc<str>),
    /// The member answered that it failed.
    #[error(transparent)]
    Answered(#[from] Box<Status>),
}

impl PipeError {
    /// Its time was up before it left.
    pub(crate) fn not_in_time(after: Duration) -> Self {
        Self::NotSent(format!("it could not be sent within {after:?}").into())
    }
}

/// What came of a call.
#[derive(Debug)]
pub struct Answered {
    /// Never an error.
    pub answer: Answer,
    /// See [`PipelinedAnswer::visited`].
    pub visited: u64,
    /// See [`PipelinedAnswer::others_waited`].
    pub others_waited: bool,
}

type Outcome = Result<Answered, PipeError>;

/// What the sending side of a stream hears.
#[derive(Debug)]
enum News {
    Call(Queued),
    /// The caller of some call waits no more.
    CallerLeft,
}

#[derive(Debug)]
struct Queued {
    call: Call,
    caller: oneshot::Sender<Outcome>,
    claim: Arc<Claim>,
    /// Until when it is waited for.
    until: Option<Instant>,
    /// Dropped with it.
    _counted: Option<Counted>,
}

/// Who has a call that has not left: the stream that is to send it, or its caller, who has taken it back.
#[derive(Debug, Default)]
struct Claim(AtomicBool);

impl Claim {
    /// Whether it is had by whoever asks, who is the first to do so.
    fn take(&self) -> bool {
        // Nothing else is read by what this says.
        !self.0.swap(true, Ordering::Relaxed)
    }
}

/// Counts a call's bytes, until it is dropped by all who have it.
pub type Counted = Arc<dyn Any + Send + Sync>;

/// The caller of a call, who may leave.
struct Caller<'a> {
    pipe: &'a Pipe,
    size: Size,
    claim: Arc<Claim>,
    outcome: oneshot::Receiver<Outcome>,
    answered: bool,
}

impl Caller<'_> {
    /// What came of the call. Asked for once.
    async fn outcome(&mut self) -> Outcome {
        let outcome = (&mut self.outcome).await;
        self.answered = true;
        match outcome {
            Ok(outcome) => outcome,
            // Nobody drops a caller unanswered; were it so, nothing milder could be said.
            Err(_) => Err(PipeError::Lost("the stream was given up".into())),
        }
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.outcome.close();
            self.pipe.tell_that_a_caller_left(self.size);
        }
    }
}

impl Pipe {
    /// Calls over `channel`; `metadata` goes with the opening of each stream.
    ///
    /// # Panics
    /// Outside of a runtime. It serves the streams, wherever calls are made.
    #[must_use]
    pub fn new(channel: Channel, metadata: MetadataMap, on_leader: Option<OnLeader>) -> Self {
        Self {
            inner: Arc::new(Inner {
                threads: Handle::current(),
                channel,
                metadata,
                small: Queue::default(),
                large: Queue::default(),
                on_leader,
            }),
        }
    }

    /// Makes one call. The caller waits for so long; that is told to the member, and not watched over here.
    ///
    /// # Errors
    /// See [`PipeError`].
    pub async fn call<C: KvCall + prost::Message>(
        &self,
        request: C,
        patience: Option<Duration>,
    ) -> Result<C::Answer, PipeError> {
        let answered = self.call_any(request.framed(), patience, None).await?;
        unframed::<C>(answered)
    }

    /// As [`Pipe::call`], but only until then. `None` if it had left by then and was not answered; if it had not, it never
    /// leaves.
    ///
    /// # Errors
    /// See [`PipeError`].
    pub(crate) async fn call_until<C: KvCall + prost::Message>(
        &self,
        request: C,
        patience: Duration,
        until: Instant,
    ) -> Result<Option<C::Answer>, PipeError> {
        let mut caller = self.begin(request.framed(), Some(patience), None);
        match timeout_at(until, caller.outcome()).await {
            Ok(outcome) => outcome.and_then(unframed::<C>).map(Some),
            Err(_) if caller.claim.take() => Err(PipeError::not_in_time(patience)),
            Err(_) => Ok(None),
        }
    }

    /// Makes one call of whichever kind. What is too large for a frame has another stream than what is not: a member that takes
    /// nothing as large ends that. What counts it is kept while the call waits to leave, whether its caller stays or not.
    ///
    /// # Errors
    /// See [`PipeError`].
    pub async fn call_any(
        &self,
        call: Call,
        patience: Option<Duration>,
        counted: Option<Counted>,
    ) -> Result<Answered, PipeError> {
        self.begin(call, patience, counted).outcome().await
    }

    fn begin(
        &self,
        call: Call,
        patience: Option<Duration>,
        counted: Option<Counted>,
    ) -> Caller<'_> {
        let size = Size::of(&call);
        let (sender, outcome) = oneshot::channel();
        let claim = Arc::new(Claim::default());
        let queued = Queued {
            call,
            caller: sender,
            claim: Arc::clone(&claim),
            until: patience.and_then(|patience| Instant::now().checked_add(patience)),
            _counted: counted,
        };
        self.submit(queued, size);
        Caller {
            pipe: self,
            size,
            claim,
            outcome,
            answered: false,
        }
    }

    /// So that what was asked for is ended. A stream that takes no more calls is not told: there the time
    /// that each call has ends it.
    fn tell_that_a_caller_left(&self, size: Size) {
        if let Some(open) = &*lock(self.inner.queue(size)) {
            // If it has ended, nothing is left to be ended.
            let _ = open.send(News::CallerLeft);
        }
    }

    /// Queues a call on the open stream, or on a new one.
    fn submit(&self, queued: Queued, size: Size) {
        let mut news = News::Call(queued);
        let mut queue = lock(self.inner.queue(size));
        if let Some(open) = &*queue {
            match open.send(news) {
                Ok(()) => return,
                Err(ended) => news = ended.0,
            }
        }
        let (sender, receiver) = unbounded_channel();
        // The receiver is at hand, so it takes it.
        let _ = sender.send(news);
        let line = Line {
            pipe: Arc::downgrade(&self.inner),
            size,
            queue: sender.downgrade(),
            waiting: Arc::default(),
        };
        *queue = Some(sender);
        self.inner.threads.spawn(line.run(
            self.inner.channel.clone(),
            self.inner.metadata.clone(),
            receiver,
        ));
    }
}

/// The calls of one stream that have left and are not answered.
#[derive(Debug, Default)]
struct Waiting {
    callers: Slab<Sent>,
    /// What was still in the queue when the stream could take no more.
    unsent: Vec<Queued>,
    ended: bool,
}

/// A call that has left.
#[derive(Debug)]
struct Sent {
    caller: oneshot::Sender<Outcome>,
    /// Whether the member was told that nobody waits for it.
    cancelled: bool,
}

/// One stream, as its reading side sees it.
struct Line {
    pipe: Weak<Inner>,
    size: Size,
    queue: tokio::sync::mpsc::WeakUnboundedSender<News>,
    waiting: Arc<Mutex<Waiting>>,
}

impl Line {
    async fn run(self, channel: Channel, metadata: MetadataMap, queue: UnboundedReceiver<News>) {
        let outbound = Outbound {
            queue,
            taken: VecDeque::new(),
            callers_left: false,
            waiting: Arc::clone(&self.waiting),
            yielded: false,
        };
        let mut request = Request::new(outbound);
        *request.metadata_mut() = metadata;
        let mut kv = KvClient::new(channel).max_decoding_message_size(RESPONSE_BYTES_MAX);
        let opened = kv.pipeline(request).await;
        let was_open = opened.is_ok();
        let ended = match opened {
            Ok(response) => self.read(response.into_inner()).await,
            Err(status) => Err(status),
        };
        self.retire();
        self.fail(ended.err(), was_open);
    }

    /// Hands out answers until the stream ends.
    async fn read(
        &self,
        mut inbound: Streaming<dengine_api::v1::PipelineResponse>,
    ) -> Result<(), Status> {
        loop {
            match inbound.message().await? {
                Some(frame) => {
                    let mut waiting = lock(&self.waiting);
                    frame.answers.into_iter().for_each(|it| waiting.answer(it));
                    drop(waiting);
                    if frame.closing {
                        self.retire();
                    }
                    self.hear_of_leader(&frame.leader);
                }
                None => return Ok(()),
            }
        }
    }

    /// Further calls go over another stream; once those in the queue have left, this side of it ends.
    fn retire(&self) {
        if let (Some(pipe), Some(own)) = (self.pipe.upgrade(), self.queue.upgrade()) {
            let mut queue = lock(pipe.queue(self.size));
            if queue.as_ref().is_some_and(|open| open.same_channel(&own)) {
                *queue = None;
            }
        }
    }

    fn hear_of_leader(&self, leader: &str) {
        if !leader.is_empty()
            && let Some(pipe) = self.pipe.upgrade()
            && let Some(on_leader) = &pipe.on_leader
        {
            on_leader(leader);
        }
    }

    /// Tells those that are not answered why the stream ended.
    fn fail(&self, error: Option<Status>, was_open: bool) {
        let ended = || "the member ended the stream".into();
        let why: Arc<str> = error.as_ref().map_or_else(ended, describe);
        let mut waiting = lock(&self.waiting);
        waiting.ended = true;
        // Of several it is not known which was refused: those before it may have been served.
        let is_the_one = self.size == Size::Large && waiting.callers.len() == 1;
        let is_refusal = |it: &Status| match it.code() {
            // As many streams as the connection may have: nothing of it was read.
            Code::ResourceExhausted => !was_open,
            Code::InvalidArgument => is_the_one,
            _ => false,
        };
        // Errors of the connection have a source.
        let refusal = error.filter(|it| it.source().is_none() && is_refusal(it));
        let refusal = refusal.map(Box::new);
        for sent in waiting.callers.drain() {
            let lost = || PipeError::Lost(Arc::clone(&why));
            let error = refusal.clone().map_or_else(lost, PipeError::from);
            let _ = sent.caller.send(Err(error));
        }
        for queued in mem::take(&mut waiting.unsent) {
            let _ = queued
                .caller
                .send(Err(PipeError::NotSent(Arc::clone(&why))));
        }
    }
}

impl Waiting {
    fn answer(&mut self, answered: PipelinedAnswer) {
        // Whoever does not wait for it any more has given up; an id that was never given is not ours to judge.
        let key = usize::try_from(answered.id).unwrap_or(usize::MAX);
        let Some(sent) = self.callers.try_remove(key) else {
            return;
        };
        let _ = sent.caller.send(match answered.answer {
            Some(Answer::Error(error)) => Err(PipeError::from(Box::new(status(error)))),
            Some(answer) => Ok(Answered {
                answer,
                visited: answered.visited,
                others_waited: answered.others_waited,
            }),
            None => Err(PipeError::from(Box::new(Status::internal(
                "the member's answer is missing, or of a kind that this client does not know",
            )))),
        });
    }

    /// Those whose callers have left since they were last looked for.
    fn cancel(&mut self) -> Vec<u64> {
        let left = |(_, sent): &(usize, &mut Sent)| !sent.cancelled && sent.caller.is_closed();
        let left = self.callers.iter_mut().filter(left);
        let left = left.take(CANCELLED_PER_FRAME_MAX);
        left.map(|(key, sent)| {
            sent.cancelled = true;
            key as u64
        })
        .collect()
    }
}

/// The sending side of a stream.
struct Outbound {
    queue: UnboundedReceiver<News>,
    /// Taken from the queue, and in no frame yet.
    taken: VecDeque<Queued>,
    /// Whether the next frame is to say so.
    callers_left: bool,
    waiting: Arc<Mutex<Waiting>>,
    /// Whether the callers that are about to run had their chance to join the next frame.
    yielded: bool,
}

impl Stream for Outbound {
    type Item = PipelineRequest;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            let ended = this.take_news(context);
            if this.taken.is_empty() && !this.callers_left {
                return if ended {
                    Poll::Ready(None)
                } else {
                    Poll::Pending
                };
            }
            // Without this each frame would leave with its first call: whoever queues one wakes us to run next.
            if !mem::replace(&mut this.yielded, true) && this.taken.len() < CALLS_PER_FRAME_MAX {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            this.yielded = false;
            match this.frame() {
                // All of it was given up before it left.
                Some(frame) if frame.calls.is_empty() && frame.cancelled.is_empty() => {}
                frame => return Poll::Ready(frame),
            }
        }
    }
}

impl Outbound {
    /// Takes in what queued; whether nothing more will.
    fn take_news(&mut self, context: &mut Context<'_>) -> bool {
        let room = CALLS_PER_FRAME_MAX.saturating_sub(self.taken.len());
        let mut news = Vec::new();
        let ended = match self.queue.poll_recv_many(context, &mut news, room) {
            Poll::Ready(0) if room > 0 => true,
            Poll::Ready(_) | Poll::Pending => false,
        };
        for news in news {
            match news {
                News::Call(queued) => self.taken.push_back(queued),
                News::CallerLeft => self.callers_left = true,
            }
        }
        ended
    }

    /// As much of what was taken as fits; `None` if the stream has ended.
    fn frame(&mut self) -> Option<PipelineRequest> {
        let mut waiting = lock(&self.waiting);
        if waiting.ended {
            return None;
        }
        let mut frame = PipelineRequest::default();
        if mem::take(&mut self.callers_left) {
            frame.cancelled = waiting.cancel();
        }
        let mut bytes = frame.encoded_len();
        while let Some(queued) = self.taken.pop_front() {
            // Its caller has given up, and nothing was changed.
            if queued.caller.is_closed() {
                continue;
            }
            let mut call = PipelinedCall {
                id: 0,
                call: Some(queued.call),
                timeout_ms: queued.until.map_or(0, timeout_ms),
            };
            let with_it = bytes + call.encoded_len() + CALL_OVERHEAD_BYTES;
            let is_alone = frame.calls.is_empty() && frame.cancelled.is_empty();
            if with_it > FRAME_BYTES_MAX && !is_alone {
                let call = call.call.expect("it was put there above");
                self.taken.push_front(Queued { call, ..queued });
                break;
            }
            // Its caller, who is about to leave, has been told that it does not leave.
            if !queued.claim.take() {
                continue;
            }
            bytes = with_it;
            let sent = Sent {
                caller: queued.caller,
                cancelled: false,
            };
            call.id = waiting.callers.insert(sent) as u64;
            frame.calls.push(call);
        }
        Some(frame)
    }
}

impl Drop for Outbound {
    /// What did not leave is told so when it is known why.
    fn drop(&mut self) {
        self.queue.close();
        let mut unsent: Vec<_> = self.taken.drain(..).collect();
        while let Ok(news) = self.queue.try_recv() {
            if let News::Call(queued) = news {
                unsent.push(queued);
            }
        }
        let mut waiting = lock(&self.waiting);
        if !waiting.ended {
            waiting.unsent.extend(unsent);
            return;
        }
        for queued in unsent {
            let ended = PipeError::NotSent("the stream ended".into());
            let _ = queued.caller.send(Err(ended));
        }
    }
}

/// What is left until then, in the unit of the wire, where 0 would mean no end.
fn timeout_ms(until: Instant) -> u32 {
    let left = until.saturating_duration_since(Instant::now());
    u32::try_from(left.as_millis()).unwrap_or(u32::MAX).max(1)
}

fn unframed<C: KvCall>(answered: Answered) -> Result<C::Answer, PipeError> {
    C::unframed(answered.answer).map_err(|_| {
        let message = "the member answered another question than was asked";
        PipeError::from(Box::new(Status::internal(message)))
    })
}

fn status(error: CallError) -> Status {
    let mut status = Status::new(Code::from_i32(error.code), error.message);
    if let Ok(leader) = MetadataValue::try_from(error.leader)
        && !leader.is_empty()
    {
        status.metadata_mut().insert(LEADER_HINT_METADATA, leader);
    }
    if error.low_on_space {
        let low = MetadataValue::from_static("1");
        status.metadata_mut().insert(LOW_ON_SPACE_METADATA, low);
    }
    status
}

fn describe(status: &Status) -> Arc<str> {
    crate::error::describe(status).into()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::{future::pending, io};

    use dengine_api::v1::PutRequest;
    use hyper_util::rt::TokioIo;
    use tokio::{net::TcpStream, time::timeout};
    use tonic::transport::Endpoint;
    use tower::service_fn;

    use super::*;

    fn outbound(queue: UnboundedReceiver<News>) -> Outbound {
        Outbound {
            queue,
            taken: VecDeque::new(),
            callers_left: false,
            waiting: Arc::default(),
            yielded: true,
        }
    }

    fn queued(put: PutRequest) -> (Queued, oneshot::Receiver<Outcome>) {
        let (caller, outcome) = oneshot::channel();
        let queued = Queued {
            call: Call::Put(put),
            caller,
            claim: Arc::default(),
            until: None,
            _counted: None,
        };
        (queued, outcome)
    }

    /// Thousands of calls that were given up, and a large one behind them, ended the stream.
    #[test]
    fn what_a_frame_cancels_makes_it_no_larger_than_a_frame() {
        let (sender, queue) = unbounded_channel();
        let mut outbound = outbound(queue);
        let mut next = || {
            outbound.yielded = true;
            let mut context = Context::from_waker(std::task::Waker::noop());
            match Pin::new(&mut outbound).poll_next(&mut context) {
                Poll::Ready(Some(frame)) => frame,
                _ => panic!("there is something to send"),
            }
        };
        let (small, callers): (Vec<_>, Vec<_>) = (0..CALLS_PER_FRAME_MAX)
            .map(|_| queued(PutRequest::default()))
            .unzip();
        for small in small {
            sender.send(News::Call(small)).unwrap();
        }
        assert_eq!(next().calls.len(), CALLS_PER_FRAME_MAX);
        drop(callers);
        let value = vec![0; FRAME_BYTES_MAX - 2 * CALL_OVERHEAD_BYTES].into();
        let (large, _caller) = queued(PutRequest {
            value,
            ..PutRequest::default()
        });
        sender.send(News::CallerLeft).unwrap();
        sender.send(News::Call(large)).unwrap();
        let frames = [next(), next()];
        let counts = frames
            .each_ref()
            .map(|it| (it.cancelled.len(), it.calls.len()));
        assert_eq!(counts, [(CALLS_PER_FRAME_MAX, 0), (0, 1)]);
        assert!(frames.iter().all(|it| it.encoded_len() <= FRAME_BYTES_MAX));
    }

    /// Their callers were told that they may have taken effect.
    #[tokio::test]
    async fn calls_whose_time_is_up_before_they_leave_were_not_sent() {
        let nowhere = service_fn(|_| pending::<io::Result<TokioIo<TcpStream>>>());
        let nowhere = Endpoint::from_static("http://nowhere").connect_with_connector_lazy(nowhere);
        let pipe = Pipe::new(nowhere, MetadataMap::new(), None);
        let brief = Duration::from_millis(50);
        let until = Instant::now() + brief;
        let puts = (0..3).map(|_| pipe.call_until(PutRequest::default(), brief, until));
        for ended in futures::future::join_all(puts).await {
            assert!(matches!(ended, Err(PipeError::NotSent(_))), "{ended:?}");
        }
    }

    #[test]
    fn what_is_in_a_frame_can_not_be_taken_back_and_what_was_taken_back_is_in_none() {
        let (sender, queue) = unbounded_channel();
        let mut outbound = outbound(queue);
        let value = vec![0; FRAME_BYTES_MAX / 2];
        let (calls, _callers): (Vec<_>, Vec<_>) = (0..3)
            .map(|_| {
                queued(PutRequest {
                    value: value.clone().into(),
                    ..PutRequest::default()
                })
            })
            .unzip();
        let claims: Vec<_> = calls.iter().map(|it| Arc::clone(&it.claim)).collect();
        for call in calls {
            sender.send(News::Call(call)).unwrap();
        }
        let mut next = || {
            outbound.yielded = true;
            let mut context = Context::from_waker(std::task::Waker::noop());
            Pin::new(&mut outbound).poll_next(&mut context)
        };
        let calls = |polled| match polled {
            Poll::Ready(Some(PipelineRequest { calls, .. })) => calls.len(),
            _ => 0,
        };
        assert_eq!(calls(next()), 1);
        assert!(!claims[0].take(), "it has left");
        // The second one waits in front of the next frame, the third behind it.
        assert!(claims[1].take() && claims[2].take());
        assert_eq!(calls(next()), 0);
    }

    /// It was given back when the caller left, while the request waited for a connection.
    #[tokio::test]
    async fn what_counts_a_large_call_stays_until_it_has_left() {
        let nowhere = service_fn(|_| pending::<io::Result<TokioIo<TcpStream>>>());
        let nowhere = Endpoint::from_static("http://nowhere").connect_with_connector_lazy(nowhere);
        let pipe = Pipe::new(nowhere, MetadataMap::new(), None);
        let put = PutRequest {
            value: vec![0; FRAME_BYTES_MAX].into(),
            ..PutRequest::default()
        };
        let counted = Arc::new(());
        let call = pipe.call_any(Call::Put(put), None, Some(Arc::clone(&counted) as Counted));
        let left = timeout(Duration::from_millis(50), call).await;
        left.expect_err("nobody answers");
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(Arc::strong_count(&counted), 2);
        drop(pipe);
    }

    /// Where a server passed calls on, everybody's went over a stream that the threads of whoever had opened it served.
    #[test]
    fn a_stream_is_served_where_the_pipe_was_made_whoever_calls_first() {
        let runtime = || tokio::runtime::Runtime::new().unwrap();
        let (usual, other) = (runtime(), runtime());
        let alive = |it: &tokio::runtime::Runtime| it.metrics().num_alive_tasks();
        let pipe = usual.block_on(async {
            let connector = service_fn(|_| pending::<io::Result<TokioIo<TcpStream>>>());
            let nowhere = Endpoint::from_static("http://nowhere");
            Pipe::new(
                nowhere.connect_with_connector_lazy(connector),
                MetadataMap::new(),
                None,
            )
        });
        let before = alive(&usual);
        other.block_on(async {
            let call = pipe.call(PutRequest::default(), None);
            let left = timeout(Duration::from_millis(50), call).await;
            left.expect_err("nobody answers");
        });
        assert_eq!((alive(&usual), alive(&other)), (before + 1, 0));
    }

    #[test]
    fn what_waits_to_leave_takes_no_more_than_is_said() {
        // Besides the queue: where its outcome would be put, and a buffer for its key.
        let outcome = size_of::<Outcome>() + 64;
        let claim = size_of::<Claim>() + 2 * size_of::<usize>();
        let takes = size_of::<News>() + outcome + claim + 32;
        assert!(
            (QUEUED_BYTES / 2..=QUEUED_BYTES).contains(&takes),
            "{takes}"
        );
    }

    /// It was given back when the caller left, while the call was in a queue without a bound.
    #[test]
    fn what_counts_a_call_stays_until_it_has_left() {
        let (sender, queue) = unbounded_channel();
        let mut outbound = outbound(queue);
        let counted = Arc::new(());
        let (mut queued, outcome) = queued(PutRequest::default());
        queued._counted = Some(Arc::clone(&counted) as Counted);
        sender.send(News::Call(queued)).unwrap();
        drop(outcome);
        assert_eq!(Arc::strong_count(&counted), 2);
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(Pin::new(&mut outbound).poll_next(&mut context).is_pending());
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}
