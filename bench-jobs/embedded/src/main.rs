//! `make bench SCENARIO=embedded`: a profile's workloads, or single ones, on a cluster inside this
//! process, called as an application calls the member that it embeds. What is left of a request is
//! consensus, the log with its syncs, and the store.
//!
//! Connections of a workload mean nothing here; its clients do.

mod cli;
mod cluster;
mod measure;
mod syncs;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use dengine_bench::cut::Cut;
use dengine_bench::outcome::Verdict;
use dengine_bench::{disk, files, machine, profiles, summary};
use dengine_bench_model::results::{Report, RunResult};

use crate::cli::Cli;
use crate::cluster::Cluster;
use crate::measure::Bench;
use crate::syncs::Syncs;

/// As the `dengine` program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    match run(&Cli::from_process()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If even that fails, the exit status is what is left.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: &Cli) -> Result<()> {
    if cli.run.what.list {
        say(&profiles::list());
        return Ok(());
    }
    disk::must_be_real(&cli.data_dir).context("--data-dir")?;
    let cut = Cut::after(cli.timeout).context("signal handlers")?;
    let syncs = Syncs::count()?;
    let data = tempfile::Builder::new()
        .prefix("dengine-embedded-")
        .tempdir_in(&cli.data_dir)
        .with_context(|| format!("a folder in {}", cli.data_dir.display()))?;
    let cluster = Cluster::start(data.path(), cli.durability).await?;
    // However it ends, the members stop before their folder goes.
    let measured = cut
        .unless(Bench::new(cli, &cluster, &syncs).measure_all())
        .await;
    cluster.shutdown().await?;
    deliver(cli, &report(cli, measured?))
}

fn report(cli: &Cli, results: Vec<RunResult>) -> Report {
    Report {
        system: cli.files.system.clone(),
        scenario: cli.files.scenario.clone().or(Some("embedded".to_owned())),
        profile: cli.run.what.profile.clone(),
        command: machine::command(),
        machine: machine::machine(),
        results,
        ..Report::default()
    }
}

fn deliver(cli: &Cli, report: &Report) -> Result<()> {
    let text = format!(
        "{} members in this process\n{}",
        cluster::MEMBERS,
        summary::table(report)
    );
    if cli.files.fill_the_output() {
        let _ = write!(std::io::stderr(), "{text}");
    } else {
        say(&text);
    }
    files::write(&cli.files, report)?;
    let verdict = Verdict::of_all(report);
    ensure!(
        verdict.exit_status() == 0,
        "a workload does not count, see above"
    );
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the result is the program's output")]
fn say(text: &str) {
    print!("{text}");
}
