//! The command line: commands, flags, their bounds, and the text of `--help`.

mod options;
mod parse;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use clap::{
    Args, Parser, Subcommand,
    builder::{PossibleValue, PossibleValuesParser},
};
use dengine_bench_model::{
    profiles::{self, PROFILES},
    results::{ReadConsistency, Shape},
};

use self::options::parse_consistency;
pub use self::options::{LoadOptions, Options, ProtocolArg, ResultOptions, WireArg};

/// The profile whose workloads `--workload` names one by one.
const SINGLE: &str = "basic";

const ABOUT: &str = "Measures a DEngine or etcd cluster, and puts results side by side.

Every client has one request in flight and wants its next one in the moment the last one was \
answered; a latency runs from when its request was wanted to its answer, whatever it waited for in \
between. All clients work at once, spread evenly over the connections, and the connections evenly \
over the endpoints. DEngine's client then sends writes and lease reads over those that lead to the \
leader; etcd's sends everything over its own connection, wherever that leads. With --target-leader, \
all connections lead to the leader, for either.

Before the measurement: a health check, for reads the key space is filled, then a warm-up. None \
of them counts.";

const AFTER: &str = "\
Examples:
  One client, one connection: the floor of the latency
    dengine-bench put --conns 1 --clients 1 --total 10000

  Many clients against three members, result as JSON
    dengine-bench put --endpoints a:4100,b:4100,c:4100 --conns 200 --clients 1000 --total 200000 --json result.json

  Linearizable, then lease, then eventual reads of 10,000 keys
    dengine-bench range --consistency l --conns 10 --clients 100 --total 100000 --key-space 10000
    dengine-bench range --consistency s --conns 10 --clients 100 --total 100000 --key-space 10000
    dengine-bench range --consistency e --conns 10 --clients 100 --total 100000 --key-space 10000

  A list of workloads that has a name, against DEngine and against etcd, side by side
    dengine-bench run --profile standard --json dengine.json
    dengine-bench run --profile standard --json etcd.json --protocol etcd --endpoints 127.0.0.1:2379
    dengine-bench compare dengine.json etcd.json
    dengine-bench report dengine.json etcd.json --output report.html

  5000 requests a second for a minute, answered or not (open loop)
    dengine-bench put --rate 5000 --total 300000 --conns 10 --clients 1000

Exit status:
  0  every request succeeded and the leader stayed the same
  1  a request failed, the run did not finish, or its result could not be delivered
  2  the command line was wrong; nothing was sent
  3  the leader changed during the run: the numbers do not count
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
    /// Measure workloads that have names: a whole profile, or one
    Run(RunArgs),
    /// Put results side by side, or hold them against a baseline
    Compare(CompareArgs),
    /// Write one HTML page about results, which needs no network
    Report(ReportArgs),
}

/// Flags of `range` alone.
#[derive(Args, Clone, Debug)]
pub struct RangeArgs {
    /// How fresh the reads are: l (linearizable) sees every acknowledged write; s (lease) does too, by the
    /// leader's lease, which etcd does not have; e (eventual) is the state of the member asked (etcd:
    /// serializable)
    #[arg(long, value_name = "l|s|e", default_value = "l", value_parser = parse_consistency)]
    pub consistency: ReadConsistency,
}

/// Flags of `run` alone.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct RunArgs {
    /// These workloads, one after the other
    #[arg(long, value_parser = profile_names())]
    pub profile: Option<String>,
    /// This workload alone; flags of the load replace its own
    #[arg(long, value_parser = workload_names())]
    pub workload: Option<String>,
    /// Show what the profiles hold, and measure nothing
    #[arg(long)]
    pub list: bool,
}

/// Flags of `compare` alone.
#[derive(Args, Clone, Debug)]
pub struct CompareArgs {
    /// Results, as `--json` wrote them; the first is the one whose ratio to the others is shown
    #[arg(required = true, value_name = "RESULT.json")]
    pub results: Vec<PathBuf>,
    /// Hold every result against this one
    #[arg(long, value_name = "RESULT.json")]
    pub baseline: Option<PathBuf>,
    /// How much lower the throughput, and how much higher the servers' CPU time per request, may be than the
    /// baseline's, such as 10%
    #[arg(long, value_name = "PERCENT", default_value = "10%", value_parser = parse::percent, requires = "baseline")]
    pub budget: f64,
    /// The same for the 99th percentile of the latency, which is noisier; without it, it is not judged
    #[arg(long, value_name = "PERCENT", value_parser = parse::percent, requires = "baseline")]
    pub p99_budget: Option<f64>,
}

/// Flags of `report` alone.
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    /// Results, as `--json` wrote them
    #[arg(required = true, value_name = "RESULT.json")]
    pub results: Vec<PathBuf>,
    /// Where the page goes
    #[arg(long, short, value_name = "FILE.html")]
    pub output: PathBuf,
    /// Heading of the page
    #[arg(long, value_name = "TEXT", default_value = "DEngine benchmark")]
    pub title: String,
}

fn profile_names() -> PossibleValuesParser {
    let value = |profile: &profiles::Profile| PossibleValue::new(profile.name).help(profile.about);
    PROFILES.iter().map(value).collect::<Vec<_>>().into()
}

fn workload_names() -> PossibleValuesParser {
    let names = single().workloads.iter().map(|workload| workload.name);
    names.collect::<Vec<_>>().into()
}

fn single() -> &'static profiles::Profile {
    profiles::profile(SINGLE).expect("one of the profiles")
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
    /// What is to be measured, in order.
    #[must_use]
    pub fn tasks(&self) -> Vec<Task> {
        match &self.command {
            Command::Put => vec![self.task("put", parse::plain(None))],
            Command::Range(range) => {
                let name = format!("range-{}", range.consistency.as_str());
                vec![self.task(&name, parse::plain(Some(range.consistency)))]
            }
            Command::Run(run) => self.named(run),
            Command::Compare(_) | Command::Report(_) => Vec::new(),
        }
    }

    fn named(&self, run: &RunArgs) -> Vec<Task> {
        if let Some(profile) = run.profile.as_deref().and_then(profiles::profile) {
            let task = |workload: &profiles::NamedWorkload| Task {
                name: workload.name.to_owned(),
                shape: workload.shape(),
            };
            return profile.workloads.iter().map(task).collect();
        }
        let named = run
            .workload
            .as_deref()
            .and_then(|name| single().workload(name));
        let task = |workload: &profiles::NamedWorkload| self.task(workload.name, workload.shape());
        named.map(task).into_iter().collect()
    }

    fn task(&self, name: &str, base: Shape) -> Task {
        Task {
            name: name.to_owned(),
            shape: self.options.load.replace(base),
        }
    }

    /// The profile that was asked for.
    #[must_use]
    pub fn profile(&self) -> Option<&str> {
        match &self.command {
            Command::Run(run) => run.profile.as_deref(),
            _ => None,
        }
    }

    /// Requests before the measurement of a workload.
    #[must_use]
    pub fn warm_up(&self, shape: &Shape) -> u64 {
        let default = || (shape.total / 20).max(u64::from(shape.clients));
        self.options.load.warm_up.unwrap_or_else(default)
    }
}
