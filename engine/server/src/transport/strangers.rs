//! What a connection to the peer port may send of which nobody knows whose it is: little. A Hello
//! is short, and what a peer may send afterwards is not for anybody. Who says that it is a member
//! of which this one's log has not told yet may be one, and may be anybody: of those there are few
//! at a time, and what has arrived of their frames is bounded together.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http_body::Frame;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::Request;
use tower::{Layer, Service};

use super::FRAME_BYTES_MAX;
use crate::connections::{Connection, OnConnection, give_way};
use crate::parts::{Message, Part, Parts};
use crate::telemetry::lines::Lines;

/// A Hello is some hundred bytes; what arrives with it is part of this.
pub(super) const STRANGER_BYTES_MAX: usize = 64 << 10;

/// What has arrived of the frames of all newcomers and is not whole: the largest frame fits,
/// however little memory there is, for it may be what a member lacks whose leader it does not know
/// yet.
const NEWCOMERS_BYTES_MAX: usize = FRAME_BYTES_MAX + (1 << 20);
/// Connections of newcomers. Each of them has one, and one for a snapshot.
const NEWCOMERS_MAX: usize = 8;

/// Wraps the services of the peer port.
#[derive(Clone)]
pub(super) struct StrangersLayer(Parts);

impl StrangersLayer {
    pub(super) fn new() -> Self {
        Self(Parts::new(NEWCOMERS_BYTES_MAX))
    }

    /// The same bounds for a stream of frames.
    pub(super) fn newcomer(&self) -> Newcomer {
        Newcomer {
            parts: self.0.clone(),
            part: None,
        }
    }
}

/// What has arrived of a frame of whoever is no member, as far as anybody knows.
pub(super) struct Newcomer {
    parts: Parts,
    part: Option<Part>,
}

impl Newcomer {
    /// So many bytes of a frame are here.
    pub(super) fn note(&mut self, connection: &Connection, bytes: usize, waker: &Waker) {
        if connection.is_proven() || bytes == 0 {
            self.part = None;
            return;
        }
        let whose = Some(connection.source().address());
        let begin = || self.parts.begin(whose, waker.clone());
        self.part.get_or_insert_with(begin).grow(bytes, waker);
    }

    /// All of it is.
    pub(super) fn is_whole(&mut self) {
        self.part = None;
    }

    /// # Errors
    /// There was no room for it.
    pub(super) fn check(&self) -> Result<(), Status> {
        match self.part.as_ref().is_some_and(Part::is_given_up) {
            true => Err(no_room()),
            false => Ok(()),
        }
    }
}

fn no_room() -> Status {
    Status::resource_exhausted(
        "frames of peers that are not in this member's log use all memory for them, most of it \
         from your address, and this frame was the oldest; try again",
    )
}

/// Connections that were greeted as those of members of which the log has not told yet.
#[derive(Default)]
pub(super) struct Newcomers {
    /// The oldest first.
    all: Mutex<VecDeque<Weak<Connection>>>,
    /// Of what was closed.
    lines: Lines,
}

impl Newcomers {
    /// Lets one in. When there are too many, the oldest makes room of those from the address that
    /// has most of them, so that one stranger keeps away none but itself. Whoever it was comes
    /// back, or the log tells of it.
    pub(super) fn greet(&self, connection: &Arc<Connection>) {
        connection.greet();
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = |it: &Weak<Connection>| {
            it.upgrade()
                .is_some_and(|it| !it.is_proven() && !it.is_closed())
        };
        all.retain(is_new);
        let known = all.iter().any(|it| it.as_ptr() == Arc::as_ptr(connection));
        if known {
            return;
        }
        all.push_back(Arc::downgrade(connection));
        if all.len() > NEWCOMERS_MAX
            && let Some(oldest) = pop_of_most(&mut all)
        {
            if let Some(unlogged) = self.lines.next() {
                tracing::info!(
                    from = %oldest.source().address(),
                    unlogged,
                    "closed the connection of a peer that is not in the log yet, to make room for \
                     another"
                );
            }
            oldest.close();
        }
    }
}

fn pop_of_most(all: &mut VecDeque<Weak<Connection>>) -> Option<Arc<Connection>> {
    let from = |it: &Weak<Connection>| it.upgrade().map(|it| it.source().address());
    let of = |address| all.iter().filter(|it| from(it) == address).count();
    // The first of those that have as many.
    let addresses = all.iter().rev().map(from);
    let most = addresses.max_by_key(|address| of(*address))?;
    let oldest = all.iter().position(|it| from(it) == most)?;
    all.remove(oldest)?.upgrade()
}

impl<S> Layer<S> for StrangersLayer {
    type Service = Strangers<S>;

    fn layer(&self, inner: S) -> Strangers<S> {
        Strangers {
            inner,
            parts: self.0.clone(),
        }
    }
}

/// A service behind [`StrangersLayer`].
#[derive(Clone)]
pub(super) struct Strangers<S> {
    inner: S,
    parts: Parts,
}

impl<S: Service<Request<Body>>> Service<Request<Body>> for Strangers<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> S::Future {
        let connection = request.extensions().get::<OnConnection>();
        let connection = connection.map(|it| Arc::clone(&it.connection));
        let parts = self.parts.clone();
        self.inner.call(request.map(|body| match connection {
            Some(connection) => Body::new(Bounded::new(body, connection, parts)),
            None => body,
        }))
    }
}

/// The body of a request, of whoever it is.
struct Bounded<B> {
    body: B,
    connection: Arc<Connection>,
    /// Before it was greeted.
    bytes: usize,
    message: Message,
    parts: Parts,
    part: Option<Part>,
}

impl<B> Bounded<B> {
    fn new(body: B, connection: Arc<Connection>, parts: Parts) -> Self {
        Self {
            body,
            connection,
            bytes: 0,
            message: Message::default(),
            parts,
            part: None,
        }
    }

    fn note(&mut self, data: &[u8], waker: &Waker) -> Result<(), Status> {
        // Followed from the beginning on, for it may be proven, or not, in the middle of a frame.
        if self.message.take(data) {
            self.part = None;
        }
        if self.connection.is_proven() {
            self.part = None;
            return Ok(());
        }
        if !self.connection.is_greeted() {
            self.bytes += data.len();
            if self.bytes > STRANGER_BYTES_MAX {
                let told = format!("no Hello in the first {STRANGER_BYTES_MAX} bytes");
                return Err(Status::resource_exhausted(told));
            }
        }
        let bytes = self.message.bytes();
        if bytes > 0 {
            let whose = Some(self.connection.source().address());
            let begin = || self.parts.begin(whose, waker.clone());
            self.part.get_or_insert_with(begin).grow(bytes, waker);
        }
        Ok(())
    }

    fn given_up(&self) -> Option<Status> {
        let part = self.part.as_ref().filter(|part| part.is_given_up());
        part.map(|_| no_room())
    }
}

impl<B> http_body::Body for Bounded<B>
where
    B: http_body::Body<Data = Bytes, Error = Status> + Unpin,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        ready!(give_way(context));
        let frame = Pin::new(&mut this.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(data) = frame.data_ref()
            && let Err(status) = this.note(data, context.waker())
        {
            return Poll::Ready(Some(Err(status)));
        }
        match this.given_up() {
            Some(status) => Poll::Ready(Some(Err(status))),
            None => frame,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, Full};

    use super::*;
    use crate::connections::Source;

    fn body(connection: &Arc<Connection>, parts: &Parts, bytes: Vec<u8>) -> Bounded<Body> {
        let body = Full::from(bytes).map_err(|never| match never {});
        Bounded::new(Body::new(body), Arc::clone(connection), parts.clone())
    }

    async fn taken(connection: &Arc<Connection>, bytes: usize) -> Result<usize, Status> {
        let parts = Parts::new(NEWCOMERS_BYTES_MAX);
        let bounded = body(connection, &parts, vec![7; bytes]);
        bounded.collect().await.map(|it| it.to_bytes().len())
    }

    /// It would otherwise be gathered, up to the size of the largest message, for each of many
    /// streams.
    #[tokio::test]
    async fn a_stranger_sends_no_more_than_a_hello() {
        let connection = Arc::new(Connection::alone());
        let short = taken(&connection, STRANGER_BYTES_MAX).await;
        assert_eq!(short.unwrap(), STRANGER_BYTES_MAX);
        let long = taken(&connection, STRANGER_BYTES_MAX + 1).await;
        assert_eq!(long.unwrap_err().code(), tonic::Code::ResourceExhausted);
        connection.prove();
        let known = taken(&connection, 2 * STRANGER_BYTES_MAX).await;
        assert_eq!(known.unwrap(), 2 * STRANGER_BYTES_MAX);
    }

    /// Anybody may say that it is a member of which the log has yet to tell, over as many streams
    /// as there are.
    #[tokio::test]
    async fn frames_of_newcomers_that_never_end_are_bounded_together() {
        const BYTES: usize = 600;
        let parts = Parts::new(1000);
        let endless = [&[0][..], &5000_u32.to_be_bytes(), &[7; BYTES]].concat();
        let newcomer = Arc::new(Connection::alone());
        newcomer.greet();
        let [mut old, mut young] = [(); 2].map(|()| body(&newcomer, &parts, endless.clone()));
        assert!(old.frame().await.unwrap().is_ok());
        assert!(young.frame().await.unwrap().is_ok());
        let told = old.frame().await.unwrap().unwrap_err();
        assert_eq!(told.code(), tonic::Code::ResourceExhausted, "{told}");
        // A member is not counted.
        let member = Arc::new(Connection::alone());
        member.prove();
        let mut of_member = body(&member, &parts, endless);
        assert!(of_member.frame().await.unwrap().is_ok());
        assert!(
            young.frame().await.is_none(),
            "it has ended, and was not given up"
        );
    }

    #[test]
    fn of_too_many_newcomers_the_oldest_makes_room() {
        let newcomers = Newcomers::default();
        let all: Vec<_> = (0..=NEWCOMERS_MAX)
            .map(|_| Arc::new(Connection::alone()))
            .collect();
        let (last, first) = all.split_last().unwrap();
        first.iter().for_each(|it| newcomers.greet(it));
        // Both streams of a connection are greeted, and it is one.
        newcomers.greet(&first[0]);
        assert!(!all.iter().any(|it| it.is_closed()));
        first[0].prove();
        newcomers.greet(last);
        assert!(!all.iter().any(|it| it.is_closed()), "one is known by now");
        newcomers.greet(&Arc::new(Connection::alone()));
        assert!(!first[0].is_closed() && first[1].is_closed() && !first[2].is_closed());
    }

    /// A stranger that came again and again kept a member away that was about to join.
    #[test]
    fn a_stranger_makes_room_for_itself() {
        let newcomers = Newcomers::default();
        let from = |last: u8| Arc::new(Source::new([10, 0, 0, last].into()));
        let (joining, strange) = (Arc::new(Connection::of(from(1))), from(2));
        newcomers.greet(&joining);
        let strangers = || Arc::new(Connection::of(Arc::clone(&strange)));
        let strangers: Vec<_> = (0..3 * NEWCOMERS_MAX).map(|_| strangers()).collect();
        strangers.iter().for_each(|it| newcomers.greet(it));
        assert!(!joining.is_closed());
        let open = strangers.iter().filter(|it| !it.is_closed()).count();
        assert_eq!(open, NEWCOMERS_MAX - 1);
        assert!(!strangers.last().unwrap().is_closed());
    }
}
