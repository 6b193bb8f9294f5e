//! What requests and answers take on their way, before a service sees the one and after it made the other.
//!
//! - A message that arrives in parts is bounded in bytes and in time: when all of them together take too much, the
//!   oldest is given up, which is never that of a client that just sends.
//! - An answer counts until it is sent; see [`connections`](crate::connections).
//! - The time that a caller gives its call (`grpc-timeout`) ends it with DEADLINE_EXCEEDED, as the API promises.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::Frame;
use tokio::time::{Sleep, sleep, timeout};
use tonic::{
    Status,
    body::Body,
    codegen::{
        StdError,
        http::{HeaderMap, Request, Response},
    },
};
use tower::{Layer, Service};

use crate::connections::{OnConnection, Sending};
use crate::node::answers::{Held, SMALL_BYTES};

/// What the parts of messages that have not arrived whole may take, of all clients together.
const PARTS_BYTES_MAX: usize = 64 << 20;
/// A client that sends this much in a second is waited for, however slow its link is.
const SENDING_BYTES_A_SECOND: usize = 16 * 1024;
/// The prefix of each message: a flag and four bytes of length.
const PREFIX_BYTES: usize = 5;

/// Wraps services so that what is on the way is bounded.
#[derive(Clone)]
pub(super) struct BodiesLayer {
    parts: Parts,
    patience: Duration,
}

impl BodiesLayer {
    /// A message must arrive within `patience`, or longer if it is large.
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            parts: Parts::new(PARTS_BYTES_MAX),
            patience,
        }
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
        let alone = is_alone(request.uri().path());
        let connection = request.extensions().get::<OnConnection>().cloned();
        if let Some(OnConnection { tcp, .. }) = &connection {
            request.extensions_mut().insert(tcp.clone());
        }
        let given = given_time(request.headers());
        let layer = self.layer.clone();
        let request = request.map(|body| {
            Body::new(Arriving {
                body,
                message: Message::default(),
                alone,
                part: None,
                late: None,
                layer,
            })
        });
        let response = self.inner.call(request);
        Box::pin(async move {
            let mut response = match given {
                None => response.await?,
                Some(given) => match timeout(before(given), response).await {
                    Ok(response) => response?,
                    Err(_) => return Ok(late(given).into_http()),
                },
            };
            let held = response.extensions_mut().remove::<Arc<Held>>();
            let bytes = held.as_ref().map_or(SMALL_BYTES, |held| held.bytes());
            let sending = connection
                .filter(|_| alone)
                .map(|it| it.connection.send(bytes));
            if held.is_none() && sending.is_none() {
                return Ok(response.map(Body::new));
            }
            let counted = Arc::new(Counted {
                _held: held,
                _sending: sending,
            });
            Ok(response.map(|body| {
                Body::new(Leaving {
                    body: Box::pin(body),
                    counted,
                })
            }))
        })
    }
}

/// Whether this is a call of one request and one answer on the port of clients.
fn is_alone(path: &str) -> bool {
    path.starts_with("/dengine.v1.") && !path.ends_with("/Pipeline") && !path.ends_with("/Watch")
}

/// The time that the caller gives the call, if it says so in a way that is understood.
fn given_time(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
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

/// tonic counts the same time, and then says CANCELLED, which our API does not know: this one is first.
fn before(given: Duration) -> Duration {
    given - (given / 10).min(Duration::from_millis(20))
}

fn late(given: Duration) -> Status {
    Status::deadline_exceeded(format!(
        "no answer within {given:?}, the time that the caller gave: a write may or may not take effect"
    ))
}

/// Parts of messages, of all clients.
#[derive(Clone)]
struct Parts(Arc<Mutex<AllParts>>);

struct AllParts {
    last: u64,
    /// The oldest first.
    open: BTreeMap<u64, Open>,
    bytes: usize,
    bytes_max: usize,
}

struct Open {
    bytes: usize,
    given_up: Arc<AtomicBool>,
    waker: Waker,
}

/// A message that has not arrived whole. Dropped when it has, or when nobody waits for it.
struct Part {
    all: Parts,
    number: u64,
    given_up: Arc<AtomicBool>,
}

impl Parts {
    fn new(bytes_max: usize) -> Self {
        Self(Arc::new(Mutex::new(AllParts {
            last: 0,
            open: BTreeMap::new(),
            bytes: 0,
            bytes_max,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, AllParts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, waker: Waker) -> Part {
        let given_up = Arc::<AtomicBool>::default();
        let mut all = self.lock();
        all.last += 1;
        let number = all.last;
        let open = Open {
            bytes: 0,
            given_up: Arc::clone(&given_up),
            waker,
        };
        all.open.insert(number, open);
        Part {
            all: self.clone(),
            number,
            given_up,
        }
    }
}

impl Part {
    /// It has so many bytes now. If all parts have too many, the oldest are given up, maybe this one.
    fn grow(&self, bytes: usize, waker: &Waker) {
        let mut all = self.all.lock();
        let Some(open) = all.open.get_mut(&self.number) else {
            return;
        };
        let more = bytes.saturating_sub(open.bytes);
        open.bytes = bytes;
        open.waker.clone_from(waker);
        all.bytes += more;
        while all.bytes > all.bytes_max
            && let Some((_, oldest)) = all.open.pop_first()
        {
            all.bytes -= oldest.bytes;
            oldest.given_up.store(true, Ordering::Relaxed);
            oldest.waker.wake();
        }
    }

    fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        if let Some(open) = all.open.remove(&self.number) {
            all.bytes -= open.bytes;
        }
    }
}

/// How far the message that is arriving has come.
#[derive(Default)]
struct Message {
    prefix: [u8; PREFIX_BYTES],
    prefix_bytes: usize,
    length: usize,
    left: usize,
}

impl Message {
    fn take(&mut self, mut bytes: &[u8]) {
        while let Some((&first, rest)) = bytes.split_first() {
            if self.prefix_bytes < PREFIX_BYTES {
                self.prefix[self.prefix_bytes] = first;
                self.prefix_bytes += 1;
                bytes = rest;
                if self.prefix_bytes == PREFIX_BYTES {
                    let [_, length @ ..] = self.prefix;
                    self.length = u32::from_be_bytes(length) as usize;
                    self.left = self.length;
                }
            } else {
                let taken = self.left.min(bytes.len());
                self.left -= taken;
                bytes = &bytes[taken..];
            }
            if self.prefix_bytes == PREFIX_BYTES && self.left == 0 {
                *self = Self::default();
            }
        }
    }

    /// What has arrived of one that is not whole.
    fn bytes(&self) -> usize {
        self.prefix_bytes + self.length - self.left
    }
}

/// The body of a request.
struct Arriving {
    body: Body,
    message: Message,
    alone: bool,
    part: Option<Part>,
    /// Fires when what began to arrive should have.
    late: Option<Pin<Box<Sleep>>>,
    layer: BodiesLayer,
}

impl Arriving {
    fn note(&mut self, data: &Bytes, context: &mut Context<'_>) {
        self.message.take(data);
        match self.message.bytes() {
            0 => {
                self.part = None;
                if !self.alone {
                    self.late = None;
                }
            }
            bytes => {
                let begin = || self.layer.parts.begin(context.waker().clone());
                self.part
                    .get_or_insert_with(begin)
                    .grow(bytes, context.waker());
            }
        }
    }

    /// Why no more is waited for.
    fn given_up(&mut self, context: &mut Context<'_>) -> Option<Status> {
        if self.part.as_ref().is_some_and(Part::is_given_up) {
            return Some(Status::resource_exhausted(
                "requests that arrive slowly take all the memory there is for them, and this one was the oldest; nothing was changed, try again",
            ));
        }
        if !self.alone && self.part.is_none() {
            return None;
        }
        let on_a_slow_link = (self.message.length / SENDING_BYTES_A_SECOND) as u64;
        let patience = self.layer.patience + Duration::from_secs(on_a_slow_link);
        let late = self.late.get_or_insert_with(|| Box::pin(sleep(patience)));
        late.as_mut().poll(context).is_ready().then(|| {
            Status::resource_exhausted(format!(
                "the request did not arrive whole within {patience:?}; nothing was changed"
            ))
        })
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
        let frame = match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Pending => {
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

/// The body of an answer. HTTP/2 takes all of it at once and drops it, and keeps the bytes until its client's window
/// has room: so they carry what counts them.
struct Leaving<B> {
    body: Pin<Box<B>>,
    counted: Arc<Counted>,
}

/// What counts an answer, until it is sent or given up.
struct Counted {
    _held: Option<Arc<Held>>,
    _sending: Option<Sending>,
}

/// Bytes of an answer.
struct Carrying {
    data: Bytes,
    _counted: Arc<Counted>,
}

impl AsRef<[u8]> for Carrying {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl<B: http_body::Body<Data = Bytes>> http_body::Body for Leaving<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        let frame = ready!(this.body.as_mut().poll_frame(context));
        let carry = |data| {
            Bytes::from_owner(Carrying {
                data,
                _counted: Arc::clone(&this.counted),
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
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::connections::Connection;

    fn prefixed(length: u32, bytes: usize) -> Vec<u8> {
        [&[0][..], &length.to_be_bytes(), &vec![7; bytes]].concat()
    }

    #[test]
    fn what_has_not_arrived_whole_is_counted_however_it_is_cut() {
        let stream = [prefixed(3, 3), prefixed(0, 0), prefixed(10, 4)].concat();
        for size in 1..stream.len() {
            let mut message = Message::default();
            stream.chunks(size).for_each(|part| message.take(part));
            assert_eq!(message.bytes(), PREFIX_BYTES + 4, "{size}");
            message.take(&[7; 6]);
            assert_eq!(message.bytes(), 0, "{size}");
        }
    }

    /// Were the newest refused instead, clients that never end would shut out all others.
    #[test]
    fn when_parts_take_too_much_the_oldest_is_given_up() {
        let parts = Parts::new(100);
        let waker = Waker::noop();
        let [old, young] = [(); 2].map(|()| parts.begin(waker.clone()));
        old.grow(60, waker);
        young.grow(30, waker);
        assert!(!old.is_given_up());
        young.grow(50, waker);
        assert!(old.is_given_up() && !young.is_given_up());
        drop(old);
        assert_eq!(parts.lock().bytes, 50);
        drop(young);
        assert_eq!(parts.lock().bytes, 0);
    }

    #[test]
    fn the_time_of_a_caller_is_read_in_every_unit() {
        let given = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", text.parse().unwrap());
            given_time(&headers)
        };
        assert_eq!(given("5S"), Some(Duration::from_secs(5)));
        assert_eq!(given("250m"), Some(Duration::from_millis(250)));
        assert_eq!(given("1H"), Some(Duration::from_secs(3600)));
        for bad in ["", "S", "5", "-1S", "123456789S", "5x"] {
            assert_eq!(given(bad), None, "{bad}");
        }
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
        let mut service = BodiesLayer::new(Duration::from_secs(9)).layer(Silent);
        let request = Request::builder()
            .uri("/dengine.v1.Kv/Put")
            .header("grpc-timeout", "50m")
            .body(Body::empty());
        let response = service.call(request.unwrap()).await.unwrap();
        let status = Status::from_header_map(response.headers()).unwrap();
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded, "{status}");
    }

    /// hyper drops the body as soon as HTTP/2 has taken the bytes, which may be long before the client does.
    #[tokio::test]
    async fn an_answer_counts_for_as_long_as_its_bytes_are_kept() {
        let connection = Arc::new(Connection::alone());
        let counted = Arc::new(Counted {
            _held: None,
            _sending: Some(connection.send(3)),
        });
        let mut leaving = Leaving {
            body: Box::pin(http_body_util::Full::new(Bytes::from("abc"))),
            counted,
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
    }
}
