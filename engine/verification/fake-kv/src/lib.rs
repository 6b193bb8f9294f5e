//! A server of DEngine's protocol on loopback, for tests of clients and of the operator: a real
//! tonic server whose answers the test scripts. It keeps keys in a map so that answers are true,
//! and shows a cluster in which nothing happens; it is no model of DEngine.
//!
//! What may not live here: anything that compiles the client or the engine.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod admin;
mod kv;
mod load;
mod watch;

pub use admin::FakeCluster;
pub use load::Load;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use dengine_protocol::v1::admin_server::AdminServer;
use dengine_protocol::v1::kv_server::KvServer;
use dengine_protocol::v1::watch_server::WatchServer;
use dengine_protocol::v1::{
    GetRequest, KeyValue, PutResponse, ResponseHeader, SessionStamp, WatchCreate, WatchResponse,
};
use dengine_protocol::{LEADER_HINT_METADATA, LOW_ON_SPACE_METADATA, UNCHANGED_METADATA};
use futures::Stream;
use tokio::net::{TcpListener, TcpStream};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::codegen::http::{self, HeaderValue};
use tonic::metadata::MetadataValue;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};
use tower::util::MapResponseLayer;

use load::Seen;
use watch::LiveWatch;

/// What happens to one request; requests beyond the script are served.
#[derive(Debug)]
pub enum ScriptStep {
    /// Fails with this status.
    Fail(Code),
    /// `UNAVAILABLE` with a leader hint.
    NotLeader(String),
    /// `RESOURCE_EXHAUSTED`, for the disk is full.
    LowOnSpace,
    /// Never answers.
    Hang,
    /// A put or a swap is done, and answered with this all the same.
    DoneBut(Code),
}

/// What stands in between answers so in the member's place, after it has passed a request on.
#[derive(Clone, Copy, Debug)]
pub enum Between {
    /// With this status of HTTP, and nothing else.
    Http(u16),
    /// With this status of gRPC, as a proxy does that knows gRPC.
    Grpc(Code),
}

/// The stream of answers of one call.
type Answers<T> = std::pin::Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What one watch stream says; it then stays silent, unless it ends with an error.
pub type Script = Vec<Result<WatchResponse, Status>>;

#[derive(Debug, Default)]
struct FakeState {
    script: VecDeque<ScriptStep>,
    always: Option<Code>,
    between: Option<Between>,
    /// Answers nothing any more.
    silent: bool,
    requests: usize,
    callers: HashSet<SocketAddr>,
    revision: u64,
    pairs: BTreeMap<Bytes, KeyValue>,
    /// By session and sequence.
    answers: HashMap<(u64, u64), PutResponse>,
    stamps: Vec<SessionStamp>,
    gets: Vec<GetRequest>,
    /// The revision of each range that was asked for.
    ranges: Vec<u64>,
    keep_alives: usize,
    watches: VecDeque<Script>,
    created: Vec<WatchCreate>,
    /// Tells every watch of this many bytes in each of these revisions.
    history: Option<(usize, std::ops::Range<u64>)>,
    /// Watches that hear of puts, if any do; without a script or a history.
    live: Option<Vec<LiveWatch>>,
    /// Responses to these.
    told: usize,
    streams: usize,
    cancelled: Vec<u64>,
    cluster_id: u64,
    term: u64,
    /// Where its admin port is, if this is another one.
    admin_port: String,
    seen: Seen,
    /// Whom its frames name.
    leader: String,
    probes: usize,
    /// The time of each call of a stream, and the calls that were given up.
    timeouts_ms: Vec<u32>,
    given_up: Vec<u64>,
}

/// A running peer; its server ends with the test's runtime.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Where it listens.
    pub address: String,
    cluster: Arc<FakeCluster>,
    /// Which of its members this is.
    place: usize,
    load: Arc<Load>,
    state: Arc<Mutex<FakeState>>,
}

impl Peer {
    /// Serves every request.
    pub async fn start() -> Self {
        Self::scripted([]).await
    }

    /// Does with the first requests what the script says.
    pub async fn scripted(script: impl IntoIterator<Item = ScriptStep>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::listening(listener, script)
    }

    /// The same, on a port of the caller's.
    pub fn listening(listener: TcpListener, script: impl IntoIterator<Item = ScriptStep>) -> Self {
        Self::serving(listener, script, Load::default(), Self::alone())
    }

    /// Behaves so under load.
    pub async fn under(load: Load) -> Self {
        Self::loaded(TcpListener::bind("127.0.0.1:0").await.unwrap(), load)
    }

    /// The same, on a port of the caller's.
    pub fn loaded(listener: TcpListener, load: Load) -> Self {
        let peer = Self::serving(listener, [], load, Self::alone());
        peer.state.lock().unwrap().live = Some(Vec::new());
        peer
    }

    fn alone() -> (FakeCluster, usize) {
        (FakeCluster::default(), 0)
    }

    fn serving(
        listener: TcpListener,
        script: impl IntoIterator<Item = ScriptStep>,
        load: Load,
        (cluster, place): (FakeCluster, usize),
    ) -> Self {
        let address = listener.local_addr().unwrap().to_string();
        let state = FakeState {
            script: script.into_iter().collect(),
            revision: 1,
            cluster_id: cluster.id,
            term: 2,
            ..FakeState::default()
        };
        let peer = Peer {
            address,
            cluster: Arc::new(cluster),
            place,
            load: Arc::new(load),
            state: Arc::new(Mutex::new(state)),
        };
        let answered = peer.clone();
        let served = Server::builder()
            .layer(MapResponseLayer::new(move |it| answered.answer(it)))
            .add_service(AdminServer::new(peer.clone()))
            .add_service(KvServer::new(peer.clone()))
            .add_service(WatchServer::new(peer.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(served);
        peer
    }

    /// Answers every request with `code` from now on.
    pub fn always(&self, code: Code) {
        self.state.lock().unwrap().always = Some(code);
    }

    /// From now on no answer of its own arrives, but one in its place.
    pub fn is_behind_what_answers(&self, between: Between) {
        self.state.lock().unwrap().between = Some(between);
    }

    /// From now on its own answers arrive.
    pub fn is_behind_nothing(&self) {
        self.state.lock().unwrap().between = None;
    }

    /// What arrives of an answer.
    fn answer(&self, mut own: http::Response<Body>) -> http::Response<Body> {
        match self.state.lock().unwrap().between {
            Some(Between::Grpc(code)) => Status::new(code, "upstream reset").into_http(),
            Some(Between::Http(code)) => {
                let mut bare = http::Response::new(Body::empty());
                *bare.status_mut() = code.try_into().unwrap();
                bare
            }
            None => {
                // As a member does.
                let code = own.headers().get(Status::GRPC_STATUS);
                if code.is_some_and(|it| ["14", "8"].iter().any(|code| it == code)) {
                    let word = HeaderValue::from_static("1");
                    own.headers_mut().insert(UNCHANGED_METADATA, word);
                }
                own
            }
        }
    }

    /// Takes every request from now on, and answers none.
    pub fn falls_silent(&self) {
        self.state.lock().unwrap().silent = true;
    }

    /// Has this pair.
    pub fn holds(&self, key: &str, value: Vec<u8>) {
        let key = Bytes::copy_from_slice(key.as_bytes());
        self.state.lock().unwrap().set(&key, value.into());
    }

    /// Has this pair no more, and says nothing of it.
    pub fn loses(&self, key: &str) {
        self.state.lock().unwrap().pairs.remove(key.as_bytes());
    }

    /// Names this address as the leader's in every frame, and with every put and lease read of a
    /// single key, from now on, as a member does that passes calls on.
    pub fn passes_on_to(&self, leader: &str) {
        leader.clone_into(&mut self.state.lock().unwrap().leader);
    }

    /// Says that it belongs to another cluster.
    pub fn is_of_cluster(&self, cluster_id: u64) {
        self.state.lock().unwrap().cluster_id = cluster_id;
    }

    /// For how long each call of a stream was said to be waited for.
    pub fn timeouts_ms(&self) -> Vec<u32> {
        self.state.lock().unwrap().timeouts_ms.clone()
    }

    /// Calls of streams that nobody waits for any more.
    pub fn given_up(&self) -> Vec<u64> {
        self.state.lock().unwrap().given_up.clone()
    }

    /// How often a client asked which cluster this is; that is no request of the test's.
    pub fn probes(&self) -> usize {
        self.state.lock().unwrap().probes
    }

    /// The revision of each range that was asked for.
    pub fn revisions_of_ranges(&self) -> Vec<u64> {
        self.state.lock().unwrap().ranges.clone()
    }

    /// Plays these to the next watch streams, one each.
    pub fn watches(&self, scripts: impl IntoIterator<Item = Script>) {
        self.state.lock().unwrap().watches.extend(scripts);
    }

    /// Tells every watch, of any number on a stream, of a value of so many bytes in each of these
    /// revisions.
    pub fn tells(&self, bytes: usize, revisions: std::ops::Range<u64>) {
        self.state.lock().unwrap().history = Some((bytes, revisions));
    }

    /// The streams of watches that were opened.
    pub fn watch_streams(&self) -> usize {
        self.state.lock().unwrap().streams
    }

    /// The responses with events to watches that hear of puts.
    pub fn watch_responses(&self) -> usize {
        self.state.lock().unwrap().told
    }

    /// The watches that were cancelled by their client.
    pub fn cancelled(&self) -> Vec<u64> {
        self.state.lock().unwrap().cancelled.clone()
    }

    /// The watches that were asked for.
    pub fn created(&self) -> Vec<WatchCreate> {
        self.state.lock().unwrap().created.clone()
    }

    /// The stamps of all puts.
    pub fn stamps(&self) -> Vec<SessionStamp> {
        self.state.lock().unwrap().stamps.clone()
    }

    /// What was read.
    pub fn gets(&self) -> Vec<GetRequest> {
        self.state.lock().unwrap().gets.clone()
    }

    /// How often a session was kept alive.
    pub fn keep_alives(&self) -> usize {
        self.state.lock().unwrap().keep_alives
    }

    /// Requests that were neither probes nor about sessions.
    pub fn requests(&self) -> usize {
        self.state.lock().unwrap().requests
    }

    /// Connections that carried puts or gets.
    pub fn connections(&self) -> usize {
        self.state.lock().unwrap().callers.len()
    }

    fn note_caller<M>(&self, request: &Request<M>) {
        let caller = request.remote_addr().unwrap();
        self.state.lock().unwrap().callers.insert(caller);
    }

    /// What to answer with although the request is done, if anything.
    async fn step(&self) -> Result<Option<Status>, Status> {
        self.speaks().await;
        let step = {
            let mut state = self.state.lock().unwrap();
            state.requests += 1;
            if let Some(code) = state.always {
                return Err(Status::new(code, "always"));
            }
            state.script.pop_front()
        };
        match step {
            None => Ok(None),
            Some(ScriptStep::DoneBut(code)) => Ok(Some(Status::new(code, "scripted"))),
            Some(ScriptStep::Fail(code)) => Err(Status::new(code, "scripted")),
            Some(ScriptStep::NotLeader(leader)) => {
                let mut status = Status::unavailable("not the leader");
                status
                    .metadata_mut()
                    .insert(LEADER_HINT_METADATA, leader.parse().unwrap());
                Err(status)
            }
            Some(ScriptStep::LowOnSpace) => {
                let mut status = Status::resource_exhausted("scripted");
                let low = MetadataValue::from_static("1");
                status.metadata_mut().insert(LOW_ON_SPACE_METADATA, low);
                Err(status)
            }
            Some(ScriptStep::Hang) => std::future::pending().await,
        }
    }

    /// Never ends if it is silent.
    async fn speaks(&self) {
        if self.state.lock().unwrap().silent {
            std::future::pending::<()>().await;
        }
    }
}

/// One address for several members, as a Kubernetes Service is: the first connection leads to the
/// first, the next to the next, and all further ones to the last.
pub async fn balanced(members: &[&Peer]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let members: Vec<String> = members.iter().map(|peer| peer.address.clone()).collect();
    tokio::spawn(async move {
        let (last, before) = members.split_last().unwrap();
        let mut turns = before.iter().chain(std::iter::repeat(last));
        while let (Ok((mut outside, _)), Some(member)) = (listener.accept().await, turns.next()) {
            let member = member.clone();
            tokio::spawn(async move {
                let mut inside = TcpStream::connect(member).await.unwrap();
                // Either side may end it.
                let _ = tokio::io::copy_bidirectional(&mut outside, &mut inside).await;
            });
        }
    });
    address
}

impl FakeState {
    fn naming_leader<T>(&self, answer: T) -> Response<T> {
        let mut response = Response::new(answer);
        if !self.leader.is_empty() {
            let leader = self.leader.parse().unwrap();
            response.metadata_mut().insert(LEADER_HINT_METADATA, leader);
        }
        response
    }

    fn header(&self) -> Option<ResponseHeader> {
        Some(ResponseHeader {
            cluster_id: self.cluster_id,
            member_id: 1,
            revision: self.revision,
            term: self.term,
            trimmed: false,
        })
    }

    fn set(&mut self, key: &Bytes, value: Bytes) -> Option<KeyValue> {
        self.revision += 1;
        let previous = self.pairs.get(key).cloned();
        let pair = KeyValue {
            key: key.clone(),
            value,
            create_revision: previous
                .as_ref()
                .map_or(self.revision, |kv| kv.create_revision),
            mod_revision: self.revision,
            version: previous.as_ref().map_or(1, |kv| kv.version + 1),
            ttl_ms: 0,
        };
        self.pairs.insert(key.clone(), pair);
        previous
    }

    fn within(&self, key: &Bytes, end: &Bytes) -> Vec<KeyValue> {
        let inside = |k: &Bytes| match end.as_ref() {
            b"" => k == key,
            b"\0" => k >= key,
            end => k >= key && k.as_ref() < end,
        };
        self.pairs
            .values()
            .filter(|kv| inside(&kv.key))
            .cloned()
            .collect()
    }
}
