//! Reads, as fresh as was asked for.

use dengine_api::v1::{
    Consistency, GetRequest, GetResponse, Position, RangeRequest, RangeResponse,
};
use dengine_core::{
    kv::{Gets, KeyRange, RangeQuery, RangeResult, Reader},
    types::Revision,
};
use tonic::Status;

use super::{Serving, header::Header};
use crate::{
    server::{
        messages::{check_key, check_range_end, key_value},
        status::{read_status, request_status},
    },
    storage::RocksStore,
};

/// What a pair costs in a response besides its key and value, at least; bounds how many tiny pairs fit.
const PAIR_OVERHEAD_BYTES: usize = 32;

impl Serving {
    /// Reads one key, as fresh as was asked for.
    pub(super) async fn get(&self, get: GetRequest) -> Result<GetResponse, Status> {
        check_key(&get.key, &self.limits)?;
        self.freshen(get.consistency, get.at_least).await?;
        let reader = self.reader()?;
        self.get_now(&mut reader.gets(), self.headers.now(), &get)
    }

    /// Reads one key as `gets` shows it.
    pub(super) fn get_now(
        &self,
        gets: &mut Gets<'_, RocksStore>,
        header: Header,
        get: &GetRequest,
    ) -> Result<GetResponse, Status> {
        check_key(&get.key, &self.limits)?;
        let (revision, found) = gets
            .get(&get.key, requested(get.revision))
            .map_err(|error| read_status(&error))?;
        Ok(GetResponse {
            header: header.at(revision),
            kv: found.map(key_value),
        })
    }

    /// This member's state.
    pub(super) fn reader(&self) -> Result<Reader<RocksStore>, Status> {
        self.node.reader().map_err(|error| request_status(&error))
    }

    /// Reads keys in their order, as fresh as was asked for.
    pub(super) async fn range(&self, range: RangeRequest) -> Result<RangeResponse, Status> {
        check_key(&range.key, &self.limits)?;
        check_range_end(&range.range_end, &self.limits)?;
        self.freshen(range.consistency, range.at_least).await?;
        let result = self.read(self.query(range)).await?;
        Ok(RangeResponse {
            header: self.headers.now().at(result.revision),
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
    pub(super) async fn read(&self, query: RangeQuery) -> Result<RangeResult, Status> {
        let reader = self.reader()?;
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
    pub(super) async fn freshen(
        &self,
        consistency: i32,
        at_least: Option<Position>,
    ) -> Result<(), Status> {
        let fresh = match Consistency::try_from(consistency) {
            Ok(Consistency::Unspecified | Consistency::Linearizable) => {
                self.node.read_barrier().await
            }
            Ok(Consistency::Lease) => self.node.lease_barrier().await,
            Ok(Consistency::Eventual) => Ok(()),
            Ok(Consistency::Session) => return self.reach(at_least.unwrap_or_default()).await,
            Err(unknown) => {
                return Err(Status::invalid_argument(format!(
                    "consistency {} is not known to this version of the server",
                    unknown.0
                )));
            }
        };
        fresh.map_err(|error| request_status(&error))
    }

    /// Waits until this member's state is at `position`. One without a cluster id is reached everywhere: the
    /// client has seen nothing yet.
    async fn reach(&self, position: Position) -> Result<(), Status> {
        let own = self.headers.now().cluster_id.0;
        if position.cluster_id == 0 {
            return Ok(());
        }
        if own == 0 {
            return Err(Status::unavailable(
                "this member is of no cluster yet, so it cannot tell whether it has what you saw",
            ));
        }
        if position.cluster_id != own {
            return Err(Status::failed_precondition(format!(
                "the position is of cluster {}, this member is of cluster {own}: forget it, or ask the right one",
                position.cluster_id
            )));
        }
        // No reader is held while waiting: it would keep a snapshot from being installed.
        let present = self.node.reader().map(|reader| reader.revision());
        if present.is_ok_and(|present| present.0 >= position.revision) {
            return Ok(());
        }
        let mut revision = self.node.revision_changes();
        let reached = revision.wait_for(|revision| revision.0 >= position.revision);
        match tokio::time::timeout(self.limits.request_timeout(), reached).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(_)) => return Err(Status::unavailable("this member is shutting down")),
            Err(_) => {}
        }
        let at = *self.node.revision_changes().borrow();
        Err(Status::unavailable(format!(
            "this member is at revision {at} and did not reach {} in time; try again, or another member",
            position.revision
        )))
    }
}

fn requested(revision: u64) -> Option<Revision> {
    (revision != 0).then_some(Revision(revision))
}
