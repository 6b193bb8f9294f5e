//! Three members of one cluster inside this process: the shipping log, store and transport, and no
//! client in between.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use dengine::config::Durability;
use dengine::kv::{Command, Expected, Outcome};
use dengine::types::{ClusterId, Revision};
use dengine::{Config, NewMember, Node};
use dengine_bench::target::{Events, Facts, Found, Leader, Way};
use dengine_bench_model::results::ReadConsistency;
use dengine_testkit::free_port;

pub(crate) const MEMBERS: usize = 3;
const CLUSTER: ClusterId = ClusterId(1);
/// How long the members may take to become a cluster.
const PATIENCE: Duration = Duration::from_secs(30);

/// The members; the first leads as long as nobody fails.
pub(crate) struct Cluster {
    members: Vec<Node>,
}

impl Cluster {
    /// Starts the members, each in a folder of its own below `data`, and makes them one cluster.
    pub(crate) async fn start(data: &Path, durability: Durability) -> Result<Self> {
        let mut members = Vec::new();
        for number in 0..MEMBERS {
            let config = Config {
                durability,
                ..config(&format!("m{number}"), data)
            };
            let config = config.validated()?;
            members.push(Node::start(config).await?);
        }
        let [first, others @ ..] = &members[..] else {
            bail!("a cluster has a member");
        };
        first.bootstrap(CLUSTER, &first.status().folder_id).await?;
        ready(first).await?;
        for newcomer in others {
            add(first, newcomer).await?;
            ready(newcomer).await?;
        }
        Ok(Self { members })
    }

    /// A way to the member that leads.
    ///
    /// # Errors
    /// Leadership moved to another one.
    pub(crate) fn leader(&self) -> Result<Direct> {
        let first = &self.members[0];
        let status = first.status();
        match status.leader {
            Some(leader) if leader.id == status.member_id => Ok(Direct(first.clone())),
            _ => bail!("another member leads by now: the machine is too busy to measure anything"),
        }
    }

    /// What the cluster says of itself.
    ///
    /// # Errors
    /// Leadership moved to another member.
    pub(crate) fn facts(&self) -> Result<Facts> {
        let Direct(leader) = self.leader()?;
        let config = leader.config();
        Ok(Facts {
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            durability: Some(config.durability.name().to_owned()),
            term: leader.status().term.0,
            leader: Some(Leader {
                name: config.name.clone(),
                address: config.advertise_client.clone(),
            }),
            followers: Vec::new(),
            members: self
                .members
                .iter()
                .map(|member| member.config().name.clone())
                .collect(),
        })
    }

    pub(crate) async fn shutdown(self) -> Result<()> {
        for member in self.members {
            member.shutdown().await?;
        }
        Ok(())
    }
}

fn config(name: &str, data: &Path) -> Config {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    Config {
        name: name.to_owned(),
        data_dir: data.join(name),
        listen_peer: address,
        advertise_peer: address.to_string(),
        // Members name it to clients, and there are none.
        advertise_client: format!("{name}:1"),
        ..Config::default()
    }
}

async fn add(leader: &Node, newcomer: &Node) -> Result<()> {
    let config = newcomer.config();
    let folder_id = newcomer.status().folder_id;
    let new = NewMember {
        name: config.name.clone(),
        peer_address: config.advertise_peer.clone(),
        client_address: config.advertise_client.clone(),
        folder_id: folder_id.clone(),
    };
    let (id, _) = leader.add_learner(new).await?;
    newcomer.join(CLUSTER, id, &folder_id).await?;
    let begun = Instant::now();
    while let Err(error) = leader.promote(id).await {
        if begun.elapsed() > PATIENCE {
            return Err(error).context("a member does not catch up");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

async fn ready(node: &Node) -> Result<()> {
    let mut changes = node.status_changes();
    let ready = changes.wait_for(|status| status.ready);
    let ready = tokio::time::timeout(PATIENCE, ready).await;
    ready.context("a member does not become ready")??;
    Ok(())
}

/// Calls of a member's own functions: what an application that embeds it does.
#[derive(Clone)]
pub(crate) struct Direct(Node);

impl Way for Direct {
    async fn put(&mut self, key: Bytes, value: &Bytes) -> Result<u64, String> {
        let put = Command::put(key, value.clone());
        let written = self.0.write(put).await.map_err(|error| error.to_string())?;
        match written.outcome {
            Outcome::Put { revision, .. } => Ok(revision.0),
            other => Err(format!("a put came to {other:?}")),
        }
    }

    async fn get(&mut self, key: Bytes, fresh: ReadConsistency) -> Result<Found, String> {
        let fresh = match fresh {
            ReadConsistency::Linearizable => self.0.read_barrier().await,
            ReadConsistency::Lease => self.0.lease_barrier().await,
            ReadConsistency::Eventual => Ok(()),
        };
        fresh.map_err(|error| error.to_string())?;
        let reader = self.0.reader().map_err(|error| error.to_string())?;
        let (revision, found) = reader.get(&key, None).map_err(|error| error.to_string())?;
        Ok(Found {
            exists: found.is_some(),
            mod_revision: found.map_or(0, |kv| kv.mod_revision.0),
            revision: revision.0,
        })
    }

    async fn swap(&mut self, key: Bytes, last: u64, value: &Bytes) -> Result<Option<u64>, String> {
        let swap = Command::CompareAndSwap {
            key,
            expected: Expected::ModRevision(Revision(last)),
            value: value.clone(),
            ttl_ms: 0,
        };
        let written = self
            .0
            .write(swap)
            .await
            .map_err(|error| error.to_string())?;
        match written.outcome {
            Outcome::CompareAndSwap {
                revision,
                succeeded,
                ..
            } => Ok(succeeded.then_some(revision.0)),
            other => Err(format!("a swap came to {other:?}")),
        }
    }

    fn get_in_session(
        &mut self,
        _: Bytes,
    ) -> impl Future<Output = Result<Option<Found>, String>> + Send {
        std::future::ready(Ok(None))
    }

    fn list(
        &mut self,
        _: Vec<u8>,
        _: Vec<u8>,
        _: u32,
    ) -> impl Future<Output = Result<u64, String>> + Send {
        let refused = "lists are paged by a client: measure them with dengine-bench";
        std::future::ready(Err(refused.to_owned()))
    }

    fn watch(&mut self, _: Bytes) -> impl Future<Output = Result<Events, String>> + Send {
        let refused = "watches are a matter of the server: measure them with dengine-bench";
        std::future::ready(Err(refused.to_owned()))
    }
}
