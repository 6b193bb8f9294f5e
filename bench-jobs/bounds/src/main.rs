//! What a machine does at best, for `make bench` to stand beside the systems: processes that do
//! what no system could leave out, and nothing else.
//!
//! Of a lone write that is a floor of the latency; of unary reads, a ceiling of the throughput.

mod echo;
mod floor;
mod followers;
mod journal;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::echo::EchoArgs;
use crate::floor::FloorArgs;

/// As the `dengine` program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Serve what a machine does at best, for dengine-bench to measure
#[derive(Parser, Debug)]
#[command(name = "dengine-bench-bounds", version)]
struct Cli {
    #[command(subcommand)]
    bound: Bound,
}

#[derive(Subcommand, Debug)]
enum Bound {
    /// Be a process of the floor of a lone write: `dengine-bench --protocol floor` asks the one
    /// that is told of followers, or one alone
    Floor(FloorArgs),
    /// Answer reads of DEngine's protocol, one RPC each, at once and always with the same value:
    /// `dengine-bench --protocol echo`
    Echo(EchoArgs),
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If even that fails, the exit status is what is left.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    match &cli.bound {
        Bound::Floor(args) => floor::serve(args),
        Bound::Echo(args) => echo::serve(args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }
}
