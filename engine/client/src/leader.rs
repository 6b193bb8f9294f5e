//! Where the leader is, as far as members said, and connections to it if it is none of the
//! endpoints: a client may be given the one address of a Kubernetes Service, while members name
//! each other by their own.
//!
//! Such an address may be out of this client's reach, or lead to something else from here. So it is
//! connected to beside the calls, and carries them only after a member of the same cluster has
//! answered there.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use dengine_protocol::v1::kv_client::KvClient;
use dengine_protocol::v1::{Consistency, GetRequest};
use futures::future::join_all;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};
use tonic::transport::Channel;

use crate::policy::AtomicTime;
use crate::pool::{Link, connect, endpoint};

/// How long an address that failed is not connected to again.
const AVOIDED: Duration = Duration::from_secs(5);

/// Between two attempts, whatever members that disagree on the leader say.
const PAUSE: Duration = Duration::from_secs(1);

const NOBODY: usize = usize::MAX;
const ELSEWHERE: usize = usize::MAX - 1;

/// The key whose reading proves where a connection leads; whether it exists does not matter.
const PROBE: &[u8] = b"\0";

/// Which address leads.
#[derive(Debug)]
pub(crate) struct Leader {
    /// `host:port` of the endpoints.
    endpoints: Vec<String>,
    /// Where members are reached by what they name each other by, if not there.
    reached_at: Option<BTreeMap<String, String>>,
    /// The leader's place among them; [`ELSEWHERE`] if there are connections to it that are none of
    /// theirs, [`NOBODY`] if it is not known or cannot be reached.
    at: AtomicUsize,
    /// The cluster that answers at the endpoints; 0: none has answered yet.
    cluster_id: AtomicU64,
    /// How many go to a leader elsewhere.
    connections: usize,
    connect_timeout: Duration,
    elsewhere: Mutex<Elsewhere>,
    /// When the leader elsewhere last served a call, by the pool's time.
    served_at: AtomicTime,
}

/// The last leader that was named and is none of the endpoints.
#[derive(Debug, Default)]
struct Elsewhere {
    address: String,
    /// None until a member has answered there.
    links: Vec<Link>,
    /// Of these connections, so that what becomes of earlier ones is not taken for theirs.
    number: u64,
    connecting: Option<AbortHandle>,
    began: Option<Instant>,
    avoided_until: Option<Instant>,
}

impl Leader {
    pub(crate) fn new(
        endpoints: Vec<String>,
        reached_at: Option<BTreeMap<String, String>>,
        connections: usize,
        connect_timeout: Duration,
    ) -> Self {
        Leader {
            endpoints,
            reached_at,
            at: AtomicUsize::new(NOBODY),
            cluster_id: AtomicU64::new(0),
            connections,
            connect_timeout,
            elsewhere: Mutex::default(),
            served_at: AtomicTime::default(),
        }
    }

    /// A member named the leader.
    pub(crate) fn heard(self: &Arc<Self>, named: &str) {
        let address = match &self.reached_at {
            None => named,
            Some(reached_at) => reached_at.get(named).map_or("", String::as_str),
        };
        let known = self.endpoints.iter().position(|known| known == address);
        if let Some(at) = known
            && self.at.load(Ordering::Relaxed) == at
        {
            return;
        }
        let mut elsewhere = self.lock();
        if let Some(at) = known {
            elsewhere.turn_to("");
            self.at.store(at, Ordering::Relaxed);
            return;
        }
        if elsewhere.address != address {
            elsewhere.turn_to(address);
        }
        let reached = !elsewhere.links.is_empty();
        let at = if reached { ELSEWHERE } else { NOBODY };
        self.at.store(at, Ordering::Relaxed);
        if address.is_empty() {
            return;
        }
        // Before any answer it could not be told whether the cluster there is the same.
        if self.cluster_id.load(Ordering::Relaxed) != 0 && elsewhere.may_connect() {
            self.begin(&mut elsewhere);
        }
    }

    /// Whoever led may do so no more.
    pub(crate) fn forget(&self) {
        self.at.store(NOBODY, Ordering::Relaxed);
    }

    /// Notes the cluster whose leader this is.
    pub(crate) fn leads(&self, cluster_id: u64) {
        if self.cluster_id.load(Ordering::Relaxed) != cluster_id {
            self.cluster_id.store(cluster_id, Ordering::Relaxed);
        }
    }

    /// The endpoint that leads.
    pub(crate) fn endpoint(&self) -> Option<usize> {
        Some(self.at.load(Ordering::Relaxed)).filter(|at| *at < self.endpoints.len())
    }

    /// A connection to the leader if it is none of the endpoints, for calls of this lane, and its
    /// number.
    pub(crate) fn elsewhere(&self, lane: usize) -> Option<(u64, Link)> {
        if self.at.load(Ordering::Relaxed) != ELSEWHERE {
            return None;
        }
        let elsewhere = self.lock();
        let place = lane.checked_rem(elsewhere.links.len())?;
        Some((elsewhere.number, elsewhere.links[place].clone()))
    }

    /// Whether a call may wait for a connection to an address that a member named just now: there
    /// is none to that leader yet, and none has failed a moment ago.
    pub(crate) fn may_be_tried(&self, address: &str) -> bool {
        let elsewhere = self.lock();
        elsewhere.address == address && elsewhere.links.is_empty() && !elsewhere.is_avoided()
    }

    /// Whether connections of this number lead to whoever leads now, as far as it is known.
    pub(crate) fn is_elsewhere(&self, number: u64) -> bool {
        self.at.load(Ordering::Relaxed) == ELSEWHERE && self.lock().number == number
    }

    /// Notes that the leader elsewhere served a call.
    pub(crate) fn served(&self, now: Duration) {
        self.served_at.set(now);
    }

    /// Whether the leader elsewhere has served a call since.
    pub(crate) fn has_served_since(&self, since: Duration) -> bool {
        self.served_at.is_after(since)
    }

    /// Connections of this number did not answer.
    pub(crate) fn lost(&self, number: u64) {
        let mut elsewhere = self.lock();
        if elsewhere.number == number {
            elsewhere.links.clear();
            elsewhere.avoided_until = Some(Instant::now() + AVOIDED);
        }
    }

    /// Drops what leads elsewhere, and what is under way to it.
    pub(crate) fn close(&self) {
        self.lock().turn_to("");
    }

    /// Connects beside the calls.
    fn begin(self: &Arc<Self>, elsewhere: &mut Elsewhere) {
        elsewhere.number += 1;
        elsewhere.began = Some(Instant::now());
        let (leader, number) = (Arc::clone(self), elsewhere.number);
        let address = elsewhere.address.clone();
        let connecting = tokio::spawn(async move {
            let opened = leader.open(&address).await;
            leader.opened(number, opened);
        });
        elsewhere.connecting = Some(connecting.abort_handle());
    }

    /// Opens as many connections as can be had, at least one.
    async fn open(self: &Arc<Self>, address: &str) -> Result<Vec<Link>, String> {
        let endpoint =
            endpoint(address, self.connect_timeout).map_err(|error| error.to_string())?;
        let first = connect(&endpoint).await?;
        self.prove(first.clone()).await?;
        let others = join_all((1..self.connections).map(|_| connect(&endpoint))).await;
        let channels = std::iter::once(first).chain(others.into_iter().flatten());
        Ok(channels.map(|channel| Link::new(channel, self)).collect())
    }

    /// Asks whether a member of this cluster is there: a write that went to another one would be
    /// lost.
    async fn prove(&self, channel: Channel) -> Result<(), String> {
        let get = GetRequest {
            key: Bytes::from_static(PROBE),
            consistency: Consistency::Eventual.into(),
            ..GetRequest::default()
        };
        let answer = timeout(self.connect_timeout, KvClient::new(channel).get(get)).await;
        let answer = answer.map_err(|_| "no answer".to_owned())?;
        let found = answer.map_err(|status| crate::error::describe(&status))?;
        let cluster_id = found.into_inner().header.map_or(0, |it| it.cluster_id);
        if cluster_id != self.cluster_id.load(Ordering::Relaxed) {
            return Err(format!("cluster {cluster_id} is another one"));
        }
        Ok(())
    }

    fn opened(&self, number: u64, opened: Result<Vec<Link>, String>) {
        let mut elsewhere = self.lock();
        if elsewhere.number != number {
            return;
        }
        elsewhere.connecting = None;
        match opened {
            Ok(links) => {
                elsewhere.links = links;
                self.at.store(ELSEWHERE, Ordering::Relaxed);
            }
            Err(error) => {
                tracing::debug!(error, "the leader that was named is not used");
                elsewhere.avoided_until = Some(Instant::now() + AVOIDED);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Elsewhere> {
        self.elsewhere
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Elsewhere {
    /// Drops the connections to one leader for another; to none if `address` is empty.
    fn turn_to(&mut self, address: &str) {
        if let Some(connecting) = self.connecting.take() {
            connecting.abort();
        }
        self.number += 1;
        self.links.clear();
        self.avoided_until = None;
        address.clone_into(&mut self.address);
    }

    fn is_avoided(&self) -> bool {
        self.avoided_until.is_some_and(|it| Instant::now() < it)
    }

    fn may_connect(&self) -> bool {
        let pauses = self.began.is_some_and(|it| it.elapsed() < PAUSE);
        self.links.is_empty() && self.connecting.is_none() && !pauses && !self.is_avoided()
    }
}
