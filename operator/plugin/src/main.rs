//! `kubectl dengine`: what people do with clusters and benchmarks that plain `kubectl` shows or does less well. It only reads and
//! writes custom resources, as the person who calls it; everything else is the operator's.
//!
//! One module for each command, and `access` and `words` for all of them. Installed anywhere in `PATH` as `kubectl-dengine`,
//! `kubectl` finds it by its name.

mod access;
mod bench;
mod report;
mod restart;
mod status;
mod words;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Look after DEngine clusters.
#[derive(Debug, Parser)]
#[command(name = "kubectl-dengine", bin_name = "kubectl dengine", version)]
struct Arguments {
    #[command(flatten)]
    access: access::Options,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show clusters with their members: who leads, who lags, what is being done.
    Status(status::Options),
    /// Restart the members of a cluster one at a time, the leader last.
    Restart(restart::Options),
    /// Measure a cluster, and wait for the numbers.
    Bench(bench::Options),
    /// Print the result of a run.
    Report(report::Options),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let access = arguments.access.connect().await?;
    match arguments.command {
        Command::Status(options) => status::run(&access, &options).await,
        Command::Restart(options) => restart::run(&access, &options).await,
        Command::Bench(options) => bench::run(&access, &options).await,
        Command::Report(options) => report::run(&access, &options).await,
    }
}

/// Prints a line. A closed pipe is no reason to fail.
fn say(line: impl std::fmt::Display) {
    let _ = writeln!(io::stdout(), "{line}");
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Arguments::command().debug_assert();
    }
}
