//! etcd's `KV` service.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dengine_etcd::EtcdError;
use dengine_etcd::etcdserverpb::kv_server::Kv;
use dengine_etcd::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest,
    PutResponse, RangeRequest, RangeResponse, RangeStreamResponse, TxnRequest, TxnResponse,
};
use dengine_etcd::range::Range;
use dengine_kv::{KeyRange, KeyValue, RangeQuery, RangeResult, ReadError, Reader};
use dengine_protocol::checks::status::read_status;
use dengine_protocol::v1::Consistency;
use tokio::time::timeout;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::door::{Door, ServedBy};
use crate::connections::Source;
use crate::node::answers::{ANSWER_BYTES_MAX, Held};
use crate::server::bodies::waits_until;
use crate::server::gate::Kind;
use crate::server::serving::{Serving, connection, counted};
use crate::storage::RocksStore;

/// Serves reads and writes of keys.
pub(super) struct KvService {
    door: Door,
}

/// What a call of the service returns.
type Answer<T> = Result<Response<T>, Status>;

/// A range as it was read: pairs, all keys of it, and what counts their memory.
struct Found {
    result: RangeResult,
    count: u64,
    held: Held,
}

impl KvService {
    pub(super) fn new(door: Door) -> Self {
        Self { door }
    }

    /// Reads a range whole, however large it is, as fresh as was asked for.
    async fn read(
        &self,
        range: &Arc<Range>,
        source: &Source,
        patience: Duration,
    ) -> Result<Found, Status> {
        let (serving, begun) = (self.door.serving(), Instant::now());
        if !range.serializable {
            let fresh = serving.freshen(Consistency::Linearizable);
            let late = |_| Status::from(EtcdError::Timeout);
            timeout(patience, fresh).await.map_err(late)??;
        }
        let left = patience.saturating_sub(begun.elapsed());
        serving.find(range, source.address(), left).await
    }
}

impl Serving {
    /// Reads what this member has: one key at once, and more where it holds up no other.
    async fn find(
        &self,
        range: &Arc<Range>,
        whose: IpAddr,
        patience: Duration,
    ) -> Result<Found, Status> {
        let held = self.answers.none(whose);
        if matches!(range.query.keys, KeyRange::One(_)) {
            let found = found(&self.reader()?, range, held);
            return found.map_err(|error| read_status(&error))?;
        }
        let range = Arc::clone(range);
        let read = move |reader: &Reader<RocksStore>| found(reader, &range, held);
        self.aside
            .read(&self.node, Some(whose), patience, read)
            .await?
    }
}

/// Reads pairs, and counts all keys of the range at the same revision. The outer error is of the
/// store, or says that the read was stopped.
fn found(
    reader: &Reader<RocksStore>,
    range: &Range,
    mut held: Held,
) -> Result<Result<Found, Status>, ReadError> {
    // It is not cut but refused beyond: no answer may be larger.
    let query = RangeQuery {
        max_bytes: ANSWER_BYTES_MAX,
        ..range.query.clone()
    };
    loop {
        let result = match read(reader, &query) {
            Ok(result) => result,
            Err(error) => return refused(error),
        };
        let is_cut = result.more && result.kvs.len() < query.limit;
        if is_cut || !held.add(bytes_of(&result)) {
            return Ok(Err(EtcdError::TooManyRequests.into()));
        }
        let count = match range.count_query(&result).map(|it| reader.range(&it)) {
            None => 0,
            Some(Ok(counted)) => counted.count.unwrap_or_default(),
            // The newest revision was compacted meanwhile: it is read again.
            Some(Err(ReadError::Compacted { .. })) if query.revision.is_none() => {
                continue;
            }
            Some(Err(error)) => return refused(error),
        };
        return Ok(Ok(Found {
            result,
            count,
            held,
        }));
    }
}

/// One key is found sooner than a range of one.
fn read(reader: &Reader<RocksStore>, query: &RangeQuery) -> Result<RangeResult, ReadError> {
    let KeyRange::One(key) = &query.keys else {
        return reader.range(query);
    };
    let (revision, found) = reader.get(key, query.revision)?;
    Ok(RangeResult {
        revision,
        count: Some(u64::from(found.is_some())),
        kvs: found.into_iter().filter(|_| !query.count_only).collect(),
        more: false,
    })
}

/// A revision that cannot be read is an answer; anything else ends the read.
fn refused(error: ReadError) -> Result<Result<Found, Status>, ReadError> {
    match &error {
        ReadError::Compacted { .. } | ReadError::Future { .. } => {
            Ok(Err(EtcdError::from(&error).into()))
        }
        ReadError::Stopped { .. } | ReadError::Store(_) => Err(error),
    }
}

fn bytes_of(result: &RangeResult) -> usize {
    let bytes = |kv: &KeyValue| size_of::<KeyValue>() + kv.key.len() + kv.value.len();
    result.kvs.iter().map(bytes).sum()
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
        let longest = self.door.limits().request_timeout();
        // A list of everything takes as long as its client lets it.
        let patience = waits_until(&request).map_or(longest, |until| {
            until.saturating_duration_since(Instant::now())
        });
        let gate = &self.door.serving().gate;
        let read = self.read(&range, &source, patience);
        let read = gate.pass("EtcdRange", Kind::Read, &source, read).await;
        let found = read.map_err(|it| self.door.in_etcds_words(&it))?;
        let response = range.response(self.door.header(), found.result, found.count);
        Ok(counted((response, Some(found.held))))
    }

    type RangeStreamStream = BoxStream<RangeStreamResponse>;

    async fn range_stream(&self, _: Request<RangeRequest>) -> Answer<Self::RangeStreamStream> {
        Err(EtcdError::NotServed("ranges in pieces, which are of etcd 3.7").into())
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
