//! Reads, as fresh as was asked for.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use dengine_kv::{Gets, KeyRange, KeyValue, RangeQuery, RangeResult, Reader};
use dengine_protocol::KvCall;
use dengine_protocol::checks::status::{read_status, request_status};
use dengine_protocol::checks::{Header, reads};
use dengine_protocol::v1::{
    Consistency, GetRequest, GetResponse, Position, RangeRequest, RangeResponse,
};
use dengine_raft::replica::RequestError;
use tonic::Status;

use super::Serving;
use crate::connections::Source;
use crate::node::answers::{Held, SMALL_BYTES};
use crate::storage::RocksStore;

/// A call that changes nothing.
pub(super) trait Read: KvCall {
    /// Its answer, as fresh as was asked for.
    fn read(
        self,
        serving: &Serving,
        source: &Source,
    ) -> impl Future<Output = Result<(Self::Answer, Option<Held>), Status>> + Send;
}

impl Read for GetRequest {
    async fn read(
        self,
        serving: &Serving,
        source: &Source,
    ) -> Result<(GetResponse, Option<Held>), Status> {
        serving.request_limits.check_key(&self.key)?;
        // It may be waited for, and must not keep the frame that it came in.
        let get = GetRequest {
            key: Bytes::copy_from_slice(&self.key),
            ..self
        };
        serving
            .freshen_for(get.consistency, get.at_least, source)
            .await?;
        let reader = serving.reader()?;
        let gets = &mut reader.gets();
        serving.get_now(gets, serving.headers.now(), &get, source.address())
    }
}

impl Read for RangeRequest {
    async fn read(
        self,
        serving: &Serving,
        source: &Source,
    ) -> Result<(RangeResponse, Option<Held>), Status> {
        let (consistency, at_least) = (self.consistency, self.at_least);
        let query = reads::range_query(self, &serving.request_limits)?;
        serving.freshen_for(consistency, at_least, source).await?;
        let patience = serving.limits.request_timeout();
        let read = serving.read(query, source.address(), patience).await;
        let (result, held) = read?;
        let answer = reads::range_response(serving.headers.now(), result);
        Ok((answer, Some(held)))
    }
}

impl Serving {
    /// Reads one key as `gets` shows it. The answer's memory is counted, unless it is small.
    pub(super) fn get_now(
        &self,
        gets: &mut Gets<'_, RocksStore>,
        header: Header,
        get: &GetRequest,
        whose: IpAddr,
    ) -> Result<(GetResponse, Option<Held>), Status> {
        self.request_limits.check_key(&get.key)?;
        let (revision, found) = gets
            .get(&get.key, reads::get_revision(get))
            .map_err(|error| read_status(&error))?;
        let bytes = found.as_ref().map_or(0, |it| it.key.len() + it.value.len());
        let held = match bytes {
            0..=SMALL_BYTES => None,
            large => Some(self.answers.hold(whose, large).ok_or_else(no_room)?),
        };
        Ok((reads::get_response(header, revision, found), held))
    }

    /// This member's state.
    pub(super) fn reader(&self) -> Result<Reader<RocksStore>, Status> {
        self.node.reader().map_err(|error| request_status(&error))
    }

    /// A single key is read at once; a real range takes its time, at most `patience`, and takes it
    /// where it holds up no other.
    pub(super) async fn read(
        &self,
        query: RangeQuery,
        whose: IpAddr,
        patience: Duration,
    ) -> Result<(RangeResult, Held), Status> {
        let none = self.answers.none(whose);
        match query.keys {
            KeyRange::One(_) => {
                let result = self.reader()?.range(&query);
                counted(none, result.map_err(|error| read_status(&error))?)
            }
            KeyRange::Between { .. } | KeyRange::From(_) => {
                let read = move |reader: &Reader<RocksStore>| {
                    // Counted where it is read: what is read may wait to be fetched from here.
                    Ok(counted(none, reader.range(&query)?))
                };
                let whose = Some(whose);
                self.aside.read(&self.node, whose, patience, read).await?
            }
        }
    }

    /// Afterwards the reader is as fresh as was asked for.
    async fn freshen_for(
        &self,
        consistency: i32,
        at_least: Option<Position>,
        source: &Source,
    ) -> Result<(), Status> {
        match reads::consistency(consistency)? {
            Consistency::Session => self.reach(at_least.unwrap_or_default(), source).await,
            level => self.freshen(level).await,
        }
    }

    /// The same for a level that names no position.
    pub(super) async fn freshen(&self, level: Consistency) -> Result<(), Status> {
        let fresh = match level {
            Consistency::Unspecified | Consistency::Linearizable => self.node.read_barrier().await,
            Consistency::Lease => self.node.lease_barrier().await,
            Consistency::Eventual | Consistency::Session => Ok(()),
        };
        fresh.map_err(|error| request_status(&error))
    }

    /// Waits until this member's state is at `position`. Such reads may wait for what never comes,
    /// so they leave places to others.
    async fn reach(&self, position: Position, source: &Source) -> Result<(), Status> {
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
fn counted(mut held: Held, result: RangeResult) -> Result<(RangeResult, Held), Status> {
    let bytes = |kv: &KeyValue| size_of::<KeyValue>() + kv.key.len() + kv.value.len();
    let bytes = result.kvs.iter().map(bytes).sum();
    match held.add(bytes) {
        true => Ok((result, held)),
        false => Err(no_room()),
    }
}

/// What a read is told when answers that are not fetched yet take all the memory that there is
/// for them, or for those of its client.
pub(super) fn no_room() -> Status {
    Status::resource_exhausted(
        "answers that wait to be sent use all memory for them, or the share of your address; try \
         again, or raise --max-answer-bytes",
    )
}
