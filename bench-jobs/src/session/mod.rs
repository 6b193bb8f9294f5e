//! Measures workloads one after the other against one target.

mod lists;
mod prepare;
mod space;
mod tidy;

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use dengine_bench_model::results::{
    IdleServers, Listing, Pods, ReadConsistency, Report, RunResult, Shape, Workload,
};
use jiff::Timestamp;

use self::lists::Lists;
use self::prepare::{Filled, Prepared, Unsupported};
use crate::cli::{Cli, Options, Task};
use crate::cut::Cut;
use crate::keys::{self, Keys, Order};
use crate::load::{self, Measured, Operation, Part, Plan};
use crate::outcome::{self, Frame, Verdict};
use crate::pods::{Spans, Team};
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
    /// The other pods, if this is the first of several.
    team: Option<Team>,
    lost_a_pod: bool,
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
    /// The number of the workload that is measured.
    task: usize,
    /// The same, and of how many; for the progress bar.
    place: String,
}

impl<'a> Session<'a> {
    /// A session that ends when it is cut.
    ///
    /// # Errors
    /// If a server process that was named is not there.
    pub fn new(cli: &'a Cli, cut: Cut, team: Option<Team>) -> anyhow::Result<Self> {
        Ok(Session {
            cli,
            cut,
            servers: Servers::new(&cli.options.server_pid)?,
            team,
            lost_a_pod: false,
            folder: folder_of(&cli.options),
            written: tidy::Written::default(),
            not_swept: None,
            begun: false,
            filled: None,
            task: 0,
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
            nodes: self
                .team
                .as_ref()
                .map_or_else(Vec::new, |team| team.nodes().to_vec()),
            idle: self.idle().await,
            results: Vec::new(),
            left_over: None,
        };
        let tasks = self.cli.tasks();
        for (done, task) in tasks.iter().enumerate() {
            self.task = done;
            if tasks.len() > 1 {
                self.place = format!("{} {}/{}: ", task.name, done + 1, tasks.len());
            }
            report.results.push(self.measure(task).await);
        }
        if let Some(team) = self.team.take() {
            self.lost_a_pod = team.lost().is_some();
            team.dismiss().await;
        }
        report
    }

    /// Whether the run had to end before it was done: its time was up, or somebody ended it.
    pub fn was_cut(&self) -> bool {
        self.cut.is_over()
    }

    /// Whether one of its pods is gone. It does not count then, and there may not be much time left
    /// to say so.
    pub fn has_lost_a_pod(&self) -> bool {
        self.lost_a_pod
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
        if self.begun || options.access().protocol.is_bound() {
            return Ok(());
        }
        let need = space::needed(&cli.tasks(), self.folder.len(), options.load.repeat);
        if need.is_worth_a_question() && !options.ignore_space {
            let room = Facts::room(options.access(), &options.endpoints).await;
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
            access: options.access(),
            endpoints: options.endpoints.clone(),
            connections: 1,
            followers: Vec::new(),
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
        let ready = Facts::await_ready(options.access(), &options.endpoints, options.ready_timeout);
        // If they do not become ready, the first workload says so.
        self.cut.unless(ready).await.ok()?;
        self.servers.idle()
    }

    async fn measure(&mut self, task: &Task) -> RunResult {
        let mut frame = self.frame(task);
        if let Some(why) = target::unsupported(frame.access, task.shape.consistency) {
            return outcome::unsupported(&frame, why);
        }
        let cut = self.cut.clone();
        let prepared = match cut.unless(self.prepare(&mut frame)).await {
            Ok(prepared) => prepared,
            Err(error) => {
                if let Some(Unsupported(why)) = error.downcast_ref() {
                    return outcome::unsupported(&frame, why);
                }
                frame.finished_at = Timestamp::now();
                frame.pods = self.pods(&task.shape, None);
                return outcome::failed(&frame, &format!("{error:#}"));
            }
        };
        let mut results = Vec::new();
        for repetition in 0..self.cli.options.load.repeat {
            // What the one before it wrote is merged by now, too.
            if repetition > 0 && frame.settling.is_some() {
                frame.settling = self.let_servers_settle().await;
            }
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
            access: options.access(),
            shape: Shape {
                key_folder_size: u32::try_from(self.folder.len()).unwrap_or(u32::MAX),
                ..task.shape.clone()
            },
            target_leader: options.target_leader,
            seed: options.load.seed,
            warm_up: 0,
            warm_up_seconds: None,
            preload: None,
            settling: None,
            node: options.result.node.clone(),
            pods: None,
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
        let spending = self.servers.start();
        frame.started_at = Timestamp::now();
        let lists = self.lists(&shape, prepared);
        let load = self.load_together(&shape, Some(repetition), &prepared.target);
        let (mut measured, others_cpu, spans) = load.await;
        frame.finished_at = Timestamp::now();
        let listing = match lists {
            Some(lists) => self.listed(lists, &mut measured).await,
            None => None,
        };
        let mut spent = spending.end();
        if let Ok(spent) = &mut spent {
            spent.client_cpu += others_cpu;
        }

        let patience = match measured.errors {
            0 => self.cli.options.ready_timeout,
            // The numbers do not count anyway, and a terminated pod has little time left.
            _ => AFTER_FAILURE_LIMIT,
        };
        let after = Facts::await_ready(frame.access, &prepared.endpoints, patience).await;
        frame.after = after.ok();
        self.note_filled(&shape, &measured);
        frame.pods = self.pods(&shape, (measured.errors == 0).then_some(&spans));
        let mut result = outcome::result(frame, &measured, spent.as_ref().ok());
        result.listing = listing;
        // The next repetition begins where this one ended.
        frame.before.clone_from(&frame.after);
        result
    }

    /// Begins to list all keys, if that is part of the workload.
    fn lists(&self, shape: &Shape, prepared: &Prepared) -> Option<Lists> {
        let target = prepared.listers.as_ref()?;
        let lanes = (0..shape.listers_beside()).map(|lister| target.lane(lister as usize));
        Some(Lists::start(lanes, &self.folder, shape))
    }

    /// What was listed beside a load, which has failed if that has.
    async fn listed(&self, lists: Lists, measured: &mut Measured) -> Option<Listing> {
        match self.cut.unless(lists.end()).await {
            Ok(listing) => listing,
            Err(error) => {
                measured.fail(format!("{error:#}"));
                None
            }
        }
    }

    fn plan(&self, shape: &Shape, total: u64) -> Plan {
        let fresh = shape.consistency.unwrap_or(ReadConsistency::Linearizable);
        let seed = self.cli.options.load.seed;
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

    /// A load that comes from this process alone.
    async fn load(&mut self, plan: Plan, target: &Target, phase: &str) -> Measured {
        self.note_written(&plan);
        let progress = self.progress(phase);
        let way = |client| target.lane(client);
        load::run(plan, way, &progress, self.cut.reason()).await
    }

    fn note_written(&mut self, plan: &Plan) {
        if !matches!(plan.operation, Operation::Get(_) | Operation::Scan(_)) {
            self.written.note(&plan.keys);
        }
    }

    fn progress(&self, phase: &str) -> Progress {
        Progress {
            phase: format!("{}{phase}", self.place),
        }
    }
}

/// What several pods do together; with one, it does that alone.
impl Session<'_> {
    /// This process's part of a workload.
    fn part(&self, shape: &Shape) -> Part {
        let team = self.team.as_ref();
        let part = team.and_then(|team| Part::of_pod(0, team.pods(), shape));
        part.unwrap_or(Part::WHOLE)
    }

    /// A repetition of a workload, counted from 0, or its warm-up.
    fn plan_of(&self, shape: &Shape, repetition: Option<u64>) -> (Plan, &'static str) {
        match repetition {
            Some(repetition) => {
                let mut plan = self.plan(shape, shape.total);
                plan.at_least = shape.at_least();
                plan.keys = plan.keys.shifted(keys::of_repetition(shape, repetition));
                (plan, "measuring")
            }
            None => (self.warm_up_plan(shape), "warming up"),
        }
    }

    /// A load that comes from all pods; what the tool of the others spent on it; and when all
    /// began.
    async fn load_together(
        &mut self,
        shape: &Shape,
        repetition: Option<u64>,
        target: &Target,
    ) -> (Measured, Duration, Spans) {
        let (plan, phase) = self.plan_of(shape, repetition);
        let part = self.part(shape);
        let (task, cut, progress) = (self.task, self.cut.clone(), self.progress(phase));
        self.note_written(&plan);
        let Some(team) = &mut self.team else {
            let measured = self.load(plan, target, phase).await;
            return (measured, Duration::ZERO, Spans::default());
        };
        team.make_ready(shape, task, repetition);
        let loss = team.loss();
        let over = async {
            tokio::select! {
                why = cut.reason() => why,
                why = loss => why,
            }
        };
        let plan = Plan { part, ..plan };
        let way = |client| target.lane(client);
        let own = load::run_when(team.begin(shape), plan, way, &progress, over).await;
        team.end(shape, own, &cut).await
    }

    /// This pod's part of a load that another one leads, and what it spent on it.
    pub(crate) async fn follow_load(
        &self,
        shape: &Shape,
        part: Part,
        repetition: Option<u64>,
        target: &Target,
        begin: impl Future<Output = Result<(), String>>,
        stop: impl Future<Output = String>,
    ) -> (Measured, Duration) {
        let (plan, phase) = self.plan_of(shape, repetition);
        let plan = Plan { part, ..plan };
        let over = async {
            tokio::select! {
                why = self.cut.reason() => why,
                why = stop => why,
            }
        };
        let spending = self.servers.start();
        let way = |client| target.lane(client);
        let measured = load::run_when(begin, plan, way, &self.progress(phase), over).await;
        let spent = spending.end();
        (
            measured,
            spent.map_or(Duration::ZERO, |spent| spent.client_cpu),
        )
    }

    /// Keys lie where another pod says.
    pub(crate) fn lies_in(&mut self, folder: Bytes) {
        self.folder = folder;
    }

    /// What a result says of the pods; of a load without failures also when they began.
    fn pods(&self, shape: &Shape, spans: Option<&Spans>) -> Option<Pods> {
        let team = self.team.as_ref()?;
        let allowed = self.cli.options.pods.begin_within;
        let late = spans.and_then(|spans| spans.trouble(team.pods(), allowed));
        let began_within = spans.map(Spans::began_within).unwrap_or_default();
        Some(Pods {
            count: team.pods(),
            loading: dengine_bench_model::pods::loading(team.pods(), shape),
            began_within_us: u64::try_from(began_within.as_micros()).unwrap_or(u64::MAX),
            trouble: team.lost().or(late).map(|words| outcome::in_words(&words)),
        })
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
