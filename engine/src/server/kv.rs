//! The `Kv` service.

use std::{future::Future, sync::OnceLock};

use dengine_api::v1::{
    self, CompareAndSwapRequest, CompareAndSwapResponse, Consistency, DeleteRequest,
    DeleteResponse, GetRequest, GetResponse, PutRequest, PutResponse, RangeRequest, RangeResponse,
    ResponseHeader, compare_and_swap_request::Expected as WireExpected, kv_client::KvClient,
    kv_server::Kv,
};
use dengine_core::{
    kv::{Command, Expected, KeyRange, Outcome, RangeQuery, RangeResult},
    types::{ClusterId, MemberId, Revision, Term},
};
use tokio::sync::watch;
use tonic::{Request, Response, Status, transport::Channel};

use super::{
    forward::{Effect, Forwarder, Origin},
    gate::Gate,
    messages::{check_key, check_range_end, check_value, key_value},
    status::{read_status, request_status},
};
use crate::{
    config::Limits,
    node::{Node, NodeStatus, Written},
};

/// What a pair costs in a response besides its key and value, at least; bounds how many tiny pairs fit.
const PAIR_OVERHEAD_BYTES: usize = 32;

/// Serves `Kv` from a node.
pub(super) struct KvService {
    node: Node,
    limits: Limits,
    forwarder: Forwarder,
    gate: Gate,
    status: watch::Receiver<NodeStatus>,
    /// Never changes once the member has it.
    identity: OnceLock<(ClusterId, MemberId)>,
}

impl KvService {
    /// Serves within `limits`.
    pub(super) fn new(node: Node, limits: Limits, forwarder: Forwarder, gate: Gate) -> Self {
        let status = node.status_changes();
        Self {
            node,
            limits,
            forwarder,
            gate,
            status,
            identity: OnceLock::new(),
        }
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<PutResponse, Status> {
        let origin = Origin::of(&request);
        let put = request.into_inner();
        check_key(&put.key, &self.limits)?;
        check_value(&put.value, &self.limits)?;
        let command = Command::Put {
            key: put.key.clone(),
            value: put.value.clone(),
            prev_kv: put.prev_kv,
            ttl_ms: 0,
        };
        let call = |channel, put| async move { KvClient::new(channel).put(put).await };
        self.write(
            command,
            origin,
            "Put",
            put,
            call,
            |header, outcome| match outcome {
                Outcome::Put { revision, prev } => Ok(PutResponse {
                    header: header.at(revision),
                    prev_kv: prev.map(key_value),
                }),
                other => Err(other),
            },
        )
        .await
    }

    async fn delete(&self, request: Request<DeleteRequest>) -> Result<DeleteResponse, Status> {
        let origin = Origin::of(&request);
        let delete = request.into_inner();
        check_key(&delete.key, &self.limits)?;
        check_range_end(&delete.range_end, &self.limits)?;
        let keys = KeyRange::from_wire(delete.key.clone(), delete.range_end.clone());
        let command = Command::Delete {
            keys,
            prev_kv: delete.prev_kv,
        };
        let call = |channel, delete| async move { KvClient::new(channel).delete(delete).await };
        self.write(
            command,
            origin,
            "Delete",
            delete,
            call,
            |header, outcome| match outcome {
                Outcome::Delete {
                    revision,
                    deleted,
                    prev,
                } => Ok(DeleteResponse {
                    header: header.at(revision),
                    deleted,
                    prev_kvs: prev.into_iter().map(key_value).collect(),
                }),
                other => Err(other),
            },
        )
        .await
    }

    async fn compare_and_swap(
        &self,
        request: Request<CompareAndSwapRequest>,
    ) -> Result<CompareAndSwapResponse, Status> {
        let origin = Origin::of(&request);
        let swap = request.into_inner();
        let command = self.swap_command(&swap)?;
        let call =
            |channel, swap| async move { KvClient::new(channel).compare_and_swap(swap).await };
        self.write(
            command,
            origin,
            "CompareAndSwap",
            swap,
            call,
            |header, outcome| match outcome {
                Outcome::CompareAndSwap {
                    revision,
                    succeeded,
                    prev,
                } => Ok(CompareAndSwapResponse {
                    header: header.at(revision),
                    succeeded,
                    prev_kv: prev.map(key_value),
                }),
                other => Err(other),
            },
        )
        .await
    }

    fn swap_command(&self, swap: &CompareAndSwapRequest) -> Result<Command, Status> {
        check_key(&swap.key, &self.limits)?;
        check_value(&swap.value, &self.limits)?;
        let expected = match &swap.expected {
            Some(WireExpected::ModRevision(revision)) => Expected::ModRevision(Revision(*revision)),
            Some(WireExpected::CurrentValue(value)) => {
                check_value(value, &self.limits)?;
                Expected::Value(value.clone())
            }
            None => {
                return Err(Status::invalid_argument(
                    "expected is missing: give mod_revision (0: the key must not exist) or current_value",
                ));
            }
        };
        Ok(Command::CompareAndSwap {
            key: swap.key.clone(),
            expected,
            value: swap.value.clone(),
            ttl_ms: 0,
        })
    }

    /// Proposes `command`, or has the leader answer `message` instead.
    async fn write<M, T, F>(
        &self,
        command: Command,
        origin: Origin,
        method: &'static str,
        message: M,
        call: impl FnOnce(Channel, Request<M>) -> F,
        answer: impl FnOnce(Header, Outcome) -> Result<T, Outcome>,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        match self.node.write(command).await {
            Ok(Written { term, outcome }) => {
                answer(self.header(term), outcome).map_err(|other| unexpected(method, &other))
            }
            Err(error) => {
                self.forwarder
                    .instead(error, origin, method, Effect::Writes, message, call)
                    .await
            }
        }
    }

    async fn get(&self, request: Request<GetRequest>) -> Result<GetResponse, Status> {
        let get = request.into_inner();
        check_key(&get.key, &self.limits)?;
        self.prepare_read(get.consistency).await?;
        let reader = self.node.reader().map_err(|error| request_status(&error))?;
        let (revision, found) = reader
            .get(&get.key, requested(get.revision))
            .map_err(|error| read_status(&error))?;
        Ok(GetResponse {
            header: self.read_header().at(revision),
            kv: found.map(key_value),
        })
    }

    async fn range(&self, request: Request<RangeRequest>) -> Result<RangeResponse, Status> {
        let range = request.into_inner();
        check_key(&range.key, &self.limits)?;
        check_range_end(&range.range_end, &self.limits)?;
        self.prepare_read(range.consistency).await?;
        let result = self.read_range(self.query(range)).await?;
        Ok(RangeResponse {
            header: self.read_header().at(result.revision),
            kvs: result.kvs.into_iter().map(key_value).collect(),
            more: result.more,
            count: result.count,
        })
    }

    fn query(&self, range: RangeRequest) -> RangeQuery {
        let pairs_max = (self.limits.max_range_bytes / PAIR_OVERHEAD_BYTES).max(1);
        RangeQuery {
            keys: KeyRange::from_wire(range.key, range.range_end),
            limit: match range.limit {
                0 => pairs_max,
                limit => pairs_max.min(limit as usize),
            },
            max_bytes: self.limits.max_range_bytes,
            keys_only: range.keys_only,
            count_only: range.count_only,
            revision: requested(range.revision),
        }
    }

    /// A single key is read at once; a real range takes its time, and takes it on a thread where it
    /// holds up nobody else.
    async fn read_range(&self, query: RangeQuery) -> Result<RangeResult, Status> {
        let reader = self.node.reader().map_err(|error| request_status(&error))?;
        let result = match query.keys {
            KeyRange::One(_) => reader.range(&query),
            KeyRange::Between { .. } | KeyRange::From(_) => {
                tokio::task::spawn_blocking(move || reader.range(&query))
                    .await
                    .map_err(|error| Status::internal(format!("the read ended early: {error}")))?
            }
        };
        result.map_err(|error| read_status(&error))
    }

    /// Afterwards the reader is as fresh as was asked for.
    async fn prepare_read(&self, consistency: i32) -> Result<(), Status> {
        match Consistency::try_from(consistency) {
            Ok(Consistency::Unspecified | Consistency::Linearizable) => self
                .node
                .read_barrier()
                .await
                .map_err(|error| request_status(&error)),
            Ok(Consistency::Eventual) => Ok(()),
            Err(unknown) => Err(Status::invalid_argument(format!(
                "consistency {} is not known to this version of the server",
                unknown.0
            ))),
        }
    }

    fn read_header(&self) -> Header {
        let term = self.status.borrow().term;
        self.header(term)
    }

    fn header(&self, term: Term) -> Header {
        let identity = self.identity.get().copied().or_else(|| {
            let status = self.status.borrow();
            let identity = (status.cluster_id, status.member_id);
            (identity.0 != ClusterId(0)).then(|| *self.identity.get_or_init(|| identity))
        });
        let (cluster_id, member_id) = identity.unwrap_or_default();
        Header {
            cluster_id,
            member_id,
            term,
        }
    }
}

/// A response header that lacks its revision.
struct Header {
    cluster_id: ClusterId,
    member_id: MemberId,
    term: Term,
}

impl Header {
    fn at(self, revision: Revision) -> Option<ResponseHeader> {
        Some(ResponseHeader {
            cluster_id: self.cluster_id.0,
            member_id: self.member_id.0,
            revision: revision.0,
            term: self.term.0,
        })
    }
}

fn requested(revision: u64) -> Option<Revision> {
    (revision != 0).then_some(Revision(revision))
}

/// The state machine answered another question than the one that was asked: a bug, and not the caller's.
fn unexpected(method: &str, outcome: &Outcome) -> Status {
    tracing::error!(
        method,
        ?outcome,
        "the state machine gave an answer of another kind"
    );
    Status::internal("the state machine gave an answer of another kind; this is a bug in dengine")
}

#[tonic::async_trait]
impl Kv for KvService {
    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        self.gate.pass("Put", self.put(request)).await
    }

    async fn delete(
        &self,
        request: Request<DeleteRequest>,
    ) -> Result<Response<DeleteResponse>, Status> {
        self.gate.pass("Delete", self.delete(request)).await
    }

    async fn compare_and_swap(
        &self,
        request: Request<CompareAndSwapRequest>,
    ) -> Result<Response<CompareAndSwapResponse>, Status> {
        self.gate
            .pass("CompareAndSwap", self.compare_and_swap(request))
            .await
    }

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        self.gate.pass("Get", self.get(request)).await
    }

    async fn range(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<v1::RangeResponse>, Status> {
        self.gate.pass("Range", self.range(request)).await
    }
}
