//! `make bench SCENARIO=embedded`: a profile's workloads on a cluster inside this process, called as an application
//! calls the member that it embeds. What is left of a request is consensus, the log with its syncs, and the store.
//!
//! Connections of a workload mean nothing here; its clients do.

mod cluster;
mod syncs;

use std::{io::Write as _, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use comfy_table::{CellAlignment, Table, presets::ASCII_MARKDOWN};
use dengine_bench::{
    cut::Cut,
    disk,
    keys::{self, Keys, Order},
    load::{self, Measured, Operation, Plan},
    progress::Progress,
};
use dengine_bench_model::{
    profiles::{self, Does, NamedWorkload, Profile},
    results::{ReadConsistency, Shape},
};

use crate::{
    cluster::{Cluster, Direct},
    syncs::Syncs,
};

/// As the `dengine` program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Seed of keys and values.
const SEED: u64 = 1;
/// For watches, which no embedded load has.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Clients that write the keys which are read later.
const FILLING_CLIENTS: u64 = 256;

/// Measure three members inside this process, without a network between them and the load
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// Profile of dengine-bench; those that watch are a matter of the server
    #[arg(long, default_value = "standard")]
    profile: String,
    /// Folder for the members' data, which is deleted at the end; not in memory, where a sync costs nothing
    #[arg(long, default_value = ".")]
    data_dir: PathBuf,
    /// Longest time for all of it
    #[arg(long, default_value = "10m", value_parser = humantime::parse_duration)]
    timeout: Duration,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(&Cli::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If even that fails, the exit status is what is left.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: &Cli) -> Result<()> {
    let profile = profiles::profile(&cli.profile)
        .with_context(|| format!("no profile {:?}: see dengine-bench run --list", cli.profile))?;
    disk::must_be_real(&cli.data_dir).context("--data-dir")?;
    let cut = Cut::after(cli.timeout).context("signal handlers")?;
    let syncs = Syncs::count()?;
    let data = tempfile::Builder::new()
        .prefix("dengine-embedded-")
        .tempdir_in(&cli.data_dir)
        .with_context(|| format!("a folder in {}", cli.data_dir.display()))?;
    let cluster = Cluster::start(data.path()).await?;
    // However it ends, the members stop before their folder goes.
    let measured = cut.unless(measure_all(profile, &cluster, &syncs)).await;
    cluster.shutdown().await?;
    say(&format!(
        "DEngine {}, three members in this process, durability fsync, profile {}\n{}",
        env!("CARGO_PKG_VERSION"),
        profile.name,
        measured?
    ));
    Ok(())
}

async fn measure_all(profile: &Profile, cluster: &Cluster, syncs: &Syncs) -> Result<Table> {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "workload",
        "callers",
        "requests/s",
        "p50 µs",
        "p99 µs",
        "fdatasyncs, all members",
        "writes per fdatasync of one",
    ]);
    let mut filled = 0;
    for workload in profile.workloads {
        let shape = workload.shape();
        let leader = cluster.leader()?;
        let space = keys::space(&shape);
        let warm_up = (shape.total / 20).max(u64::from(shape.clients));
        let reads = !matches!(workload.does, Does::Put);
        if reads && filled < space {
            let fill = Plan {
                clients: FILLING_CLIENTS.min(space),
                ..plan(workload, &shape, Operation::Put, space, Order::Sequential)
            };
            load(workload, "filling", fill, &leader).await?;
            filled = space;
        }
        let operation = operation(workload)?;
        let order = Order::of(&shape);
        let warming = plan(workload, &shape, operation, warm_up, order);
        load(workload, "warming up", warming, &leader).await?;
        let before = syncs.so_far();
        let counted = plan(workload, &shape, operation, shape.total, order);
        let measured = load(workload, "measuring", counted, &leader).await?;
        table.add_row(row(workload, &measured, syncs.so_far() - before));
        if !reads && order != Order::Random {
            filled = filled.max(space);
        }
    }
    table
        .column_iter_mut()
        .skip(1)
        .for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    Ok(table)
}

fn operation(workload: &NamedWorkload) -> Result<Operation> {
    Ok(match workload.does {
        Does::Put => Operation::Put,
        Does::Get(fresh) => Operation::Get(fresh),
        Does::Mixed(percent) => Operation::Mixed(ReadConsistency::Linearizable, percent),
        Does::Watch => bail!("{}: watches are a matter of the server", workload.name),
    })
}

fn plan(
    workload: &NamedWorkload,
    shape: &Shape,
    operation: Operation,
    total: u64,
    order: Order,
) -> Plan {
    Plan {
        operation,
        clients: u64::from(workload.clients),
        total,
        rate: None,
        keys: Keys::new(keys::space(shape), shape.key_size, order, SEED),
        value_size: shape.value_size,
        seed: SEED,
        request_timeout: REQUEST_TIMEOUT,
    }
}

async fn load(
    workload: &NamedWorkload,
    phase: &str,
    plan: Plan,
    leader: &Direct,
) -> Result<Measured> {
    let progress = Progress {
        phase: format!("{}: {phase}", workload.name),
    };
    let way = |_| leader.clone();
    let measured = load::run(plan, way, &progress, std::future::pending()).await;
    let why = measured.first_error.as_deref().unwrap_or_default();
    ensure!(
        measured.errors == 0,
        "{}: {} requests failed, the first with: {why}",
        workload.name,
        measured.errors
    );
    Ok(measured)
}

fn row(workload: &NamedWorkload, measured: &Measured, syncs: u64) -> [String; 7] {
    let latency = &measured.latency_us;
    let grouped = dengine_bench::summary::grouped;
    let rate = measured.requests() as f64 / measured.elapsed.as_secs_f64();
    let per_sync = match workload.does {
        Does::Put if syncs > 0 => {
            let of_one = syncs as f64 / cluster::MEMBERS as f64;
            format!("{:.1}", measured.requests() as f64 / of_one)
        }
        _ => String::new(),
    };
    [
        workload.name.to_owned(),
        grouped(workload.clients.into()),
        grouped(rate as u64),
        grouped(latency.value_at_quantile(0.5)),
        grouped(latency.value_at_quantile(0.99)),
        grouped(syncs),
        per_sync,
    ]
}

#[expect(clippy::print_stdout, reason = "the result is the program's output")]
fn say(text: &str) {
    println!("{text}");
}
