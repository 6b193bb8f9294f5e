//! Many calls over one stream to one member. What queues while a frame is written is the next
//! frame: there is no timer, and nothing waits for company.
//!
//! ```text
//! callers ──▶ queue ──▶ Outbound ──frames──▶ member
//!    ▲                     │ who waits           │
//!    └──────── read ◀──────┴─────────────────────┘
//! ```
//! A call is in one of three places: in the queue (it has not left), among those that wait (it may
//! have been served), or answered. Which one decides what is told of it when the stream breaks, or
//! when its time is up.
//!
//! The member is told for how long each call is waited for, and which are not waited for any more,
//! so that it does nothing for nobody.

mod line;
mod outbound;

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dengine_protocol::trace::TraceParent;
use dengine_protocol::v1::pipelined_answer::Answer;
use dengine_protocol::v1::pipelined_call::Call;
use dengine_protocol::{FRAME_BYTES_MAX, KvCall};
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tonic::Status;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;

use self::line::Line;
use crate::error::rounded;
use crate::silence::Silence;

/// What a call in a frame takes besides itself: tags, lengths, its id, its time and its trace.
const CALL_OVERHEAD_BYTES: usize = 96;

/// What a call takes, about, while it waits to leave, besides what is sent of it; whether its
/// caller stays or not.
pub const QUEUED_BYTES: usize = 640;

/// One member, reached over a stream that is opened when it is needed and again when it broke.
/// Cheap to clone.
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
    /// Why the streams that are open are to end.
    given_up: watch::Sender<Arc<str>>,
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
        Self::NotSent(format!("it could not be sent within {}", rounded(after)).into())
    }
}

/// What came of a call.
#[derive(Debug)]
pub struct Answered {
    /// Never an error.
    pub answer: Answer,
    /// See [`visited`](dengine_protocol::v1::PipelinedAnswer::visited).
    pub visited: u64,
    /// See [`others_waited`](dengine_protocol::v1::PipelinedAnswer::others_waited).
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
    /// The span of its caller.
    trace: Option<Box<TraceParent>>,
    /// Dropped with it.
    _counted: Option<Counted>,
}

/// Who has a call that has not left: the stream that is to send it, or its caller, who has taken it
/// back.
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
            // Every caller is answered before it is dropped. If one were not, the outcome would be
            // unknown, so nothing weaker may be reported.
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
                given_up: watch::Sender::new("".into()),
                on_leader,
            }),
        }
    }

    /// Makes one call. The caller waits for so long; that is told to the member, and not watched
    /// over here.
    ///
    /// # Errors
    /// See [`PipeError`].
    pub async fn call<C: KvCall>(
        &self,
        request: C,
        patience: Option<Duration>,
    ) -> Result<C::Answer, PipeError> {
        let answered = self
            .call_any(request.framed(), patience, None, None)
            .await?;
        unframed::<C>(answered)
    }

    /// As [`Pipe::call`], but only until then. `None` if it had left by then and was not answered;
    /// if it had not, it never leaves.
    ///
    /// # Errors
    /// See [`PipeError`].
    pub(crate) async fn call_until<C: KvCall>(
        &self,
        request: C,
        patience: Duration,
        until: Instant,
        silence: Silence<impl FnOnce()>,
    ) -> Result<Option<C::Answer>, PipeError> {
        let mut caller = self.begin(request.framed(), Some(patience), None, None);
        match silence.wait(caller.outcome(), until).await {
            Some(outcome) => outcome.and_then(unframed::<C>).map(Some),
            None if caller.claim.take() => Err(PipeError::not_in_time(patience)),
            None => Ok(None),
        }
    }

    /// Makes one call of whichever kind. What is too large for a frame has another stream than what
    /// is not: a member that takes nothing as large ends that. What counts it is kept while the
    /// call waits to leave, whether its caller stays or not. `trace` is the caller's span.
    ///
    /// # Errors
    /// See [`PipeError`].
    pub async fn call_any(
        &self,
        call: Call,
        patience: Option<Duration>,
        counted: Option<Counted>,
        trace: Option<TraceParent>,
    ) -> Result<Answered, PipeError> {
        let mut caller = self.begin(call, patience, counted, trace);
        caller.outcome().await
    }

    /// Ends the streams that are open. What has left over them and is not answered may or may not
    /// have been served; what has not left was not. Later calls go over other streams.
    pub fn give_up(&self, why: &str) {
        for size in [Size::Small, Size::Large] {
            lock(self.inner.queue(size)).take();
        }
        self.inner.given_up.send_replace(why.into());
    }

    fn begin(
        &self,
        call: Call,
        patience: Option<Duration>,
        counted: Option<Counted>,
        trace: Option<TraceParent>,
    ) -> Caller<'_> {
        let size = Size::of(&call);
        let (sender, outcome) = oneshot::channel();
        let claim = Arc::new(Claim::default());
        let queued = Queued {
            call,
            caller: sender,
            claim: Arc::clone(&claim),
            until: patience.and_then(|patience| Instant::now().checked_add(patience)),
            trace: trace.map(Box::new),
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

    /// So that what was asked for is ended. A stream that takes no more calls is not told: there
    /// the time that each call has ends it.
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
        let (line, sender) = Line::new(&self.inner, size);
        // Its receiver is at hand, so it takes it.
        let _ = sender.send(news);
        *queue = Some(sender);
        let (channel, metadata) = (self.inner.channel.clone(), self.inner.metadata.clone());
        self.inner.threads.spawn(line.run(channel, metadata));
    }
}

fn unframed<C: KvCall>(answered: Answered) -> Result<C::Answer, PipeError> {
    C::unframed(answered.answer).map_err(|_| {
        let message = "the member answered another question than was asked";
        PipeError::from(Box::new(Status::internal(message)))
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::io;
    use std::pin::pin;

    use dengine_protocol::v1::PutRequest;
    use hyper_util::rt::TokioIo;
    use tokio::net::TcpStream;
    use tokio::time::timeout;
    use tonic::transport::Endpoint;
    use tower::service_fn;

    use super::*;

    /// Their callers were told that they may have taken effect.
    #[tokio::test]
    async fn calls_whose_time_is_up_before_they_leave_were_not_sent() {
        let nowhere = service_fn(|_| pending::<io::Result<TokioIo<TcpStream>>>());
        let nowhere = Endpoint::from_static("http://nowhere").connect_with_connector_lazy(nowhere);
        let pipe = Pipe::new(nowhere, MetadataMap::new(), None);
        let brief = Duration::from_millis(50);
        let until = Instant::now() + brief;
        let silence = || Silence {
            at: until,
            tell: || {},
        };
        let puts = (0..3).map(|_| pipe.call_until(PutRequest::default(), brief, until, silence()));
        for ended in futures::future::join_all(puts).await {
            assert!(matches!(ended, Err(PipeError::NotSent(_))), "{ended:?}");
        }
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
        let call = pipe.call_any(
            Call::Put(put),
            None,
            Some(Arc::clone(&counted) as Counted),
            None,
        );
        let left = timeout(Duration::from_millis(50), call).await;
        left.expect_err("nobody answers");
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(Arc::strong_count(&counted), 2);
        drop(pipe);
    }

    /// Calls that a follower had passed on to a leader that hung waited for all their time, though
    /// another one led by then.
    #[tokio::test]
    async fn what_has_left_over_streams_that_are_given_up_is_lost_and_later_calls_have_others() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        // The system connects, and nobody serves.
        let address = format!("http://{}", listener.local_addr().unwrap());
        let channel = Endpoint::from_shared(address).unwrap().connect_lazy();
        let pipe = Pipe::new(channel, MetadataMap::new(), None);
        let value = vec![0; FRAME_BYTES_MAX].into();
        let large = PutRequest {
            value,
            ..PutRequest::default()
        };
        for put in [PutRequest::default(), large] {
            let mut call = pin!(pipe.call(put.clone(), None));
            let left = timeout(Duration::from_secs(1), &mut call).await;
            left.expect_err("nobody answers");
            pipe.give_up("another one leads");
            let mut later = pin!(pipe.call(put, None));
            let given_up = timeout(Duration::from_secs(30), call).await.unwrap();
            assert!(
                matches!(&given_up, Err(PipeError::Lost(why)) if why.contains("another one leads")),
                "{given_up:?}"
            );
            let left = timeout(Duration::from_millis(100), &mut later).await;
            left.expect_err("it was not given up");
            pipe.give_up("another one leads");
        }
    }

    /// Where a server passed calls on, everybody's went over a stream that the threads of whoever
    /// had opened it served.
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
}
