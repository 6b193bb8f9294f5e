//! The `Kv` service.
//!
//! - [`writes`], [`batch`], [`sessions`]: what changes something, as commands, and their answers.
//! - [`reads`]: how fresh a read is, and the reading. [`header`]: where and when an answer was made.

mod batch;
pub(super) mod header;
mod reads;
mod sessions;
mod writes;

use dengine_api::v1::{
    BatchRequest, BatchResponse, CloseSessionRequest, CloseSessionResponse, CompactRequest,
    CompactResponse, CompareAndSwapRequest, CompareAndSwapResponse, DeleteRequest, DeleteResponse,
    GetRequest, GetResponse, KeepAliveSessionRequest, KeepAliveSessionResponse, OpenSessionRequest,
    OpenSessionResponse, PutRequest, PutResponse, RangeRequest, RangeResponse, kv_server::Kv,
};
use tonic::{Request, Response, Status};

use self::header::Headers;
use super::{forward::Forwarder, gate::Gate};
use crate::{config::Limits, node::Node};

/// Serves `Kv` from a node.
pub(super) struct KvService {
    node: Node,
    limits: Limits,
    forwarder: Forwarder,
    gate: Gate,
    headers: Headers,
}

/// What a call of the service returns.
type Answer<T> = Result<Response<T>, Status>;

impl KvService {
    /// Serves within `limits`.
    pub(super) fn new(node: Node, limits: Limits, forwarder: Forwarder, gate: Gate) -> Self {
        Self {
            headers: Headers::new(&node),
            node,
            limits,
            forwarder,
            gate,
        }
    }
}

#[tonic::async_trait]
impl Kv for KvService {
    async fn put(&self, request: Request<PutRequest>) -> Answer<PutResponse> {
        self.write(request).await
    }

    async fn delete(&self, request: Request<DeleteRequest>) -> Answer<DeleteResponse> {
        self.write(request).await
    }

    async fn compare_and_swap(
        &self,
        request: Request<CompareAndSwapRequest>,
    ) -> Answer<CompareAndSwapResponse> {
        self.write(request).await
    }

    async fn batch(&self, request: Request<BatchRequest>) -> Answer<BatchResponse> {
        self.write(request).await
    }

    async fn compact(&self, request: Request<CompactRequest>) -> Answer<CompactResponse> {
        self.write(request).await
    }

    async fn open_session(
        &self,
        request: Request<OpenSessionRequest>,
    ) -> Answer<OpenSessionResponse> {
        self.write(request).await
    }

    async fn keep_alive_session(
        &self,
        request: Request<KeepAliveSessionRequest>,
    ) -> Answer<KeepAliveSessionResponse> {
        self.write(request).await
    }

    async fn close_session(
        &self,
        request: Request<CloseSessionRequest>,
    ) -> Answer<CloseSessionResponse> {
        self.write(request).await
    }

    async fn get(&self, request: Request<GetRequest>) -> Answer<GetResponse> {
        self.gate.pass("Get", self.read_key(request)).await
    }

    async fn range(&self, request: Request<RangeRequest>) -> Answer<RangeResponse> {
        self.gate.pass("Range", self.read_range(request)).await
    }
}
