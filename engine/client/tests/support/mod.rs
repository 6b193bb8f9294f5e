//! A protocol peer on loopback: a real tonic server whose answers the test scripts. It keeps keys in
//! a map so that answers are true; it is no model of DEngine.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use dengine_protocol::{
    LEADER_HINT_METADATA, LOW_ON_SPACE_METADATA, UNCHANGED_METADATA,
    v1::{
        BatchRequest, BatchResponse, CallError, CloseSessionRequest, CloseSessionResponse,
        CompactRequest, CompactResponse, CompareAndSwapRequest, CompareAndSwapResponse,
        DeleteRequest, DeleteResponse, Event, GetRequest, GetResponse, KeepAliveSessionRequest,
        KeepAliveSessionResponse, KeyValue, OpenSessionRequest, OpenSessionResponse,
        PipelineRequest, PipelineResponse, PipelinedAnswer, PipelinedCall, PutRequest, PutResponse,
        RangeRequest, RangeResponse, ResponseHeader, SessionStamp, WatchCreate, WatchRequest,
        WatchResponse,
        compare_and_swap_request::Expected,
        event::Kind,
        kv_server::{Kv, KvServer},
        pipelined_answer::Answer,
        pipelined_call::Call,
        watch_request,
        watch_server::{Watch, WatchServer},
    },
};
use futures::{Stream, StreamExt, stream};
use tokio::net::{TcpListener, TcpStream};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{
    Code, Extensions, Request, Response, Status, Streaming,
    body::Body,
    codegen::http::{self, HeaderValue},
    metadata::MetadataValue,
    transport::Server,
};
use tower::util::MapResponseLayer;

/// What happens to one request; requests beyond the script are served.
pub(crate) enum Step {
    Fail(Code),
    /// `UNAVAILABLE` with a leader hint.
    NotLeader(String),
    /// `RESOURCE_EXHAUSTED`, for the disk is full.
    LowOnSpace,
    /// Never answers.
    Hang,
    /// A put is done, and answered with this all the same.
    DoneBut(Code),
}

/// What stands in between answers so in the member's place, after it has passed a request on.
#[derive(Clone, Copy)]
pub(crate) enum Between {
    /// With this status of HTTP, and nothing else.
    Http(u16),
    /// With this status of gRPC, as a proxy does that knows gRPC.
    Grpc(Code),
}

/// What a client reads to learn where a connection leads.
const PROBE: &[u8] = b"\0";

type Answers<T> = std::pin::Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What one watch stream says; it then stays silent, unless it ends with an error.
pub(crate) type Script = Vec<Result<WatchResponse, Status>>;

#[derive(Default)]
struct State {
    script: VecDeque<Step>,
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
    streams: usize,
    cancelled: Vec<u64>,
    cluster_id: u64,
    /// Whom its frames name.
    leader: String,
    probes: usize,
    /// The time of each call of a stream, and the calls that were given up.
    timeouts_ms: Vec<u32>,
    given_up: Vec<u64>,
}

/// A running peer; its server ends with the test's runtime.
#[derive(Clone)]
pub(crate) struct Peer {
    pub(crate) address: String,
    state: Arc<Mutex<State>>,
}

impl Peer {
    pub(crate) async fn start() -> Self {
        Self::scripted([]).await
    }

    pub(crate) async fn scripted(script: impl IntoIterator<Item = Step>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::listening(listener, script)
    }

    pub(crate) fn listening(listener: TcpListener, script: impl IntoIterator<Item = Step>) -> Self {
        let address = listener.local_addr().unwrap().to_string();
        let state = State {
            script: script.into_iter().collect(),
            revision: 1,
            cluster_id: 7,
            ..State::default()
        };
        let peer = Peer {
            address,
            state: Arc::new(Mutex::new(state)),
        };
        let answered = peer.clone();
        let served = Server::builder()
            .layer(MapResponseLayer::new(move |it| answered.answer(it)))
            .add_service(KvServer::new(peer.clone()))
            .add_service(WatchServer::new(peer.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(served);
        peer
    }

    /// Answers every request with `code` from now on.
    pub(crate) fn always(&self, code: Code) {
        self.state.lock().unwrap().always = Some(code);
    }

    /// From now on no answer of its own arrives, but one in its place.
    pub(crate) fn is_behind_what_answers(&self, between: Between) {
        self.state.lock().unwrap().between = Some(between);
    }

    /// From now on its own answers arrive.
    pub(crate) fn is_behind_nothing(&self) {
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
    pub(crate) fn falls_silent(&self) {
        self.state.lock().unwrap().silent = true;
    }

    /// Has this pair.
    pub(crate) fn holds(&self, key: &'static str, value: Vec<u8>) {
        let key = Bytes::from_static(key.as_bytes());
        self.state.lock().unwrap().set(&key, value.into());
    }

    /// Names this address as the leader's in every frame from now on, as a member does that passes calls on.
    pub(crate) fn passes_on_to(&self, leader: &str) {
        leader.clone_into(&mut self.state.lock().unwrap().leader);
    }

    /// Says that it belongs to another cluster.
    pub(crate) fn is_of_cluster(&self, cluster_id: u64) {
        self.state.lock().unwrap().cluster_id = cluster_id;
    }

    /// How often a client asked which cluster this is; that is no request of the test's.
    /// For how long each call of a stream was said to be waited for.
    pub(crate) fn timeouts_ms(&self) -> Vec<u32> {
        self.state.lock().unwrap().timeouts_ms.clone()
    }

    /// Calls of streams that nobody waits for any more.
    pub(crate) fn given_up(&self) -> Vec<u64> {
        self.state.lock().unwrap().given_up.clone()
    }

    pub(crate) fn probes(&self) -> usize {
        self.state.lock().unwrap().probes
    }

    /// The revision of each range that was asked for.
    pub(crate) fn revisions_of_ranges(&self) -> Vec<u64> {
        self.state.lock().unwrap().ranges.clone()
    }

    /// Plays these to the next watch streams, one each.
    pub(crate) fn watches(&self, scripts: impl IntoIterator<Item = Script>) {
        self.state.lock().unwrap().watches.extend(scripts);
    }

    /// Tells every watch, of any number on a stream, of a value of so many bytes in each of these revisions.
    pub(crate) fn tells(&self, bytes: usize, revisions: std::ops::Range<u64>) {
        self.state.lock().unwrap().history = Some((bytes, revisions));
    }

    /// The streams of watches that were opened.
    pub(crate) fn watch_streams(&self) -> usize {
        self.state.lock().unwrap().streams
    }

    /// The watches that were cancelled by their client.
    pub(crate) fn cancelled(&self) -> Vec<u64> {
        self.state.lock().unwrap().cancelled.clone()
    }

    /// What a watch is told of the history, or nothing if it was a cancellation.
    fn told(&self, request: WatchRequest) -> Vec<Result<WatchResponse, Status>> {
        let mut state = self.state.lock().unwrap();
        let create = match request.request {
            Some(watch_request::Request::Create(create)) => create,
            Some(watch_request::Request::Cancel(cancel)) => {
                state.cancelled.push(cancel.watch_id);
                return Vec::new();
            }
            _ => return Vec::new(),
        };
        state.created.push(create.clone());
        let (bytes, revisions) = state.history.clone().unwrap_or_default();
        let first = create.start_revision.max(revisions.start);
        let response = |revision| WatchResponse {
            header: Some(ResponseHeader {
                cluster_id: 7,
                revision,
                ..ResponseHeader::default()
            }),
            watch_id: create.watch_id,
            ..WatchResponse::default()
        };
        let created = WatchResponse {
            created: true,
            resume_revision: first,
            ..response(first - 1)
        };
        let told = (first..revisions.end).map(|revision| WatchResponse {
            events: vec![Event {
                kind: Kind::Put.into(),
                kv: Some(KeyValue {
                    key: create.key.clone(),
                    value: vec![b'v'; bytes].into(),
                    mod_revision: revision,
                    ..KeyValue::default()
                }),
                prev_kv: None,
            }],
            ..response(revision)
        });
        std::iter::once(created).chain(told).map(Ok).collect()
    }

    /// The watches that were asked for.
    pub(crate) fn created(&self) -> Vec<WatchCreate> {
        self.state.lock().unwrap().created.clone()
    }

    /// The stamps of all puts.
    pub(crate) fn stamps(&self) -> Vec<SessionStamp> {
        self.state.lock().unwrap().stamps.clone()
    }

    pub(crate) fn gets(&self) -> Vec<GetRequest> {
        self.state.lock().unwrap().gets.clone()
    }

    pub(crate) fn keep_alives(&self) -> usize {
        self.state.lock().unwrap().keep_alives
    }

    pub(crate) fn requests(&self) -> usize {
        self.state.lock().unwrap().requests
    }

    pub(crate) fn connections(&self) -> usize {
        self.state.lock().unwrap().callers.len()
    }

    /// What to answer with although the request is done, if anything.
    async fn step<M>(&self, request: &Request<M>) -> Result<Option<Status>, Status> {
        self.speaks().await;
        let step = {
            let mut state = self.state.lock().unwrap();
            state.requests += 1;
            state.callers.insert(request.remote_addr().unwrap());
            if let Some(code) = state.always {
                return Err(Status::new(code, "always"));
            }
            state.script.pop_front()
        };
        match step {
            None => Ok(None),
            Some(Step::DoneBut(code)) => Ok(Some(Status::new(code, "scripted"))),
            Some(Step::Fail(code)) => Err(Status::new(code, "scripted")),
            Some(Step::NotLeader(leader)) => {
                let mut status = Status::unavailable("not the leader");
                status
                    .metadata_mut()
                    .insert(LEADER_HINT_METADATA, leader.parse().unwrap());
                Err(status)
            }
            Some(Step::LowOnSpace) => {
                let mut status = Status::resource_exhausted("scripted");
                let low = MetadataValue::from_static("1");
                status.metadata_mut().insert(LOW_ON_SPACE_METADATA, low);
                Err(status)
            }
            Some(Step::Hang) => std::future::pending().await,
        }
    }

    /// Never ends if it is silent.
    async fn speaks(&self) {
        if self.state.lock().unwrap().silent {
            std::future::pending::<()>().await;
        }
    }
}

/// One address for several members, as a Kubernetes Service is: the first connection leads to the first, the next to the next,
/// and all further ones to the last.
pub(crate) async fn balanced(members: &[&Peer]) -> String {
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

impl State {
    fn header(&self) -> Option<ResponseHeader> {
        Some(ResponseHeader {
            cluster_id: self.cluster_id,
            member_id: 1,
            revision: self.revision,
            term: 2,
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

#[tonic::async_trait]
impl Kv for Peer {
    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        let instead = self.step(&request).await?;
        let put = request.into_inner();
        let mut state = self.state.lock().unwrap();
        state.stamps.extend(put.session);
        let name = put.session.map(|it| (it.session_id, it.sequence));
        let stored = name.and_then(|name| state.answers.get(&name).cloned());
        let answer = stored.unwrap_or_else(|| {
            let prev_kv = state.set(&put.key, put.value).filter(|_| put.prev_kv);
            PutResponse {
                header: state.header(),
                prev_kv,
            }
        });
        if let Some(name) = name {
            state.answers.insert(name, answer.clone());
        }
        instead.map_or(Ok(Response::new(answer)), Err)
    }

    async fn delete(
        &self,
        request: Request<DeleteRequest>,
    ) -> Result<Response<DeleteResponse>, Status> {
        self.step(&request).await?;
        let delete = request.into_inner();
        let mut state = self.state.lock().unwrap();
        let gone = state.within(&delete.key, &delete.range_end);
        for kv in &gone {
            state.pairs.remove(&kv.key);
        }
        state.revision += u64::from(!gone.is_empty());
        let deleted = gone.len() as u64;
        Ok(Response::new(DeleteResponse {
            header: state.header(),
            deleted,
            prev_kvs: Vec::new(),
        }))
    }

    async fn compare_and_swap(
        &self,
        request: Request<CompareAndSwapRequest>,
    ) -> Result<Response<CompareAndSwapResponse>, Status> {
        self.step(&request).await?;
        let swap = request.into_inner();
        let mut state = self.state.lock().unwrap();
        let current = state.pairs.get(&swap.key).cloned();
        let succeeded = match swap.expected.unwrap() {
            Expected::ModRevision(r) => current.as_ref().map_or(0, |kv| kv.mod_revision) == r,
            Expected::CurrentValue(v) => current.as_ref().is_some_and(|kv| kv.value == v),
        };
        if succeeded {
            state.set(&swap.key, swap.value);
        }
        let header = state.header();
        Ok(Response::new(CompareAndSwapResponse {
            header,
            succeeded,
            prev_kv: current,
        }))
    }

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        if request.get_ref().key == PROBE {
            let mut state = self.state.lock().unwrap();
            state.probes += 1;
            let (header, kv) = (state.header(), None);
            return Ok(Response::new(GetResponse { header, kv }));
        }
        self.step(&request).await?;
        let mut state = self.state.lock().unwrap();
        let kv = state.pairs.get(&request.get_ref().key).cloned();
        state.gets.push(request.into_inner());
        Ok(Response::new(GetResponse {
            header: state.header(),
            kv,
        }))
    }

    async fn range(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<RangeResponse>, Status> {
        self.step(&request).await?;
        let range = request.into_inner();
        let mut state = self.state.lock().unwrap();
        state.ranges.push(range.revision);
        let mut kvs = state.within(&range.key, &range.range_end);
        let count = kvs.len() as u64;
        if range.limit > 0 {
            kvs.truncate(range.limit as usize);
        }
        let more = (kvs.len() as u64) < count;
        Ok(Response::new(RangeResponse {
            header: state.header(),
            kvs,
            more,
            count: (!more).then_some(count),
        }))
    }

    async fn batch(&self, _: Request<BatchRequest>) -> Result<Response<BatchResponse>, Status> {
        Err(Status::unimplemented("no test needs it"))
    }

    async fn compact(
        &self,
        _: Request<CompactRequest>,
    ) -> Result<Response<CompactResponse>, Status> {
        Err(Status::unimplemented("no test needs it"))
    }

    async fn open_session(
        &self,
        request: Request<OpenSessionRequest>,
    ) -> Result<Response<OpenSessionResponse>, Status> {
        Ok(Response::new(OpenSessionResponse {
            header: self.state.lock().unwrap().header(),
            session_id: 9,
            ttl_ms: request.into_inner().ttl_ms,
        }))
    }

    async fn keep_alive_session(
        &self,
        _: Request<KeepAliveSessionRequest>,
    ) -> Result<Response<KeepAliveSessionResponse>, Status> {
        self.speaks().await;
        let mut state = self.state.lock().unwrap();
        state.keep_alives += 1;
        Ok(Response::new(KeepAliveSessionResponse {
            header: state.header(),
        }))
    }

    async fn close_session(
        &self,
        _: Request<CloseSessionRequest>,
    ) -> Result<Response<CloseSessionResponse>, Status> {
        Ok(Response::new(CloseSessionResponse {
            header: self.state.lock().unwrap().header(),
            closed: true,
        }))
    }

    type PipelineStream = Answers<PipelineResponse>;

    async fn pipeline(
        &self,
        request: Request<Streaming<PipelineRequest>>,
    ) -> Result<Response<Self::PipelineStream>, Status> {
        let from = request.extensions().clone();
        let (peer, state) = (self.clone(), Arc::clone(&self.state));
        let calls = request
            .into_inner()
            .take_while(|frame| std::future::ready(frame.is_ok()))
            .flat_map({
                let state = Arc::clone(&state);
                move |frame| {
                    let frame = frame.unwrap();
                    state.lock().unwrap().given_up.extend(frame.cancelled);
                    stream::iter(frame.calls)
                }
            });
        let answers = calls
            .map(move |call| {
                peer.state.lock().unwrap().timeouts_ms.push(call.timeout_ms);
                peer.clone().pipelined(call, from.clone())
            })
            .buffer_unordered(64)
            .map(move |answer| {
                Ok(PipelineResponse {
                    answers: vec![answer],
                    leader: state.lock().unwrap().leader.clone(),
                    ..PipelineResponse::default()
                })
            });
        Ok(Response::new(Box::pin(answers)))
    }
}

impl Peer {
    /// One call of a stream, made as if it were alone.
    async fn pipelined(self, call: PipelinedCall, from: Extensions) -> PipelinedAnswer {
        macro_rules! alone {
            ($request:expr, $method:ident, $variant:ident) => {{
                let mut request = Request::new($request);
                *request.extensions_mut() = from;
                self.$method(request)
                    .await
                    .map(|answer| Answer::$variant(answer.into_inner()))
            }};
        }
        let result = match call.call.unwrap() {
            Call::Put(it) => alone!(it, put, Put),
            Call::Delete(it) => alone!(it, delete, Delete),
            Call::CompareAndSwap(it) => alone!(it, compare_and_swap, CompareAndSwap),
            Call::Get(it) => alone!(it, get, Get),
            Call::Range(it) => alone!(it, range, Range),
            Call::OpenSession(it) => alone!(it, open_session, OpenSession),
            Call::KeepAliveSession(it) => alone!(it, keep_alive_session, KeepAliveSession),
            Call::CloseSession(it) => alone!(it, close_session, CloseSession),
            Call::Batch(_) | Call::Compact(_) => Err(Status::unimplemented("no test needs it")),
        };
        let error = |status: Status| {
            let leader = status.metadata().get(LEADER_HINT_METADATA);
            Answer::Error(CallError {
                code: status.code().into(),
                message: status.message().to_owned(),
                leader: leader.map_or("", |it| it.to_str().unwrap()).to_owned(),
                low_on_space: status.metadata().contains_key(LOW_ON_SPACE_METADATA),
            })
        };
        PipelinedAnswer {
            id: call.id,
            answer: Some(result.unwrap_or_else(error)),
            visited: 0,
            others_waited: false,
        }
    }
}

#[tonic::async_trait]
impl Watch for Peer {
    type WatchStream = Answers<WatchResponse>;

    async fn watch(
        &self,
        request: Request<Streaming<WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let mut requests = request.into_inner();
        self.state.lock().unwrap().streams += 1;
        if self.state.lock().unwrap().history.is_some() {
            let peer = self.clone();
            let said = requests.flat_map(move |request| {
                let told = request.map(|request| peer.told(request));
                stream::iter(told.unwrap_or_default())
            });
            return Ok(Response::new(Box::pin(said)));
        }
        let first = requests.message().await?.and_then(|it| it.request);
        let Some(watch_request::Request::Create(create)) = first else {
            return Err(Status::invalid_argument("a stream begins with a watch"));
        };
        let mut state = self.state.lock().unwrap();
        state.created.push(create);
        let Some(script) = state.watches.pop_front() else {
            return Err(Status::unavailable("no more scripts"));
        };
        let silent = script.last().is_none_or(Result::is_ok);
        let after = stream::once(async move {
            if silent {
                std::future::pending::<()>().await;
            }
            drop(requests);
            Err(Status::unavailable("over"))
        });
        let said = stream::iter(script).chain(after);
        Ok(Response::new(Box::pin(said)))
    }
}
