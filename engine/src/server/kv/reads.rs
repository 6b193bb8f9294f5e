//! Reads, as fresh as was asked for.

use dengine_api::v1::{
    Consistency, GetRequest, GetResponse, Position, RangeRequest, RangeResponse,
};
use dengine_core::kv::{Gets, KeyRange, RangeQuery, RangeResult, Reader};
use dengine_wire::{
    Header, reads,
    status::{read_status, request_status},
};
use tonic::Status;

use super::Serving;
use crate::{server::aside::read_aside, storage::RocksStore};

impl Serving {
    /// Reads one key, as fresh as was asked for.
    pub(super) async fn get(&self, get: GetRequest) -> Result<GetResponse, Status> {
        self.request_limits.check_key(&get.key)?;
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
        self.request_limits.check_key(&get.key)?;
        let (revision, found) = gets
            .get(&get.key, reads::get_revision(get))
            .map_err(|error| read_status(&error))?;
        Ok(reads::get_response(header, revision, found))
    }

    /// This member's state.
    pub(super) fn reader(&self) -> Result<Reader<RocksStore>, Status> {
        self.node.reader().map_err(|error| request_status(&error))
    }

    /// Reads keys in their order, as fresh as was asked for.
    pub(super) async fn range(&self, range: RangeRequest) -> Result<RangeResponse, Status> {
        let (consistency, at_least) = (range.consistency, range.at_least);
        let query = reads::range_query(range, &self.request_limits)?;
        self.freshen(consistency, at_least).await?;
        let result = self.read(query).await?;
        Ok(reads::range_response(self.headers.now(), result))
    }

    /// A single key is read at once; a real range takes its time, and takes it where it holds up nobody else.
    pub(super) async fn read(&self, query: RangeQuery) -> Result<RangeResult, Status> {
        match query.keys {
            KeyRange::One(_) => self
                .reader()?
                .range(&query)
                .map_err(|error| read_status(&error)),
            KeyRange::Between { .. } | KeyRange::From(_) => {
                let patience = self.limits.request_timeout();
                read_aside(&self.node, patience, move |reader| reader.range(&query)).await
            }
        }
    }

    /// Afterwards the reader is as fresh as was asked for.
    pub(super) async fn freshen(
        &self,
        consistency: i32,
        at_least: Option<Position>,
    ) -> Result<(), Status> {
        let fresh = match reads::consistency(consistency)? {
            Consistency::Unspecified | Consistency::Linearizable => self.node.read_barrier().await,
            Consistency::Lease => self.node.lease_barrier().await,
            Consistency::Eventual => Ok(()),
            Consistency::Session => return self.reach(at_least.unwrap_or_default()).await,
        };
        fresh.map_err(|error| request_status(&error))
    }

    /// Waits until this member's state is at `position`.
    async fn reach(&self, position: Position) -> Result<(), Status> {
        let own = self.headers.now().cluster_id;
        let Some(wanted) = reads::revision_to_reach(own, position)? else {
            return Ok(());
        };
        // No reader is held while waiting: it would keep a snapshot from being installed.
        let present = self.node.reader().map(|reader| reader.revision());
        if present.is_ok_and(|present| present >= wanted) {
            return Ok(());
        }
        let mut revision = self.node.revision_changes();
        let reached = revision.wait_for(|revision| *revision >= wanted);
        match tokio::time::timeout(self.limits.request_timeout(), reached).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(_)) => return Err(Status::unavailable("this member is shutting down")),
            Err(_) => {}
        }
        let at = *self.node.revision_changes().borrow();
        Err(Status::unavailable(format!(
            "this member is at revision {at} and did not reach {wanted} in time; try again, or another member"
        )))
    }
}
