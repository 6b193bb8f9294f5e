//! etcd's `KV` service.

use std::sync::Arc;

use dengine_etcd::EtcdError;
use dengine_etcd::etcdserverpb::kv_server::Kv;
use dengine_etcd::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest,
    PutResponse, RangeRequest, RangeResponse, RangeStreamResponse, TxnRequest, TxnResponse,
};
use dengine_etcd::range::Range;
use dengine_etcd::range_stream::RangeStream;
use tonic::{Request, Response, Status};

use super::door::{Door, ServedBy};
use super::range_stream;
use crate::server::bodies::is_gone_at;
use crate::server::gate::Kind;
use crate::server::places::Places;
use crate::server::serving::{connection, counted};
use crate::server::streams::Beside;

/// Serves reads and writes of keys.
pub(super) struct KvService {
    door: Door,
    /// Of ranges that are told in pieces. There may be as many as streams of watches.
    streams: Places,
}

/// What a call of the service returns.
type Answer<T> = Result<Response<T>, Status>;

impl KvService {
    pub(super) fn new(door: Door) -> Self {
        let limits = door.limits();
        let streams = Places::new(
            limits.max_watch_streams,
            limits.max_watch_streams_per_connection,
        );
        Self { door, streams }
    }
}

#[tonic::async_trait]
impl Kv for KvService {
    async fn range(&self, request: Request<RangeRequest>) -> Answer<RangeResponse> {
        let range = Arc::new(Range::new(request.get_ref())?);
        let served_by = match range.serializable {
            true => ServedBy::All,
            false => ServedBy::Voters,
        };
        self.door.admit(request.metadata(), served_by)?;
        let source = Arc::clone(connection(&request).source());
        let patience = self.door.patience(is_gone_at(&request));
        let gate = &self.door.serving().gate;
        let read = self.door.range(&range, &source, patience);
        let read = gate.pass("EtcdRange", Kind::Read, &source, read).await;
        let (response, held) = read.map_err(|it| self.door.in_etcds_words(&it))?;
        Ok(counted((response, Some(held))))
    }

    type RangeStreamStream = Beside<RangeStreamResponse>;

    async fn range_stream(
        &self,
        request: Request<RangeRequest>,
    ) -> Answer<Self::RangeStreamStream> {
        // A learner serves no stream, not even of what it has.
        self.door.admit(request.metadata(), ServedBy::Voters)?;
        let range = RangeStream::new(request.get_ref())?;
        let place = self.streams.take(request.remote_addr());
        let place = place.map_err(|_| EtcdError::TooManyRequests)?;
        range_stream::tell(&self.door, range, &request, place).await
    }

    async fn put(&self, request: Request<PutRequest>) -> Answer<PutResponse> {
        self.door.write("EtcdPut", request).await
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Answer<DeleteRangeResponse> {
        self.door.write("EtcdDeleteRange", request).await
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Answer<TxnResponse> {
        self.door.write("EtcdTxn", request).await
    }

    async fn compact(&self, request: Request<CompactionRequest>) -> Answer<CompactionResponse> {
        self.door.write("EtcdCompact", request).await
    }
}
