//! Reads, writes and sessions, alone and in a stream of calls.

use std::sync::Arc;

use dengine_protocol::v1::compare_and_swap_request::Expected;
use dengine_protocol::v1::kv_server::Kv;
use dengine_protocol::v1::pipelined_answer::Answer;
use dengine_protocol::v1::pipelined_call::Call;
use dengine_protocol::v1::{
    AskLeaseRequest, AskLeaseResponse, BatchRequest, BatchResponse, CallError, CloseSessionRequest,
    CloseSessionResponse, CompactRequest, CompactResponse, CompareAndSwapRequest,
    CompareAndSwapResponse, DeleteRequest, DeleteResponse, ForwardRequest, ForwardResponse,
    GetRequest, GetResponse, KeepAliveSessionRequest, KeepAliveSessionResponse, OpenSessionRequest,
    OpenSessionResponse, PipelineRequest, PipelineResponse, PipelinedAnswer, PipelinedCall,
    PutRequest, PutResponse, RangeRequest, RangeResponse,
};
use dengine_protocol::{KvCall, LEADER_HINT_METADATA, LOW_ON_SPACE_METADATA};
use futures::{StreamExt, stream};
use tonic::{Extensions, Request, Response, Status, Streaming};

use crate::{Answers, FakeState, Peer};

/// What a client reads to learn where a connection leads.
const PROBE: &[u8] = b"\0";
/// Calls of one stream that are served at once; more than any test has.
const PIPELINED_MAX: usize = 1024;

#[tonic::async_trait]
impl Kv for Peer {
    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        self.note_caller(&request);
        let instead = self.step().await?;
        let put = request.into_inner();
        self.loaded_put(&put.key).await?;
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
        if self.load.tells {
            state.tell(&put.key);
        }
        instead.map_or_else(|| Ok(state.naming_leader(answer)), Err)
    }

    async fn delete(
        &self,
        request: Request<DeleteRequest>,
    ) -> Result<Response<DeleteResponse>, Status> {
        self.step().await?;
        let delete = request.into_inner();
        let within = |state: &FakeState| state.within(&delete.key, &delete.range_end);
        let found = within(&self.state.lock().unwrap()).len();
        self.loaded_delete(found as u64)?;
        let mut state = self.state.lock().unwrap();
        let gone = within(&state);
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
        let instead = self.step().await?;
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
        let answer = CompareAndSwapResponse {
            header: state.header(),
            succeeded,
            prev_kv: current,
        };
        instead.map_or_else(|| Ok(Response::new(answer)), Err)
    }

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        if request.get_ref().key == PROBE {
            let mut state = self.state.lock().unwrap();
            state.probes += 1;
            let (header, kv) = (state.header(), None);
            return Ok(Response::new(GetResponse { header, kv }));
        }
        self.note_caller(&request);
        self.step().await?;
        let mut state = self.state.lock().unwrap();
        let kv = state.pairs.get(&request.get_ref().key).cloned();
        let is_for_leader = request.get_ref().is_for_leader();
        state.gets.push(request.into_inner());
        let answer = GetResponse {
            header: state.header(),
            kv,
        };
        Ok(match is_for_leader {
            true => state.naming_leader(answer),
            false => Response::new(answer),
        })
    }

    async fn range(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<RangeResponse>, Status> {
        self.step().await?;
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
        self.step().await?;
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

    async fn forward(
        &self,
        _: Request<ForwardRequest>,
    ) -> Result<Response<ForwardResponse>, Status> {
        Err(Status::unimplemented("no test needs it"))
    }

    async fn ask_lease(
        &self,
        _: Request<AskLeaseRequest>,
    ) -> Result<Response<AskLeaseResponse>, Status> {
        Err(Status::unimplemented("no test needs it"))
    }

    type PipelineStream = Answers<PipelineResponse>;

    async fn pipeline(
        &self,
        request: Request<Streaming<PipelineRequest>>,
    ) -> Result<Response<Self::PipelineStream>, Status> {
        let from = request.extensions().clone();
        let (peer, seen, state) = (self.clone(), self.clone(), Arc::clone(&self.state));
        let calls = request
            .into_inner()
            .take_while(|frame| std::future::ready(frame.is_ok()))
            .flat_map(move |frame| stream::iter(seen.take_in(frame.unwrap())));
        let answers = calls
            .map(move |call| {
                peer.state.lock().unwrap().timeouts_ms.push(call.timeout_ms);
                peer.clone().pipelined(call, from.clone())
            })
            .buffer_unordered(PIPELINED_MAX)
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
    /// The calls of a frame.
    fn take_in(&self, frame: PipelineRequest) -> Vec<PipelinedCall> {
        self.saw_frame();
        let mut state = self.state.lock().unwrap();
        state.given_up.extend(frame.cancelled);
        frame.calls
    }

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
            Call::Compact(it) => alone!(it, compact, Compact),
            Call::Batch(_) | Call::Forward(_) => Err(Status::unimplemented("no test needs it")),
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
