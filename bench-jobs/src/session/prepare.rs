//! Everything before the first request that counts: health, connections, keys to read, warm-up.

use std::error::Error;
use std::time::Duration;
use std::{fmt, slice};

use anyhow::{Context, bail};
use dengine_bench_model::results::{Preload, ReadConsistency, Settling, Shape, Workload};
use tokio::time::{sleep, timeout};

use super::Session;
use crate::cli::WarmUp;
use crate::keys::{self, Order};
use crate::load::{Measured, Operation, Part, Plan};
use crate::outcome::Frame;
use crate::pods::Team;
use crate::target::{Connect, Facts, Target, Way as _};

/// Clients that fill the key space: enough to batch well, few enough not to overload.
const PRELOAD_CLIENTS: u64 = 256;
/// How long members may take to catch up with the filled key space before eventual reads.
const SETTLE_LIMIT: Duration = Duration::from_secs(30);
const SETTLE_POLL: Duration = Duration::from_millis(20);

/// A target that is ready for a workload.
pub(super) struct Prepared {
    pub(super) target: Target,
    pub(super) endpoints: Vec<String>,
    /// Where all keys are listed meanwhile, if they are.
    pub(super) listers: Option<Target>,
}

/// Why the target cannot do what a workload is about, seen only when it was asked.
#[derive(Debug)]
pub(super) struct Unsupported(pub(super) &'static str);

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Error for Unsupported {}

/// Keys 0 to `keys` were written, the last at `revision`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filled {
    keys: u64,
    key_size: u32,
    value_size: u32,
    revision: u64,
}

impl Filled {
    fn serves(&self, shape: &Shape) -> bool {
        self.keys >= keys::space(shape)
            && (self.key_size, self.value_size) == (shape.key_size, shape.value_size)
    }
}

impl Session<'_> {
    pub(super) async fn prepare(&mut self, frame: &mut Frame) -> anyhow::Result<Prepared> {
        if let Some(lost) = self.team.as_ref().and_then(Team::lost) {
            bail!(lost);
        }
        let options = &self.cli.options;
        let before =
            Facts::await_ready(frame.access, &options.endpoints, options.ready_timeout).await?;
        let shape = frame.shape.clone();
        let at_leader = options.target_leader || shape.workload == Workload::Seen;
        let endpoints = match (at_leader, &before.leader) {
            (true, Some(leader)) => vec![leader.address.clone()],
            (true, None) => bail!("the cluster has no leader, and the load is for it"),
            (false, _) => options.endpoints.clone(),
        };
        let followers = followers(&shape, &before)?;
        frame.before = Some(before);
        self.begin().await?;
        let part = self.part(&shape);
        let connect = Connect {
            followers,
            ..self.connect(&shape, &endpoints, part)
        };
        let target = Target::connect(&connect).await.context("connecting")?;
        if let Some(team) = &mut self.team {
            team.connect(&shape, self.task, &endpoints, &self.folder)
                .await?;
        }
        if !frame.access.protocol.is_bound() {
            self.prepare_keys(&target, &endpoints, frame).await?;
        }
        self.warm_up(&target, frame).await?;
        // Asked again, because electing a leader during the preparation harms nobody.
        let before = Facts::await_ready(frame.access, &endpoints, options.ready_timeout).await?;
        frame.before = Some(before);
        let listers = self.listers(&frame.shape, frame.before.as_ref()).await?;
        Ok(Prepared {
            target,
            endpoints,
            listers,
        })
    }

    /// Connections of their own for clients that list all keys: to the leader, which has the writes
    /// to see to as well.
    async fn listers(
        &self,
        shape: &Shape,
        facts: Option<&Facts>,
    ) -> anyhow::Result<Option<Target>> {
        if shape.listers_beside() == 0 {
            return Ok(None);
        }
        let leader = facts.and_then(|facts| facts.leader.as_ref());
        let leader = leader.context("the cluster has no leader to list all keys at")?;
        let connect = Connect {
            connections: shape.listers_beside() as usize,
            ..self.connect(shape, slice::from_ref(&leader.address), Part::WHOLE)
        };
        let target = Target::connect(&connect).await.context("connecting")?;
        Ok(Some(target))
    }

    /// The keys that a workload needs are there, and the servers have nothing left to do with them.
    async fn prepare_keys(
        &mut self,
        target: &Target,
        endpoints: &[String],
        frame: &mut Frame,
    ) -> anyhow::Result<()> {
        let shape = frame.shape.clone();
        let part = self.part(&shape);
        let known = self.filled.filter(|filled| filled.serves(&shape));
        let stands_on_them = match shape.workload {
            Workload::Range | Workload::Mixed | Workload::List | Workload::Scan => {
                let filled = match known {
                    Some(filled) => filled,
                    None => {
                        let all = self.connect(&shape, endpoints, Part::WHOLE);
                        self.fill(&all, frame).await?
                    }
                };
                self.settle(target, &shape, part, filled.revision).await?;
                if let Some(team) = &mut self.team {
                    team.settle(&shape, self.task, filled.revision).await?;
                }
                true
            }
            // It overwrites what is there.
            Workload::Put => shape.key_space > 0 && known.is_some(),
            Workload::Watch | Workload::Swap | Workload::Seen => false,
        };
        if stands_on_them {
            frame.settling = self.let_servers_settle().await;
        }
        Ok(())
    }

    /// Waits until the servers have merged what was written before, as far as they are known.
    pub(super) async fn let_servers_settle(&self) -> Option<Settling> {
        let settling = self.servers.settle(self.cli.options.settle_timeout);
        let settled = self.cut.unless(async { Ok(settling.await) }).await;
        settled.ok().flatten()
    }

    /// The connections of a part of a workload.
    pub(crate) fn connect(&self, shape: &Shape, endpoints: &[String], part: Part) -> Connect {
        let options = &self.cli.options;
        Connect {
            access: options.access(),
            endpoints: part.endpoints(endpoints),
            connections: part.share(shape.connections.into()) as usize,
            followers: Vec::new(),
            request_timeout: options.request_timeout,
            retry: false,
        }
    }

    /// Writes every key of the key space once.
    async fn fill(&mut self, connect: &Connect, frame: &mut Frame) -> anyhow::Result<Filled> {
        let shape = &frame.shape;
        let keys = keys::space(shape);
        let clients = PRELOAD_CLIENTS.min(keys);
        let connect = Connect {
            connections: connect.connections.min(clients as usize),
            retry: true,
            ..connect.clone()
        };
        let target = Target::connect(&connect).await.context("connecting")?;
        let plan = Plan {
            operation: Operation::Put,
            clients,
            rate: None,
            keys: self.keys(keys, shape, Order::Sequential),
            ..self.plan(shape, keys)
        };
        let measured = self.load(plan, &target, "filling").await;
        succeeded(&measured, keys).context("filling the key space")?;
        let filled = Filled {
            keys,
            key_size: shape.key_size,
            value_size: shape.value_size,
            revision: measured.revision,
        };
        self.filled = Some(filled);
        frame.preload = Some(Preload {
            keys: measured.requests(),
            total_seconds: measured.elapsed.as_secs_f64(),
        });
        Ok(filled)
    }

    /// A workload that wrote every key of its space saves the next one from filling it.
    pub(super) fn note_filled(&mut self, shape: &Shape, measured: &Measured) {
        let wrote_all = shape.workload == Workload::Put
            && keys::space(shape) <= shape.total
            && Order::of(shape) != Order::Random
            && measured.errors == 0
            && measured.requests() >= shape.total;
        let known = self.filled.map_or(0, |filled| filled.keys);
        if wrote_all && keys::space(shape) >= known {
            self.filled = Some(Filled {
                keys: keys::space(shape),
                key_size: shape.key_size,
                value_size: shape.value_size,
                revision: measured.revision,
            });
        }
    }

    /// Waits until every connection serves the filled key space: an eventual read may be answered
    /// by a member that has not applied it yet.
    pub(crate) async fn settle(
        &self,
        target: &Target,
        shape: &Shape,
        part: Part,
        revision: u64,
    ) -> anyhow::Result<()> {
        let keys = self.keys(keys::space(shape), shape, Order::Sequential);
        let first = keys.client(0).key(0);
        let settled = async {
            for connection in 0..part.share(shape.connections.into()) as usize {
                let mut lane = target.lane(connection);
                loop {
                    let fresh = ReadConsistency::Eventual;
                    match lane.get(first.clone(), fresh).await {
                        Ok(found) if found.revision >= revision => break,
                        Ok(_) | Err(_) => sleep(SETTLE_POLL).await,
                    }
                }
            }
        };
        timeout(SETTLE_LIMIT, settled).await.map_err(|_| {
            anyhow::anyhow!("a member did not catch up with the keys within {SETTLE_LIMIT:?}")
        })
    }

    /// Runs the same kind of requests for a while, so that connections, caches and branch
    /// predictors are as they will be. A put writes one key per client, so the others are still
    /// new.
    async fn warm_up(&mut self, target: &Target, frame: &mut Frame) -> anyhow::Result<()> {
        let shape = frame.shape.clone();
        let (total, ends_after) = self.warm_up_of(&shape);
        let (warmed, ..) = self.load_together(&shape, None, target).await;
        frame.warm_up = warmed.requests();
        frame.warm_up_seconds = ends_after.map(|time| time.as_secs_f64());
        let asked_for = ends_after.map_or(total, |_| warmed.requests());
        succeeded(&warmed, asked_for).context("warming up")
    }

    /// How many requests, and for how long.
    fn warm_up_of(&self, shape: &Shape) -> (u64, Option<Duration>) {
        match self.cli.options.load.warm_up(shape) {
            WarmUp::Requests(requests) => (requests, None),
            WarmUp::Time(time) => (u64::MAX, Some(time)),
        }
    }

    pub(super) fn warm_up_plan(&self, shape: &Shape) -> Plan {
        let (total, ends_after) = self.warm_up_of(shape);
        let space = if shape.workload == Workload::Scan {
            // A row takes more keys than there are clients.
            keys::space(shape)
        } else {
            u64::from(shape.clients).min(keys::space(shape))
        };
        Plan {
            rate: None,
            ends_after,
            keys: self.keys(space, shape, Order::Sequential),
            ..self.plan(shape, total)
        }
    }
}

/// The members that must show what is written at the leader, if the workload is about them.
fn followers(shape: &Shape, facts: &Facts) -> Result<Vec<String>, Unsupported> {
    match shape.workload {
        Workload::Seen if facts.followers.is_empty() => {
            Err(Unsupported("the cluster has no follower"))
        }
        Workload::Seen => Ok(facts.followers.clone()),
        Workload::Put
        | Workload::Range
        | Workload::Mixed
        | Workload::Watch
        | Workload::Swap
        | Workload::List
        | Workload::Scan => Ok(Vec::new()),
    }
}

fn succeeded(measured: &Measured, total: u64) -> anyhow::Result<()> {
    match &measured.first_error {
        Some(error) => bail!(
            "{} of {total} requests failed; the first: {error}",
            measured.errors
        ),
        None => Ok(()),
    }
}
