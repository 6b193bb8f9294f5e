//! The command line of the `dengine` program: what can be asked of it, and how it ends.
//!
//! Each subcommand is a module; nothing here is needed to embed the engine.

mod admin;
mod health;
mod init;
mod keys;
mod man;
mod recover;
mod serve;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use dengine::config::{Config, ConfigError};
use dengine::error::StartError;
use dengine::server::ServeError;
use dengine::telemetry;
use dengine_commands::{
    EXIT_FAILED, EXIT_OK, EXIT_USAGE, KeyCommand, complain, is_closed_pipe, table, told,
};

/// The data directory is damaged, or may lack what was acknowledged: this member has to be
/// replaced. The Kubernetes operator does that when it sees this code.
const EXIT_REPLACE: u8 = 3;
/// The machine, its disk or whoever started the program keeps the member from running: an I/O
/// error, no space, no more threads or files, a port or a data directory in use, a directory of
/// another program or of a newer version. The data directory is intact, so the Kubernetes operator
/// never replaces the member for it.
const EXIT_ENVIRONMENT: u8 = 4;
/// Where the members are, for all commands that ask some.
const ENDPOINTS_VARIABLE: &str = "DENGINE_ENDPOINTS";

/// A strongly consistent key-value store on Raft and RocksDB.
///
/// Start three members, then form them into a cluster once:
///
///   dengine serve --name a --data-dir /tmp/a \
///     --listen-client 127.0.0.1:4100 --listen-peer 127.0.0.1:4101 \
///     --listen-monitor 127.0.0.1:4102 --listen-admin 127.0.0.1:4103
///   dengine serve --name b --data-dir /tmp/b \
///     --listen-client 127.0.0.1:4200 --listen-peer 127.0.0.1:4201 \
///     --listen-monitor 127.0.0.1:4202 --listen-admin 127.0.0.1:4203
///   dengine serve --name c --data-dir /tmp/c \
///     --listen-client 127.0.0.1:4300 --listen-peer 127.0.0.1:4301 \
///     --listen-monitor 127.0.0.1:4302 --listen-admin 127.0.0.1:4303
///   dengine init --endpoints 127.0.0.1:4103,127.0.0.1:4203,127.0.0.1:4303
///
/// Exit codes: 0 done, or stopped by a signal in good order; 1 failed; 2 wrong usage or
/// configuration, and nothing was changed; 3 the data directory is damaged or incomplete, and the
/// member must be replaced; 4 the machine or its disk keeps the member from running, and the data
/// directory is intact; 5 there is no such key, or the condition of a put did not hold.
#[derive(Debug, Parser)]
#[command(name = "dengine", version, verbatim_doc_comment, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run one member.
    ///
    /// With an empty data directory it waits until `dengine init` (or the Kubernetes operator)
    /// gives it an identity; with a used one it takes up where it stopped. SIGTERM or SIGINT stops
    /// it in good order, a second one at once.
    Serve(Box<serve::ServeArgs>),
    /// Form waiting members into a cluster, once.
    ///
    /// Bootstraps the first endpoint, then adds, joins and promotes the others. Safe to run again:
    /// what is done already is left alone.
    Init(init::InitArgs),
    /// Start again with the data directory of a `memory-first` member after a power loss, although
    /// acknowledged writes may be missing.
    ///
    /// For the case that a majority of the voters lost power at once. A single such member is
    /// better removed from the cluster, and joined again with an empty data directory.
    Recover(recover::RecoverArgs),
    /// Administer a running cluster: status, members, sessions, leadership transfer, health.
    Admin(admin::AdminArgs),
    /// Ask members for their health; exits 0 if all are serving, else 1.
    Health(health::HealthArgs),
    #[command(flatten)]
    Keys(KeyCommand<(), keys::Endpoints>),
    /// Write a shell completion script to standard output.
    Completions(man::CompletionsArgs),
    /// Write manual pages into a directory.
    Man(man::ManArgs),
}

/// Runs the program on the process's own arguments.
pub(crate) fn run() -> ExitCode {
    let cli = match Cli::from_arg_matches(&command().get_matches()) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    let result = match cli.command {
        Command::Serve(args) => serve::run(&args),
        Command::Init(args) => init::run(args),
        Command::Admin(args) => admin::run(args),
        Command::Recover(args) => recover::run(&args),
        Command::Health(args) => health::run(&args),
        Command::Keys(command) => keys::run(command),
        Command::Completions(args) => man::completions(&args),
        Command::Man(args) => man::pages(&args),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        // Whoever was to read it has read enough.
        Err(error) if is_closed_pipe(&error) => ExitCode::from(EXIT_OK),
        Err(error) => {
            let line = format!("error: {}", told(&error));
            telemetry::last_words(move || complain(&line));
            ExitCode::from(code_of(&error))
        }
    }
}

fn code_of(error: &anyhow::Error) -> u8 {
    let starting = error.downcast_ref::<StartError>();
    let serving = error.downcast_ref::<ServeError>();
    if starting.is_some_and(StartError::needs_replacement) {
        EXIT_REPLACE
    } else if starting.is_some_and(StartError::is_of_the_environment)
        || serving.is_some_and(ServeError::is_of_the_environment)
    {
        EXIT_ENVIRONMENT
    } else if error.downcast_ref::<ConfigError>().is_some() {
        EXIT_USAGE
    } else {
        dengine_commands::code_of(error)
    }
}

/// The command line, with the default of every setting shown where the setting is.
fn command() -> clap::Command {
    let defaults = Config::flag_defaults();
    let command = without_empty_endpoints(Cli::command());
    command.mut_subcommand("serve", |serve| {
        serve.mut_args(|arg| {
            let default = defaults
                .iter()
                .find(|(flag, _)| arg.get_long() == Some(flag.as_str()));
            match default {
                Some((_, value)) if !value.is_empty() => with_default(arg, value),
                _ => arg,
            }
        })
    })
}

/// An empty variable is one that is not set, as in `DENGINE_ENDPOINTS= dengine get a`: for clap it
/// would be an address. An empty flag stays an error, for it may come of a misspelt variable.
fn without_empty_endpoints(command: clap::Command) -> clap::Command {
    let is_empty = |arg: &clap::Arg| {
        let name = arg.get_env().filter(|name| *name == ENDPOINTS_VARIABLE);
        name.and_then(std::env::var_os)
            .is_some_and(|it| it.is_empty())
    };
    let command = command.mut_args(|arg| match is_empty(&arg) {
        true => arg.env(clap::builder::Resettable::Reset),
        false => arg,
    });
    command.mut_subcommands(without_empty_endpoints)
}

/// clap's own default would hide whether the flag was given, and so would win over the file.
fn with_default(arg: clap::Arg, value: &str) -> clap::Arg {
    let shown = |help: Option<&clap::builder::StyledStr>| {
        help.map(|help| format!("{help} [default: {value}]"))
    };
    let (short, long) = (shown(arg.get_help()), shown(arg.get_long_help()));
    let arg = match short {
        Some(help) => arg.help(help),
        None => arg,
    };
    match long {
        Some(help) => arg.long_help(help),
        None => arg,
    }
}

/// Writes a line for the person who runs the program. A closed pipe is no reason to fail.
fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

#[cfg(test)]
mod tests {
    use dengine::error::DataDirError;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn how_a_member_ends_says_whose_fault_it_was() {
        let folder = |error| anyhow::Error::from(StartError::DataDir(error));
        let full = folder(DataDirError::Io {
            path: "/data".into(),
            what: "write its record",
            source: io::Error::from(io::ErrorKind::StorageFull),
        });
        assert_eq!(code_of(&full), EXIT_ENVIRONMENT);
        let no_thread = StartError::Thread(io::Error::from(io::ErrorKind::WouldBlock));
        let no_thread = anyhow::Error::from(no_thread).context("it does not start");
        assert_eq!(code_of(&no_thread), EXIT_ENVIRONMENT);
        let taken = ServeError::Listen {
            address: ([127, 0, 0, 1], 4100).into(),
            setting: "listen_client",
            source: io::Error::from(io::ErrorKind::AddrInUse),
        };
        assert_eq!(code_of(&taken.into()), EXIT_ENVIRONMENT);
        let damaged = folder(DataDirError::Damaged {
            path: "/data/folder.toml".into(),
            reason: "its checksum is wrong".to_owned(),
        });
        assert_eq!(code_of(&damaged), EXIT_REPLACE);
        assert_eq!(code_of(&StartError::StateInUse.into()), EXIT_FAILED);
    }

    #[test]
    fn a_cause_is_told_once() {
        let damaged = DataDirError::Io {
            path: "/data".into(),
            what: "open it",
            source: io::Error::other("broken"),
        };
        let error = anyhow::Error::from(StartError::DataDir(damaged)).context("it does not start");
        let whole = "it does not start: data directory /data: cannot open it: broken";
        assert_eq!(told(&error), whole);
    }

    #[test]
    fn a_time_is_spelled_the_same_everywhere() {
        for args in [
            &["init", "--endpoints", "a:1", "--timeout", "1s"][..],
            &["admin", "--timeout", "1s", "status"],
            &["admin", "status", "--timeout", "1s"],
            &["health", "--endpoint", "a:1", "--timeout", "1s"],
            &["health", "--endpoints", "a:1,b:1", "--timeout", "1000ms"],
            &["get", "a", "--timeout", "1s"],
        ] {
            let args = [&["dengine"], args].concat();
            command().try_get_matches_from(args).unwrap();
        }
    }

    #[test]
    fn help_shows_defaults_and_variables() {
        let mut command = command();
        let serve = command.find_subcommand_mut("serve").unwrap();
        let help = serve.render_long_help().to_string();
        for part in [
            "[default: 127.0.0.1:4100]",
            "DENGINE_MAX_KEY_BYTES",
            "[default: 32768]",
        ] {
            assert!(help.contains(part), "{part} is missing");
        }
    }
}
