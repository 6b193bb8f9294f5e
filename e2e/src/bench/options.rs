//! What `dengine-e2e bench` takes, and what it comes to.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, Parser as _, ValueEnum};
use dengine_bench::cli::{Cli, Task};
use dengine_bench_model::profiles::PROFILES;
use dengine_local_kubernetes::programs::EtcdVersion;

use crate::versions;

/// Flags of the tool that are about a target, which the embedded load does not have.
const OF_A_TARGET: [&str; 6] = [
    "--wire",
    "--target-leader",
    "--request-timeout",
    "--ready-timeout",
    "--settle-timeout",
    "--ignore-space",
];

/// Keys that each system is filled with again in every round. Writing more of them takes longer
/// than all that is measured on them.
const KEYS_OF_A_ROUND_MAX: u64 = 1_000_000;

/// What `dengine-e2e bench` takes.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Profile of dengine-bench; `dengine-bench run --list` shows what each holds
    #[arg(long, default_value = "standard", value_parser = profile_names())]
    pub(super) profile: String,
    /// Single workloads instead of a profile, such as seq-put,par-put or t4/mixed
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        conflicts_with = "profile"
    )]
    workload: Vec<String>,
    /// Requests of each workload; needs --workload
    #[arg(long)]
    total: Option<u64>,
    /// Clients of each workload that has several; needs --workload
    #[arg(long)]
    clients: Option<u32>,
    /// Requests before each measurement, or how long they are sent, such as 5s
    #[arg(long, value_name = "N|TIME")]
    warm_up: Option<String>,
    /// Under which circumstances; repeated or separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "cluster")]
    scenario: Vec<Scenario>,
    /// What is measured; repeated or separated by commas [default: dengine and etcd; the floor
    /// where the load has a lone client's writes; the echo where it has reads, with --wire unary or
    /// etcd]
    #[arg(long, value_enum, value_delimiter = ',')]
    system: Vec<System>,
    /// The etcd to measure
    #[arg(long, default_value = EtcdVersion::ALL[0].number(), value_parser = versions::etcd())]
    pub(super) etcd_version: EtcdVersion,
    /// When DEngine acknowledges a write; etcd syncs every write, whatever this says
    #[arg(long, value_enum, default_value_t = Durability::Fsync)]
    pub(super) durability: Durability,
    /// How calls travel to DEngine; with etcd its members are loaded in etcd's API, by the very
    /// client that loads etcd [default: pipelined]
    #[arg(long, value_parser = ["pipelined", "unary", "etcd"])]
    wire: Option<String>,
    /// Repetitions of each workload, the systems in turns; the median is reported. Of loads on more
    /// than a million keys all of one system, which is filled once, and then of the next
    #[arg(long, default_value_t = 1)]
    repeat: u32,
    /// Folder for results and report; the members' data is below it while they run
    #[arg(long, default_value = "bench-results")]
    pub(super) output: PathBuf,
    /// Compare DEngine with an earlier result of this machine; fails if it is worse than --budget
    /// allows
    #[arg(long)]
    pub(super) baseline: Option<PathBuf>,
    /// How much worse than the baseline is allowed
    #[arg(long, default_value = "10%", requires = "baseline")]
    pub(super) budget: String,
    /// Only start the members of one system, say where they are, and wait for Ctrl-C
    #[arg(long)]
    pub(super) serve: bool,
    /// The server to measure [default: the one built with this program]
    #[arg(long)]
    pub(super) dengine: Option<PathBuf>,
    /// Further settings of the server, such as --server-arg=--log-segment-bytes=8388608
    #[arg(long, allow_hyphen_values = true)]
    pub(super) server_arg: Vec<String>,
    /// Further flags of the tool, such as --bench-arg=--target-leader
    #[arg(long, allow_hyphen_values = true)]
    bench_arg: Vec<String>,
}

fn profile_names() -> PossibleValuesParser {
    let names = PROFILES.iter().map(|profile| profile.name);
    names.map(PossibleValue::new).collect::<Vec<_>>().into()
}

/// Under which circumstances the load runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Scenario {
    /// One member: what the log and the store cost.
    Single,
    /// Three members: what a user runs.
    Cluster,
    /// Three members inside the process of the load; DEngine alone.
    Embedded,
    /// These three, one after the other.
    All,
}

impl Scenario {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Cluster => "cluster",
            Self::Embedded => "embedded",
            Self::All => "all",
        }
    }

    pub(super) fn members(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Cluster | Self::Embedded | Self::All => 3,
        }
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum System {
    /// DEngine.
    Dengine,
    /// etcd, built from its Go module.
    Etcd,
    /// Lower bound of a lone write's latency: processes that append, sync and answer.
    Floor,
    /// Upper bound of unary reads: servers that answer at once.
    Echo,
}

impl System {
    /// In the order in which results show them.
    const ALL: [Self; 4] = [Self::Dengine, Self::Etcd, Self::Floor, Self::Echo];

    /// As the tool's `--protocol` spells it.
    pub(super) fn protocol(self) -> &'static str {
        match self {
            Self::Dengine => "dengine",
            Self::Etcd => "etcd",
            Self::Floor => "floor",
            Self::Echo => "echo",
        }
    }
}

/// When DEngine acknowledges a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Durability {
    /// Once it is on the disks of a majority.
    Fsync,
    /// Once a majority has it in memory.
    MemoryFirst,
}

impl Durability {
    /// As the server's flag spells it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Fsync => "fsync",
            Self::MemoryFirst => "memory-first",
        }
    }
}

impl Options {
    /// The circumstances, each once.
    pub(super) fn scenarios(&self) -> Vec<Scenario> {
        let every = [Scenario::Single, Scenario::Cluster, Scenario::Embedded];
        if self.scenario.contains(&Scenario::All) {
            return every.to_vec();
        }
        let mut scenarios = Vec::new();
        for scenario in &self.scenario {
            if !scenarios.contains(scenario) {
                scenarios.push(*scenario);
            }
        }
        scenarios
    }

    /// What is measured under these circumstances.
    pub(super) fn systems(&self, scenario: Scenario) -> Vec<System> {
        let here = |system: &System| *system == System::Dengine || scenario != Scenario::Embedded;
        let asked_for = |system: &System| match self.system.is_empty() {
            true => self.joins(*system),
            false => self.system.contains(system),
        };
        let systems = System::ALL.into_iter().filter(here);
        systems.filter(asked_for).collect()
    }

    /// Whether it is measured although nobody named it: both systems are, and what this machine
    /// does at best beside them, where they do the same.
    fn joins(&self, system: System) -> bool {
        match system {
            System::Dengine | System::Etcd => true,
            System::Floor => {
                self.durability == Durability::Fsync && !self.serve && self.is_about(system)
            }
            System::Echo => self.is_unary() && !self.serve && self.is_about(system),
        }
    }

    /// Whether each call is a request of its own, as those of the echo are.
    fn is_unary(&self) -> bool {
        matches!(self.wire.as_deref(), Some("unary" | "etcd"))
    }

    /// Whether our members are loaded in etcd's API.
    pub(super) fn is_over_etcds_api(&self) -> bool {
        self.wire.as_deref() == Some("etcd")
    }

    /// How calls travel to a system, as the tool's flag; others leave no choice.
    pub(super) fn wire_to(&self, system: System) -> Option<String> {
        let wire = self.wire.as_ref().filter(|_| system == System::Dengine);
        wire.map(|wire| format!("--wire={wire}"))
    }

    /// Whether the load has a workload that can be asked of it.
    fn is_about(&self, system: System) -> bool {
        self.tool(system).is_ok_and(|cli| !cli.tasks().is_empty())
    }

    /// Bytes of the values that are read.
    ///
    /// # Errors
    /// Nothing is.
    pub(super) fn value_size(&self) -> Result<u32> {
        let tasks = self.tool(System::Echo)?.tasks();
        let first = tasks.first().context("the load has no reads")?;
        Ok(first.shape.value_size)
    }

    /// The tool's command line for a system, but for what is only known once that runs.
    fn tool(&self, system: System) -> Result<Cli, clap::Error> {
        let line = ["dengine-bench".to_owned(), "run".to_owned()].into_iter();
        let protocol = ["--protocol".to_owned(), system.protocol().to_owned()];
        let flags = self.load().into_iter().chain(self.wire_to(system));
        Cli::try_parse_from(line.chain(flags).chain(protocol))
    }

    /// Says what cannot be done before anything is started.
    ///
    /// # Errors
    /// Which flags contradict each other, and what to do.
    pub(super) fn validate(&self) -> Result<()> {
        let scenarios = self.scenarios();
        for scenario in &scenarios {
            ensure!(
                !self.systems(*scenario).is_empty(),
                "scenario {} is about DEngine alone: add dengine to --system, or leave it out",
                scenario.name()
            );
            ensure!(
                *scenario != Scenario::Embedded || !self.is_over_etcds_api(),
                "--wire etcd is about members that listen, which those of scenario embedded do \
                 not: give single or cluster as --scenario"
            );
        }
        if self.baseline.is_some() {
            ensure!(
                scenarios.len() == 1 && self.systems(scenarios[0]).contains(&System::Dengine),
                "--baseline is about DEngine in one scenario: give one --scenario, and dengine as \
                 a --system"
            );
        }
        if self.serve {
            let one = scenarios.len() == 1 && self.systems(scenarios[0]).len() == 1;
            ensure!(
                one && scenarios[0] != Scenario::Embedded,
                "--serve starts one system: give one --scenario (single or cluster) and one \
                 --system"
            );
            return Ok(());
        }
        // The tool itself would say so only when the members run.
        let systems = scenarios.iter().flat_map(|it| self.systems(*it));
        for system in systems {
            let cli = self.tool(system);
            if let Ok(cli) = &cli {
                self.must_be_about(system, cli)?;
            }
            if let Err(error) = cli.and_then(|cli| cli.validate()) {
                bail!("{}", in_words(&error));
            }
        }
        Ok(())
    }

    /// The tool would name a flag that nobody typed here.
    fn must_be_about(&self, system: System, cli: &Cli) -> Result<()> {
        let (about, such_as) = match system {
            System::Dengine | System::Etcd => return Ok(()),
            System::Floor => ("writes of one client", "seq-put"),
            System::Echo => ("reads", "par-get"),
        };
        ensure!(
            !cli.tasks().is_empty(),
            "system {name} is about {about}, and {load} has none: leave {name} out of --system, or \
             measure another load, such as --profile standard or --workload {such_as}",
            name = system.protocol(),
            load = self.title(),
        );
        Ok(())
    }

    /// How often each system is started, filled and measured.
    pub(super) fn rounds(&self) -> u32 {
        match self.tool_repeats() {
            true => 1,
            false => self.repeat,
        }
    }

    /// Whether the tool repeats by itself, on members that run all the time: very many keys are
    /// written once only. Of fewer each repetition would add its own to those of the ones before.
    fn tool_repeats(&self) -> bool {
        let many = |task: &Task| task.shape.key_space > KEYS_OF_A_ROUND_MAX;
        let tool = self.tool(System::Dengine);
        tool.is_ok_and(|cli| cli.tasks().iter().any(many))
    }

    /// The flags of the load, as the tool takes them.
    pub(super) fn load(&self) -> Vec<String> {
        let mut flags = if self.workload.is_empty() {
            vec![format!("--profile={}", self.profile)]
        } else {
            vec![format!("--workload={}", self.workload.join(","))]
        };
        flags.extend(self.total.map(|total| format!("--total={total}")));
        flags.extend(self.clients.map(|clients| format!("--clients={clients}")));
        flags.extend(self.warm_up.iter().map(|it| format!("--warm-up={it}")));
        flags.push(format!("--repeat={}", self.repeat));
        flags.extend(self.bench_arg.iter().cloned());
        flags
    }

    /// The flags of the load for one of the systems.
    pub(super) fn load_on(&self, system: System, scenario: Scenario) -> Vec<String> {
        let mut flags = self.load();
        // Not what --bench-arg says of it: others leave no choice.
        if system != System::Dengine {
            flags.retain(|flag| !flag.starts_with("--wire"));
        }
        flags.extend(self.wire_to(system));
        if scenario == Scenario::Embedded {
            flags.retain(|flag| OF_A_TARGET.iter().all(|own| !flag.starts_with(own)));
        }
        if !self.tool_repeats() {
            flags.retain(|flag| !flag.starts_with("--repeat"));
        }
        flags
    }

    /// As results call a system.
    pub(super) fn label(&self, system: System) -> &'static str {
        match (system, self.etcd_version) {
            (System::Dengine, _) => "DEngine",
            (System::Etcd, EtcdVersion::V3_7) => "etcd 3.7",
            (System::Etcd, EtcdVersion::V3_6) => "etcd 3.6",
            (System::Floor, _) => "floor",
            (System::Echo, _) => "echo",
        }
    }

    /// What the results are called: the profile, or the workloads.
    pub(super) fn title(&self) -> String {
        if self.workload.is_empty() {
            format!("profile {}", self.profile)
        } else {
            format!("workload {}", self.workload.join(", "))
        }
    }

    /// The same as part of a folder's name.
    pub(super) fn file_name(&self) -> String {
        if self.workload.is_empty() {
            return self.profile.clone();
        }
        self.workload.join("-").replace('/', "-")
    }
}

/// Without the usage, which is that of another program.
fn in_words(error: &clap::Error) -> String {
    let text = error.to_string();
    let words = text.split("\n\n").next().unwrap_or_default();
    words.trim_start_matches("error: ").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn parse(line: &str) -> Result<Options> {
        let line = format!("bench {line}");
        let options = Line::try_parse_from(line.split_whitespace())?.options;
        options.validate()?;
        Ok(options)
    }

    fn names(options: &Options) -> Vec<&'static str> {
        options
            .scenarios()
            .into_iter()
            .map(Scenario::name)
            .collect()
    }

    #[test]
    fn all_scenarios_are_measured_by_one_call() {
        let all = parse("--scenario all --profile t4").unwrap();
        assert_eq!(names(&all), ["single", "cluster", "embedded"]);
        let both = [System::Dengine, System::Etcd];
        assert_eq!(all.systems(Scenario::Single)[..2], both);
        assert_eq!(all.systems(Scenario::Embedded), both[..1]);
        let two = parse("--scenario cluster,single --system dengine").unwrap();
        assert_eq!(names(&two), ["cluster", "single"]);
        assert_eq!(two.systems(Scenario::Cluster), both[..1]);
    }

    #[test]
    fn the_floor_joins_where_a_lone_client_writes_to_disk() {
        let systems = |line: &str| parse(line).unwrap().systems(Scenario::Cluster);
        let all = [System::Dengine, System::Etcd, System::Floor];
        for line in [
            "",
            "--profile quick",
            "--profile t4",
            "--workload seq-put,par-put",
        ] {
            assert_eq!(systems(line), all, "{line}");
        }
        for line in [
            "--profile dense",
            "--workload par-put",
            "--durability memory-first",
        ] {
            assert_eq!(systems(line), all[..2], "{line}");
        }
        assert_eq!(
            systems("--system floor,dengine"),
            [System::Dengine, System::Floor]
        );
        let named = "--system floor --durability memory-first";
        assert_eq!(systems(named), [System::Floor]);
    }

    #[test]
    fn the_echo_joins_where_reads_are_unary() {
        let systems = |line: &str| parse(line).unwrap().systems(Scenario::Cluster);
        let has = |line: &str| systems(line).contains(&System::Echo);
        assert!(has("--wire unary") && has("--wire unary --workload par-get,seq-put"));
        assert!(!has("") && !has("--wire pipelined") && !has("--wire unary --workload seq-put"));
        assert_eq!(systems("--system echo"), [System::Echo]);
        let sized = parse("--system echo --workload par-get --bench-arg=--value-size=99").unwrap();
        assert_eq!(sized.value_size().unwrap(), 99);
        let load = sized.load_on(System::Echo, Scenario::Cluster);
        assert_eq!(load, ["--workload=par-get", "--value-size=99"]);
    }

    #[test]
    fn both_systems_are_asked_alike_over_etcds_api() {
        let options = parse("--profile etcd --wire etcd --repeat 5").unwrap();
        assert!(options.is_over_etcds_api());
        assert_eq!(options.systems(Scenario::Cluster), System::ALL);
        assert_eq!(options.rounds(), 5, "in turns");
        let on = |system| options.load_on(system, Scenario::Cluster);
        assert_eq!(on(System::Dengine), ["--profile=etcd", "--wire=etcd"]);
        for other in [System::Etcd, System::Floor, System::Echo] {
            assert_eq!(on(other), ["--profile=etcd"], "{other:?}");
        }
        assert!(!parse("--wire unary").unwrap().is_over_etcds_api());
    }

    #[test]
    fn etcd_is_the_newest_unless_another_is_named_and_results_say_which() {
        let label = |line: &str| parse(line).map(|options| options.label(System::Etcd));
        assert_eq!(label("").unwrap(), "etcd 3.7");
        assert_eq!(label("--etcd-version 3.7.3").unwrap(), "etcd 3.7");
        assert_eq!(label("--etcd-version 3.6.16").unwrap(), "etcd 3.6");
        assert!(label("--etcd-version 3.5.0").is_err());
    }

    #[test]
    fn what_a_person_says_reaches_the_tool() {
        let line = "--workload seq-put,mixed --total 99 --clients 8 --warm-up 5s --repeat 3 \
                    --wire unary --bench-arg=--read-percent=50";
        let options = parse(line).unwrap();
        let load = "--workload=seq-put,mixed --total=99 --clients=8 --warm-up=5s";
        let on = |system, scenario| options.load_on(system, scenario).join(" ");
        let unary = format!("{load} --read-percent=50 --wire=unary");
        assert_eq!(on(System::Dengine, Scenario::Cluster), unary);
        let percent = format!("{load} --read-percent=50");
        assert_eq!(on(System::Etcd, Scenario::Cluster), percent);
        assert_eq!(on(System::Dengine, Scenario::Embedded), percent);
        assert_eq!(options.rounds(), 3, "with fresh members each");
        assert_eq!(options.title(), "workload seq-put, mixed");
        assert_eq!(options.file_name(), "seq-put-mixed");
    }

    #[test]
    fn ten_million_keys_are_written_once_and_measured_several_times() {
        let repeats = |line: &str| {
            let options = parse(line).unwrap();
            let load = options.load_on(System::Etcd, Scenario::Cluster);
            let tool = load.contains(&"--repeat=5".to_owned());
            (options.rounds(), tool)
        };
        assert_eq!(repeats("--profile growth --repeat 5"), (1, true));
        assert_eq!(repeats("--workload growth/mixed --repeat 5"), (1, true));
        let fewer = "--workload growth/mixed --bench-arg=--key-space=1000000 --repeat 5";
        assert_eq!(repeats(fewer), (5, false));
        assert_eq!(repeats("--profile extra --repeat 5"), (5, false));
    }

    #[test]
    fn contradictions_are_named_before_anything_starts() {
        for (line, what) in [
            ("--profile quick --total 5", "use --workload"),
            ("--profile quick --workload mixed", "--workload"),
            ("--workload par-gt", "par-get"),
            ("--scenario embedded --system etcd", "DEngine alone"),
            ("--scenario all --baseline a.json", "one --scenario"),
            ("--system etcd --baseline a.json", "dengine as a --system"),
            ("--durability none", "memory-first"),
            ("--wire json", "unary"),
            ("--wire etcd --scenario embedded", "single or cluster"),
            ("--wire etcd --scenario all", "scenario embedded"),
            (
                "--wire etcd --workload mixed --bench-arg=--read-consistency=lease",
                "etcd's API has no lease reads",
            ),
            (
                "--system dengine,floor --profile dense",
                "writes of one client",
            ),
            ("--system echo --workload seq-put", "about reads"),
            ("--system echo --workload seq-put", "--workload par-get"),
            (
                "--system floor --workload mixed",
                "leave floor out of --system",
            ),
            (
                "--system floor --scenario embedded",
                "add dengine to --system",
            ),
            ("--serve", "one --system"),
            (
                "--serve --system dengine --scenario embedded",
                "single or cluster",
            ),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(what), "{line}: {error}");
        }
    }
}
