//! From arguments to a command line that was checked: what clap alone cannot do.

use std::collections::HashSet;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command as Parser, CommandFactory, FromArgMatches};
use dengine_bench_model::pods;
use dengine_bench_model::results::{Protocol, ReadConsistency, Shape, Workload};

use super::options::ENDPOINTS_DEFAULT;
use super::{Cli, Command, LoadOptions, ProtocolArg, RunArgs, Task};
use crate::keys;
use crate::target::{self, Access, Caller};

/// Commands that measure nothing.
const TOOLS: [&str; 3] = ["compare", "report", "completions"];

impl Cli {
    /// Reads the arguments of this process; ends it if they are wrong, or ask for help.
    #[must_use]
    pub fn from_process() -> Self {
        Self::from_matches(&parser().get_matches()).unwrap_or_else(|error| error.exit())
    }

    pub(super) fn from_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut cli = Self::from_arg_matches(matches)?;
        // The variable names members of DEngine at their own ports, and an empty one nobody.
        let access = cli.options.access();
        let of_dengine = access.protocol == Protocol::Dengine && access.caller() == Caller::Dengine;
        let names_some = cli.options.endpoints.iter().any(|it| !it.is_empty());
        if are_of_the_environment(matches) && !(of_dengine && names_some) {
            cli.options.endpoints = vec![ENDPOINTS_DEFAULT.to_owned()];
        }
        Ok(cli)
    }

    /// Checks what no single flag can check for itself.
    ///
    /// # Errors
    /// Says which flags contradict each other; to be shown with the usage.
    pub fn validate(&self) -> Result<(), clap::Error> {
        let access = self.options.access();
        match &self.command {
            Command::Run(run) => {
                run.validate(&self.options.load)?;
                if let Some(consistency) = run.own.read_consistency {
                    must_be_supported(access, "--read-consistency", consistency)?;
                }
            }
            Command::Range(range) => {
                must_be_supported(access, "--consistency", range.consistency)?;
            }
            Command::Put
            | Command::Swap
            | Command::Compare(_)
            | Command::Report(_)
            | Command::Completions(_) => {}
        }
        self.check_that_something_is_measured()?;
        self.check_pods()?;
        check_shapes(&self.tasks(), self.options.load.repeat)?;
        let timeout = self.options.timeout;
        let at_least = self.options.load.at_least.unwrap_or_default();
        require(at_least < timeout, || {
            format!("--at-least {at_least:?} is not less than the --timeout, {timeout:?}")
        })?;
        require(
            self.options.protocol == ProtocolArg::Dengine || self.options.wire.is_none(),
            || "--wire is about DEngine; others have no choice: leave it out".to_owned(),
        )?;
        let endpoints = &self.options.endpoints;
        require(
            endpoints.iter().all(|endpoint| !endpoint.is_empty()),
            || "--endpoints holds an empty one".to_owned(),
        )?;
        require(i64::try_from(self.options.load.seed).is_ok(), || {
            format!("--seed must be at most {}", i64::MAX)
        })
    }

    fn check_pods(&self) -> Result<(), clap::Error> {
        let options = &self.options.pods;
        let (pods, tasks) = (options.pods, self.tasks());
        if pods == 1 || tasks.is_empty() {
            return Ok(());
        }
        require(!Protocol::from(self.options.protocol).is_bound(), || {
            "--pods is about systems: floor and echo are measured from one process".to_owned()
        })?;
        require(options.port().is_some(), || {
            "--pods needs --first-pod HOST:PORT: where the first of them listens".to_owned()
        })?;
        require(options.pod_index.is_some_and(|index| index < pods), || {
            format!(
                "--pods {pods} needs --pod-index: which of them this is, 0 to {}",
                pods - 1
            )
        })?;
        let loading = tasks.iter().map(|task| pods::loading(pods, &task.shape));
        let most = loading.max().unwrap_or(1);
        require(most == pods, || {
            format!(
                "--pods {pods}: each needs a connection, and each connection a client, but there \
                 are only enough for {most}; use fewer, or more --conns and --clients"
            )
        })
    }

    fn check_that_something_is_measured(&self) -> Result<(), clap::Error> {
        let measures = match &self.command {
            Command::Put | Command::Range(_) | Command::Swap => true,
            Command::Run(run) => !run.what.list,
            Command::Compare(_) | Command::Report(_) | Command::Completions(_) => false,
        };
        require(!measures || !self.tasks().is_empty(), || {
            let words = match self.options.protocol {
                ProtocolArg::Dengine | ProtocolArg::Etcd => "there is nothing to measure",
                ProtocolArg::Floor => {
                    "--protocol floor is about the writes of one client: use put with --clients 1, \
                     or run with --workload seq-put"
                }
                ProtocolArg::Echo => {
                    "--protocol echo is about reads: use range, or run with --workload par-get"
                }
            };
            words.to_owned()
        })
    }
}

impl RunArgs {
    /// Checks what no single flag can check for itself.
    ///
    /// # Errors
    /// Says which flags contradict each other; to be shown with the usage.
    pub fn validate(&self, load: &LoadOptions) -> Result<(), clap::Error> {
        let own = &self.own;
        let tasks = self.tasks(load);
        let any = |has: fn(&Shape) -> bool| tasks.iter().any(|task| has(&task.shape));
        let flags = [
            ("--read-consistency", own.read_consistency.is_some()),
            ("--read-percent", own.read_percent.is_some()),
            ("--watchers", own.watchers.is_some()),
            ("--listers", own.listers.is_some()),
        ];
        let mut given = flags.into_iter().filter(|(_, given)| *given);
        if let Some(flag) = load.given().or_else(|| given.next().map(|(flag, _)| flag)) {
            require(self.what.profile.is_none(), || {
                format!(
                    "{flag} cannot be used with --profile, which sets it; use --workload, put or \
                     range"
                )
            })?;
        }
        require(
            own.read_consistency.is_none() || any(|shape| shape.consistency.is_some()),
            || {
                "--read-consistency is about reads: use it with seq-get, par-get or mixed"
                    .to_owned()
            },
        )?;
        require(
            own.read_percent.is_none() || any(|shape| shape.read_percent.is_some()),
            || "--read-percent is about reads beside writes: use it with mixed".to_owned(),
        )?;
        require(
            own.watchers.is_none() || any(|shape| shape.workload == Workload::Watch),
            || "--watchers is about watches: use it with watch or watch-fan-out".to_owned(),
        )?;
        require(
            own.listers.is_none() || any(|shape| shape.workload == Workload::List),
            || "--listers is about lists: use it with extra/list-while-writing".to_owned(),
        )?;
        check_shapes(&tasks, load.repeat)?;
        let mut names = HashSet::new();
        let twice = tasks.iter().find(|task| !names.insert(&task.name));
        twice.map_or(Ok(()), |task| {
            require(false, || {
                format!(
                    "{} is named twice in --workload: results of one name are compared with each \
                     other, so measure it in two runs",
                    task.name
                )
            })
        })
    }
}

fn must_be_supported(
    access: Access,
    flag: &str,
    consistency: ReadConsistency,
) -> Result<(), clap::Error> {
    let why = target::unsupported(access, Some(consistency));
    require(why.is_none(), || {
        let (word, why) = (consistency.word(), why.unwrap_or_default());
        format!("{flag} {word}: {why}; use linearizable or eventual")
    })
}

fn check_shapes(tasks: &[Task], repeat: u32) -> Result<(), clap::Error> {
    tasks
        .iter()
        .try_for_each(|task| check_shape(&task.shape, repeat))
}

/// The parser, in which commands that measure nothing do not show the flags of measurements.
/// Whether no flag names the endpoints, before or after the command, but the variable does.
fn are_of_the_environment(matches: &ArgMatches) -> bool {
    let mut sources = Vec::new();
    let mut next = Some(matches);
    while let Some(matches) = next {
        sources.extend(matches.value_source("endpoints"));
        next = matches.subcommand().map(|(_, matches)| matches);
    }
    !sources.contains(&ValueSource::CommandLine) && sources.contains(&ValueSource::EnvVariable)
}

pub(super) fn parser() -> Parser {
    let mut parser = Cli::command();
    // Only now every command has the flags that are common to all.
    parser.build();
    for tool in TOOLS {
        parser = parser.mut_subcommand(tool, |tool| {
            tool.mut_args(|arg| {
                let common = arg.is_global_set();
                arg.hide(common)
            })
        });
    }
    parser
}

/// What `put` or `range` send when no flag says anything else.
pub(super) fn plain(consistency: Option<ReadConsistency>) -> Shape {
    Shape {
        workload: match consistency {
            None => Workload::Put,
            Some(_) => Workload::Range,
        },
        consistency,
        connections: 1,
        clients: 1,
        total: 10_000,
        at_least_seconds: None,
        key_size: 8,
        key_folder_size: 0,
        value_size: 256,
        key_space: 0,
        sequential_keys: false,
        read_percent: None,
        watchers: None,
        listers: None,
        scan_keys: None,
        rate: None,
    }
}

fn check_shape(shape: &Shape, repeat: u32) -> Result<(), clap::Error> {
    require((1..=10_000).contains(&shape.connections), || {
        format!("--conns must be 1 to 10000, not {}", shape.connections)
    })?;
    let watchers = shape.watches_each();
    let carried = u64::from(shape.clients) * u64::from(watchers);
    let is_carrying = carried >= u64::from(shape.connections);
    require(is_carrying && shape.clients <= 100_000, || {
        format!(
            "--clients must be --conns ({}) to 100000, not {}: a connection without a client \
             carries nothing",
            shape.connections, shape.clients
        )
    })?;
    require(carried <= 100_000, || {
        format!(
            "--clients {} with --watchers {watchers} are {carried} watches; use at most 100000",
            shape.clients
        )
    })?;
    require(
        shape.total >= u64::from(shape.clients) && shape.total <= 1_000_000_000,
        || {
            format!(
                "--total must be --clients ({}) to 1000000000, not {}: a client without a request \
                 measures nothing",
                shape.clients, shape.total
            )
        },
    )?;
    require(
        shape.at_least_seconds.is_none() || shape.rate.is_none(),
        || "--at-least is not for a load at a --rate: --total says how long that takes".to_owned(),
    )?;
    require(
        (1..=65_536).contains(&shape.key_size) && shape.value_size <= 16 << 20,
        || "--key-size must be 1 to 65536 and --value-size at most 16777216 bytes".to_owned(),
    )?;
    let last = u64::from(repeat).saturating_sub(1);
    let keys = keys::space(shape) + keys::of_repetition(shape, last);
    require(keys::fits(keys, shape.key_size), || {
        format!(
            "{keys} different keys do not fit into --key-size {}: keys are hexadecimal numbers",
            shape.key_size
        )
    })
}

fn require(holds: bool, message: impl FnOnce() -> String) -> Result<(), clap::Error> {
    if holds {
        Ok(())
    } else {
        Err(Cli::command().error(ErrorKind::ValueValidation, message()))
    }
}

/// `10%` or `10` as 0.1.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').trim().parse::<f64>() {
        Ok(percent) if (0.0..=1_000.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err("expected a percentage from 0% to 1000%".to_owned()),
    }
}
