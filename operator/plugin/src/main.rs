//! `kubectl dengine`: what people do with clusters and benchmarks that plain `kubectl` shows or
//! does less well. It reads and writes custom resources, and forwards ports to members to reach
//! keys, as the person who calls it; everything else is the operator's.
//!
//! One module for each command, `keys` for all that are about keys, and `access` and `words` for
//! all of them. Installed anywhere in `PATH` as `kubectl-dengine`, `kubectl` finds it by its name.

mod access;
mod bench;
mod keys;
mod report;
mod restart;
mod status;
mod words;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use dengine_commands::{EXIT_OK, KeyCommand, code_of, complain, is_closed_pipe, told};

/// Manage DEngine clusters, and read and write their keys through forwarded ports.
///
/// Exit codes: 0 done; 1 failed; 2 wrong usage, and nothing was changed; 5 there is no such key, or
/// the condition of a put did not hold.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-dengine",
    bin_name = "kubectl dengine",
    version,
    max_term_width = 100
)]
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
    #[command(flatten)]
    Keys(KeyCommand<keys::Name, ()>),
    /// Write a shell completion script for `kubectl-dengine` to standard output.
    Completions {
        /// For which shell.
        #[arg(value_enum)]
        shell: Shell,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a thread can wait for sockets and time");
    let done = runtime.block_on(run(arguments));
    // Not to wait for what is looked up or read meanwhile.
    runtime.shutdown_background();
    match done {
        Ok(code) => ExitCode::from(code),
        // Whoever was to read it has read enough.
        Err(error) if is_closed_pipe(&error) => ExitCode::from(EXIT_OK),
        Err(error) => {
            complain(&format!("error: {}", told(&error)));
            ExitCode::from(code_of(&error))
        }
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<u8> {
    if let Command::Completions { shell } = arguments.command {
        io::stdout().write_all(&completions(shell))?;
        return Ok(EXIT_OK);
    }
    let access = arguments.access.connect().await?;
    match arguments.command {
        Command::Status(options) => status::run(&access, &options).await?,
        Command::Restart(options) => restart::run(&access, &options).await?,
        Command::Bench(options) => bench::run(&access, &options).await?,
        Command::Report(options) => report::run(&access, &options).await?,
        Command::Keys(command) => return keys::run(&access, command).await,
        Command::Completions { .. } => unreachable!("it needs no Kubernetes"),
    }
    Ok(EXIT_OK)
}

fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    let mut command = Arguments::command().bin_name("kubectl-dengine");
    clap_complete::generate(shell, &mut command, "kubectl-dengine", &mut script);
    script
}

/// Prints a line. A closed pipe is no reason to fail.
fn say(line: impl std::fmt::Display) {
    let _ = writeln!(io::stdout(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_shell_is_told_the_command_line() {
        let script = String::from_utf8(completions(Shell::Bash)).unwrap();
        for part in ["complete -F _kubectl__dengine", "restart"] {
            assert!(script.contains(part), "{part}: {script}");
        }
    }
}
