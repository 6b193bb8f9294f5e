//! An API server that knows the pods of one cluster, and forwards ports to what stands for them:
//! over websockets, as the real one leads them to a kubelet.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use dengine_crds::names::labels;
use futures::{SinkExt as _, StreamExt as _};
use http::HeaderValue;
use http::header::SEC_WEBSOCKET_PROTOCOL;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server;
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};

const NAMESPACE: &str = "/api/v1/namespaces/test/pods";
const CLUSTERS: &str = "/apis/dengine.io/v1alpha1/dengineclusters";
/// What the plugin asks to be forwarded.
const PORT: u16 = 4100;
/// Channels of a forwarded port.
const DATA: u8 = 0;
const ERROR: u8 = 1;

/// Ends with the test's runtime.
#[derive(Clone)]
pub(crate) struct ApiServer {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Where the members of these pods listen.
    pods: BTreeMap<String, SocketAddr>,
    forbids: bool,
}

impl ApiServer {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            state: Arc::default(),
        };
        let serving = server.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(client));
            }
        });
        server
    }

    /// A pod is ready.
    pub(crate) fn put_pod(&self, name: &str, member: SocketAddr) {
        let mut state = self.state.lock().unwrap();
        state.pods.insert(name.to_owned(), member);
    }

    /// A pod is deleted.
    pub(crate) fn remove_pod(&self, name: &str) {
        self.state.lock().unwrap().pods.remove(name);
    }

    /// From now on nobody may forward ports.
    pub(crate) fn forbid(&self) {
        self.state.lock().unwrap().forbids = true;
    }

    /// One request a connection.
    async fn serve(self, client: TcpStream) {
        let head = head(&client).await;
        let path = head.split(' ').nth(1).unwrap();
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let pod = path.strip_prefix(NAMESPACE).unwrap_or_default();
        let pod = pod.strip_suffix("/portforward").map(|it| &it[1..]);
        let member = {
            let state = self.state.lock().unwrap();
            let member = pod.and_then(|pod| state.pods.get(pod).copied());
            member.filter(|_| !state.forbids)
        };
        if let Some(member) = member {
            assert!(query.contains(&format!("ports={PORT}")), "{query}");
            return forward(client, member).await;
        }
        let (code, answer) = self.answer(path, query);
        respond(client, code, &answer).await;
    }

    fn answer(&self, path: &str, query: &str) -> (u16, Value) {
        let state = self.state.lock().unwrap();
        let failure = |code: u16, reason: &str| {
            let failure = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "code": code, "reason": reason, "message": "scripted",
            });
            (code, failure)
        };
        let pod = |name: &String| {
            json!({"metadata": {"name": name, "namespace": "test"}, "status": {
                "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
            }})
        };
        let list = |items: Vec<Value>| (200, json!({"metadata": {}, "items": items}));
        match path {
            NAMESPACE => {
                let of_demo = format!("{}%3Ddemo", labels::CLUSTER.replace('/', "%2F"));
                let is_demo = query.contains(&of_demo);
                let pods = state.pods.keys().filter(|_| is_demo);
                list(pods.map(pod).collect())
            }
            CLUSTERS => {
                let elsewhere = json!({"metadata": {"name": "other", "namespace": "prod"}});
                let is_asked = query.contains("metadata.name%3Dother");
                list(is_asked.then_some(elsewhere).into_iter().collect())
            }
            path if state.forbids && path.ends_with("/portforward") => failure(403, "Forbidden"),
            _ => failure(404, "NotFound"),
        }
    }
}

/// The head of a request, which stays to be read.
async fn head(client: &TcpStream) -> String {
    let mut head = vec![0; 16 << 10];
    loop {
        let bytes = client.peek(&mut head).await.unwrap();
        let so_far = String::from_utf8_lossy(&head[..bytes]);
        if so_far.contains("\r\n\r\n") {
            return so_far.into_owned();
        }
        tokio::task::yield_now().await;
    }
}

async fn respond(mut client: TcpStream, code: u16, answer: &Value) {
    let _ = client.read(&mut vec![0; 16 << 10]).await.unwrap();
    let answer = answer.to_string();
    let bytes = answer.len();
    let head = format!(
        "HTTP/1.1 {code} Scripted\r\ncontent-type: application/json\r\n\
         content-length: {bytes}\r\nconnection: close\r\n\r\n"
    );
    // Who ends does not wait for it.
    let _ = client.write_all((head + &answer).as_bytes()).await;
}

async fn forward(client: TcpStream, member: SocketAddr) {
    #[expect(clippy::result_large_err, reason = "the type is the library's")]
    let speak = |_: &server::Request, mut response: server::Response| {
        let protocol = HeaderValue::from_static("v4.channel.k8s.io");
        response
            .headers_mut()
            .insert(SEC_WEBSOCKET_PROTOCOL, protocol);
        Ok(response)
    };
    let Ok(mut socket) = accept_hdr_async(client, speak).await else {
        return;
    };
    for channel in [DATA, ERROR] {
        let first = [&[channel][..], &PORT.to_le_bytes()].concat();
        let _ = socket.send(Message::binary(first)).await;
    }
    match TcpStream::connect(member).await {
        Ok(member) => carry(socket, member).await,
        Err(error) => {
            let words = [&[ERROR][..], error.to_string().as_bytes()].concat();
            let _ = socket.send(Message::binary(words)).await;
            let _ = socket.close(None).await;
        }
    }
}

async fn carry(socket: WebSocketStream<TcpStream>, member: TcpStream) {
    let (mut to_client, mut from_client) = socket.split();
    let (mut from_member, mut to_member) = member.into_split();
    let up = async {
        while let Some(Ok(Message::Binary(bytes))) = from_client.next().await {
            if to_member.write_all(&bytes[1..]).await.is_err() {
                break;
            }
        }
    };
    let down = async {
        let mut bytes = vec![DATA; 16 << 10];
        while let Ok(read @ 1..) = from_member.read(&mut bytes[1..]).await {
            let message = Message::binary(bytes[..=read].to_vec());
            if to_client.send(message).await.is_err() {
                break;
            }
        }
        let _ = to_client.close().await;
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}
