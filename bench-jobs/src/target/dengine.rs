//! DEngine's own protocol, through `dengine-client`.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use dengine_bench_model::results::{Protocol, ReadConsistency, Wire};
use dengine_client::proto::MembersResponse;
use dengine_client::{
    AdminClient, AdminOptions, Client, ClientOptions, Consistency, Error, Expected, GetResult,
    KeyRange, RangeQuery, RetryPolicy, Watch, WatchUpdate,
};

use super::{Access, Connect, Facts, Found, Leader, NotDeleted, Room, one_cluster};

/// Open connections.
pub struct Connections {
    client: Client,
    connections: usize,
    /// Leads to followers alone.
    followers: Option<Client>,
}

impl Connections {
    pub(super) async fn open(connect: &Connect) -> anyhow::Result<Self> {
        let options = ClientOptions {
            connections: connect.connections,
            connect_timeout: Duration::from_secs(5),
            request_timeout: connect.request_timeout,
            retry: if connect.retry {
                RetryPolicy::STANDARD
            } else {
                RetryPolicy::NONE
            },
            wire: match connect.access.wire.unwrap_or_default() {
                Wire::Pipelined => dengine_client::Wire::Pipelined,
                Wire::Unary => dengine_client::Wire::Unary,
                Wire::Etcd => bail!("calls in etcd's API are not made by DEngine's client"),
            },
            ..ClientOptions::default()
        };
        let endpoints = connect.endpoints.iter().cloned();
        let client = Client::connect_with(endpoints, options.clone()).await?;
        let followers = match connect.followers.is_empty() {
            true => None,
            false => {
                let followers = connect.followers.iter().cloned();
                Some(Client::connect_with(followers, options).await?)
            }
        };
        Ok(Connections {
            client,
            connections: connect.connections,
            followers,
        })
    }

    pub(super) fn lane(&self, client: usize) -> Lane {
        let connection = client % self.connections;
        let followers = self.followers.as_ref();
        Lane {
            client: self.client.with_affinity(connection),
            follower: followers.map(|it| it.with_affinity(connection)),
        }
    }
}

/// One client's way to the cluster.
pub struct Lane {
    client: Client,
    follower: Option<Client>,
}

impl Lane {
    pub(super) async fn put(&self, key: Bytes, value: Bytes) -> Result<u64, String> {
        self.client
            .put(key, value)
            .await
            .map(|put| put.header.revision)
            .map_err(|error| error.to_string())
    }

    pub(super) async fn get(&self, key: Bytes, fresh: ReadConsistency) -> Result<Found, String> {
        let consistency = match fresh {
            ReadConsistency::Linearizable => Consistency::Linearizable,
            ReadConsistency::Lease => Consistency::Lease,
            ReadConsistency::Eventual => Consistency::Eventual,
        };
        let got = self.client.get(key, consistency).await;
        got.map(found).map_err(|error| error.to_string())
    }

    /// The put of this client comes first, and what the others of its connections have seen.
    pub(super) async fn get_in_session(&self, key: Bytes) -> Result<Found, String> {
        let Some(follower) = &self.follower else {
            return Err("session reads need a follower".to_owned());
        };
        follower.saw(self.client.position());
        let got = follower.get(key, Consistency::Session).await;
        got.map(found).map_err(|error| error.to_string())
    }

    pub(super) async fn swap(
        &self,
        key: Bytes,
        last: u64,
        value: Bytes,
    ) -> Result<Option<u64>, String> {
        let expected = Expected::ModRevision(last);
        let swap = self.client.compare_and_swap(key, expected, value).await;
        let swap = swap.map_err(|error| error.to_string())?;
        Ok(swap.succeeded.then_some(swap.header.revision))
    }

    pub(super) async fn delete(&self, from: Vec<u8>, to: Vec<u8>) -> Result<(), NotDeleted> {
        let deleted = self.client.delete_range(KeyRange::between(from, to)).await;
        deleted.map(|_| ()).map_err(|error| NotDeleted {
            words: error.to_string(),
            is_refused: matches!(error, Error::InvalidRequest { .. }),
        })
    }

    pub(super) async fn keys(
        &self,
        from: Vec<u8>,
        to: Vec<u8>,
        limit: u32,
    ) -> Result<Vec<Bytes>, String> {
        let query = RangeQuery::new(KeyRange::between(from, to))
            .keys_only()
            .limit(limit);
        let found = self.client.range(query).await;
        let found = found.map_err(|error| error.to_string())?;
        Ok(found.kvs.into_iter().map(|kv| kv.key).collect())
    }

    pub(super) async fn list(&self, from: Vec<u8>, to: Vec<u8>, page: u32) -> Result<u64, String> {
        let query = RangeQuery::new(KeyRange::between(from, to)).limit(page);
        let mut pages = self.client.pages(query);
        let mut found = 0;
        while let Some(page) = pages.next().await.map_err(|error| error.to_string())? {
            found += page.len() as u64;
        }
        Ok(found)
    }

    pub(super) async fn watch(&self, key: Bytes) -> Result<Events, String> {
        let watch = self
            .follower
            .as_ref()
            .unwrap_or(&self.client)
            .watch(KeyRange::key(key))
            .await;
        watch.map(Events).map_err(|error| error.to_string())
    }
}

fn found(got: GetResult) -> Found {
    Found {
        exists: got.kv.is_some(),
        mod_revision: got.kv.map_or(0, |kv| kv.mod_revision),
        revision: got.header.revision,
    }
}

/// A watch of one key.
pub struct Events(Watch);

impl Events {
    pub(super) async fn until(&mut self, revision: u64) -> Result<(), String> {
        loop {
            match self.0.next().await.map_err(|error| error.to_string())? {
                WatchUpdate::Events { revision: told, .. } if told >= revision => return Ok(()),
                WatchUpdate::Events { .. } | WatchUpdate::Progress { .. } => {}
            }
        }
    }
}

pub(super) async fn facts(endpoints: &[String]) -> anyhow::Result<Facts> {
    let options = AdminOptions {
        connect_timeout: Duration::from_secs(2),
        request_timeout: Duration::from_secs(5),
    };
    let mut facts = Facts::default();
    let mut clusters = Vec::with_capacity(endpoints.len());
    let mut last = None;
    for endpoint in endpoints {
        let admin = AdminClient::connect_with(endpoint, options).await?;
        let status = admin
            .status()
            .await
            .with_context(|| format!("status of {endpoint}"))?;
        if !status.ready {
            bail!("{endpoint}: member {} is not ready", status.name);
        }
        clusters.push((endpoint.clone(), status.cluster_id));
        facts.version = Some(status.version);
        facts.durability = Some(status.durability);
        last = Some(admin);
    }
    one_cluster(&clusters)?;
    let admin = last.context("no endpoints were given")?;
    let members = admin.members().await.context("members of the cluster")?;
    facts.term = members.term;
    facts.leader = leader(&members);
    facts.followers = followers(&members);
    facts.members = names(&members);
    Ok(facts)
}

/// A server that only echoes knows of no members and of no leader: each answers a read.
pub(super) async fn facts_of_echo(endpoints: &[String]) -> anyhow::Result<Facts> {
    let name = |place: usize| format!("echo-{}", place + 1);
    for endpoint in endpoints {
        let connect = Connect {
            access: Access {
                protocol: Protocol::Echo,
                wire: Some(Wire::Unary),
            },
            endpoints: vec![endpoint.clone()],
            connections: 1,
            followers: Vec::new(),
            request_timeout: Duration::from_secs(5),
            retry: false,
        };
        let lane = Connections::open(&connect).await?.lane(0);
        let key = Bytes::from_static(b"ready?");
        let got = lane.get(key, ReadConsistency::Eventual).await;
        let got = got.map_err(anyhow::Error::msg);
        got.with_context(|| format!("echo at {endpoint}"))?;
    }
    let leader = endpoints.first().map(|address| Leader {
        name: name(0),
        address: address.clone(),
    });
    Ok(Facts {
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        durability: None,
        term: 0,
        leader,
        followers: Vec::new(),
        members: (0..endpoints.len()).map(name).collect(),
    })
}

/// How often a member is asked that does not answer: it may be slow for a moment.
const ROOM_TRIES: u32 = 3;

/// The room of the member that has the least, of all at the addresses that the cluster knows: an
/// endpoint may stand for all of them.
pub(super) async fn room(endpoints: &[String]) -> anyhow::Result<Option<Room>> {
    let mut least: Option<Room> = None;
    for address in addresses(endpoints).await? {
        let mut told = room_of(&address).await;
        for _ in 1..ROOM_TRIES {
            if told.is_err() {
                told = room_of(&address).await;
            }
        }
        let told = told.with_context(|| format!("member at {address}"))?;
        let both = [least, told].into_iter().flatten();
        least = both.min_by_key(|room| room.bytes);
    }
    Ok(least)
}

const ROOM_OPTIONS: AdminOptions = AdminOptions {
    connect_timeout: Duration::from_secs(2),
    request_timeout: Duration::from_secs(5),
};

/// Of all members, and of the endpoints.
async fn addresses(endpoints: &[String]) -> anyhow::Result<BTreeSet<String>> {
    let mut addresses: BTreeSet<String> = endpoints.iter().cloned().collect();
    if let Some(endpoint) = endpoints.first() {
        let admin = AdminClient::connect_with(endpoint, ROOM_OPTIONS).await?;
        let members = admin.members().await.context("members of the cluster")?;
        let members = members.members.into_iter();
        let of = members.filter_map(|progress| Some(progress.member?.client_address));
        addresses.extend(of.filter(|address| !address.is_empty()));
    }
    Ok(addresses)
}

async fn room_of(address: &str) -> anyhow::Result<Option<Room>> {
    let admin = AdminClient::connect_with(address, ROOM_OPTIONS).await?;
    let status = admin.status().await?;
    let used_bytes = status.log_bytes.saturating_add(status.state_bytes);
    Ok(status.free_bytes.map(|bytes| Room {
        member: status.name,
        bytes,
        used_bytes,
    }))
}

fn leader(members: &MembersResponse) -> Option<Leader> {
    let of = |progress: &&_| leads(members, progress);
    let member = members.members.iter().find(of)?.member.as_ref()?;
    Some(Leader {
        name: member.name.clone(),
        address: member.client_address.clone(),
    })
}

fn followers(members: &MembersResponse) -> Vec<String> {
    let others = members.members.iter().filter(|it| !leads(members, it));
    let voters = others.filter_map(|progress| progress.member.as_ref().filter(|it| it.voter));
    let addresses = voters.map(|member| member.client_address.clone());
    addresses.filter(|address| !address.is_empty()).collect()
}

fn leads(members: &MembersResponse, progress: &dengine_client::proto::MemberProgress) -> bool {
    progress
        .member
        .as_ref()
        .is_some_and(|member| member.id == members.leader_id)
}

fn names(members: &MembersResponse) -> Vec<String> {
    let mut names: Vec<String> = members
        .members
        .iter()
        .filter_map(|progress| progress.member.as_ref())
        .map(|member| member.name.clone())
        .collect();
    names.sort();
    names
}
