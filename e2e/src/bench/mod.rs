//! `make bench`: DEngine and etcd on this one machine, one after the other, under the same load of
//! `dengine-bench`, in one table.
//!
//! It is about processes on one machine, so it lives here and not in the load generator: this starts the very
//! programs that users have, with the flags that users type, and everything it starts ends with it, whatever
//! happens to it.

mod servers;

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{
    Args, ValueEnum,
    builder::{PossibleValue, PossibleValuesParser},
};
use dengine_bench_model::profiles::PROFILES;
use dengine_local_kubernetes::{programs, progress::Step};
use tokio::{
    process::Command,
    signal::unix::{SignalKind, signal},
};

use self::servers::Servers;

/// How long a system may take to come up.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// Above this share of the processors, others would be measured too.
const BUSY: f64 = 0.25;

/// What `dengine-e2e bench` takes.
#[derive(Debug, Args)]
pub struct Options {
    /// Profile of dengine-bench; `dengine-bench run --list` shows what each holds
    #[arg(long, default_value = "standard", value_parser = profile_names())]
    profile: String,
    /// How many members each system has
    #[arg(long, value_enum, default_value_t = Scenario::Cluster)]
    scenario: Scenario,
    /// Measure each workload so often, and take the median
    #[arg(long, default_value_t = 1)]
    repeat: u32,
    /// Folder for results and report; the members' data is below it while they run
    #[arg(long, default_value = "bench-results")]
    output: PathBuf,
    /// Hold DEngine against an earlier result of this machine; worse than --budget is a failure
    #[arg(long)]
    baseline: Option<PathBuf>,
    /// How much worse than the baseline is allowed
    #[arg(long, default_value = "10%", requires = "baseline")]
    budget: String,
    /// The server to measure [default: the one built with this program]
    #[arg(long)]
    dengine: Option<PathBuf>,
    /// Further settings of the server, such as --server-arg=--log-segment-bytes=8388608
    #[arg(long, allow_hyphen_values = true)]
    server_arg: Vec<String>,
    /// Further flags of the tool, such as --bench-arg=--wire=unary
    #[arg(long, allow_hyphen_values = true)]
    bench_arg: Vec<String>,
}

fn profile_names() -> PossibleValuesParser {
    let names = PROFILES.iter().map(|profile| profile.name);
    names.map(PossibleValue::new).collect::<Vec<_>>().into()
}

/// How many members each system has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// One: what the log and the store cost.
    Single,
    /// Three: what a user runs.
    Cluster,
}

impl Scenario {
    fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Cluster => "cluster",
        }
    }

    fn members(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Cluster => 3,
        }
    }
}

/// Measures both systems, prints the table and writes the report.
///
/// # Errors
/// When a program is missing, a system does not come up, a request fails, or somebody ends it. A table without
/// one of the systems is a failure too.
pub async fn run(options: &Options) -> Result<()> {
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    // Dropping the run ends every process that it started.
    tokio::select! {
        done = measure(options) => done,
        _ = interrupted.recv() => bail!("interrupted; everything that was started has been stopped"),
        _ = terminated.recv() => bail!("terminated; everything that was started has been stopped"),
    }
}

async fn measure(options: &Options) -> Result<()> {
    let own_folder = own_folder()?;
    let tool = existing(own_folder.join("dengine-bench"))?;
    let dengine = existing(
        options
            .dengine
            .clone()
            .unwrap_or(own_folder.join("dengine")),
    )?;
    let etcd = programs::etcd()?;
    let results = results_folder(options)?;
    dengine_bench::disk::must_be_real(&results)
        .context("--output, which is OUTPUT= of make bench")?;
    warn_if_busy();

    let bench = Bench {
        options,
        tool,
        results,
    };
    let members = options.scenario.members();
    let data = bench.results.join("data");
    let start = Servers::dengine(&dengine, &data, members, &options.server_arg);
    let ours = bench.measure("DEngine", "dengine", start.await?).await?;
    let start = Servers::etcd(&etcd, &data, members);
    let theirs = bench.measure("etcd 3.6", "etcd", start.await?).await?;
    bench.compare(&ours, &theirs).await
}

/// One call of `make bench`.
struct Bench<'a> {
    options: &'a Options,
    tool: PathBuf,
    results: PathBuf,
}

impl Bench<'_> {
    /// Loads one system and stops it; the file with its result.
    async fn measure(&self, system: &str, protocol: &str, servers: Servers) -> Result<PathBuf> {
        let result = self.results.join(format!("{protocol}.json"));
        let mut run = self.tool();
        run.args(["run", "--profile", &self.options.profile])
            .args(["--protocol", protocol, "--endpoints", &servers.endpoints()])
            .args(["--server-pid", &servers.pids()])
            .args(["--repeat", &self.options.repeat.to_string()])
            // The servers hold nothing else and are thrown away, so keys are as short as in every result before.
            .args(["--key-prefix", ""])
            .args([
                "--system",
                system,
                "--scenario",
                self.options.scenario.name(),
            ])
            .args(["--timeout", "2h", "--json"])
            .arg(&result)
            .args(self.flags_for(protocol));
        let ran = run.status().await.context("running dengine-bench")?;
        let said = servers.stop()?;
        ensure!(
            ran.success(),
            "measuring {system} failed ({ran}); the last lines of its members:\n{said}"
        );
        Ok(result)
    }

    fn flags_for(&self, protocol: &str) -> Vec<&str> {
        let flags = self.options.bench_arg.iter().map(String::as_str);
        // etcd's protocol leaves no choice.
        let fits = |flag: &&str| protocol == "dengine" || !flag.starts_with("--wire");
        flags.filter(fits).collect()
    }

    async fn compare(&self, ours: &Path, theirs: &Path) -> Result<()> {
        let page = self.results.join("report.html");
        let title = format!(
            "DEngine beside etcd: profile {}, scenario {}",
            self.options.profile,
            self.options.scenario.name()
        );
        let mut report = self.tool();
        report.arg("report").args([ours, theirs]);
        report.args(["--title", &title, "--output"]).arg(&page);
        ensure!(report.status().await?.success(), "no report was written");
        let mut compare = self.tool();
        compare.arg("compare").args([ours, theirs]);
        ensure!(
            compare.status().await?.success(),
            "the results cannot be compared"
        );
        print(&format!("\nResults and report: {}", page.display()))?;
        match &self.options.baseline {
            Some(baseline) => self.judge(ours, baseline).await,
            None => Ok(()),
        }
    }

    async fn judge(&self, ours: &Path, baseline: &Path) -> Result<()> {
        let mut compare = self.tool();
        compare
            .arg("compare")
            .arg(ours)
            .arg("--baseline")
            .arg(baseline);
        compare.args(["--budget", &self.options.budget]);
        let judged = compare.status().await?;
        ensure!(judged.success(), "slower than the baseline allows");
        Ok(())
    }

    fn tool(&self) -> Command {
        let mut tool = Command::from(servers::held(&self.tool));
        tool.kill_on_drop(true).stdin(Stdio::null());
        tool
    }
}

fn own_folder() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    Ok(own
        .parent()
        .context("a program lies in a folder")?
        .to_owned())
}

fn existing(program: PathBuf) -> Result<PathBuf> {
    ensure!(
        program.is_file(),
        "{} is not there: build the workspace first (make bench does)",
        program.display()
    );
    Ok(program)
}

/// A new folder for each call, so that no earlier result is lost.
fn results_folder(options: &Options) -> Result<PathBuf> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let name = format!("{}-{}-{now}", options.profile, options.scenario.name());
    let folder = options.output.join(name);
    fs_err::create_dir_all(&folder)?;
    Ok(fs_err::canonicalize(folder)?)
}

/// Says so when others use the machine: the numbers of such a run mean little.
fn warn_if_busy() {
    let load = fs_err::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = load
        .split(' ')
        .next()
        .and_then(|load| load.parse().ok())
        .unwrap_or(0.0);
    let processors = std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64);
    if load > BUSY * processors {
        let step = Step::start("This machine is not idle");
        step.done(format_args!(
            "load {load:.1} on {processors} processors; expect less, and less stable, numbers"
        ));
    }
}

fn print(line: &str) -> Result<()> {
    use std::io::Write as _;
    Ok(writeln!(std::io::stdout(), "{line}")?)
}
