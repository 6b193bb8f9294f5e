//! Measures workloads one after the other against one target.

mod prepare;

use std::time::Duration;

use anyhow::Context;
use dengine_crds::{
    benchmark::{ReadConsistency, Report, RunResult, Shape, Workload},
    results::IdleServers,
};
use jiff::Timestamp;

use self::prepare::{Filled, Prepared};
use crate::{
    cli::{Cli, Task},
    cut::Cut,
    keys::{self, Keys, Order},
    load::{self, Measured, Operation, Plan},
    machine,
    outcome::{self, Frame, Verdict},
    progress::Progress,
    servers::Servers,
    target::{self, Facts, Target},
};

/// How long to ask for the leader after a run that failed.
const AFTER_FAILURE_LIMIT: Duration = Duration::from_secs(3);

/// What the workloads of one run share.
pub struct Session<'a> {
    cli: &'a Cli,
    cut: Cut,
    servers: Servers,
    /// Keys that are known to be there.
    filled: Option<Filled>,
    /// Which workload is measured, of how many; for the progress bar.
    place: String,
}

impl<'a> Session<'a> {
    /// Starts the clock of `--timeout`.
    ///
    /// # Errors
    /// If a server process that was named is not there, or signals cannot be listened for.
    pub fn new(cli: &'a Cli) -> anyhow::Result<Self> {
        Ok(Session {
            cli,
            cut: Cut::after(cli.options.timeout).context("signal handlers")?,
            servers: Servers::new(&cli.options.server_pid)?,
            filled: None,
            place: String::new(),
        })
    }

    /// Measures everything that was asked for. Whatever happens, each workload has a result that says so.
    pub async fn measure_all(mut self) -> Report {
        let labels = &self.cli.options.result;
        let mut report = Report {
            system: labels.system.clone(),
            scenario: labels.scenario.clone(),
            profile: self.cli.profile().map(str::to_owned),
            command: machine::command(),
            machine: machine::machine(),
            idle: self.idle().await,
            results: Vec::new(),
        };
        let tasks = self.cli.tasks();
        for (done, task) in tasks.iter().enumerate() {
            if tasks.len() > 1 {
                self.place = format!("{} {}/{}: ", task.name, done + 1, tasks.len());
            }
            report.results.push(self.measure(task).await);
        }
        report
    }

    /// What the servers hold when they are ready and nothing was sent yet.
    async fn idle(&self) -> Option<IdleServers> {
        let options = &self.cli.options;
        if options.server_pid.is_empty() {
            return None;
        }
        let ready = Facts::await_ready(
            options.protocol.into(),
            &options.endpoints,
            options.ready_timeout,
        );
        // If they do not become ready, the first workload says so.
        self.cut.unless(ready).await.ok()?;
        self.servers.idle()
    }

    async fn measure(&mut self, task: &Task) -> RunResult {
        let mut frame = self.frame(task);
        if let Some(why) = target::unsupported(frame.protocol, task.shape.consistency) {
            return outcome::unsupported(&frame, why);
        }
        let cut = self.cut.clone();
        let prepared = match cut.unless(self.prepare(&mut frame)).await {
            Ok(prepared) => prepared,
            Err(error) => {
                frame.finished_at = Timestamp::now();
                return outcome::failed(&frame, &format!("{error:#}"));
            }
        };
        let mut results = Vec::new();
        for repetition in 0..self.cli.options.load.repeat {
            let result = self
                .measure_once(&mut frame, &prepared, repetition.into())
                .await;
            let counts = Verdict::of(&result) == Verdict::Succeeded;
            results.push(result);
            if !counts {
                break;
            }
        }
        outcome::of_repetitions(results)
    }

    fn frame(&self, task: &Task) -> Frame {
        let now = Timestamp::now();
        let options = &self.cli.options;
        Frame {
            name: task.name.clone(),
            protocol: options.protocol.into(),
            wire: options.wire(),
            shape: task.shape.clone(),
            target_leader: options.target_leader,
            seed: options.load.seed,
            warm_up: self.cli.warm_up(&task.shape),
            preload: None,
            node: options.result.node.clone(),
            started_at: now,
            finished_at: now,
            before: None,
            after: None,
        }
    }

    /// One repetition of a workload, counted from 0.
    async fn measure_once(
        &mut self,
        frame: &mut Frame,
        prepared: &Prepared,
        repetition: u64,
    ) -> RunResult {
        let shape = frame.shape.clone();
        let mut plan = self.plan(&shape, shape.total);
        plan.keys = plan.keys.shifted(keys::of_repetition(&shape, repetition));
        let spending = self.servers.start();
        frame.started_at = Timestamp::now();
        let measured = self.load(plan, &prepared.target, "measuring").await;
        frame.finished_at = Timestamp::now();
        let spent = spending.end();

        let patience = match measured.errors {
            0 => self.cli.options.ready_timeout,
            // The numbers do not count anyway, and a terminated pod has little time left.
            _ => AFTER_FAILURE_LIMIT,
        };
        let after = Facts::await_ready(frame.protocol, &prepared.endpoints, patience).await;
        frame.after = after.ok();
        self.note_filled(&shape, &measured);
        let result = outcome::result(frame, &measured, spent.as_ref().ok());
        // The next repetition begins where this one ended.
        frame.before.clone_from(&frame.after);
        result
    }

    fn plan(&self, shape: &Shape, total: u64) -> Plan {
        let fresh = shape.consistency.unwrap_or(ReadConsistency::Linearizable);
        let seed = self.cli.options.load.seed;
        Plan {
            operation: match shape.workload {
                Workload::Put => Operation::Put,
                Workload::Range => Operation::Get(fresh),
                Workload::Mixed => Operation::Mixed(fresh, shape.read_percent.unwrap_or(50)),
                Workload::Watch => Operation::Watch,
            },
            clients: u64::from(shape.clients),
            total,
            rate: shape.rate,
            keys: Keys::new(keys::space(shape), shape.key_size, Order::of(shape), seed),
            value_size: shape.value_size,
            seed,
            request_timeout: self.cli.options.request_timeout,
        }
    }

    async fn load(&self, plan: Plan, target: &Target, phase: &str) -> Measured {
        let progress = Progress {
            phase: format!("{}{phase}", self.place),
        };
        let way = |client| target.lane(client);
        load::run(plan, way, &progress, self.cut.reason()).await
    }
}
