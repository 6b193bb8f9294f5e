//! DEngine's own protocol, through `dengine-client`.

use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use dengine_client::{
    AdminClient, AdminOptions, Client, ClientOptions, Consistency, KeyRange, RangeQuery,
    RetryPolicy, Watch, WatchUpdate, proto::MembersResponse,
};
use dengine_crds::{benchmark::ReadConsistency, results::Wire};

use super::{Connect, Facts, Found, Leader, Room, one_cluster};

/// Open connections.
pub struct Connections {
    client: Client,
    connections: usize,
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
            wire: match connect.wire {
                Wire::Pipelined => dengine_client::Wire::Pipelined,
                Wire::Unary => dengine_client::Wire::Unary,
            },
        };
        let client = Client::connect_with(connect.endpoints.iter().cloned(), options).await?;
        Ok(Connections {
            client,
            connections: connect.connections,
        })
    }

    pub(super) fn lane(&self, client: usize) -> Lane {
        Lane(self.client.with_affinity(client % self.connections))
    }
}

/// One client's way to the cluster.
pub struct Lane(Client);

impl Lane {
    pub(super) async fn put(&self, key: Bytes, value: Bytes) -> Result<u64, String> {
        self.0
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
        let got = self
            .0
            .get(key, consistency)
            .await
            .map_err(|error| error.to_string())?;
        Ok(Found {
            exists: got.kv.is_some(),
            revision: got.header.revision,
        })
    }

    pub(super) async fn delete(&self, from: Vec<u8>, to: Vec<u8>) -> Result<(), String> {
        let deleted = self.0.delete_range(KeyRange::between(from, to)).await;
        deleted.map(|_| ()).map_err(|error| error.to_string())
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
        let found = self.0.range(query).await;
        let found = found.map_err(|error| error.to_string())?;
        Ok(found.kvs.into_iter().map(|kv| kv.key).collect())
    }

    pub(super) async fn watch(&self, key: Bytes) -> Result<Events, String> {
        let watch = self.0.watch(KeyRange::key(key)).await;
        watch.map(Events).map_err(|error| error.to_string())
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
    facts.members = names(&members);
    Ok(facts)
}

/// The room of the member that has the least, of those that answer at the addresses that the cluster knows: an endpoint may
/// stand for all of them.
pub(super) async fn room(endpoints: &[String]) -> Option<Room> {
    let options = AdminOptions {
        connect_timeout: Duration::from_secs(2),
        request_timeout: Duration::from_secs(2),
    };
    let mut addresses = endpoints.to_vec();
    for endpoint in endpoints.iter().take(1) {
        let admin = AdminClient::connect_with(endpoint, options).await.ok()?;
        let members = admin.members().await.ok()?;
        let of =
            |progress: dengine_client::proto::MemberProgress| Some(progress.member?.client_address);
        addresses.extend(members.members.into_iter().filter_map(of));
    }
    let mut least: Option<Room> = None;
    for address in addresses {
        let Ok(admin) = AdminClient::connect_with(&address, options).await else {
            continue;
        };
        let status = admin.status().await.ok();
        let room = status.and_then(|status| {
            let bytes = status.free_bytes?;
            let member = status.name;
            Some(Room { member, bytes })
        });
        least = [least, room]
            .into_iter()
            .flatten()
            .min_by_key(|room| room.bytes);
    }
    least
}

fn leader(members: &MembersResponse) -> Option<Leader> {
    let of = |progress: &&_| leads(members, progress);
    let member = members.members.iter().find(of)?.member.as_ref()?;
    Some(Leader {
        name: member.name.clone(),
        address: member.client_address.clone(),
    })
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
