//! The command line: the flags of `dengine-bench run`, without those of a target.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Command, CommandFactory, FromArgMatches, Parser};
use dengine::config::Durability;
use dengine_bench::cli::{FileOptions, LoadOptions, RunArgs};

/// What is measured when nothing is named.
const PROFILE: &str = "standard";
/// They are about what is not there: connections, and keys of others.
const HIDDEN: [&str; 2] = ["conns", "key_prefix"];

/// Measure three members inside this process, without a network between them and the load
///
/// Takes the workloads, the flags of the load and the files of `dengine-bench run`, and measures
/// the profile standard by default. Workloads that watch, or list all keys page by page, are a
/// matter of the server: they are not measured here.
#[derive(Parser, Debug)]
#[command(name = "dengine-bench-embedded", version)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) load: LoadOptions,
    #[command(flatten)]
    pub(crate) files: FileOptions,
    /// When a write counts as acknowledged
    #[arg(long, value_enum, default_value_t)]
    pub(crate) durability: Durability,
    /// Folder for the members' data, which is deleted at the end; not in memory, where a sync costs
    /// nothing
    #[arg(long, default_value = ".")]
    pub(crate) data_dir: PathBuf,
    /// Longest time for all of it
    #[arg(long, default_value = "10m", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Duration,
}

impl Cli {
    /// Reads the arguments of this process; ends it if they are wrong, or ask for help.
    pub(crate) fn from_process() -> Self {
        let matches = parser().get_matches();
        let cli = Self::from_arg_matches(&matches).and_then(Self::checked);
        cli.unwrap_or_else(|error| error.exit())
    }

    fn checked(mut self) -> Result<Self, clap::Error> {
        let what = &mut self.run.what;
        if what.workload.is_empty() && !what.list {
            what.profile.get_or_insert(PROFILE.to_owned());
        }
        self.run.validate(&self.load)?;
        Ok(self)
    }
}

fn parser() -> Command {
    let parser = Cli::command().mut_group("WhatArgs", |what| what.required(false));
    HIDDEN.into_iter().fold(parser, |parser, flag| {
        parser.mut_arg(flag, |arg| arg.hide(true))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        let line = format!("dengine-bench-embedded {line}");
        let matches = parser().try_get_matches_from(line.split_whitespace())?;
        Cli::from_arg_matches(&matches)?.checked()
    }

    #[test]
    fn without_a_word_it_is_the_standard_profile() {
        let cli = parse("").unwrap();
        assert_eq!(cli.run.what.profile.as_deref(), Some("standard"));
        assert_eq!(cli.run.tasks(&cli.load).len(), 6);
    }

    #[test]
    fn single_workloads_take_the_flags_of_the_load() {
        let cli = parse("--workload standard/hot-key-read,mixed --total 5000 --read-percent 50");
        let cli = cli.unwrap();
        let tasks = cli.run.tasks(&cli.load);
        let sizes: Vec<_> = tasks
            .iter()
            .map(|task| (&*task.name, task.shape.total))
            .collect();
        assert_eq!(sizes, [("hot-key-read", 5_000), ("mixed", 5_000)]);
        assert_eq!(tasks[1].shape.read_percent, Some(50));
    }

    #[test]
    fn contradictions_are_named() {
        for (line, what) in [
            ("--profile quick --total 5", "--total"),
            ("--profile quick --workload mixed", "--workload"),
            ("--workload seq-put --read-percent 5", "mixed"),
            ("--durability none", "memory-first"),
            // It hung: nobody is woken for requests beyond those of the rate.
            ("--workload mixed --rate 9 --at-least 5s", "--at-least"),
            ("--workload nothing", "seq-put"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.to_string().contains(what), "{line}: {error}");
        }
    }

    #[test]
    fn help_is_about_what_is_there() {
        let help = parse("--help").unwrap_err().to_string();
        assert!(
            help.contains("--repeat") && help.contains("--json"),
            "{help}"
        );
        assert!(
            !help.contains("--conns <N>") && !help.contains("--endpoints"),
            "{help}"
        );
    }

    #[test]
    fn the_definition_is_consistent() {
        parser().debug_assert();
    }
}
