//! A protocol peer on loopback: a real tonic server whose answers the test scripts. It keeps keys in
//! a map so that answers are true; it is no model of DEngine.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use dengine_api::{
    LEADER_HINT_METADATA,
    v1::{
        CompareAndSwapRequest, CompareAndSwapResponse, DeleteRequest, DeleteResponse, GetRequest,
        GetResponse, KeyValue, PutRequest, PutResponse, RangeRequest, RangeResponse,
        ResponseHeader,
        compare_and_swap_request::Expected,
        kv_server::{Kv, KvServer},
    },
};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Code, Request, Response, Status, transport::Server};

/// What happens to one request; requests beyond the script are served.
pub(crate) enum Step {
    Fail(Code),
    /// `UNAVAILABLE` with a leader hint.
    NotLeader(String),
    /// Never answers.
    Hang,
}

#[derive(Default)]
struct State {
    script: VecDeque<Step>,
    always: Option<Code>,
    requests: usize,
    callers: HashSet<SocketAddr>,
    revision: u64,
    pairs: BTreeMap<Bytes, KeyValue>,
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
        let address = listener.local_addr().unwrap().to_string();
        let script = script.into_iter().collect();
        let state = State {
            script,
            revision: 1,
            ..State::default()
        };
        let peer = Peer {
            address,
            state: Arc::new(Mutex::new(state)),
        };
        let served = Server::builder()
            .add_service(KvServer::new(peer.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(served);
        peer
    }

    /// Answers every request with `code` from now on.
    pub(crate) fn always(&self, code: Code) {
        self.state.lock().unwrap().always = Some(code);
    }

    pub(crate) fn requests(&self) -> usize {
        self.state.lock().unwrap().requests
    }

    pub(crate) fn connections(&self) -> usize {
        self.state.lock().unwrap().callers.len()
    }

    async fn step<M>(&self, request: &Request<M>) -> Result<(), Status> {
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
            None => Ok(()),
            Some(Step::Fail(code)) => Err(Status::new(code, "scripted")),
            Some(Step::NotLeader(leader)) => {
                let mut status = Status::unavailable("not the leader");
                status
                    .metadata_mut()
                    .insert(LEADER_HINT_METADATA, leader.parse().unwrap());
                Err(status)
            }
            Some(Step::Hang) => std::future::pending().await,
        }
    }
}

impl State {
    fn header(&self) -> Option<ResponseHeader> {
        Some(ResponseHeader {
            cluster_id: 7,
            member_id: 1,
            revision: self.revision,
            term: 2,
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
        self.step(&request).await?;
        let put = request.into_inner();
        let mut state = self.state.lock().unwrap();
        let prev_kv = state.set(&put.key, put.value).filter(|_| put.prev_kv);
        Ok(Response::new(PutResponse {
            header: state.header(),
            prev_kv,
        }))
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
        self.step(&request).await?;
        let state = self.state.lock().unwrap();
        let kv = state.pairs.get(&request.get_ref().key).cloned();
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
        let state = self.state.lock().unwrap();
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
            count,
        }))
    }
}
