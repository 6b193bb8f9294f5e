//! A protocol peer on loopback: a real tonic server that plays a cluster of one, as the test tells
//! it to. It keeps which keys exist; it is no model of DEngine.

use std::{
    collections::{BTreeSet, HashSet},
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use dengine_protocol::v1::{
    AddLearnerRequest, AddLearnerResponse, BatchRequest, BatchResponse, BootstrapRequest,
    BootstrapResponse, CallError, CloseSessionRequest, CloseSessionResponse, CompactRequest,
    CompactResponse, CompareAndSwapRequest, CompareAndSwapResponse, DeleteRequest, DeleteResponse,
    Event, GetRequest, GetResponse, HashRequest, HashResponse, JoinRequest, JoinResponse,
    KeepAliveSessionRequest, KeepAliveSessionResponse, KeyValue, Member, MemberProgress,
    MembersRequest, MembersResponse, OpenSessionRequest, OpenSessionResponse, PipelineRequest,
    PipelineResponse, PipelinedAnswer, PipelinedCall, PromoteRequest, PromoteResponse, PutRequest,
    PutResponse, RangeRequest, RangeResponse, RemoveRequest, RemoveResponse, ResponseHeader,
    SnapshotRequest, SnapshotResponse, StatusRequest, StatusResponse, TransferLeaderRequest,
    TransferLeaderResponse, WatchCreate, WatchRequest, WatchResponse,
    admin_server::{Admin, AdminServer},
    event,
    kv_server::{Kv, KvServer},
    pipelined_answer::Answer,
    pipelined_call::Call,
    watch_request,
    watch_server::{Watch, WatchServer},
};
use futures::{Stream, StreamExt, future::ready, stream};
use tokio::{
    net::TcpListener,
    sync::{Barrier, mpsc},
};
use tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream};
use tonic::{Extensions, Request, Response, Status, Streaming, transport::Server};

/// Calls of one stream that are served at once; more than any test has.
const PIPELINED_MAX: usize = 1024;

/// How the peer behaves.
#[derive(Default)]
pub(crate) struct Behaviour {
    /// This put and every one so many later fails.
    pub(crate) fail_every: Option<u64>,
    /// From this put on there is another term.
    pub(crate) elect_at: Option<u64>,
    /// Each put waits for so long.
    pub(crate) delay: Duration,
    /// Puts wait for each other until so many are there at once.
    pub(crate) together: Option<Barrier>,
    /// From this put on nothing is answered.
    pub(crate) hang_at: Option<u64>,
    /// What its disk has room for, if it tells.
    pub(crate) free_bytes: Option<u64>,
    /// So many deletions are answered, and no more.
    pub(crate) deletions: Option<u64>,
    /// A deletion of more keys is refused.
    pub(crate) deletion_keys_max: Option<u64>,
    /// Watches tell of puts.
    pub(crate) tells: bool,
    /// Where another member is said to be.
    pub(crate) beside: Option<String>,
}

/// A running peer; its server ends with the test's runtime.
#[derive(Clone)]
pub(crate) struct Peer {
    pub(crate) address: String,
    behaviour: Arc<Behaviour>,
    seen: Arc<Seen>,
}

/// What reached the peer.
#[derive(Default)]
struct Seen {
    puts: AtomicU64,
    gets: AtomicU64,
    frames: AtomicU64,
    term: AtomicU64,
    keys: Mutex<HashSet<Bytes>>,
    left: Mutex<BTreeSet<Bytes>>,
    largest_delete: AtomicU64,
    deletions: AtomicU64,
    callers: Mutex<HashSet<SocketAddr>>,
    watches: Mutex<Vec<Told>>,
}

impl Peer {
    pub(crate) async fn start(behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let peer = Peer {
            address,
            behaviour: Arc::new(behaviour),
            seen: Arc::default(),
        };
        peer.seen.term.store(2, Ordering::Relaxed);
        let served = Server::builder()
            .add_service(KvServer::new(peer.clone()))
            .add_service(AdminServer::new(peer.clone()))
            .add_service(WatchServer::new(peer.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(served);
        peer
    }

    pub(crate) fn puts(&self) -> u64 {
        self.seen.puts.load(Ordering::Relaxed)
    }

    pub(crate) fn gets(&self) -> u64 {
        self.seen.gets.load(Ordering::Relaxed)
    }

    /// Frames of calls.
    pub(crate) fn frames(&self) -> u64 {
        self.seen.frames.load(Ordering::Relaxed)
    }

    /// The keys that were watched, one for each watch.
    pub(crate) fn watched(&self) -> Vec<Bytes> {
        let watches = self.seen.watches.lock().unwrap();
        watches.iter().map(|watch| watch.key.clone()).collect()
    }

    /// How many different keys were put.
    pub(crate) fn keys(&self) -> usize {
        self.seen.keys.lock().unwrap().len()
    }

    /// The keys that were put and not deleted.
    pub(crate) fn left(&self) -> Vec<Bytes> {
        self.seen.left.lock().unwrap().iter().cloned().collect()
    }

    /// A key that is there before the run.
    pub(crate) fn hold(&self, key: &str) {
        let key = Bytes::copy_from_slice(key.as_bytes());
        self.seen.left.lock().unwrap().insert(key);
    }

    /// Most keys that one request deleted.
    pub(crate) fn largest_delete(&self) -> u64 {
        self.seen.largest_delete.load(Ordering::Relaxed)
    }

    /// Connections that carried puts or gets.
    pub(crate) fn connections(&self) -> usize {
        self.seen.callers.lock().unwrap().len()
    }

    fn note<M>(&self, request: &Request<M>) {
        self.seen
            .callers
            .lock()
            .unwrap()
            .insert(request.remote_addr().unwrap());
    }

    fn header(&self) -> Option<ResponseHeader> {
        let revision = self.puts() + 1;
        let term = self.seen.term.load(Ordering::Relaxed);
        Some(ResponseHeader {
            cluster_id: 7,
            member_id: 1,
            revision,
            term,
            trimmed: false,
        })
    }

    fn member(&self) -> Member {
        Member {
            id: 1,
            name: "demo-0".to_owned(),
            client_address: self.address.clone(),
            voter: true,
            ..Member::default()
        }
    }
}

#[tonic::async_trait]
impl Kv for Peer {
    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        self.note(&request);
        let number = self.seen.puts.fetch_add(1, Ordering::Relaxed) + 1;
        let behaviour = &self.behaviour;
        if behaviour.hang_at.is_some_and(|at| number >= at) {
            std::future::pending::<()>().await;
        }
        if behaviour.elect_at == Some(number) {
            self.seen.term.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(barrier) = &behaviour.together {
            barrier.wait().await;
        }
        tokio::time::sleep(behaviour.delay).await;
        if behaviour
            .fail_every
            .is_some_and(|every| number.is_multiple_of(every))
        {
            return Err(Status::unavailable("scripted failure"));
        }
        let key = request.into_inner().key;
        self.seen.left.lock().unwrap().insert(key.clone());
        self.seen.keys.lock().unwrap().insert(key.clone());
        let header = self.header();
        self.tell(&key, header);
        Ok(Response::new(PutResponse {
            header,
            prev_kv: None,
        }))
    }

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        self.note(&request);
        self.seen.gets.fetch_add(1, Ordering::Relaxed);
        let key = request.into_inner().key;
        let exists = self.seen.left.lock().unwrap().contains(&key);
        let kv = exists.then(|| KeyValue {
            key,
            version: 1,
            ..KeyValue::default()
        });
        Ok(Response::new(GetResponse {
            header: self.header(),
            kv,
        }))
    }

    async fn delete(
        &self,
        request: Request<DeleteRequest>,
    ) -> Result<Response<DeleteResponse>, Status> {
        let number = self.seen.deletions.fetch_add(1, Ordering::Relaxed);
        if self.behaviour.deletions.is_some_and(|max| number >= max) {
            return Err(Status::failed_precondition("no more deletions"));
        }
        let DeleteRequest { key, range_end, .. } = request.into_inner();
        let mut left = self.seen.left.lock().unwrap();
        let found = left.range(key.clone()..range_end.clone()).count() as u64;
        let most = self.behaviour.deletion_keys_max;
        if most.is_some_and(|most| found > most) {
            return Err(Status::invalid_argument("the ranges hold too many bytes"));
        }
        left.retain(|other| *other < key || *other >= range_end);
        let deleted = found;
        self.seen
            .largest_delete
            .fetch_max(deleted, Ordering::Relaxed);
        Ok(Response::new(DeleteResponse {
            header: self.header(),
            deleted,
            prev_kvs: Vec::new(),
        }))
    }

    async fn compare_and_swap(
        &self,
        _: Request<CompareAndSwapRequest>,
    ) -> Result<Response<CompareAndSwapResponse>, Status> {
        Err(Status::unimplemented("compare and swap"))
    }

    async fn range(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<RangeResponse>, Status> {
        let request = request.into_inner();
        let left = self.seen.left.lock().unwrap();
        let found = left.range(request.key..request.range_end);
        let kv = |key: &Bytes| KeyValue {
            key: key.clone(),
            version: 1,
            ..KeyValue::default()
        };
        Ok(Response::new(RangeResponse {
            header: self.header(),
            kvs: found.take(request.limit as usize).map(kv).collect(),
            ..RangeResponse::default()
        }))
    }

    async fn batch(&self, _: Request<BatchRequest>) -> Result<Response<BatchResponse>, Status> {
        Err(Status::unimplemented("batch"))
    }

    async fn compact(
        &self,
        _: Request<CompactRequest>,
    ) -> Result<Response<CompactResponse>, Status> {
        Err(Status::unimplemented("compact"))
    }

    async fn open_session(
        &self,
        _: Request<OpenSessionRequest>,
    ) -> Result<Response<OpenSessionResponse>, Status> {
        Err(Status::unimplemented("open session"))
    }

    async fn keep_alive_session(
        &self,
        _: Request<KeepAliveSessionRequest>,
    ) -> Result<Response<KeepAliveSessionResponse>, Status> {
        Err(Status::unimplemented("keep alive session"))
    }

    async fn close_session(
        &self,
        _: Request<CloseSessionRequest>,
    ) -> Result<Response<CloseSessionResponse>, Status> {
        Err(Status::unimplemented("close session"))
    }

    type PipelineStream = Pin<Box<dyn Stream<Item = Result<PipelineResponse, Status>> + Send>>;

    async fn pipeline(
        &self,
        request: Request<Streaming<PipelineRequest>>,
    ) -> Result<Response<Self::PipelineStream>, Status> {
        let from = request.extensions().clone();
        let peer = self.clone();
        let seen = Arc::clone(&self.seen);
        let calls = request
            .into_inner()
            .take_while(|frame| ready(frame.is_ok()))
            .flat_map(move |frame| {
                seen.frames.fetch_add(1, Ordering::Relaxed);
                stream::iter(frame.unwrap().calls)
            });
        let answers = calls
            .map(move |call| peer.clone().pipelined(call, from.clone()))
            .buffer_unordered(PIPELINED_MAX)
            .map(|answer| {
                Ok(PipelineResponse {
                    answers: vec![answer],
                    ..PipelineResponse::default()
                })
            });
        Ok(Response::new(Box::pin(answers)))
    }
}

impl Peer {
    /// A call of a stream, made as if it were alone.
    async fn pipelined(self, call: PipelinedCall, from: Extensions) -> PipelinedAnswer {
        let answered = match call.call.unwrap() {
            Call::Put(put) => {
                let mut request = Request::new(put);
                *request.extensions_mut() = from;
                self.put(request)
                    .await
                    .map(|put| Answer::Put(put.into_inner()))
            }
            Call::Get(get) => {
                let mut request = Request::new(get);
                *request.extensions_mut() = from;
                self.get(request)
                    .await
                    .map(|get| Answer::Get(get.into_inner()))
            }
            Call::Delete(delete) => {
                let deleted = self.delete(Request::new(delete)).await;
                deleted.map(|deleted| Answer::Delete(deleted.into_inner()))
            }
            Call::Range(range) => {
                let found = self.range(Request::new(range)).await;
                found.map(|found| Answer::Range(found.into_inner()))
            }
            _ => Err(Status::unimplemented("no test needs it")),
        };
        let refused = |status: Status| {
            Answer::Error(CallError {
                code: status.code().into(),
                message: status.message().to_owned(),
                leader: String::new(),
                low_on_space: false,
            })
        };
        PipelinedAnswer {
            id: call.id,
            answer: Some(answered.unwrap_or_else(refused)),
            visited: 0,
            others_waited: false,
        }
    }
}

#[tonic::async_trait]
impl Watch for Peer {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchResponse, Status>> + Send>>;

    /// Begins watches, which tell of puts if the peer behaves so.
    async fn watch(
        &self,
        request: Request<Streaming<WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (tell, told) = mpsc::unbounded_channel();
        let peer = self.clone();
        let mut requests = request.into_inner();
        tokio::spawn(async move {
            while let Some(Ok(request)) = requests.next().await {
                if let Some(watch_request::Request::Create(create)) = request.request {
                    peer.begin(create, &tell);
                }
            }
        });
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(told))))
    }
}

/// A watch that tells of puts.
struct Told {
    id: u64,
    key: Bytes,
    tell: mpsc::UnboundedSender<Result<WatchResponse, Status>>,
}

impl Peer {
    fn begin(
        &self,
        create: WatchCreate,
        tell: &mpsc::UnboundedSender<Result<WatchResponse, Status>>,
    ) {
        let header = self.header();
        // Whoever hung up wants no answer.
        let _ = tell.send(Ok(WatchResponse {
            watch_id: create.watch_id,
            created: true,
            resume_revision: header.as_ref().map_or(1, |it| it.revision + 1),
            header,
            ..WatchResponse::default()
        }));
        self.seen.watches.lock().unwrap().push(Told {
            id: create.watch_id,
            key: create.key,
            tell: tell.clone(),
        });
    }

    fn tell(&self, key: &Bytes, header: Option<ResponseHeader>) {
        if !self.behaviour.tells {
            return;
        }
        let mod_revision = header.as_ref().map_or(0, |header| header.revision);
        for watch in self.seen.watches.lock().unwrap().iter() {
            if watch.key == *key {
                let _ = watch.tell.send(Ok(WatchResponse {
                    header,
                    watch_id: watch.id,
                    resume_revision: mod_revision + 1,
                    events: vec![Event {
                        kind: event::Kind::Put.into(),
                        kv: Some(KeyValue {
                            key: key.clone(),
                            mod_revision,
                            version: 1,
                            ..KeyValue::default()
                        }),
                        prev_kv: None,
                    }],
                    ..WatchResponse::default()
                }));
            }
        }
    }
}

#[tonic::async_trait]
impl Admin for Peer {
    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        Ok(Response::new(StatusResponse {
            name: "demo-0".to_owned(),
            cluster_id: 7,
            ready: true,
            version: "9.9.9".to_owned(),
            durability: "fsync".to_owned(),
            free_bytes: self.behaviour.free_bytes,
            ..StatusResponse::default()
        }))
    }

    async fn members(
        &self,
        _: Request<MembersRequest>,
    ) -> Result<Response<MembersResponse>, Status> {
        let term = self.seen.term.load(Ordering::Relaxed);
        let member = Some(self.member());
        let mut members = vec![MemberProgress {
            member,
            leader: true,
            reachable: true,
            lag_entries: 0,
        }];
        members.extend(self.behaviour.beside.iter().map(|address| MemberProgress {
            member: Some(dengine_protocol::v1::Member {
                id: 2,
                name: "demo-1".to_owned(),
                client_address: address.clone(),
                ..self.member()
            }),
            leader: false,
            reachable: true,
            lag_entries: 0,
        }));
        Ok(Response::new(MembersResponse {
            cluster_id: 7,
            term,
            leader_id: 1,
            members,
        }))
    }

    async fn snapshot(
        &self,
        _: Request<SnapshotRequest>,
    ) -> Result<Response<SnapshotResponse>, Status> {
        Err(Status::unimplemented("snapshot"))
    }

    async fn sessions(
        &self,
        _: Request<dengine_protocol::v1::SessionsRequest>,
    ) -> Result<Response<dengine_protocol::v1::SessionsResponse>, Status> {
        Err(Status::unimplemented("sessions"))
    }

    async fn close_session(
        &self,
        _: Request<dengine_protocol::v1::CloseSessionRequest>,
    ) -> Result<Response<dengine_protocol::v1::CloseSessionResponse>, Status> {
        Err(Status::unimplemented("close_session"))
    }

    async fn hash(&self, _: Request<HashRequest>) -> Result<Response<HashResponse>, Status> {
        Err(Status::unimplemented("hash"))
    }

    async fn bootstrap(
        &self,
        _: Request<BootstrapRequest>,
    ) -> Result<Response<BootstrapResponse>, Status> {
        Err(Status::unimplemented("bootstrap"))
    }

    async fn join(&self, _: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        Err(Status::unimplemented("join"))
    }

    async fn add_learner(
        &self,
        _: Request<AddLearnerRequest>,
    ) -> Result<Response<AddLearnerResponse>, Status> {
        Err(Status::unimplemented("add learner"))
    }

    async fn promote(
        &self,
        _: Request<PromoteRequest>,
    ) -> Result<Response<PromoteResponse>, Status> {
        Err(Status::unimplemented("promote"))
    }

    async fn remove(&self, _: Request<RemoveRequest>) -> Result<Response<RemoveResponse>, Status> {
        Err(Status::unimplemented("remove"))
    }

    async fn transfer_leader(
        &self,
        _: Request<TransferLeaderRequest>,
    ) -> Result<Response<TransferLeaderResponse>, Status> {
        Err(Status::unimplemented("transfer leader"))
    }
}
