//! The command line: commands, flags, their bounds, and the text of `--help`.

mod options;
mod parse;
#[cfg(test)]
mod tests;
mod values;

use std::path::{Path, PathBuf};

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use dengine_bench_model::profiles::{self, PROFILES};
use dengine_bench_model::results::{ReadConsistency, Shape, Workload};

pub use self::options::{FileOptions, LoadOptions, Options, PodOptions, ResultOptions};
pub use self::values::{ProtocolArg, WarmUp, WireArg};
use self::values::{parse_consistency, parse_workload};
use crate::target;

const ABOUT: &str = "Measures a DEngine or etcd cluster, and puts results side by side.

Every client has one request in flight and wants its next one in the moment the last one was \
answered; a latency runs from when its request was wanted to its answer, whatever it waited for in \
between. All clients work at once, spread evenly over the connections, and the connections evenly \
over the endpoints. DEngine's client then sends writes and lease reads over those that lead to the \
leader; etcd's sends everything over its own connection, wherever that leads. With \
--target-leader, all connections lead to the leader, for either.

Before the measurement: a health check, for reads the key space is filled, then a warm-up. None \
of them counts.";

const AFTER: &str = "\
Examples:
  One client, one connection: the floor of the latency
    dengine-bench put --conns 1 --clients 1 --total 10000

  Many clients against three members, result as JSON
    dengine-bench put --endpoints a:4100,b:4100,c:4100 --conns 200 --clients 1000 --total 200000 \
    --json result.json

  Linearizable, then lease, then eventual reads of 10,000 keys
    dengine-bench range --consistency linearizable --conns 10 --clients 100 --total 100000 \
    --key-space 10000
    dengine-bench range --consistency lease --conns 10 --clients 100 --total 100000 --key-space \
    10000
    dengine-bench range --consistency eventual --conns 10 --clients 100 --total 100000 --key-space \
    10000

  A list of workloads that has a name, against DEngine and against etcd, side by side
    dengine-bench run --profile standard --json dengine.json
    dengine-bench run --profile standard --json etcd.json --protocol etcd --endpoints 127.0.0.1:2379
    dengine-bench compare dengine.json etcd.json
    dengine-bench report dengine.json etcd.json --output report.html

  Half reads, half writes; then one key that a thousand watches see change
    dengine-bench run --workload mixed --read-percent 50
    dengine-bench run --workload watch-fan-out --watchers 1000

  Several runs in one file, and a table of them
    dengine-bench run --workload seq-put,par-put --system DEngine --jsonl results.jsonl
    dengine-bench run --workload seq-put,par-put --system etcd --jsonl results.jsonl --protocol \
    etcd --endpoints 127.0.0.1:2379
    dengine-bench compare results.jsonl

  The load of one run from three machines, each with its own --pod-index, from 0 on
    dengine-bench run --profile standard --endpoints a:4100,b:4100,c:4100 --pods 3 --pod-index 0 \
    --first-pod load-0:4104

  5000 requests a second for a minute, answered or not (open loop)
    dengine-bench put --rate 5000 --total 300000 --conns 10 --clients 1000

Exit status:
  0  every request succeeded and the leader stayed the same
  1  a request failed, the run did not finish, or its result could not be delivered
  2  the command line was wrong; nothing was sent
  3  the leader changed during the run, or one of several pods was late or lost: the numbers do
     not count
  4  `compare` found a regression beyond its budget";

/// The command line.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "dengine-bench",
    version,
    about = "Measures a DEngine or etcd cluster, and puts results side by side"
)]
#[command(long_about = ABOUT, after_long_help = AFTER, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Flags of every measurement; they may stand before or after the command.
    #[command(flatten)]
    pub options: Options,
}

/// What to do.
#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Write keys, one per request
    Put,
    /// Read keys that exist, one per request
    Range(RangeArgs),
    /// Write each client's own key if nobody else did since its last write, as holders of a Lease
    /// of Kubernetes do; --key-space and --sequential-keys do not matter
    Swap,
    /// Measure workloads that have names: a whole profile, or one
    Run(RunArgs),
    /// Compare results with each other, or with a baseline
    Compare(CompareArgs),
    /// Write one HTML page about results, which needs no network
    Report(ReportArgs),
    /// Write a shell completion script to standard output
    Completions(CompletionsArgs),
}

/// Flags of `range` alone.
#[derive(Args, Clone, Debug)]
pub struct RangeArgs {
    /// How fresh the reads are: linearizable sees every acknowledged write; lease does too, by the
    /// leader's lease, which etcd does not have; eventual is the state of the member asked (etcd's
    /// word for it, serializable, is taken too)
    #[arg(
        long,
        visible_alias = "read-consistency",
        value_name = "linearizable|lease|eventual",
        default_value = "linearizable",
        value_parser = parse_consistency
    )]
    pub consistency: ReadConsistency,
}

/// Flags of `run` alone.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// Which workloads.
    #[command(flatten)]
    pub what: WhatArgs,
    /// What replaces theirs.
    #[command(flatten)]
    pub own: OwnArgs,
}

/// Which workloads are measured.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct WhatArgs {
    /// These workloads, one after the other
    #[arg(long, value_parser = profile_names())]
    pub profile: Option<String>,
    /// These workloads, repeated or separated by commas: seq-put, par-put, seq-get, par-get, mixed,
    /// watch, watch-fan-out, or another profile's as PROFILE/NAME, such as standard/hot-key-read.
    /// Flags of the load replace their own; of several, those of one client keep it
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = parse_workload)]
    pub workload: Vec<String>,
    /// Show what the profiles hold, and measure nothing
    #[arg(long)]
    pub list: bool,
}

/// What only some workloads have.
#[derive(Args, Clone, Debug, Default)]
pub struct OwnArgs {
    /// How fresh the reads of --workload are (eventual is etcd's serializable) [default:
    /// linearizable]
    #[arg(
        long,
        value_name = "linearizable|lease|eventual",
        value_parser = parse_consistency
    )]
    pub read_consistency: Option<ReadConsistency>,
    /// How many percent of --workload mixed are reads; the others are writes [default: 80]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub read_percent: Option<u32>,
    /// Watches of each client's key in --workload watch or watch-fan-out: a write is done when all
    /// of them have told of it [default: 1, and 100 for watch-fan-out]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub watchers: Option<u32>,
    /// Clients that list every key, over and over, beside those that write, in --workload
    /// extra/list-while-writing [default: 1, and 0 for extra/paced-write]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub listers: Option<u32>,
}

/// Flags of `compare` alone.
#[derive(Args, Clone, Debug)]
pub struct CompareArgs {
    /// Results, as `--json` or `--jsonl` wrote them; the first is the one whose ratio to the others
    /// is shown. Those of different scenarios stand in tables of their own
    #[arg(required_unless_present = "more", value_name = "RESULT.json|.jsonl")]
    pub results: Vec<PathBuf>,
    /// The same as the positional RESULT arguments
    #[arg(long = "results", id = "more", value_name = "RESULT.json|.jsonl")]
    pub more: Vec<PathBuf>,
    /// Hold every result against this one
    #[arg(long, value_name = "RESULT.json|.jsonl")]
    pub baseline: Option<PathBuf>,
    /// How much lower the throughput, and how much higher the servers' CPU time per request, may be
    /// than the baseline's, such as 10%
    #[arg(
        long,
        value_name = "PERCENT",
        default_value = "10%",
        value_parser = parse::percent,
        requires = "baseline",
    )]
    pub budget: f64,
    /// The same for the 99th percentile of the latency, which is noisier; without it, it is not
    /// judged
    #[arg(long, value_name = "PERCENT", value_parser = parse::percent, requires = "baseline")]
    pub p99_budget: Option<f64>,
}

impl CompareArgs {
    /// All results, however they were named.
    pub fn all(&self) -> impl Iterator<Item = &Path> {
        self.results.iter().chain(&self.more).map(PathBuf::as_path)
    }
}

/// Flags of `report` alone.
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    /// Results, as `--json` or `--jsonl` wrote them
    #[arg(required = true, value_name = "RESULT.json|.jsonl")]
    pub results: Vec<PathBuf>,
    /// Where the page goes
    #[arg(long, short, value_name = "FILE.html")]
    pub output: PathBuf,
    /// Heading of the page
    #[arg(long, value_name = "TEXT", default_value = "DEngine benchmark")]
    pub title: String,
}

/// Flags of `completions` alone.
#[derive(Args, Clone, Debug)]
pub struct CompletionsArgs {
    /// For which shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// The script that tells a shell this command line.
#[must_use]
pub fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut parse::parser(), "dengine-bench", &mut script);
    script
}

fn profile_names() -> PossibleValuesParser {
    let value = |profile: &profiles::Profile| PossibleValue::new(profile.name).help(profile.about);
    PROFILES.iter().map(value).collect::<Vec<_>>().into()
}

/// A workload that is to be measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// What its result is called.
    pub name: String,
    /// What is sent.
    pub shape: Shape,
}

impl Cli {
    /// What is to be measured, in order: of what was asked for, what the target is about.
    #[must_use]
    pub fn tasks(&self) -> Vec<Task> {
        let protocol = self.options.protocol.into();
        let mut tasks = self.all_tasks();
        tasks.retain(|task| target::is_about(protocol, &task.shape));
        tasks
    }

    fn all_tasks(&self) -> Vec<Task> {
        match &self.command {
            Command::Put => vec![self.task("put", parse::plain(None))],
            Command::Range(range) => {
                let name = format!("range-{}", range.consistency.as_str());
                vec![self.task(&name, parse::plain(Some(range.consistency)))]
            }
            Command::Swap => {
                let base = Shape {
                    workload: Workload::Swap,
                    ..parse::plain(None)
                };
                vec![self.task("swap", base)]
            }
            Command::Run(run) => run.tasks(&self.options.load),
            Command::Compare(_) | Command::Report(_) | Command::Completions(_) => Vec::new(),
        }
    }

    fn task(&self, name: &str, base: Shape) -> Task {
        Task {
            name: name.to_owned(),
            shape: self.options.load.replace(base),
        }
    }

    /// What several pods must have been told alike to measure together.
    #[must_use]
    pub fn measured_alike(&self) -> String {
        let mut alike = self.clone();
        alike.options.pods.pod_index = None;
        // Where it goes, and from where.
        alike.options.result = ResultOptions::default();
        format!("{} {alike:?}", env!("CARGO_PKG_VERSION"))
    }

    /// The profile that was asked for.
    #[must_use]
    pub fn profile(&self) -> Option<&str> {
        match &self.command {
            Command::Run(run) => run.what.profile.as_deref(),
            Command::Put
            | Command::Range(_)
            | Command::Swap
            | Command::Compare(_)
            | Command::Report(_)
            | Command::Completions(_) => None,
        }
    }
}

impl RunArgs {
    /// What is to be measured, in order.
    #[must_use]
    pub fn tasks(&self, load: &LoadOptions) -> Vec<Task> {
        if let Some(profile) = self.what.profile.as_deref().and_then(profiles::profile) {
            let task = |workload: &profiles::NamedWorkload| Task {
                name: workload.name.to_owned(),
                shape: workload.shape(),
            };
            return profile.workloads.iter().map(task).collect();
        }
        let names = self.what.workload.iter();
        let named = names.filter_map(|name| profiles::workload_named(name));
        named.map(|workload| self.task(workload, load)).collect()
    }

    fn task(&self, workload: &profiles::NamedWorkload, load: &LoadOptions) -> Task {
        let base = self.own.replace(workload.shape());
        // `seq-put` beside `par-put` stays the one without company.
        let is_one_of_several = self.what.workload.len() > 1;
        Task {
            name: workload.name.to_owned(),
            shape: if is_one_of_several && base.clients == 1 {
                load.replace_sizes(base)
            } else {
                load.replace(base)
            },
        }
    }
}

impl OwnArgs {
    /// A shape in which everything that was given and that it has is as it was given.
    fn replace(&self, mut shape: Shape) -> Shape {
        shape.consistency = shape
            .consistency
            .map(|own| self.read_consistency.unwrap_or(own));
        shape.read_percent = shape
            .read_percent
            .map(|own| self.read_percent.unwrap_or(own));
        if let (Workload::Watch, Some(watchers)) = (shape.workload, self.watchers) {
            shape.watchers = (watchers != 1).then_some(watchers);
        }
        if let (Workload::List, Some(listers)) = (shape.workload, self.listers) {
            shape.listers = (listers != 1).then_some(listers);
        }
        shape
    }
}
