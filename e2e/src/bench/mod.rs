//! `make bench`: DEngine and etcd on this one machine, in turns, under the same load of
//! `dengine-bench`, in one table; alone, as three members, or inside the process of the load.
//!
//! It is about processes on one machine, so it lives here and not in the load generator: this
//! starts the very programs that users have, with the flags that users type, and everything it
//! starts ends with it, whatever happens to it.

mod options;
mod servers;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use dengine_bench::files;
use dengine_bench_model::profiles::VALUE_SIZE;
use dengine_local_kubernetes::programs;
use dengine_local_kubernetes::progress::ProgressStep;
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

pub use self::options::Options;
use self::options::{Durability, Scenario, System};
pub(crate) use self::servers::held;
use self::servers::{Dengine, Servers};

/// How long a system may take to come up.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// Above this share of the processors, others would be measured too.
const BUSY: f64 = 0.25;

/// Measures the systems, prints the table and writes the report.
///
/// # Errors
/// When a program is missing, a system does not come up, a request fails, or somebody ends it. A
/// table without one of the systems is a failure too.
pub async fn run(options: &Options) -> Result<()> {
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    // Dropping the run ends every process that it started.
    tokio::select! {
        done = measure(options) => done,
        _ = interrupted.recv() => bail!("interrupted; everything that was started has been \
            stopped"),
        _ = terminated.recv() => bail!("terminated; everything that was started has been stopped"),
    }
}

async fn measure(options: &Options) -> Result<()> {
    options.validate()?;
    let own_folder = own_folder()?;
    let programs = Programs {
        tool: existing(&own_folder.join("dengine-bench"))?,
        embedded: own_folder.join("dengine-bench-embedded"),
        bounds: own_folder.join("dengine-bench-bounds"),
        dengine: existing(
            options
                .dengine
                .as_ref()
                .unwrap_or(&own_folder.join("dengine")),
        )?,
        etcd: has(options, System::Etcd)
            .then(|| programs::etcd(options.etcd_version))
            .transpose()?,
    };
    let results = results_folder(options)?;
    dengine_bench::disk::must_be_real(&results)
        .context("--output, which is OUTPUT= of make bench")?;
    let bench = Bench {
        options,
        programs,
        results,
    };
    if options.serve {
        return bench.serve().await;
    }
    warn_if_busy();
    warn_if_unlike(options);
    let scenarios = options.scenarios();
    let mut files = Vec::new();
    for scenario in &scenarios {
        let folder = if scenarios.len() > 1 {
            bench.results.join(scenario.name())
        } else {
            bench.results.clone()
        };
        fs_err::create_dir_all(&folder)?;
        files.extend(bench.rounds(*scenario, &folder).await?);
    }
    bench.compare(&files).await
}

fn has(options: &Options, system: System) -> bool {
    let has = |scenario: &Scenario| options.systems(*scenario).contains(&system);
    options.scenarios().iter().any(has)
}

/// What is run.
struct Programs {
    tool: PathBuf,
    embedded: PathBuf,
    bounds: PathBuf,
    dengine: PathBuf,
    etcd: Option<PathBuf>,
}

/// One call of `make bench`.
struct Bench<'a> {
    options: &'a Options,
    programs: Programs,
    results: PathBuf,
}

impl Bench<'_> {
    /// Measures every system, and then every system again: what slows this machine down for a
    /// while slows down all of them. The files with their results.
    async fn rounds(&self, scenario: Scenario, folder: &Path) -> Result<Vec<PathBuf>> {
        let systems = self.options.systems(scenario);
        let file = |system: &System| folder.join(format!("{}.json", system.protocol()));
        let paths: Vec<PathBuf> = systems.iter().map(file).collect();
        let mut reports = vec![Vec::new(); systems.len()];
        let rounds = self.options.rounds();
        for round in 1..=rounds {
            if rounds > 1 {
                print(&format!("\nRound {round} of {rounds}"))?;
            }
            for ((system, path), reports) in systems.iter().zip(&paths).zip(&mut reports) {
                self.measure(scenario, *system, path).await?;
                reports.extend(files::read(path)?);
                files::write_json(path, &files::of_rounds(reports)?)?;
            }
        }
        Ok(paths)
    }

    /// Loads one system and stops it.
    async fn measure(&self, scenario: Scenario, system: System, result: &Path) -> Result<()> {
        if scenario == Scenario::Embedded {
            let mut run = self.run(&self.programs.embedded, scenario, system, result);
            run.args(["--durability", self.options.durability.name(), "--data-dir"])
                .arg(&self.results);
            let ran = run
                .status()
                .await
                .context("running dengine-bench-embedded")?;
            ensure!(ran.success(), "measuring DEngine embedded failed ({ran})");
            return Ok(());
        }
        let servers = self.start(scenario, system).await?;
        let mut run = self.run(&self.programs.tool, scenario, system, result);
        run.args([
            "--protocol",
            system.protocol(),
            "--endpoints",
            &servers.endpoints(),
        ])
        .args(["--server-pid", &servers.pids()])
        // The servers hold nothing else and are thrown away, so keys are as short as in every
        // result before.
        .args(["--key-prefix", ""]);
        let ran = run.status().await.context("running dengine-bench")?;
        let said = servers.stop()?;
        ensure!(
            ran.success(),
            "measuring {} failed ({ran}); the last lines of its members:\n{said}",
            self.options.label(system)
        );
        Ok(())
    }

    async fn start(&self, scenario: Scenario, system: System) -> Result<Servers> {
        let (data, members) = (self.results.join("data"), scenario.members());
        match (system, &self.programs.etcd) {
            (System::Etcd, Some(etcd)) => Servers::etcd(etcd, &data, members).await,
            (System::Etcd, None) => bail!("etcd was not asked for"),
            (System::Floor, _) => Servers::floor(&existing(&self.programs.bounds)?, &data, members),
            (System::Echo, _) => {
                // By hand, any load may follow.
                let value = self.options.value_size().unwrap_or(VALUE_SIZE);
                Servers::echo(&existing(&self.programs.bounds)?, &data, members, value)
            }
            (System::Dengine, _) => {
                let server = Dengine {
                    program: &self.programs.dengine,
                    durability: self.options.durability.name(),
                    over_etcds_api: self.options.is_over_etcds_api(),
                    more: &self.options.server_arg,
                };
                Servers::dengine(&server, &data, members).await
            }
        }
    }

    /// The tool, with what is the same for every target.
    fn run(&self, tool: &Path, scenario: Scenario, system: System, result: &Path) -> Command {
        let mut run = command(tool);
        if tool == self.programs.tool {
            run.arg("run");
        }
        run.args(self.options.load_on(system, scenario))
            .args([
                "--system",
                self.options.label(system),
                "--scenario",
                scenario.name(),
            ])
            .args(["--timeout", "2h", "--json"])
            .arg(result)
            .arg("--jsonl")
            .arg(self.results.join("results.jsonl"));
        run
    }

    async fn compare(&self, files: &[PathBuf]) -> Result<()> {
        let page = self.results.join("report.html");
        let scenarios: Vec<_> = self.options.scenarios();
        let scenarios: Vec<_> = scenarios.into_iter().map(Scenario::name).collect();
        let title = format!(
            "DEngine benchmark: {}, scenario {}",
            self.options.title(),
            scenarios.join(", ")
        );
        let mut report = self.tool();
        report.arg("report").args(files);
        report.args(["--title", &title, "--output"]).arg(&page);
        ensure!(report.status().await?.success(), "no report was written");
        let mut compare = self.tool();
        compare.arg("compare").args(files);
        ensure!(
            compare.status().await?.success(),
            "the results cannot be compared"
        );
        print(&format!("\nResults and report: {}", page.display()))?;
        match (&self.options.baseline, files) {
            (Some(baseline), [ours, ..]) => self.judge(ours, baseline).await,
            _ => Ok(()),
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

    /// Members to load by hand, until somebody ends this.
    async fn serve(&self) -> Result<()> {
        let scenario = self.options.scenarios()[0];
        let system = self.options.systems(scenario)[0];
        // Dropped after the members, whose data lies in it.
        let _folder = Emptied(&self.results);
        let servers = self.start(scenario, system).await?;
        let wire = self.options.wire_to(system);
        let wire = wire.map(|flag| format!(" {flag}"));
        print(&format!(
            "{} listens. Load it from another terminal:\n  {} run --profile quick --protocol {}{} \
             --endpoints {} --server-pid {}\n\
             Ctrl-C ends it and deletes its data.",
            self.options.label(system),
            self.programs.tool.display(),
            system.protocol(),
            wire.unwrap_or_default(),
            servers.endpoints(),
            servers.pids()
        ))?;
        std::future::pending().await
    }

    fn tool(&self) -> Command {
        command(&self.programs.tool)
    }
}

/// Removes a folder that nothing was left in.
struct Emptied<'a>(&'a Path);

impl Drop for Emptied<'_> {
    fn drop(&mut self) {
        let _ = fs_err::remove_dir(self.0);
    }
}

fn command(program: &Path) -> Command {
    let mut command = Command::from(servers::held(program));
    command.kill_on_drop(true).stdin(Stdio::null());
    command
}

fn own_folder() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    Ok(own
        .parent()
        .context("a program lies in a folder")?
        .to_owned())
}

fn existing(program: &Path) -> Result<PathBuf> {
    ensure!(
        program.is_file(),
        "{} is not there: build the workspace first (make bench does)",
        program.display()
    );
    Ok(program.to_owned())
}

/// A new folder for each call, so that no earlier result is lost.
fn results_folder(options: &Options) -> Result<PathBuf> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let scenarios: Vec<_> = options.scenarios();
    let scenarios: Vec<_> = scenarios.into_iter().map(Scenario::name).collect();
    let name = format!("{}-{}-{now}", options.file_name(), scenarios.join("-"));
    Ok(fs_err::canonicalize(new_folder(&options.output, &name)?)?)
}

/// A folder in `within` that was not there: of two calls in one second each has its own.
fn new_folder(within: &Path, name: &str) -> io::Result<PathBuf> {
    fs_err::create_dir_all(within)?;
    let mut folder = within.join(name);
    let mut others = 1;
    loop {
        match fs_err::create_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => return created.map(|()| folder),
        }
        others += 1;
        folder = within.join(format!("{name}-{others}"));
    }
}

/// Says so when others use the machine: the numbers of such a run mean little.
pub(crate) fn warn_if_busy() {
    let load = fs_err::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = load
        .split(' ')
        .next()
        .and_then(|load| load.parse().ok())
        .unwrap_or(0.0);
    let processors = std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64);
    if load > BUSY * processors {
        let step = ProgressStep::start("This machine is not idle");
        step.done(format_args!(
            "load {load:.1} on {processors} processors; expect less, and less stable, numbers"
        ));
    }
}

/// Says so when the systems do not promise the same.
fn warn_if_unlike(options: &Options) {
    let synced = [System::Etcd, System::Floor];
    let others = synced.into_iter().filter(|it| has(options, *it));
    let others: Vec<_> = others.map(System::protocol).collect();
    if options.durability == Durability::MemoryFirst && !others.is_empty() {
        let step = ProgressStep::start("The systems do not promise the same");
        let others = others.join(" and ");
        step.done(format_args!(
            "DEngine acknowledges writes from memory, {others} from disks: no ratio of writes is a \
             comparison; --system dengine (SYSTEM=dengine) leaves {others} out",
        ));
    }
}

fn print(line: &str) -> Result<()> {
    use std::io::Write as _;
    Ok(writeln!(std::io::stdout(), "{line}")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second one wrote into the folder of the first, and deleted its data at the end.
    #[test]
    fn two_calls_in_one_second_have_a_folder_each() {
        let dir = tempfile::tempdir().unwrap();
        let within = dir.path().join("results");
        let folders = [(); 3].map(|()| new_folder(&within, "quick-1").unwrap());
        let names = folders.map(|it| it.file_name().unwrap().to_owned());
        assert_eq!(names, ["quick-1", "quick-1-2", "quick-1-3"]);
    }
}
