//! etcd's `Lease` service. The leader's memory says how long a lease still lasts; which leases
//! there are, and their keys, every member has.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dengine_etcd::EtcdError;
use dengine_etcd::etcdserverpb::lease_server::Lease;
use dengine_etcd::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseLeasesRequest, LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};
use dengine_etcd::lease::{self as messages, Grant, Remaining};
use dengine_kv::{LeaseInfo, ReadError, Reader};
use dengine_protocol::v1::{AskLeaseRequest, AskLeaseResponse, Consistency};
use dengine_types::LeaseId;
use futures::stream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming};

use super::door::{Door, ServedBy, requires_leader};
use crate::connections::Source;
use crate::node::answers::{ANSWER_BYTES_MAX, Held};
use crate::server::forward::Origin;
use crate::server::gate::Kind;
use crate::server::places::{Place, Places};
use crate::server::serving::{Caller, Serving, connection, counted};
use crate::storage::RocksStore;

/// Leases or keys that are read at once: a page of the longest keys is no more than an answer.
const PAGE: usize = 1024;

/// Serves leases.
pub(super) struct LeaseService {
    door: Door,
    /// Of streams that keep leases alive. There may be as many as streams of watches.
    streams: Places,
}

/// What a call of the service returns.
type Answer<T> = Result<Response<T>, Status>;
/// What was read, with what counts its memory. The outer error is of the store, or says that the
/// read was stopped.
type Read<T> = Result<Result<(T, Held), Status>, ReadError>;

impl LeaseService {
    pub(super) fn new(door: Door) -> Self {
        let limits = door.limits();
        let streams = Places::new(
            limits.max_watch_streams,
            limits.max_watch_streams_per_connection,
        );
        Self { door, streams }
    }
}

/// So long a lease lasts at least that another leader is elected before it ends.
fn ttl_min(election_timeout: Duration) -> i64 {
    let least = election_timeout * 3 / 2;
    let seconds = least.as_secs() + u64::from(least.subsec_nanos() > 0);
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

/// An id for a lease that may have any: a positive one.
fn drawn() -> i64 {
    rand::random_range(1..=i64::MAX)
}

impl Door {
    /// Asks the leader about a lease, and its successor if it is one no more: for as long as a
    /// request may take.
    async fn ask_lease(
        &self,
        method: &'static str,
        asked: AskLeaseRequest,
        source: &Arc<Source>,
    ) -> Result<AskLeaseResponse, Status> {
        let serving = self.serving();
        let answered = self.again(|| {
            let asking = serving.ask_lease(asked, Origin::Client);
            serving.gate.pass(method, Kind::Read, source, asking)
        });
        answered.await.map_err(|it| self.in_etcds_words(&it))
    }

    /// Grants a lease to a caller that was admitted; with what counts the memory of the answer.
    pub(super) async fn grant(
        &self,
        request: &LeaseGrantRequest,
        caller: &Caller,
    ) -> Result<(LeaseGrantResponse, Option<Held>), Status> {
        let least = ttl_min(self.serving().node.config().election_timeout());
        let command = Grant::new(request, least)?.command(drawn());
        let reads = Consistency::Linearizable;
        let ordered = self.order("EtcdLeaseGrant", command, reads, caller);
        let ordered = ordered.await?;
        let answer = messages::granted(ordered.header, &ordered.outcome)?;
        Ok((answer, ordered.held))
    }
}

impl Serving {
    /// Reads leases where it holds up no other.
    async fn read_leases<T: Send + 'static>(
        &self,
        source: &Source,
        read: impl FnOnce(&Reader<RocksStore>, Held) -> Read<T> + Send + 'static,
    ) -> Result<(T, Held), Status> {
        let held = self.answers.none(source.address());
        let patience = self.limits.request_timeout();
        let read = move |reader: &Reader<RocksStore>| read(reader, held);
        self.aside
            .read(&self.node, Some(source), patience, read)
            .await?
    }
}

/// Counts the memory of one page more, if there is room for it.
struct Pages {
    held: Held,
    bytes: usize,
}

impl Pages {
    fn add(&mut self, bytes: usize) -> Result<(), EtcdError> {
        self.bytes += bytes;
        match self.bytes <= ANSWER_BYTES_MAX && self.held.add(bytes) {
            true => Ok(()),
            false => Err(EtcdError::TooManyRequests),
        }
    }
}

/// The keys that are attached to a lease; `None`: there is no such lease.
fn keys_of(reader: &Reader<RocksStore>, lease: LeaseId, held: Held) -> Read<Option<Vec<Bytes>>> {
    let mut pages = Pages { held, bytes: 0 };
    let mut keys: Vec<Bytes> = Vec::new();
    loop {
        let after = keys.last().cloned();
        let page = reader.lease_with_keys(lease, after.as_deref(), PAGE)?;
        let Some((_, page)) = page.filter(|(info, _)| !info.dying) else {
            return Ok(Ok((None, pages.held)));
        };
        let is_last = page.len() < PAGE;
        let bytes = page.iter().map(|key| size_of::<Bytes>() + key.len()).sum();
        if let Err(full) = pages.add(bytes) {
            return Ok(Err(full.into()));
        }
        keys.extend(page);
        if is_last {
            return Ok(Ok((Some(keys), pages.held)));
        }
    }
}

/// The ids of all leases.
fn ids(reader: &Reader<RocksStore>, held: Held) -> Read<Vec<i64>> {
    let mut pages = Pages { held, bytes: 0 };
    let (mut ids, mut after) = (Vec::new(), None);
    loop {
        let page = reader.leases(after, PAGE)?;
        if let Err(full) = pages.add(size_of_val(page.as_slice())) {
            return Ok(Err(full.into()));
        }
        let lives = |it: &&LeaseInfo| !it.dying;
        ids.extend(page.iter().filter(lives).map(|it| it.id.0));
        after = page.last().map(|it| it.id);
        if page.len() < PAGE {
            return Ok(Ok((ids, pages.held)));
        }
    }
}

/// A stream by which a client keeps leases alive, one after the other: while one is asked for, no
/// more is read.
struct Renewals {
    door: Door,
    source: Arc<Source>,
    requests: Streaming<LeaseKeepAliveRequest>,
    /// The client wants an error where there is no leader, rather than a wait.
    requires_leader: bool,
    _place: Place,
}

impl Renewals {
    /// Answers the next request; `None` once the client sends no more.
    async fn next(mut self) -> Result<Option<(LeaseKeepAliveResponse, Self)>, Status> {
        let stop = self.door.serving().stop.clone();
        let request = tokio::select! {
            request = self.requests.message() => request?,
            () = stop.cancelled() => return Err(EtcdError::Stopped.into()),
        };
        let Some(LeaseKeepAliveRequest { id }) = request else {
            return Ok(None);
        };
        self.door.admit_who(self.requires_leader, ServedBy::All)?;
        // Of before: a client must not see the lease kept alive at a revision at which it was gone.
        let header = self.door.header();
        let keep = AskLeaseRequest {
            lease: id,
            keep_alive: true,
        };
        let kept = self
            .door
            .ask_lease("EtcdLeaseKeepAlive", keep, &self.source)
            .await?;
        let ttl = kept.found.then(|| Duration::from_millis(kept.ttl_ms));
        Ok(Some((messages::kept_alive(header, id, ttl), self)))
    }
}

#[tonic::async_trait]
impl Lease for LeaseService {
    async fn lease_grant(&self, request: Request<LeaseGrantRequest>) -> Answer<LeaseGrantResponse> {
        self.door.admit(request.metadata(), ServedBy::Voters)?;
        let caller = Caller::of(&request);
        let granted = self.door.grant(request.get_ref(), &caller).await;
        granted.map(counted)
    }

    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Answer<LeaseRevokeResponse> {
        self.door.write("EtcdLeaseRevoke", request).await
    }

    type LeaseKeepAliveStream = BoxStream<LeaseKeepAliveResponse>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Answer<Self::LeaseKeepAliveStream> {
        self.door.admit(request.metadata(), ServedBy::Voters)?;
        let place = self.streams.take(request.remote_addr());
        let place = place.map_err(|_| EtcdError::TooManyRequests)?;
        let renewals = Renewals {
            door: self.door.clone(),
            source: Arc::clone(connection(&request).source()),
            requires_leader: requires_leader(request.metadata()),
            requests: request.into_inner(),
            _place: place,
        };
        let answers = stream::try_unfold(renewals, Renewals::next);
        Ok(Response::new(Box::pin(answers)))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Answer<LeaseTimeToLiveResponse> {
        self.door.admit(request.metadata(), ServedBy::Voters)?;
        let source = Arc::clone(connection(&request).source());
        let LeaseTimeToLiveRequest { id, keys } = request.into_inner();
        let ask = AskLeaseRequest {
            lease: id,
            keep_alive: false,
        };
        let asked = self
            .door
            .ask_lease("EtcdLeaseTimeToLive", ask, &source)
            .await?;
        let (keys, held) = match keys && asked.found {
            false => (asked.found.then(Vec::new), None),
            true => {
                let serving = self.door.serving();
                let fresh = serving.freshen(Consistency::Linearizable).await;
                fresh.map_err(|it| self.door.in_etcds_words(&it))?;
                let read = move |reader: &Reader<_>, held| keys_of(reader, LeaseId(id), held);
                let read = serving.read_leases(&source, read).await;
                let (keys, held) = read.map_err(|it| self.door.in_etcds_words(&it))?;
                (keys, Some(held))
            }
        };
        let lease = keys.map(|keys| Remaining {
            remaining: Duration::from_millis(asked.remaining_ms),
            granted: Duration::from_millis(asked.ttl_ms),
            keys,
        });
        let answer = messages::time_to_live(self.door.header(), id, lease);
        Ok(counted((answer, held)))
    }

    /// Those that this member knows of.
    async fn lease_leases(
        &self,
        request: Request<LeaseLeasesRequest>,
    ) -> Answer<LeaseLeasesResponse> {
        self.door.admit(request.metadata(), ServedBy::Voters)?;
        let source = Arc::clone(connection(&request).source());
        let serving = self.door.serving();
        let read = serving.read_leases(&source, ids);
        let read = serving
            .gate
            .pass("EtcdLeaseLeases", Kind::Read, &source, read);
        let (ids, held) = read.await.map_err(|it| self.door.in_etcds_words(&it))?;
        let answer = messages::leases(self.door.header(), ids);
        Ok(counted((answer, Some(held))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two seconds where elections take as long as they do by default in etcd.
    #[test]
    fn a_lease_lasts_longer_than_an_election() {
        let check = |ms, expect| assert_eq!(ttl_min(Duration::from_millis(ms)), expect);
        check(1_000, 2);
        check(2_000, 3);
        check(10, 1);
    }

    /// A client that asks for lease 0 takes the lease for none.
    #[test]
    fn a_lease_that_may_have_any_id_has_a_positive_one() {
        assert!((0..1_000).all(|_| drawn() > 0));
    }
}
