//! What is measured: connections to a cluster and what it says of itself. The protocols meet here;
//! everything outside this module is the same for all of them.

mod dengine;
mod etcd;
mod etcd_watches;
pub mod floor;

use std::future::Future;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use dengine_bench_model::results::{Protocol, ReadConsistency, Shape, Wire, Workload};
use tokio::time::{Instant, sleep};

/// How long to wait between two questions to a target that is not ready.
const READY_POLL: Duration = Duration::from_millis(250);

/// Keys of a page of a list: as many as Kubernetes' API server asks etcd for.
pub const PAGE_KEYS: u32 = 500;

/// Which system a target is, and how calls travel to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The system, by its protocol.
    pub protocol: Protocol,
    /// How calls travel, if there is a choice.
    pub wire: Option<Wire>,
}

/// What makes the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// DEngine's client.
    Dengine,
    /// etcd's: of etcd, and of members of DEngine that serve its API.
    Etcd,
    /// That of the floor.
    Floor,
}

impl Access {
    /// What makes the calls.
    #[must_use]
    pub fn caller(self) -> Caller {
        match (self.protocol, self.wire) {
            (Protocol::Dengine, Some(Wire::Etcd)) | (Protocol::Etcd, _) => Caller::Etcd,
            (Protocol::Dengine | Protocol::Echo, _) => Caller::Dengine,
            (Protocol::Floor, _) => Caller::Floor,
        }
    }
}

/// How a [`Target`] is connected to.
#[derive(Clone, Debug)]
pub struct Connect {
    /// The system, and how calls travel to it.
    pub access: Access,
    /// `host:port` each.
    pub endpoints: Vec<String>,
    /// TCP connections; connection `i` leads to endpoint `i` modulo their number.
    pub connections: usize,
    /// `host:port` each: where watches and session reads go, over as many connections again. Empty:
    /// watches go where everything goes, and there are no session reads.
    pub followers: Vec<String>,
    /// Longest time of one request.
    pub request_timeout: Duration,
    /// Repeat what was not served. Never while measuring: there, each failure counts.
    pub retry: bool,
}

/// Open connections.
pub enum Target {
    /// DEngine's protocol, a server that only echoes included.
    Dengine(dengine::Connections),
    /// etcd's protocol.
    Etcd(etcd::Connections),
    /// The floor of a lone write.
    Floor(floor::Connection),
}

/// Whether a load can be asked of a target. Of a system every one can, if only to hear that it is
/// [`unsupported`]; what the machine does at best is about one kind of load, and says nothing of
/// others.
#[must_use]
pub fn is_about(protocol: Protocol, shape: &Shape) -> bool {
    match protocol {
        Protocol::Dengine | Protocol::Etcd => true,
        Protocol::Floor => shape.workload == Workload::Put && shape.clients == 1,
        Protocol::Echo => shape.workload == Workload::Range,
    }
}

/// Why a target cannot do this, if it cannot: it is never measured doing something else instead.
#[must_use]
pub fn unsupported(access: Access, consistency: Option<ReadConsistency>) -> Option<&'static str> {
    let by_lease = consistency == Some(ReadConsistency::Lease);
    (by_lease && access.caller() == Caller::Etcd).then_some(match access.protocol {
        Protocol::Dengine => "etcd's API has no lease reads",
        Protocol::Etcd | Protocol::Floor | Protocol::Echo => "etcd has no lease reads",
    })
}

impl Target {
    /// Opens all connections.
    ///
    /// # Errors
    /// If none could be opened, or an endpoint is no address.
    pub async fn connect(connect: &Connect) -> anyhow::Result<Self> {
        Ok(match connect.access.caller() {
            Caller::Dengine => Target::Dengine(dengine::Connections::open(connect).await?),
            Caller::Etcd => Target::Etcd(etcd::Connections::open(connect).await?),
            Caller::Floor => Target::Floor(floor::Connection::open(connect).await?),
        })
    }

    /// The connection of a client: each has its fixed one, and they are shared evenly.
    #[must_use]
    pub fn lane(&self, client: usize) -> Lane {
        match self {
            Target::Dengine(connections) => Lane::Dengine(connections.lane(client)),
            Target::Etcd(connections) => Lane::Etcd(Box::new(connections.lane(client))),
            Target::Floor(connection) => Lane::Floor(connection.lane()),
        }
    }
}

/// One client's way to whatever a load is sent to.
pub trait Way: Send + 'static {
    /// Writes a key; the revision that it took.
    ///
    /// # Errors
    /// In words, for the summary.
    fn put(
        &mut self,
        key: Bytes,
        value: &Bytes,
    ) -> impl Future<Output = Result<u64, String>> + Send;

    /// Reads a key.
    ///
    /// # Errors
    /// In words, for the summary.
    fn get(
        &mut self,
        key: Bytes,
        fresh: ReadConsistency,
    ) -> impl Future<Output = Result<Found, String>> + Send;

    /// Writes a key if `last` is the revision that changed it last, which is 0 of a key that is not
    /// there. The revision that it took; `None` if the key was not so, and is as it was.
    ///
    /// # Errors
    /// In words, for the summary. It may have been written all the same.
    fn swap(
        &mut self,
        key: Bytes,
        last: u64,
        value: &Bytes,
    ) -> impl Future<Output = Result<Option<u64>, String>> + Send;

    /// Reads a key at a follower, no older than what was written on this way. `None` if the system
    /// has no such reads.
    ///
    /// # Errors
    /// In words, for the summary.
    fn get_in_session(
        &mut self,
        key: Bytes,
    ) -> impl Future<Output = Result<Option<Found>, String>> + Send;

    /// How many keys lie from `from` to just before `to`, all read with their values, a page at a
    /// time, as of the revision of the first page.
    ///
    /// # Errors
    /// In words, for the summary.
    fn list(
        &mut self,
        from: Vec<u8>,
        to: Vec<u8>,
        page: u32,
    ) -> impl Future<Output = Result<u64, String>> + Send;

    /// Watches a key from now on; at a follower, if the target was connected with some.
    ///
    /// # Errors
    /// In words, for the summary.
    fn watch(&mut self, key: Bytes) -> impl Future<Output = Result<Events, String>> + Send;
}

/// One client's way to the target.
pub enum Lane {
    /// DEngine's protocol.
    Dengine(dengine::Lane),
    /// etcd's protocol.
    Etcd(Box<etcd::Lane>),
    /// The floor of a lone write.
    Floor(floor::Lane),
}

/// Where there are no keys.
const NO_KEYS: &str = "the floor of a lone write keeps no keys";

impl Lane {
    /// Deletes every key from `from` to just before `to`.
    ///
    /// # Errors
    /// Nothing was deleted, or that is not known.
    pub async fn delete(&mut self, from: Vec<u8>, to: Vec<u8>) -> Result<(), NotDeleted> {
        match self {
            Lane::Dengine(lane) => lane.delete(from, to).await,
            Lane::Etcd(lane) => lane.delete(from, to).await,
            Lane::Floor(_) => Err(NotDeleted {
                words: NO_KEYS.to_owned(),
                is_refused: false,
            }),
        }
    }

    /// The first keys from `from` to just before `to`.
    ///
    /// # Errors
    /// In words.
    pub async fn keys(
        &mut self,
        from: Vec<u8>,
        to: Vec<u8>,
        limit: u32,
    ) -> Result<Vec<Bytes>, String> {
        match self {
            Lane::Dengine(lane) => lane.keys(from, to, limit).await,
            Lane::Etcd(lane) => lane.keys(from, to, limit).await,
            Lane::Floor(_) => Err(NO_KEYS.to_owned()),
        }
    }
}

/// Why keys were not deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotDeleted {
    pub words: String,
    /// This deletion is refused and always will be: its range may be too large.
    pub is_refused: bool,
}

/// What a read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Whether the key exists.
    pub exists: bool,
    /// The revision that changed it last; 0 if it does not exist.
    pub mod_revision: u64,
    /// The store's revision when it was read.
    pub revision: u64,
}

impl Way for Lane {
    async fn put(&mut self, key: Bytes, value: &Bytes) -> Result<u64, String> {
        match self {
            Lane::Dengine(lane) => lane.put(key, value.clone()).await,
            Lane::Etcd(lane) => lane.put(key, value).await,
            Lane::Floor(lane) => lane.put(value).await,
        }
    }

    async fn get(&mut self, key: Bytes, fresh: ReadConsistency) -> Result<Found, String> {
        match self {
            Lane::Dengine(lane) => lane.get(key, fresh).await,
            Lane::Etcd(lane) => lane.get(key, fresh).await,
            Lane::Floor(_) => Err(NO_KEYS.to_owned()),
        }
    }

    async fn swap(&mut self, key: Bytes, last: u64, value: &Bytes) -> Result<Option<u64>, String> {
        match self {
            Lane::Dengine(lane) => lane.swap(key, last, value.clone()).await,
            Lane::Etcd(lane) => lane.swap(key, last, value).await,
            Lane::Floor(_) => Err(NO_KEYS.to_owned()),
        }
    }

    async fn get_in_session(&mut self, key: Bytes) -> Result<Option<Found>, String> {
        match self {
            Lane::Dengine(lane) => lane.get_in_session(key).await.map(Some),
            Lane::Etcd(_) => Ok(None),
            Lane::Floor(_) => Err(NO_KEYS.to_owned()),
        }
    }

    async fn list(&mut self, from: Vec<u8>, to: Vec<u8>, page: u32) -> Result<u64, String> {
        match self {
            Lane::Dengine(lane) => lane.list(from, to, page).await,
            Lane::Etcd(lane) => lane.list(from, to, page).await,
            Lane::Floor(_) => Err(NO_KEYS.to_owned()),
        }
    }

    async fn watch(&mut self, key: Bytes) -> Result<Events, String> {
        Ok(match self {
            Lane::Dengine(lane) => Events::Dengine(Box::new(lane.watch(key).await?)),
            Lane::Etcd(lane) => Events::Etcd(Box::new(lane.watch(key).await?)),
            Lane::Floor(_) => return Err(NO_KEYS.to_owned()),
        })
    }
}

/// A watch.
pub enum Events {
    /// DEngine's protocol.
    Dengine(Box<dengine::Events>),
    /// etcd's protocol.
    Etcd(Box<etcd::Events>),
}

impl Events {
    /// Waits until the watch has told of a change at this revision or a later one.
    ///
    /// # Errors
    /// In words, for the summary.
    pub async fn until(&mut self, revision: u64) -> Result<(), String> {
        match self {
            Events::Dengine(events) => events.until(revision).await,
            Events::Etcd(events) => events.until(revision).await,
        }
    }
}

/// What a cluster says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Version of the server program.
    pub version: Option<String>,
    /// Durability mode; etcd does not tell.
    pub durability: Option<String>,
    /// Raft's term: another one later means that the leader changed.
    pub term: u64,
    /// Who leads.
    pub leader: Option<Leader>,
    /// The other voters' addresses for clients.
    pub followers: Vec<String>,
    /// Names of all members.
    pub members: Vec<String>,
}

/// What may still be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// The member that has the least.
    pub member: String,
    /// Bytes that are free on its disk before it refuses writes.
    pub bytes: u64,
    /// Bytes that it has written there.
    pub used_bytes: u64,
}

/// The member that leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    pub name: String,
    /// Its address for clients.
    pub address: String,
}

impl Facts {
    /// Asks every endpoint.
    ///
    /// # Errors
    /// If one does not answer, is not ready, or belongs to another cluster than the others.
    pub async fn ask(access: Access, endpoints: &[String]) -> anyhow::Result<Self> {
        match (access.protocol, access.caller()) {
            (Protocol::Dengine, Caller::Etcd) => Ok(Facts {
                // The version that members tell clients of etcd is that of the API.
                version: None,
                ..etcd::facts(endpoints).await?
            }),
            (Protocol::Echo, _) => dengine::facts_of_echo(endpoints).await,
            (_, Caller::Dengine) => dengine::facts(endpoints).await,
            (_, Caller::Etcd) => etcd::facts(endpoints).await,
            (_, Caller::Floor) => floor::facts(endpoints).await,
        }
    }

    /// The room of the member that has the least; `None` if none of them tells it, as etcd, its API
    /// and earlier versions.
    ///
    /// # Errors
    /// If a member does not answer: it may be the one that has the least.
    pub async fn room(access: Access, endpoints: &[String]) -> anyhow::Result<Option<Room>> {
        match (access.protocol, access.caller()) {
            (Protocol::Dengine, Caller::Dengine) => dengine::room(endpoints).await,
            (Protocol::Dengine | Protocol::Etcd | Protocol::Floor | Protocol::Echo, _) => Ok(None),
        }
    }

    /// Asks until every endpoint is ready and the cluster has a leader.
    ///
    /// # Errors
    /// What still was missing when the time was up.
    pub async fn await_ready(
        access: Access,
        endpoints: &[String],
        limit: Duration,
    ) -> anyhow::Result<Self> {
        let deadline = Instant::now() + limit;
        loop {
            let missing = match Facts::ask(access, endpoints).await {
                Ok(facts) if facts.leader.is_some() => return Ok(facts),
                Ok(_) => anyhow::anyhow!("the cluster has no leader"),
                Err(error) => error,
            };
            if Instant::now() + READY_POLL >= deadline {
                return Err(missing).with_context(|| format!("target not ready within {limit:?}"));
            }
            sleep(READY_POLL).await;
        }
    }
}

/// All endpoints must be doors to one cluster, or the numbers would describe a mixture.
fn one_cluster(ids: &[(String, u64)]) -> anyhow::Result<()> {
    let Some((first, id)) = ids.first() else {
        bail!("no endpoints were given")
    };
    match ids.iter().find(|(_, other)| other != id) {
        Some((other, other_id)) => bail!(
            "the endpoints belong to different clusters: {first} to {id}, {other} to {other_id}"
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(protocol: Protocol, wire: Option<Wire>) -> Access {
        Access { protocol, wire }
    }

    #[test]
    fn one_client_loads_etcd_and_members_that_serve_its_api() {
        let dengine = |wire| over(Protocol::Dengine, Some(wire)).caller();
        assert_eq!(dengine(Wire::Etcd), Caller::Etcd);
        assert_eq!(over(Protocol::Etcd, None).caller(), Caller::Etcd);
        assert_eq!(dengine(Wire::Pipelined), Caller::Dengine);
        assert_eq!(dengine(Wire::Unary), Caller::Dengine);
        let echo = over(Protocol::Echo, Some(Wire::Unary));
        assert_eq!(echo.caller(), Caller::Dengine, "it speaks nothing else");
    }

    #[test]
    fn reads_of_the_leader_by_its_lease_are_dengines_own() {
        let by_lease = |access| unsupported(access, Some(ReadConsistency::Lease));
        let api = over(Protocol::Dengine, Some(Wire::Etcd));
        assert_eq!(by_lease(api), Some("etcd's API has no lease reads"));
        let etcd = over(Protocol::Etcd, None);
        assert_eq!(by_lease(etcd), Some("etcd has no lease reads"));
        assert_eq!(by_lease(over(Protocol::Dengine, Some(Wire::Unary))), None);
        for fresh in [ReadConsistency::Linearizable, ReadConsistency::Eventual] {
            assert_eq!(unsupported(api, Some(fresh)), None, "{fresh:?}");
        }
    }
}
