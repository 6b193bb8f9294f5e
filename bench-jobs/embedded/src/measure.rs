//! Workloads one after the other: keys to read, warm-up, and each repetition.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use dengine_bench::cli::{Task, WarmUp};
use dengine_bench::keys::{self, Keys, Order};
use dengine_bench::load::{self, Measured, Operation, Part, Plan};
use dengine_bench::outcome::{self, Frame};
use dengine_bench::progress::Progress;
use dengine_bench::servers::Servers;
use dengine_bench::target::Access;
use dengine_bench_model::results::{
    Preload, Protocol, ReadConsistency, RunResult, Shape, Workload,
};

use crate::cli::Cli;
use crate::cluster::{Cluster, Direct};
use crate::syncs::Syncs;

/// How long the members may take to be idle once the keys are written.
const SETTLE_LIMIT: Duration = Duration::from_secs(60);
/// For watches, which no embedded load has.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Why some workloads are not measured here.
const OF_THE_SERVER: &str = "watches and lists in pages are a matter of the server";
/// Clients that write the keys which are read later.
const FILLING_CLIENTS: u64 = 256;

/// One run of the program.
pub(crate) struct Bench<'a> {
    cli: &'a Cli,
    cluster: &'a Cluster,
    syncs: &'a Syncs,
    /// So many keys are there, of these sizes.
    filled: (u64, u32, u32),
}

impl<'a> Bench<'a> {
    pub(crate) fn new(cli: &'a Cli, cluster: &'a Cluster, syncs: &'a Syncs) -> Self {
        Self {
            cli,
            cluster,
            syncs,
            filled: (0, 0, 0),
        }
    }

    /// Measures everything that was asked for.
    ///
    /// # Errors
    /// A workload cannot be measured here, or a request failed.
    pub(crate) async fn measure_all(mut self) -> Result<Vec<RunResult>> {
        let tasks = self.cli.run.tasks(&self.cli.load);
        ensure!(
            !tasks.iter().all(is_of_the_server),
            "{OF_THE_SERVER}: measure them with dengine-bench"
        );
        let mut results = Vec::new();
        for task in &tasks {
            if is_of_the_server(task) {
                results.push(outcome::unsupported(&self.frame(task)?, OF_THE_SERVER));
                continue;
            }
            results.push(
                self.measure(task)
                    .await
                    .with_context(|| task.name.clone())?,
            );
        }
        Ok(results)
    }

    async fn measure(&mut self, task: &Task) -> Result<RunResult> {
        let shape = &task.shape;
        let leader = self.cluster.leader()?;
        let mut frame = self.frame(task)?;
        if matches!(shape.workload, Workload::Range | Workload::Mixed) {
            frame.preload = self.fill(task, &leader).await?;
            // Followers still apply, and all merge, what was written.
            frame.settling = Servers::new(&[std::process::id()])?
                .settle(SETTLE_LIMIT)
                .await;
        }
        self.warm_up(task, &leader, &mut frame).await?;
        let mut results = Vec::new();
        for repetition in 0..self.cli.load.repeat {
            frame.before = Some(self.cluster.facts()?);
            let result = self.measure_once(task, &leader, &mut frame, repetition.into());
            results.push(result.await?);
        }
        if shape.workload == Workload::Put && Order::of(shape) != Order::Random {
            self.note_filled(shape);
        }
        Ok(outcome::of_repetitions(results))
    }

    fn frame(&self, task: &Task) -> Result<Frame> {
        let now = jiff::Timestamp::now();
        Ok(Frame {
            name: task.name.clone(),
            access: Access {
                protocol: Protocol::Dengine,
                wire: None,
            },
            shape: task.shape.clone(),
            target_leader: true,
            seed: self.cli.load.seed,
            warm_up: 0,
            warm_up_seconds: None,
            preload: None,
            settling: None,
            node: None,
            pods: None,
            started_at: now,
            finished_at: now,
            before: Some(self.cluster.facts()?),
            after: None,
        })
    }

    /// Writes every key of the key space once, unless they are there.
    async fn fill(&mut self, task: &Task, leader: &Direct) -> Result<Option<Preload>> {
        let shape = &task.shape;
        let space = keys::space(shape);
        let (keys, key_size, value_size) = self.filled;
        if keys >= space && (key_size, value_size) == (shape.key_size, shape.value_size) {
            return Ok(None);
        }
        let fill = Plan {
            operation: Operation::Put,
            clients: FILLING_CLIENTS.min(space),
            rate: None,
            keys: self.keys(shape, space, Order::Sequential),
            ..self.plan(shape, space)
        };
        let measured = load(task, "filling", fill, leader).await?;
        self.note_filled(shape);
        Ok(Some(Preload {
            keys: measured.requests(),
            total_seconds: measured.elapsed.as_secs_f64(),
        }))
    }

    fn note_filled(&mut self, shape: &Shape) {
        let space = keys::space(shape);
        let (keys, key_size, value_size) = self.filled;
        let same = (key_size, value_size) == (shape.key_size, shape.value_size);
        let keys = if same { keys.max(space) } else { space };
        self.filled = (keys, shape.key_size, shape.value_size);
    }

    /// A put writes one key per client, so the others are still new.
    async fn warm_up(&self, task: &Task, leader: &Direct, frame: &mut Frame) -> Result<()> {
        let shape = &task.shape;
        let (total, ends_after) = match self.cli.load.warm_up(shape) {
            WarmUp::Requests(requests) => (requests, None),
            WarmUp::Time(time) => (u64::MAX, Some(time)),
        };
        let space = u64::from(shape.clients).min(keys::space(shape));
        let plan = Plan {
            rate: None,
            ends_after,
            keys: self.keys(shape, space, Order::Sequential),
            ..self.plan(shape, total)
        };
        let warmed = load(task, "warming up", plan, leader).await?;
        frame.warm_up = warmed.requests();
        frame.warm_up_seconds = ends_after.map(|time| time.as_secs_f64());
        Ok(())
    }

    async fn measure_once(
        &self,
        task: &Task,
        leader: &Direct,
        frame: &mut Frame,
        repetition: u64,
    ) -> Result<RunResult> {
        let shape = &task.shape;
        let mut plan = self.plan(shape, shape.total);
        plan.at_least = shape.at_least();
        plan.keys = plan.keys.shifted(keys::of_repetition(shape, repetition));
        let before = self.syncs.so_far();
        frame.started_at = jiff::Timestamp::now();
        let measured = load(task, "measuring", plan, leader).await?;
        frame.finished_at = jiff::Timestamp::now();
        let syncs = self.syncs.so_far() - before;
        frame.after = Some(self.cluster.facts()?);
        Ok(RunResult {
            log_syncs: Some(syncs),
            ..outcome::result(frame, &measured, None)
        })
    }

    fn plan(&self, shape: &Shape, total: u64) -> Plan {
        let fresh = shape.consistency.unwrap_or(ReadConsistency::Linearizable);
        Plan {
            operation: match shape.workload {
                Workload::Put | Workload::List => Operation::Put,
                Workload::Range => Operation::Get(fresh),
                Workload::Mixed => Operation::Mixed(fresh, shape.read_percent.unwrap_or(50)),
                Workload::Watch => Operation::Watch(shape.watches_each()),
                Workload::Swap => Operation::Swap,
                Workload::Seen => Operation::Seen,
                Workload::Scan => Operation::Scan(keys::of_scan(shape)),
            },
            clients: u64::from(shape.clients),
            part: Part::WHOLE,
            total,
            at_least: None,
            ends_after: None,
            rate: shape.rate,
            keys: self.keys(shape, keys::space(shape), Order::of(shape)),
            value_size: shape.value_size,
            seed: self.cli.load.seed,
            request_timeout: REQUEST_TIMEOUT,
        }
    }

    fn keys(&self, shape: &Shape, space: u64, order: Order) -> Keys {
        Keys::new(space, shape.key_size, order, self.cli.load.seed)
    }
}

fn is_of_the_server(task: &Task) -> bool {
    matches!(
        task.shape.workload,
        Workload::Watch | Workload::Seen | Workload::List | Workload::Scan
    )
}

async fn load(task: &Task, phase: &str, plan: Plan, leader: &Direct) -> Result<Measured> {
    let progress = Progress {
        phase: format!("{}: {phase}", task.name),
    };
    let way = |_| leader.clone();
    let measured = load::run(plan, way, &progress, std::future::pending()).await;
    let why = measured.first_error.as_deref().unwrap_or_default();
    ensure!(
        measured.errors == 0,
        "{} requests failed, the first with: {why}",
        measured.errors
    );
    Ok(measured)
}
