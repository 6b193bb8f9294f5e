//! `dengine-e2e`: brings up a real Kubernetes on this machine, and DEngine on it.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use dengine_e2e::cluster::{self, LocalArgs};
use dengine_e2e::product::{self, Profile, Trained};
use dengine_e2e::{bench, demo, kwok, versions};
use dengine_local_kubernetes::layout::Layout;
use dengine_local_kubernetes::programs::{self, EtcdVersion};
use dengine_local_kubernetes::{down, node, provisioner};

/// A real Kubernetes on this machine, and DEngine on it.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Bring up the local Kubernetes; nothing to do when it is up.
    Up(LocalArgs),
    /// Take the local Kubernetes down, with everything in it.
    Down,
    /// Build DEngine's container images as archives in `target/images`.
    Images,
    /// Build programs as what ships: optimized across crates and by a profile of what users do.
    Dist {
        /// Which ones
        #[arg(required = true)]
        programs: Vec<String>,
        /// Make the profile although there is one
        #[arg(long)]
        train: bool,
    },
    /// A cluster of three on Kubernetes, benchmarked.
    Demo(LocalArgs),
    /// Remove everything that the demo started.
    DemoDown,
    /// DEngine and etcd on this machine, in turns, in one table.
    Bench(Box<bench::Options>),
    /// A Kubernetes of many nodes that kwok plays, on DEngine or etcd or both in turns.
    Kwok(kwok::Options),
    /// Build etcd, and print where it is.
    Etcd {
        /// Which one
        #[arg(
            long,
            default_value = EtcdVersion::V3_6.number(),
            value_parser = versions::etcd()
        )]
        etcd_version: EtcdVersion,
    },
    /// What `up` runs as PID 1 of the node.
    #[command(hide = true)]
    Node {
        #[arg(long)]
        state: PathBuf,
    },
    /// What makes the node's volumes.
    #[command(hide = true)]
    Provisioner {
        #[arg(long)]
        state: PathBuf,
    },
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into()),
        )
        .init();
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Up(local) => cluster::local(&std::env::current_exe()?, local).map(drop),
        Command::Down => down::down(),
        Command::Images => print_archives(),
        Command::Dist { programs, train } => {
            let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
            let trained = if train {
                Trained::Again
            } else {
                Trained::Before
            };
            product::optimize(&programs, trained)
        }
        Command::Demo(local) => block_on(demo::up(&std::env::current_exe()?, local)),
        Command::DemoDown => demo::down(),
        Command::Bench(options) => block_on(bench::run(&options)),
        Command::Kwok(options) => on_threads(kwok::run(&options, &std::env::current_exe()?)),
        Command::Etcd { etcd_version } => print(&programs::etcd(etcd_version)?.display()),
        Command::Node { state } => node::run(&Layout::at(state)),
        Command::Provisioner { state } => block_on(provisioner::run(&Layout::at(state))),
    }
}

fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(work)
}

/// For what reads much while it measures how long other answers take.
fn on_threads<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(work)
}

fn print(line: &dyn std::fmt::Display) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}

fn print_archives() -> Result<()> {
    product::ensure(Profile::Dist)?
        .iter()
        .try_for_each(|archive| print(&archive.file.display()))
}
