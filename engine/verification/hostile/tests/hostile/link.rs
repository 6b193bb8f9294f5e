//! One HTTP/2 connection to a member, with its windows and streams in the attacker's own hands.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::{BufMut, Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request};
use prost::Message;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Attackers are one machine, and the honest clients another: a member may tell them apart by their
/// address.
const FROM: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Longer than a member waits for anything before it gives up.
const PATIENCE: Duration = Duration::from_secs(40);
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// What a client takes of a connection that it reads.
const WIDE: u32 = 16 << 20;

/// A connection, driven by a task that ends with it.
pub(crate) struct Link {
    requests: SendRequest<Bytes>,
    driver: JoinHandle<Result<(), h2::Error>>,
}

/// A call that has begun.
pub(crate) struct Call {
    response: ResponseFuture,
    pub(crate) body: SendStream<Bytes>,
}

/// A TCP connection from the attackers' address.
pub(crate) async fn connect(to: SocketAddr) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((FROM, 0).into())?;
    let stream = timeout(CONNECT_PATIENCE, socket.connect(to))
        .await
        .context("connecting took too long")??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl Link {
    /// One whose client reads what it is sent.
    pub(crate) async fn open(to: SocketAddr) -> Result<Self> {
        Self::with_window(to, WIDE).await
    }

    /// One that lets the member send so many bytes of each answer, until more is read.
    pub(crate) async fn with_window(to: SocketAddr, window: u32) -> Result<Self> {
        let stream = connect(to).await?;
        let handshake = h2::client::Builder::new()
            .initial_window_size(window)
            .initial_connection_window_size(WIDE)
            .max_frame_size(1 << 20)
            .enable_push(false)
            .handshake(stream);
        let (requests, connection) = timeout(CONNECT_PATIENCE, handshake)
            .await
            .context("the handshake took too long")??;
        Ok(Self {
            requests,
            driver: tokio::spawn(connection),
        })
    }

    /// Begins a call, whose body is to follow. Waits while the member allows no more streams.
    pub(crate) async fn begin(&self, path: &str) -> Result<Call> {
        let request = Request::post(format!("http://member{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())?;
        let mut requests = timeout(PATIENCE, self.requests.clone().ready())
            .await
            .context("the member allows no more streams")??;
        let (response, body) = requests.send_request(request, false)?;
        Ok(Call { response, body })
    }

    /// Sends a whole request.
    pub(crate) async fn ask(&self, path: &str, message: &impl Message) -> Result<Call> {
        self.ask_encoded(path, &message.encode_to_vec()).await
    }

    pub(crate) async fn ask_encoded(&self, path: &str, message: &[u8]) -> Result<Call> {
        let mut call = self.begin(path).await?;
        let body = [&prefix(message.len())[..], message].concat();
        call.body.send_data(body.into(), true)?;
        Ok(call)
    }

    /// Asks, reads the answer, and says what it was: its code and words.
    pub(crate) async fn told(&self, path: &str, message: &impl Message) -> Result<String> {
        self.ask(path, message).await?.told().await
    }

    /// Asks, and returns the answer's message, or what else was told as an error.
    pub(crate) async fn answer<A: Message + Default>(
        &self,
        path: &str,
        message: &impl Message,
    ) -> Result<A> {
        let (told, body) = ended(self.ask(path, message).await?.response).await?;
        anyhow::ensure!(told == OK, "{told}");
        let body = body.get(PREFIX_BYTES..).context("an answer has a prefix")?;
        Ok(A::decode(body)?)
    }

    /// Whether the member, or the network, has ended the connection.
    pub(crate) fn is_over(&self) -> bool {
        self.driver.is_finished()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

const OK: &str = "OK";
const PREFIX_BYTES: usize = 5;

impl Call {
    /// Reads all of the answer; its code and words. The request ends no sooner than that.
    pub(crate) async fn told(self) -> Result<String> {
        let (told, _body) = self.apart();
        told.await
    }

    /// The same, and the request to go on with.
    pub(crate) fn apart(self) -> (impl Future<Output = Result<String>>, SendStream<Bytes>) {
        let Self { response, body } = self;
        let told = async move { Ok(ended(response).await?.0) };
        (told, body)
    }

    /// The rest of the request, and the answers, once they begin. What is not read of them the
    /// member keeps.
    pub(crate) async fn answers(self) -> Result<(SendStream<Bytes>, RecvStream)> {
        let response = timeout(PATIENCE, self.response)
            .await
            .context("no answer in a long time")??;
        if let Some(told) = told(response.headers()) {
            anyhow::bail!("{told}");
        }
        Ok((self.body, response.into_body()))
    }
}

/// What an answer said, and its bytes.
async fn ended(response: ResponseFuture) -> Result<(String, Vec<u8>)> {
    let read = async {
        let response = response.await?;
        let told = told(response.headers());
        let (body, trailers) = drain(response.into_body()).await?;
        let told = told.or_else(|| told_or_none(trailers.as_ref()));
        Ok((told.unwrap_or_else(|| "no status".to_owned()), body))
    };
    timeout(PATIENCE, read)
        .await
        .context("no answer in a long time")?
}

/// Reads whatever comes next; how many bytes it was, 0 at the end.
pub(crate) async fn read_some(body: &mut RecvStream) -> Result<usize> {
    let Some(data) = body.data().await else {
        let trailers = body.trailers().await?;
        if let Some(told) = told_or_none(trailers.as_ref()) {
            anyhow::bail!("{told}");
        }
        return Ok(0);
    };
    let bytes = data?.len();
    body.flow_control().release_capacity(bytes)?;
    // An empty frame is no end.
    Ok(bytes.max(1))
}

async fn drain(mut body: RecvStream) -> Result<(Vec<u8>, Option<HeaderMap>)> {
    let mut bytes = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        bytes.extend_from_slice(&data);
    }
    Ok((bytes, body.trailers().await?))
}

fn told_or_none(headers: Option<&HeaderMap>) -> Option<String> {
    told(headers?)
}

fn told(headers: &HeaderMap) -> Option<String> {
    let code: i32 = headers.get("grpc-status")?.to_str().ok()?.parse().ok()?;
    let words = headers.get("grpc-message");
    let words = words.map_or("", |it| it.to_str().unwrap_or("?"));
    Some(match code {
        0 => OK.to_owned(),
        code => format!("{}: {}", code_name(code), words.replace("%20", " ")),
    })
}

/// Of the codes that a member uses.
fn code_name(code: i32) -> &'static str {
    match code {
        1 => "CANCELLED",
        3 => "INVALID_ARGUMENT",
        4 => "DEADLINE_EXCEEDED",
        5 => "NOT_FOUND",
        7 => "PERMISSION_DENIED",
        8 => "RESOURCE_EXHAUSTED",
        9 => "FAILED_PRECONDITION",
        11 => "OUT_OF_RANGE",
        12 => "UNIMPLEMENTED",
        13 => "INTERNAL",
        14 => "UNAVAILABLE",
        _ => "another code",
    }
}

/// A message behind gRPC's prefix.
pub(crate) fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX_BYTES + length);
    bytes.put_slice(&prefix(length));
    message.encode(&mut bytes).expect("there is room");
    bytes.freeze()
}

/// What announces a message of so many bytes.
pub(crate) fn prefix(length: usize) -> [u8; PREFIX_BYTES] {
    let [a, b, c, d] = u32::try_from(length).unwrap().to_be_bytes();
    [0, a, b, c, d]
}
