//! Streams of frames ([`peer_frames`](dengine_raft::peer_frames)) over TCP: how one begins and ends
//! on both sides.
//!
//! The side that connects sends a Hello and receives an Ack or a Refusal. Then it sends batches,
//! and keeps reading: a Refusal may come at any time. A member of an older version takes the first
//! bytes for broken HTTP/2, and has sent a frame of its own by then, which shows what it speaks.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use dengine_protocol::checks::peer;
use dengine_protocol::codec;
use dengine_protocol::peer::{Ack, Hello, Refusal};
use dengine_raft::peer_frames::{Decoder, FrameError, Kind, Outgoing, PeerFrame};
use prost::Message as _;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio_util::io::poll_read_buf;
use tonic::Status;

use super::FRAME_BYTES_MAX;
use super::strangers::{Newcomer, STRANGER_BYTES_MAX};
use crate::connections::{Connection, Guarded};

/// A peer whose system acknowledges nothing for so long is gone: heartbeats are sent all the time.
/// A process that is only stopped takes as much as its socket holds; consensus notices that, for it
/// hears nothing of it.
const SILENCE_MAX: Duration = Duration::from_secs(4);
/// What the system takes ahead of what it can send. A heartbeat waits behind it, on a link of
/// 10 MB/s for a fortieth of a second; what waits before it has let others pass.
const NOT_SENT_BYTES_MAX: u32 = 256 << 10;
/// How often a stream is tried on which nothing is sent.
const KEEPALIVE: Duration = Duration::from_secs(2);
/// What answers a stream: an Ack, or why there is none.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Whoever was refused has so long to read why.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// What came of connecting to a peer.
pub(super) enum Opened {
    /// It takes frames.
    Framed { ack: Ack, stream: Stream },
    /// It is of a version that takes none.
    SpeaksGrpc,
}

/// A stream that the peer has accepted.
pub(super) struct Stream {
    socket: Arc<TcpStream>,
    decoder: Decoder,
}

/// Connects, and says Hello.
///
/// # Errors
/// Nobody answers there, or the peer refuses.
pub(super) async fn open(address: &str, hello: Hello) -> Result<Opened, Status> {
    let socket = TcpStream::connect(address).await;
    let socket = socket.map_err(|error| broke(&error))?;
    set_up(&socket).map_err(|error| broke(&error))?;
    let mut stream = Stream {
        socket: Arc::new(socket),
        decoder: Decoder::new(ANSWER_BYTES_MAX),
    };
    let mut outgoing = Outgoing::default();
    outgoing.push_magic();
    outgoing.push(Kind::Hello, &hello.encode_to_vec());
    let said = stream.write(&mut outgoing).await;
    match stream.next().await {
        Err(Ended::Wrong(FrameError::NotFramed)) => Ok(Opened::SpeaksGrpc),
        Err(ended) => Err(said.map_or_else(|error| broke(&error), |()| ended.into())),
        Ok(answer) => match answer.kind {
            Kind::Ack => {
                let ack = Ack::decode(answer.body).map_err(|error| wrong(&error))?;
                Ok(Opened::Framed { ack, stream })
            }
            _ => Err(refusal(answer)),
        },
    }
}

fn set_up(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let socket = SockRef::from(socket);
    socket.set_tcp_user_timeout(Some(SILENCE_MAX))?;
    socket.set_tcp_notsent_lowat(NOT_SENT_BYTES_MAX)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
    socket.set_tcp_keepalive(&keepalive.with_interval(KEEPALIVE))
}

/// Why nothing more is read.
enum Ended {
    Wrong(FrameError),
    Broke(io::Error),
    Closed,
}

impl From<Ended> for Status {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Wrong(error) => wrong(&error),
            Ended::Broke(error) => broke(&error),
            Ended::Closed => Self::unavailable("the peer ended the stream"),
        }
    }
}

impl Stream {
    /// What messages are written to.
    pub(super) fn socket(&self) -> &Arc<TcpStream> {
        &self.socket
    }

    /// Waits until the peer ends the stream, and says why.
    pub(super) async fn ended(mut self) -> Status {
        match self.next().await {
            Ok(frame) => refusal(frame),
            Err(ended) => ended.into(),
        }
    }

    async fn write(&self, outgoing: &mut Outgoing) -> io::Result<()> {
        while !outgoing.is_empty() {
            self.socket.writable().await?;
            match self.socket.try_write_vectored(&outgoing.slices()) {
                Ok(bytes) => outgoing.advance(bytes),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<PeerFrame, Ended> {
        loop {
            if let Some(frame) = self.decoder.next_frame().map_err(Ended::Wrong)? {
                return Ok(frame);
            }
            self.socket.readable().await.map_err(Ended::Broke)?;
            match self.socket.try_read_buf(self.decoder.room()) {
                Ok(0) => return Err(Ended::Closed),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(Ended::Broke(error)),
            }
        }
    }
}

/// What a peer says that ends its side of a stream.
fn refusal(frame: PeerFrame) -> Status {
    if frame.kind != Kind::Refusal {
        return Status::internal("the peer answered with something else than an Ack or a refusal");
    }
    Refusal::decode(frame.body).map_or_else(|error| wrong(&error), |it| peer::refused(&it))
}

/// A stream on which nothing more can be sent or heard.
pub(super) fn broke(error: &io::Error) -> Status {
    Status::unavailable(error.to_string())
}

fn wrong(error: &dyn std::error::Error) -> Status {
    Status::invalid_argument(error.to_string())
}

/// A stream that came in.
pub(super) struct Arriving {
    connection: Guarded,
    of: Arc<Connection>,
    decoder: Decoder,
    newcomer: Newcomer,
    has_answered: bool,
}

impl Arriving {
    /// Of which nothing was read. Until it is known whose it is, little is taken from it.
    pub(super) fn new(connection: Guarded, newcomer: Newcomer) -> Self {
        connection.keep_alive(SILENCE_MAX);
        Self {
            of: connection.counted(),
            connection,
            decoder: Decoder::new(STRANGER_BYTES_MAX),
            newcomer,
            has_answered: false,
        }
    }

    /// Whose it is, as far as that is known.
    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.of
    }

    /// The Hello with which it begins.
    ///
    /// # Errors
    /// It begins with something else, or breaks.
    pub(super) async fn hello(&mut self) -> Result<Hello, Status> {
        match self.next().await? {
            Some(PeerFrame {
                kind: Kind::Hello,
                body,
            }) => codec::decode(body),
            Some(_) | None => Err(peer::no_hello()),
        }
    }

    /// Accepts the Hello: batches may follow.
    ///
    /// # Errors
    /// The stream broke.
    pub(super) async fn accept(&mut self) -> Result<(), Status> {
        self.decoder.limit(FRAME_BYTES_MAX);
        let told = self.answer(Kind::Ack, &peer::ack().encode_to_vec()).await;
        told.map_err(|error| broke(&error))
    }

    /// Says why the stream ends.
    pub(super) async fn refuse(mut self, why: &Status) {
        let refusal = peer::refusal(why).encode_to_vec();
        let said = self.answer(Kind::Refusal, &refusal);
        // Whoever does not read it hears nothing.
        let _ = tokio::time::timeout(REFUSAL_TIMEOUT, said).await;
        let _ = self.connection.shutdown().await;
    }

    async fn answer(&mut self, kind: Kind, body: &[u8]) -> io::Result<()> {
        let mut outgoing = Outgoing::default();
        if !std::mem::replace(&mut self.has_answered, true) {
            outgoing.push_magic();
        }
        outgoing.push(kind, body);
        while !outgoing.is_empty() {
            let written = self.connection.write_vectored(&outgoing.slices()).await?;
            outgoing.advance(written);
        }
        Ok(())
    }

    /// The next frame; `None` at the end of the stream.
    ///
    /// # Errors
    /// The stream broke, or is none of frames.
    pub(super) async fn next(&mut self) -> Result<Option<PeerFrame>, Status> {
        loop {
            if let Some(frame) = self.decoder.next_frame().map_err(|error| wrong(&error))? {
                self.newcomer.is_whole();
                return Ok(Some(frame));
            }
            if self.read().await? == 0 {
                return Ok(None);
            }
        }
    }

    async fn read(&mut self) -> Result<usize, Status> {
        poll_fn(|context| {
            self.newcomer.check()?;
            let room: &mut BytesMut = self.decoder.room();
            let read = poll_read_buf(Pin::new(&mut self.connection), context, room);
            let read = ready!(read).map_err(|error| broke(&error))?;
            let arrived = self.decoder.arrived();
            self.newcomer.note(&self.of, arrived, context.waker());
            Poll::Ready(Ok(read))
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use bytes::Bytes;
    use futures::StreamExt as _;
    use tokio::net::TcpListener;
    use tokio_util::sync::CancellationToken;
    use tonic::Code;
    use tonic::body::Body;
    use tonic::codegen::http::{Request, Response};
    use tower::service_fn;

    use super::*;
    use crate::connections::{self, Connections, Http, Incoming, Sources, WhenFull};
    use crate::transport::strangers::StrangersLayer;

    const HTTP: Http = Http {
        version_1: false,
        stream_window_bytes: 64 << 10,
        connection_window_bytes: 64 << 10,
        streams_max: 8,
        keepalive_interval: SILENCE_MAX,
        keepalive_timeout: SILENCE_MAX,
        resets_max: None,
    };

    fn hello() -> Hello {
        Hello {
            from: 2,
            to: 1,
            ..Hello::default()
        }
    }

    async fn listening() -> (String, Incoming) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let connections = Connections::new(8, WhenFull::Refuse, &Sources::default());
        (address, Incoming::new(listener, connections))
    }

    /// What a member does with one stream that comes in.
    async fn arriving(mut incoming: Incoming) -> Arriving {
        let connection = incoming.next().await.unwrap().unwrap();
        Arriving::new(connection, StrangersLayer::new().newcomer())
    }

    /// As one of the release before streams of frames: it serves nothing but HTTP/2.
    #[tokio::test]
    async fn a_member_that_speaks_grpc_alone_is_known_by_its_first_word() {
        let (address, incoming) = listening().await;
        let nothing = async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty()));
        let stop = CancellationToken::new();
        let services = service_fn(nothing);
        tokio::spawn(connections::serve(incoming, HTTP, services, stop.clone()));
        let opened = open(&address, hello()).await;
        assert!(matches!(opened, Ok(Opened::SpeaksGrpc)));
        stop.cancel();
    }

    #[tokio::test]
    async fn messages_follow_a_hello_that_was_accepted_and_come_to_an_end() {
        let (address, incoming) = listening().await;
        let member = tokio::spawn(async move {
            let mut stream = arriving(incoming).await;
            let said = stream.hello().await.unwrap();
            stream.accept().await.unwrap();
            let frame = stream.next().await.unwrap().unwrap();
            let messages = peer::messages(frame).unwrap();
            (said, messages, stream.next().await.unwrap())
        });
        let Ok(Opened::Framed { ack, stream }) = open(&address, hello()).await else {
            panic!("it was not accepted");
        };
        assert_eq!(ack, peer::ack());
        let mut outgoing = Outgoing::default();
        let sent = [Bytes::from_static(b"small"), Bytes::from(vec![7; 5 << 20])];
        outgoing.push_batch(&sent);
        stream.write(&mut outgoing).await.unwrap();
        drop(stream);
        let (said, messages, end) = member.await.unwrap();
        assert_eq!((said, &messages[..], end), (hello(), &sent[..], None));
    }

    /// Before the Ack, or at any time after it.
    #[tokio::test]
    async fn whoever_is_refused_hears_why() {
        let removed = peer::refused(&Refusal {
            code: Code::FailedPrecondition as u32,
            message: "member 2 was removed".to_owned(),
            removed: true,
        });
        for accepted in [false, true] {
            let (address, incoming) = listening().await;
            let why = removed.clone();
            let member = tokio::spawn(async move {
                let mut stream = arriving(incoming).await;
                stream.hello().await.unwrap();
                if accepted {
                    stream.accept().await.unwrap();
                }
                stream.refuse(&why).await;
            });
            let heard = match open(&address, hello()).await {
                Ok(Opened::Framed { stream, .. }) => stream.ended().await,
                Ok(Opened::SpeaksGrpc) => panic!("it speaks frames"),
                Err(status) => status,
            };
            assert_eq!(heard.code(), Code::FailedPrecondition);
            assert_eq!(heard.message(), "member 2 was removed");
            assert!(peer::says_removed(&heard), "{heard:?}");
            member.await.unwrap();
        }
    }

    #[tokio::test]
    async fn what_a_stranger_says_is_refused_and_takes_little_memory() {
        let mut long = Outgoing::default();
        long.push_magic();
        long.push(Kind::Hello, &vec![0; STRANGER_BYTES_MAX + 1]);
        let mut batch = Outgoing::default();
        batch.push_magic();
        batch.push_batch(&[Bytes::from_static(b"before the Hello")]);
        let mut noise = Outgoing::default();
        noise.push_magic();
        noise.push(Kind::Hello, b"\xff\xff");
        for (mut outgoing, code) in [
            (long, Code::InvalidArgument),
            (batch, Code::InvalidArgument),
            // As the codec of gRPC says it.
            (noise, Code::Internal),
        ] {
            let (address, incoming) = listening().await;
            let member = tokio::spawn(async move {
                let mut stream = arriving(incoming).await;
                let refused = stream.hello().await.unwrap_err();
                assert!(stream.decoder.arrived() <= 2 * STRANGER_BYTES_MAX);
                refused.code()
            });
            let socket = TcpStream::connect(&address).await.unwrap();
            let stream = Stream {
                socket: Arc::new(socket),
                decoder: Decoder::new(ANSWER_BYTES_MAX),
            };
            // It may hang up before it has taken everything.
            let _ = stream.write(&mut outgoing).await;
            assert_eq!(member.await.unwrap(), code);
        }
    }
}
