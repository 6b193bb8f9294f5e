//! Reads of ranges, and how fresh a read is.

use std::time::Duration;

use dengine_kv::{KeyRange, KeyValue, RangeQuery, RangeResult, Reader};
use dengine_protocol::checks::reads;
use dengine_protocol::checks::status::{read_status, request_status};
use dengine_protocol::v1::{Consistency, Position};
use dengine_raft::replica::RequestError;
use tonic::Status;

use super::Serving;
use crate::connections::Source;
use crate::node::answers::Held;
use crate::storage::RocksStore;

impl Serving {
    /// This member's state.
    pub(in crate::server) fn reader(&self) -> Result<Reader<RocksStore>, Status> {
        self.node.reader().map_err(|error| request_status(&error))
    }

    /// A single key is read at once; a real range takes its time, at most `patience`, and takes it
    /// where it holds up no other.
    pub(in crate::server) async fn read(
        &self,
        query: RangeQuery,
        source: &Source,
        patience: Duration,
    ) -> Result<(RangeResult, Held), Status> {
        let none = self.answers.none(source.address());
        match query.keys {
            KeyRange::One(_) => {
                let result = self.reader()?.range(&query);
                with_memory(none, result.map_err(|error| read_status(&error))?)
            }
            KeyRange::Between { .. } | KeyRange::From(_) => {
                let read = move |reader: &Reader<RocksStore>| {
                    // Counted where it is read: what is read may wait to be fetched from here.
                    Ok(with_memory(none, reader.range(&query)?))
                };
                let source = Some(source);
                self.aside.read(&self.node, source, patience, read).await?
            }
        }
    }

    /// Afterwards the reader is as fresh as this level asks for, which names no position.
    pub(in crate::server) async fn freshen(&self, level: Consistency) -> Result<(), Status> {
        let fresh = match level {
            Consistency::Unspecified | Consistency::Linearizable => self.node.read_barrier().await,
            Consistency::Lease => self.node.lease_barrier().await,
            Consistency::Eventual | Consistency::Session => Ok(()),
        };
        fresh.map_err(|error| request_status(&error))
    }

    /// Waits until this member's state is at `position`. Such reads may wait for what never comes,
    /// so they leave places to others.
    pub(in crate::server) async fn reach(
        &self,
        position: Position,
        source: &Source,
    ) -> Result<(), Status> {
        let own = self.headers.now().cluster_id;
        let Some(wanted) = reads::revision_to_reach(own, position)? else {
            return Ok(());
        };
        // No reader is held while waiting: it would keep a snapshot from being installed.
        let present = self.node.reader().map(|reader| reader.revision());
        if present.is_ok_and(|present| present.covers(wanted)) {
            return Ok(());
        }
        let place = self.session_reads.wait(source).ok_or_else(|| {
            Status::resource_exhausted(
                "too many session reads wait for this member to catch up already, in all or of \
                 your address; try again, or another member",
            )
        })?;
        let _waits = self.node.await_commits();
        let revision = self.node.revision_changes();
        let reached = place.reached(wanted, &revision);
        match tokio::time::timeout(self.limits.request_timeout(), reached).await {
            Ok(true) => return Ok(()),
            Ok(false) if self.node.status().removed => {
                return Err(request_status(&RequestError::Removed));
            }
            Ok(false) => return Err(Status::unavailable("this member is shutting down")),
            Err(_) => {}
        }
        let at = *self.node.revision_changes().borrow();
        Err(Status::unavailable(format!(
            "this member is at revision {at} and did not reach {wanted} in time; try again, or \
             another member"
        )))
    }
}

/// A result with its memory counted.
fn with_memory(mut held: Held, result: RangeResult) -> Result<(RangeResult, Held), Status> {
    let bytes = |kv: &KeyValue| size_of::<KeyValue>() + kv.key.len() + kv.value.len();
    let bytes = result.kvs.iter().map(bytes).sum();
    match held.add(bytes) {
        true => Ok((result, held)),
        false => Err(no_room()),
    }
}

/// What a read is told when answers that are not fetched yet take all the memory that there is
/// for them, or for those of its client.
pub(in crate::server) fn no_room() -> Status {
    Status::resource_exhausted(
        "answers that wait to be sent use all memory for them, or the share of your address; try \
         again, or raise --max-answer-bytes",
    )
}
