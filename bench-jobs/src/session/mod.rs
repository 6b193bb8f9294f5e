//! Measures workloads one after the other against one target.

mod prepare;
mod space;
mod tidy;

use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use dengine_bench_model::results::{
    IdleServers, Protocol, ReadConsistency, Report, RunResult, Shape, Workload,
};
use jiff::Timestamp;

use self::prepare::{Filled, Prepared};
use crate::cli::{Cli, Options, Task};
use crate::cut::Cut;
use crate::keys::{self, Keys, Order};
use crate::load::{self, Measured, Operation, Plan};
use crate::outcome::{self, Frame, Verdict};
use crate::progress::Progress;
use crate::servers::Servers;
use crate::target::{self, Facts, Target};
use crate::{folder, machine};

/// Longest time from the end of `--timeout` to that of the program: that of deleting, and for
/// posting the result as much again.
const TIDYING_SECONDS_MAX: u64 = 2 * tidy::TIME_MAX.as_secs();
/// How long to ask for the leader after a run that failed.
const AFTER_FAILURE_LIMIT: Duration = Duration::from_secs(3);

/// What the workloads of one run share.
pub struct Session<'a> {
    cli: &'a Cli,
    cut: Cut,
    servers: Servers,
    /// What the name of each key begins with; empty for bare keys.
    folder: Bytes,
    /// What lies in the folder, and is taken away in the end.
    written: tidy::Written,
    /// Why what others left there could not be taken away.
    not_swept: Option<String>,
    /// It was seen that the run has room, and what others left was taken away.
    begun: bool,
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
            folder: folder_of(&cli.options),
            written: tidy::Written::default(),
            not_swept: None,
            begun: false,
            filled: None,
            place: String::new(),
        })
    }

    /// Measures everything that was asked for. Whatever happens, each workload has a result that
    /// says so.
    pub async fn measure_all(&mut self) -> Report {
        let labels = &self.cli.options.result.files;
        let mut report = Report {
            system: labels.system.clone(),
            scenario: labels.scenario.clone(),
            profile: self.cli.profile().map(str::to_owned),
            command: machine::command(),
            machine: machine::machine(),
            idle: self.idle().await,
            results: Vec::new(),
            left_over: None,
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

    /// Whether the run had to end before it was done: its time was up, or somebody ended it.
    pub fn was_cut(&self) -> bool {
        self.cut.is_over()
    }

    /// Deletes what the run wrote. Answers what is left on the target then, its own and that of
    /// earlier runs, in words: a later run takes it away.
    pub async fn tidy_up(&mut self) -> Option<String> {
        let own = match self.has_keys() {
            false => None,
            true => self.delete_own().await.err(),
        };
        self.left(own)
    }

    /// What is left if the run is ended before it has deleted anything.
    #[must_use]
    pub fn not_yet_tidied(&self) -> Option<String> {
        let keys = self.written.keys();
        let words = format!("up to {keys} keys were not deleted yet when this was reported");
        self.left(self.has_keys().then_some(words))
    }

    fn has_keys(&self) -> bool {
        !self.folder.is_empty() && self.begun
    }

    async fn delete_own(&mut self) -> Result<(), String> {
        let lane = self.lane_for_tidying().await;
        let mut lane = lane.map_err(|error| format!("{error:#}"))?;
        tidy::own(&mut lane, &self.folder, &self.written).await
    }

    fn left(&self, own: Option<String>) -> Option<String> {
        let folder = String::from_utf8_lossy(&self.folder);
        let own = own.map(|words| format!("below {folder} {words}"));
        let words: Vec<String> = own.into_iter().chain(self.not_swept.clone()).collect();
        (!words.is_empty()).then(|| outcome::in_words(&words.join("; ")))
    }

    /// Before the first key is written: is there room, and what did runs leave that were killed?
    async fn begin(&mut self) -> anyhow::Result<()> {
        let (cli, options) = (self.cli, &self.cli.options);
        if self.begun || Protocol::from(options.protocol).is_bound() {
            return Ok(());
        }
        let need = space::needed(&cli.tasks(), self.folder.len(), options.load.repeat);
        if need.is_worth_a_question() && !options.ignore_space {
            let room = Facts::room(options.protocol.into(), &options.endpoints).await;
            space::check(need, room)?;
        }
        if !self.folder.is_empty() {
            let mut lane = self.lane_for_tidying().await?;
            let prefix = &options.load.key_prefix;
            let swept = tidy::left_over(&mut lane, prefix).await;
            self.not_swept = swept.err().map(|error| {
                tracing::warn!(error, "keys of earlier runs could not be deleted");
                format!("keys of earlier runs below {prefix} were not deleted: {error}")
            });
        }
        self.begun = true;
        Ok(())
    }

    async fn lane_for_tidying(&self) -> anyhow::Result<target::Lane> {
        let options = &self.cli.options;
        let connect = target::Connect {
            protocol: options.protocol.into(),
            wire: options.wire().unwrap_or_default(),
            endpoints: options.endpoints.clone(),
            connections: 1,
            request_timeout: options.request_timeout,
            retry: true,
        };
        Ok(Target::connect(&connect).await?.lane(0))
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
            shape: Shape {
                key_folder_size: u32::try_from(self.folder.len()).unwrap_or(u32::MAX),
                ..task.shape.clone()
            },
            target_leader: options.target_leader,
            seed: options.load.seed,
            warm_up: 0,
            warm_up_seconds: None,
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
                Workload::Watch => Operation::Watch(shape.watches_each()),
            },
            clients: u64::from(shape.clients),
            total,
            ends_after: None,
            rate: shape.rate,
            keys: self.keys(keys::space(shape), shape, Order::of(shape)),
            value_size: shape.value_size,
            seed,
            request_timeout: self.cli.options.request_timeout,
        }
    }

    fn keys(&self, space: u64, shape: &Shape, order: Order) -> Keys {
        let seed = self.cli.options.load.seed;
        Keys::new(space, shape.key_size, order, seed).inside(self.folder.clone())
    }

    async fn load(&mut self, plan: Plan, target: &Target, phase: &str) -> Measured {
        if !matches!(plan.operation, Operation::Get(_)) {
            self.written.note(&plan.keys);
        }
        let progress = Progress {
            phase: format!("{}{phase}", self.place),
        };
        let way = |client| target.lane(client);
        load::run(plan, way, &progress, self.cut.reason()).await
    }
}

/// The folder's name says how long the run may take at most, tidying included.
fn folder_of(options: &Options) -> Bytes {
    let prefix = &options.load.key_prefix;
    if prefix.is_empty() {
        return Bytes::new();
    }
    let now = u64::try_from(Timestamp::now().as_second()).unwrap_or(0);
    let lasts = options.timeout.as_secs() + TIDYING_SECONDS_MAX;
    folder::name(prefix, now, lasts, rand::random())
}
