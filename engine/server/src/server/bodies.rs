//! What requests and answers take on their way, before a service sees the one and after it made the
//! other.
//!
//! - A message that arrives in parts is bounded in bytes and in time: when all of them together
//!   take too much, the oldest is given up of the address with most bytes, which is never that of a
//!   client that just sends.
//! - An answer counts until it is sent; see [`connections`](crate::connections). So does its call,
//!   however small it is ([`calls`](super::calls)).
//! - The time that a caller gives its call (`grpc-timeout`) ends it with DEADLINE_EXCEEDED, as the
//!   API promises; for clients of etcd only once they wait no longer. A stream that has begun to
//!   answer goes on: its caller ends it.

use std::any::Any;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{self, Duration};

use bytes::Bytes;
use http_body::Frame;
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::StdError;
use tonic::codegen::http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use tower::{Layer, Service};

use super::calls::{Calls, Open};
use super::streams::{Streamed, StreamedBody};
use crate::connections::{OnConnection, PipelinePlace, Sending, give_way};
use crate::memory::{self, Use};
use crate::node::answers::{Held, SMALL_BYTES};
use crate::parts::{Message, Part, Parts};

/// What the parts of messages that have not arrived whole may take, of all clients together.
const PARTS_BYTES_MAX: usize = 64 << 20;
/// What a call takes of which nothing but headers has arrived, besides these: a stream of HTTP/2,
/// and what is to serve it.
const CALL_BYTES: usize = 4 << 10;
/// A client that sends this much in a second is waited for, however slow its link is.
const SENDING_BYTES_A_SECOND: usize = 16 * 1024;
/// Wraps services so that what is on the way is bounded.
#[derive(Clone)]
pub(super) struct BodiesLayer {
    parts: Parts,
    calls: Calls,
    patience: Duration,
    /// How long a call may take of which the caller gave so much time.
    ends_after: fn(Duration) -> Duration,
}

impl BodiesLayer {
    /// A message must arrive within `patience`, or longer if it is large. What has arrived takes
    /// that part of the memory, and there is room for the largest.
    pub(super) fn new(of: Use, largest_bytes: usize, calls: Calls, patience: Duration) -> Self {
        let bytes_max = memory::most(of, PARTS_BYTES_MAX, largest_bytes);
        Self {
            parts: Parts::new(bytes_max),
            calls,
            patience,
            ends_after: before,
        }
    }

    /// Ends a call only once its caller waits no longer. Clients of etcd make every call again that
    /// is answered DEADLINE_EXCEEDED before that, writes too.
    pub(super) fn ending_late(self) -> Self {
        Self {
            ends_after: afterwards,
            ..self
        }
    }

    /// How many bytes of requests that are not whole are held for an address.
    pub(super) fn held(&self) -> impl Fn(IpAddr) -> usize + Send + Sync + use<> {
        let parts = self.parts.clone();
        move |from| parts.held_by(from)
    }
}

impl<S> Layer<S> for BodiesLayer {
    type Service = Bodies<S>;

    fn layer(&self, inner: S) -> Bodies<S> {
        Bodies {
            inner,
            layer: self.clone(),
        }
    }
}

/// A service behind [`BodiesLayer`].
#[derive(Clone)]
pub(super) struct Bodies<S> {
    inner: S,
    layer: BodiesLayer,
}

impl<S, R> Service<Request<Body>> for Bodies<S>
where
    S: Service<Request<Body>, Response = Response<R>>,
    S::Future: Send + 'static,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<StdError>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let path = request.uri().path();
        let (alone, due) = (is_alone(path), Due::on(path));
        let connection = request.extensions().get::<OnConnection>().cloned();
        if let Some(OnConnection { tcp, .. }) = &connection {
            request.extensions_mut().insert(tcp.clone());
        }
        let opened = connection.as_ref().map(|it| {
            let source = it.connection.source();
            self.layer.calls.open(source)
        });
        let open = match opened.transpose() {
            Ok(open) => open,
            Err(full) => return Box::pin(async { Ok(full.into_http()) }),
        };
        let streams = connection.as_ref().filter(|_| due == Due::First);
        let place = streams.map(|it| it.connection.pipeline());
        if let Some(None) = place {
            return Box::pin(async { Ok(too_many_streams().into_http()) });
        }
        let given = given_time(request.headers());
        let layer = self.layer.clone();
        let ends_after = layer.ends_after;
        let call_bytes = CALL_BYTES + bytes_of(request.headers());
        let whose = connection
            .as_ref()
            .map(|it| it.connection.source().address());
        let request = request.map(|body| {
            Body::new(Arriving {
                body,
                message: Message::default(),
                due,
                whose,
                call_bytes,
                part: None,
                waiting: None,
                layer,
            })
        });
        let response = self.inner.call(request);
        Box::pin(async move {
            let mut response = match given {
                None => response.await?,
                Some(given) => match timeout(ends_after(given), response).await {
                    Ok(response) => response?,
                    Err(_) => return Ok(late(given).into_http()),
                },
            };
            let held = response.extensions_mut().remove::<Arc<Held>>();
            let streamed = response.extensions_mut().remove::<Streamed>();
            let bytes = held.as_ref().map_or(SMALL_BYTES, |held| held.bytes());
            let sending = connection
                .filter(|_| alone)
                .map(|it| it.connection.send(bytes));
            let place = place.flatten();
            let counted = Arc::new(Counted {
                _open: open,
                _held: held,
                _sending: sending,
                _place: place,
            });
            let streamed = streamed.and_then(|it| it.take());
            Ok(response.map(|body| leaving(body, streamed, counted)))
        })
    }
}

/// What a stream is told for which its connection has no place.
pub(super) fn too_many_streams() -> Status {
    Status::resource_exhausted(
        "this connection has as many streams of calls as it may; use one of them for all calls",
    )
}

/// Streams that may rest, and that have bounds of their own on how many there are.
const STREAMS: [&str; 6] = [
    "/dengine.v1.Kv/Pipeline",
    "/dengine.v1.Watch/Watch",
    "/etcdserverpb.Watch/Watch",
    "/etcdserverpb.Lease/LeaseKeepAlive",
    OBSERVE,
    RANGE_STREAM,
];
/// The two of them whose clients say but once what they want.
const OBSERVE: &str = "/v3electionpb.Election/Observe";
const RANGE_STREAM: &str = "/etcdserverpb.KV/RangeStream";
/// What the services of clients begin with.
const OF_CLIENTS: [&str; 4] = [
    "/dengine.v1.",
    "/etcdserverpb.",
    "/v3lockpb.",
    "/v3electionpb.",
];

/// Whether this is a call of one request and one answer on a port of clients.
fn is_alone(path: &str) -> bool {
    let of_clients = OF_CLIENTS.iter().any(|it| path.starts_with(it));
    of_clients && !STREAMS.contains(&path) && path != "/etcdserverpb.Maintenance/Snapshot"
}

/// Which messages of a request are waited for, and count as what it takes while they have not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// There is one.
    Always,
    /// A stream begins with one, and may then rest.
    First,
    /// Such streams may rest at once: there are places for them.
    Never,
}

impl Due {
    fn on(path: &str) -> Self {
        match path {
            OBSERVE | RANGE_STREAM => Self::Always,
            path if STREAMS.contains(&path) => Self::Never,
            path if path.ends_with("/ServerReflectionInfo") => Self::First,
            _ => Self::Always,
        }
    }
}

/// What headers take in memory, about.
fn bytes_of(headers: &HeaderMap) -> usize {
    let one = |(name, value): (&HeaderName, &HeaderValue)| 64 + name.as_str().len() + value.len();
    headers.iter().map(one).sum()
}

/// Where the caller says how long it waits.
const GIVEN_TIME: &str = "grpc-timeout";

/// The time that the caller gives the call, if it says so in a way that is understood.
fn given_time(headers: &HeaderMap) -> Option<Duration> {
    time_of(headers.get(GIVEN_TIME)?.to_str().ok()?)
}

fn time_of(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = number.parse().ok().filter(|_| number.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// Until when the caller waits, if it says so.
pub(super) fn waits_until<T>(request: &tonic::Request<T>) -> Option<time::Instant> {
    let text = request.metadata().get(GIVEN_TIME)?.to_str().ok()?;
    time::Instant::now().checked_add(before(time_of(text)?))
}

/// From when on nobody waits for an answer any more, if the caller says how long it does.
pub(super) fn is_gone_at<T>(request: &tonic::Request<T>) -> Option<time::Instant> {
    let text = request.metadata().get(GIVEN_TIME)?.to_str().ok()?;
    time::Instant::now().checked_add(afterwards(time_of(text)?))
}

/// Callers cancel what they no longer wait for; this is for those that do not.
fn afterwards(given: Duration) -> Duration {
    given.saturating_add(Duration::from_secs(1))
}

/// Clients count the same time, and know less about why it was too short: the answer is there
/// before.
fn before(given: Duration) -> Duration {
    given - (given / 10).min(Duration::from_millis(20))
}

fn late(given: Duration) -> Status {
    Status::deadline_exceeded(format!(
        "no answer within {given:?}, the time that the caller gave: a write may or may not take \
         effect"
    ))
}

/// The body of a request.
struct Arriving {
    body: Body,
    message: Message,
    due: Due,
    /// From where it comes, if that is known.
    whose: Option<IpAddr>,
    /// What it takes besides its body.
    call_bytes: usize,
    part: Option<Part>,
    waiting: Option<Late>,
    layer: BodiesLayer,
}

/// What began to arrive, and should have.
struct Late {
    since: Instant,
    fires: Pin<Box<Sleep>>,
}

impl Arriving {
    fn note(&mut self, data: &Bytes, context: &mut Context<'_>) {
        if self.message.take(data) {
            // What follows in the same frame is as young as it.
            self.part = None;
            if self.due == Due::First {
                self.due = Due::Never;
            }
            if self.due == Due::Never {
                self.waiting = None;
            }
        }
        match self.message.bytes() {
            0 => {}
            bytes => self.count(bytes, context),
        }
    }

    /// So many bytes have arrived of what is not whole.
    fn count(&mut self, bytes: usize, context: &mut Context<'_>) {
        let begin = || self.layer.parts.begin(self.whose, context.waker().clone());
        let part = self.part.get_or_insert_with(begin);
        part.grow(self.call_bytes + bytes, context.waker());
    }

    /// Why no more is waited for.
    fn given_up(&mut self, context: &mut Context<'_>) -> Option<Status> {
        if self.part.as_ref().is_some_and(Part::is_given_up) {
            return Some(Status::resource_exhausted(
                "requests that arrive slowly use all memory for them, most of it from your \
                 address, and this request was the oldest; nothing was changed, try again",
            ));
        }
        if self.due == Due::Never && self.part.is_none() {
            return None;
        }
        let on_a_slow_link = (self.message.length / SENDING_BYTES_A_SECOND) as u64;
        let patience = self.layer.patience + Duration::from_secs(on_a_slow_link);
        let waiting = self
            .waiting
            .get_or_insert_with(|| Late::since(Instant::now()));
        waiting.is_over(patience, context).then(|| {
            Status::resource_exhausted(format!(
                "the request did not arrive whole within {patience:?}; nothing was changed"
            ))
        })
    }
}

impl Late {
    fn since(since: Instant) -> Self {
        Self {
            since,
            fires: Box::pin(sleep_until(since)),
        }
    }

    /// How large it is, and so how long it may take, is often known later than that it began.
    fn is_over(&mut self, patience: Duration, context: &mut Context<'_>) -> bool {
        let until = self.since + patience;
        if self.fires.deadline() != until {
            self.fires.as_mut().reset(until);
        }
        self.fires.as_mut().poll(context).is_ready()
    }
}

impl http_body::Body for Arriving {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        // A task that serves a stream goes on as long as there are requests.
        ready!(give_way(context));
        let frame = match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Pending => {
                if this.due != Due::Never && this.part.is_none() {
                    this.count(0, context);
                }
                return match this.given_up(context) {
                    Some(why) => Poll::Ready(Some(Err(why))),
                    None => Poll::Pending,
                };
            }
            Poll::Ready(frame) => frame,
        };
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    this.note(data, context);
                }
            }
            Some(Err(_)) | None => this.part = None,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// Counts the parts of a stream's body, each for as long as it is kept.
pub(super) trait CountsParts: Send + Sync {
    /// Counts one, of so many bytes, until what is returned is dropped.
    fn part(self: Arc<Self>, bytes: usize) -> Box<dyn Any + Send + Sync>;
}

/// What counts the parts of a stream's body.
pub(super) struct CountedBy(pub(super) Arc<dyn CountsParts>);

/// The body of an answer. HTTP/2 takes all of it at once and drops it, and of a stream a part
/// behind the one that it cannot send yet; and keeps the bytes until its client's window has room:
/// so they carry what counts them.
struct Leaving<B: ?Sized> {
    body: Pin<Box<B>>,
    counted: Arc<Counted>,
    parts: Option<CountedBy>,
}

/// What counts an answer, until it is sent or given up.
struct Counted {
    _open: Option<Open>,
    _held: Option<Arc<Held>>,
    _sending: Option<Sending>,
    _place: Option<PipelinePlace>,
}

/// Bytes of an answer.
struct Carrying {
    data: Bytes,
    _counted: Arc<Counted>,
    _part: Option<Box<dyn Any + Send + Sync>>,
}

impl AsRef<[u8]> for Carrying {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

/// The body of an answer, or the stream that is sent in its place.
fn leaving<R>(body: R, streamed: Option<StreamedBody>, counted: Arc<Counted>) -> Body
where
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<StdError>,
{
    match streamed {
        None => Body::new(Leaving {
            body: Box::pin(body),
            counted,
            parts: None,
        }),
        Some(StreamedBody { body, counted_by }) => Body::new(Leaving {
            body: Pin::new(body),
            counted,
            parts: Some(counted_by),
        }),
    }
}

impl<B: http_body::Body<Data = Bytes> + ?Sized> http_body::Body for Leaving<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        let frame = ready!(this.body.as_mut().poll_frame(context));
        let carry = |data: Bytes| {
            let parts = this.parts.as_ref();
            let part = parts.map(|CountedBy(it)| Arc::clone(it).part(data.len()));
            Bytes::from_owner(Carrying {
                data,
                _counted: Arc::clone(&this.counted),
                _part: part,
            })
        };
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(carry))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::connections::Connection;

    fn layer(patience: Duration) -> BodiesLayer {
        BodiesLayer {
            parts: Parts::new(PARTS_BYTES_MAX),
            calls: Calls::with(8),
            patience,
            ends_after: before,
        }
    }

    #[test]
    fn the_time_of_a_caller_is_read_in_every_unit() {
        let given = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(GIVEN_TIME, text.parse().unwrap());
            given_time(&headers)
        };
        assert_eq!(given("5S"), Some(Duration::from_secs(5)));
        assert_eq!(given("250m"), Some(Duration::from_millis(250)));
        assert_eq!(given("1H"), Some(Duration::from_secs(3600)));
        for bad in ["", "S", "5", "-1S", "123456789S", "5x"] {
            assert_eq!(given(bad), None, "{bad}");
        }
    }

    /// What is read before its write is proposed went on for longer, and then no caller was there
    /// to be told that nothing was changed.
    #[test]
    fn until_when_a_caller_waits_is_known() {
        let mut request = tonic::Request::new(());
        assert_eq!(waits_until(&request), None);
        request.set_timeout(Duration::from_secs(5));
        let left = waits_until(&request).unwrap() - time::Instant::now();
        assert!(Duration::from_secs(4) < left && left < Duration::from_secs(5));
    }

    /// Never answers.
    struct Silent;

    impl Service<Request<Body>> for Silent {
        type Response = Response<Body>;
        type Error = StdError;
        type Future = std::future::Pending<Result<Response<Body>, StdError>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StdError>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Body>) -> Self::Future {
            std::future::pending()
        }
    }

    #[tokio::test]
    async fn a_call_whose_time_is_over_ends_as_the_api_promises() {
        let mut service = layer(Duration::from_secs(9)).layer(Silent);
        let request = Request::builder()
            .uri("/dengine.v1.Kv/Put")
            .header("grpc-timeout", "50m")
            .body(Body::empty());
        let response = service.call(request.unwrap()).await.unwrap();
        let status = Status::from_header_map(response.headers()).unwrap();
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded, "{status}");
    }

    /// clientv3 makes the call again, a write too, until its own clock says the same.
    #[tokio::test]
    async fn a_call_of_a_client_of_etcd_does_not_end_while_it_waits() {
        let mut service = layer(Duration::from_secs(9)).ending_late().layer(Silent);
        let request = Request::builder()
            .uri("/etcdserverpb.KV/Put")
            .header("grpc-timeout", "50m")
            .body(Body::empty());
        let call = service.call(request.unwrap());
        assert!(timeout(Duration::from_millis(200), call).await.is_err());
    }

    fn arriving(body: Body, patience: Duration) -> Arriving {
        Arriving {
            body,
            message: Message::default(),
            due: Due::Never,
            whose: None,
            call_bytes: CALL_BYTES,
            part: None,
            waiting: None,
            layer: layer(patience),
        }
    }

    type Sent = tokio::sync::mpsc::Sender<Result<Frame<Bytes>, Status>>;

    fn body() -> (Sent, Body) {
        let (send, sent) = tokio::sync::mpsc::channel(8);
        let sent = tokio_stream::wrappers::ReceiverStream::new(sent);
        (send, Body::new(http_body_util::StreamBody::new(sent)))
    }

    fn begins(length: u32, bytes: usize) -> Bytes {
        [&[0][..], &length.to_be_bytes(), &vec![7; bytes]]
            .concat()
            .into()
    }

    const PATIENCE: Duration = Duration::from_millis(200);

    /// A client may begin calls by the hundred thousand, of which nothing but headers ever comes.
    #[tokio::test]
    async fn calls_of_which_only_headers_came_are_bounded_together() {
        let layer = layer(60 * PATIENCE);
        let bodies: Vec<_> = (0..=PARTS_BYTES_MAX / CALL_BYTES).map(|_| body()).collect();
        let mut calls: Vec<_> = bodies
            .into_iter()
            .map(|(send, body)| {
                let mut call = arriving(body, PATIENCE);
                (call.due, call.layer) = (Due::Always, layer.clone());
                (send, call)
            })
            .collect();
        for (_, call) in &mut calls {
            assert!(call.frame().now_or_never().is_none());
        }
        let told = calls[0].1.frame().now_or_never().unwrap().unwrap();
        let code = told.unwrap_err().code();
        assert_eq!(code, tonic::Code::ResourceExhausted);
        assert!(calls[1].1.frame().now_or_never().is_none());
    }

    /// Others than ours were neither counted nor ended.
    #[test]
    fn a_request_of_any_service_is_waited_for() {
        assert_eq!(Due::on("/grpc.health.v1.Health/Check"), Due::Always);
        assert_eq!(Due::on("/grpc.health.v1.Health/Watch"), Due::Always);
        assert_eq!(Due::on("/nobody.knows/It"), Due::Always);
        let reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
        assert_eq!(Due::on(reflection), Due::First);
        assert_eq!(Due::on("/dengine.v1.Kv/Pipeline"), Due::Never);
        assert_eq!(Due::on("/etcdserverpb.KV/RangeStream"), Due::Always);
    }

    /// Its length is known later than that it began: it had the patience of a small one.
    #[tokio::test]
    async fn a_large_request_on_a_slow_link_has_longer_however_it_begins() {
        let (send, body) = body();
        let mut arriving = arriving(body, PATIENCE);
        let whole = begins(SENDING_BYTES_A_SECOND as u32, 10);
        let [prefix, rest] = [0..2, 2..15].map(|part| whole.slice(part));
        send.send(Ok(Frame::data(prefix))).await.unwrap();
        assert!(arriving.frame().await.unwrap().is_ok());
        // It is waited for from here on, and it is not known yet for how long.
        assert!(timeout(PATIENCE / 4, arriving.frame()).await.is_err());
        send.send(Ok(Frame::data(rest))).await.unwrap();
        assert!(arriving.frame().await.unwrap().is_ok());
        let waits = timeout(2 * PATIENCE, arriving.frame()).await;
        assert!(waits.is_err(), "it has a second more");
        let late = arriving.frame().await.unwrap().unwrap_err();
        assert_eq!(late.code(), tonic::Code::ResourceExhausted, "{late}");
    }

    /// Frames that each end one message and begin the next made a stream as old as the first of
    /// them.
    #[tokio::test]
    async fn a_message_that_begins_with_the_end_of_another_is_young() {
        let (send, body) = body();
        let mut arriving = arriving(body, PATIENCE);
        let end_and_begin: Bytes = [&[7; 10][..], &begins(20, 10)].concat().into();
        send.send(Ok(Frame::data(begins(20, 10)))).await.unwrap();
        assert!(arriving.frame().await.unwrap().is_ok());
        let began = arriving.waiting.as_ref().map(|it| it.since);
        assert!(timeout(PATIENCE / 4, arriving.frame()).await.is_err());
        let before = arriving.waiting.as_ref().map(|it| it.since);
        assert!(began.is_none() && before.is_some());
        send.send(Ok(Frame::data(end_and_begin))).await.unwrap();
        assert!(arriving.frame().await.unwrap().is_ok());
        assert!(arriving.waiting.is_none(), "nothing was waited for yet");
        let late = arriving.frame().await.unwrap().unwrap_err();
        assert_eq!(late.code(), tonic::Code::ResourceExhausted, "{late}");
    }

    /// hyper drops the body as soon as HTTP/2 has taken the bytes, which may be long before the
    /// client does.
    #[tokio::test]
    async fn an_answer_counts_for_as_long_as_its_bytes_are_kept() {
        let connection = Arc::new(Connection::alone());
        let counted = Arc::new(Counted {
            _open: None,
            _held: None,
            _sending: Some(connection.send(3)),
            _place: None,
        });
        let mut leaving = Leaving {
            body: Box::pin(http_body_util::Full::new(Bytes::from("abc"))),
            counted,
            parts: None,
        };
        let frame = leaving.frame().await.unwrap().unwrap();
        drop(leaving);
        assert!(connection.is_unread(Duration::ZERO));
        let data = frame.into_data().unwrap();
        assert_eq!(data, "abc");
        drop(data);
        assert!(!connection.is_unread(Duration::ZERO));
    }

    #[test]
    fn streams_are_not_calls_of_one_answer() {
        assert!(is_alone("/dengine.v1.Kv/Get"));
        assert!(!is_alone("/dengine.v1.Kv/Pipeline"));
        assert!(!is_alone("/dengine.v1.Watch/Watch"));
        assert!(is_alone("/etcdserverpb.KV/Range"));
        assert!(!is_alone("/etcdserverpb.Watch/Watch"));
        assert!(!is_alone("/etcdserverpb.KV/RangeStream"));
    }
}
