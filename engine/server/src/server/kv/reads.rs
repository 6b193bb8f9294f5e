//! Reads, as fresh as was asked for.

use std::net::IpAddr;

use bytes::Bytes;
use dengine_kv::Gets;
use dengine_protocol::KvCall;
use dengine_protocol::checks::status::read_status;
use dengine_protocol::checks::{Header, reads};
use dengine_protocol::v1::{
    Consistency, GetRequest, GetResponse, Position, RangeRequest, RangeResponse,
};
use tonic::Status;

use crate::connections::Source;
use crate::node::answers::{Held, SMALL_BYTES};
use crate::server::serving::Serving;
use crate::server::serving::reads::no_room;
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
        let read = serving.read(query, source, patience).await;
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
}
