//! Flags that every measurement takes, and how their values are read.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use dengine_bench_model::pods;
use dengine_bench_model::results::{Shape, Wire};

use super::values::{
    ProtocolArg, WarmUp, WireArg, parse_duration, parse_key_prefix, parse_rate, parse_warm_up,
};
#[cfg(feature = "kubernetes")]
use crate::post::PostOptions;
use crate::target::Access;

/// Where a member of DEngine listens that was told nothing else.
pub(super) const ENDPOINTS_DEFAULT: &str = "127.0.0.1:4100";
/// Where the members are, for every program that asks some.
const ENDPOINTS_VARIABLE: &str = "DENGINE_ENDPOINTS";

/// Flags of `put`, `range`, `swap` and `run`; they may stand before or after the command.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Where the members listen, host:port; repeated or separated by commas. The variable is read
    /// for DEngine only
    #[arg(
        long,
        global = true,
        value_name = "HOST:PORT",
        value_delimiter = ',',
        default_value = ENDPOINTS_DEFAULT,
        env = ENDPOINTS_VARIABLE,
        help_heading = "Target"
    )]
    pub endpoints: Vec<String>,
    /// What the target speaks
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t = ProtocolArg::Dengine,
        help_heading = "Target"
    )]
    pub protocol: ProtocolArg,
    /// How calls travel to DEngine; with etcd, --endpoints are where members serve clients of etcd
    /// (--listen-etcd) [default: pipelined]
    #[arg(long, global = true, value_enum, help_heading = "Target")]
    pub wire: Option<WireArg>,
    /// Connect to the leader only, found through the endpoints. DEngine's client sends writes and
    /// lease reads there anyway, etcd's does not
    #[arg(long, global = true, help_heading = "Target")]
    pub target_leader: bool,
    /// A server process on this machine; repeated or separated by commas. The result then says what
    /// CPU time and memory they took
    #[arg(
        long,
        global = true,
        value_name = "PID",
        value_delimiter = ',',
        help_heading = "Target"
    )]
    pub server_pid: Vec<u32>,

    /// What is sent.
    #[command(flatten)]
    pub load: LoadOptions,
    /// From how many pods.
    #[command(flatten)]
    pub pods: PodOptions,

    /// Longest time of the whole run, such as 90s or 10m (a plain number is seconds)
    #[arg(
        long,
        global = true,
        value_name = "TIME",
        default_value = "10m",
        value_parser = parse_duration,
        help_heading = "Bounds"
    )]
    pub timeout: Duration,
    /// A request that takes longer counts as failed; in a watch workload, so does a write whose
    /// event does not arrive in this time
    #[arg(
        long,
        global = true,
        value_name = "TIME",
        default_value = "10s",
        value_parser = parse_duration,
        help_heading = "Bounds"
    )]
    pub request_timeout: Duration,
    /// How long to wait for the target to become ready
    #[arg(
        long,
        global = true,
        value_name = "TIME",
        default_value = "30s",
        value_parser = parse_duration,
        help_heading = "Bounds"
    )]
    pub ready_timeout: Duration,
    /// How long to wait at most, before a measurement on keys that were written beforehand, until
    /// the servers of --server-pid are idle: all of them together use less than a tenth of a
    /// processor for a second. The result says how long that took
    #[arg(
        long,
        global = true,
        value_name = "TIME",
        default_value = "5m",
        value_parser = parse_duration,
        help_heading = "Bounds"
    )]
    pub settle_timeout: Duration,

    /// Start even if the members' disks may be too small for the run, or if a member's free space
    /// is unknown
    #[arg(long, global = true, help_heading = "Bounds")]
    pub ignore_space: bool,

    /// Where results go.
    #[command(flatten)]
    pub result: ResultOptions,
}

/// What is sent. A profile has its own answers to the first eight.
#[derive(Args, Clone, Debug)]
pub struct LoadOptions {
    /// TCP connections, shared evenly by the clients [default: 1]
    #[arg(long, global = true, value_name = "N", help_heading = "Load")]
    pub conns: Option<u32>,
    /// Clients, all at work at once, each with one request in flight; at least --conns [default: 1]
    #[arg(long, global = true, value_name = "N", help_heading = "Load")]
    pub clients: Option<u32>,
    /// Requests over all clients, exactly unless --at-least has them go on; at least --clients
    /// [default: 10000]
    #[arg(long, global = true, value_name = "N", help_heading = "Load")]
    pub total: Option<u64>,
    /// Go on for so long, such as 30s, where --total takes less; keys that are used up begin again
    #[arg(
        long,
        global = true,
        value_name = "TIME",
        value_parser = parse_duration,
        help_heading = "Load"
    )]
    pub at_least: Option<Duration>,
    /// Bytes of each key [default: 8]
    #[arg(long, global = true, value_name = "BYTES", help_heading = "Load")]
    pub key_size: Option<u32>,
    /// Bytes of each value, random [default: 256]
    #[arg(long, global = true, value_name = "BYTES", help_heading = "Load")]
    pub value_size: Option<u32>,
    /// Different keys; each request draws one at random (or the next, with --sequential-keys). 0:
    /// as many as --total, each used once before any is again, in random order [default: 0]
    #[arg(long, global = true, value_name = "N", help_heading = "Load")]
    pub key_space: Option<u64>,
    /// Where the keys lie: below PREFIX, each run in a folder of its own, which is deleted when the
    /// run has ended. So each key is longer by the folder's name. Folders of earlier runs that were
    /// killed go too. Empty: bare keys of --key-size at the root, as other tools write them, and
    /// nothing is deleted; only for a cluster that holds nothing else
    #[arg(
        long,
        global = true,
        value_name = "PREFIX",
        default_value = "dengine-bench/",
        value_parser = parse_key_prefix,
        help_heading = "Load"
    )]
    pub key_prefix: String,
    /// Use the keys in ascending order, not at random
    #[arg(long, global = true, help_heading = "Load")]
    pub sequential_keys: bool,
    /// Open loop: requests per second, scheduled at a fixed rate whether or not earlier ones were
    /// answered; latency counts from the scheduled time. Without it (closed loop), each client
    /// sends its next request when its last one was answered
    #[arg(
        long,
        global = true,
        value_name = "PER_SECOND",
        value_parser = parse_rate,
        help_heading = "Load"
    )]
    pub rate: Option<f64>,
    /// Seed of keys and values: the same seed sends the same requests
    #[arg(
        long,
        global = true,
        value_name = "N",
        default_value_t = 1,
        help_heading = "Load"
    )]
    pub seed: u64,
    /// Requests before the measurement, or how long they are sent, such as 5s; they do not count.
    /// Default: a twentieth of --total, and one per client at least
    #[arg(
        long,
        global = true,
        value_name = "N|TIME",
        value_parser = parse_warm_up,
        help_heading = "Load"
    )]
    pub warm_up: Option<WarmUp>,
    /// Number of repetitions. The one with the median throughput is the result, which also lists
    /// each repetition and the spread
    #[arg(
        long,
        global = true,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=100),
        help_heading = "Load"
    )]
    pub repeat: u32,
}

/// Pods, or processes anywhere, that send the load together.
#[derive(Args, Clone, Debug)]
pub struct PodOptions {
    /// Send the load from so many pods, each with its share of the clients and connections: all are
    /// started with the same flags, they begin together, and the first reports one result of all.
    /// Needs --first-pod and --pod-index
    #[arg(
        long,
        global = true,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(pods::MAX)),
        help_heading = "Pods"
    )]
    pub pods: u32,
    /// Which of them this one is; the first is 0
    #[arg(
        long,
        global = true,
        value_name = "N",
        env = "JOB_COMPLETION_INDEX",
        help_heading = "Pods"
    )]
    pub pod_index: Option<u32>,
    /// Where the first of them listens for the others
    #[arg(long, global = true, value_name = "HOST:PORT", help_heading = "Pods")]
    pub first_pod: Option<String>,
    /// How long they wait until all are there
    #[arg(
        long,
        global = true,
        value_name = "TIME",
        default_value = "10m",
        value_parser = parse_duration,
        help_heading = "Pods"
    )]
    pub join_timeout: Duration,
    /// How far apart they may begin: with more, the result does not count
    #[arg(
        long,
        global = true,
        value_name = "TIME",
        default_value = "250ms",
        value_parser = parse_duration,
        help_heading = "Pods"
    )]
    pub begin_within: Duration,
}

impl PodOptions {
    /// Which pod this is.
    #[must_use]
    pub fn index(&self) -> u32 {
        match self.pods {
            1 => 0,
            _ => self.pod_index.unwrap_or(0),
        }
    }

    /// Whether another one leads.
    #[must_use]
    pub fn follows(&self) -> bool {
        self.index() > 0
    }

    /// Where the first one listens.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        let (host, port) = self.first_pod.as_deref()?.rsplit_once(':')?;
        port.parse().ok().filter(|_| !host.is_empty())
    }
}

/// Where results go, and what they are called there.
#[derive(Args, Clone, Debug, Default)]
pub struct FileOptions {
    /// Write the result as JSON to a file, or to the standard output with `-` (the summary then
    /// goes to the standard error)
    #[arg(long, global = true, value_name = "FILE|-", help_heading = "Result")]
    pub json: Option<PathBuf>,
    /// Append one line of JSON for each workload to a file, which `compare` reads too; `-` is the
    /// standard output, as for --json
    #[arg(long, global = true, value_name = "FILE|-", help_heading = "Result")]
    pub jsonl: Option<PathBuf>,
    /// What is measured, such as "DEngine 1.2 on NVMe", for the record
    #[arg(long, global = true, value_name = "TEXT", help_heading = "Result")]
    pub system: Option<String>,
    /// Label of the setup in the result, such as "single" or "cluster"
    #[arg(long, global = true, value_name = "TEXT", help_heading = "Result")]
    pub scenario: Option<String>,
}

impl FileOptions {
    /// Whether one of them is the standard output, so that what is for people goes elsewhere.
    #[must_use]
    pub fn fill_the_output(&self) -> bool {
        let mut paths = [&self.json, &self.jsonl].into_iter().flatten();
        paths.any(|path| path == Path::new("-"))
    }
}

/// Where else they go, and where they come from.
#[derive(Args, Clone, Debug, Default)]
pub struct ResultOptions {
    /// Files.
    #[command(flatten)]
    pub files: FileOptions,
    /// Where in Kubernetes they go.
    #[cfg(feature = "kubernetes")]
    #[command(flatten)]
    pub post: PostOptions,
    /// Node that the load comes from, for the record
    #[arg(
        long,
        global = true,
        value_name = "NAME",
        env = "NODE_NAME",
        help_heading = "Result"
    )]
    pub node: Option<String>,
}

impl LoadOptions {
    /// A shape in which everything that was given replaces what was there.
    pub(super) fn replace(&self, mut shape: Shape) -> Shape {
        shape.clients = self.clients.unwrap_or(shape.clients);
        let carried = shape.clients.saturating_mul(shape.watches_each());
        shape.connections = match self.conns {
            Some(connections) => connections,
            None => shape.connections.min(carried),
        };
        shape.total = self.total.unwrap_or(shape.total);
        shape.at_least_seconds = match self.at_least {
            Some(time) => Some(time.as_secs_f64()),
            // Who says how many requests there are means so many, and at a rate they say how long.
            None if self.total.is_some() || self.rate.is_some() => None,
            None => shape.at_least_seconds,
        };
        shape.key_size = self.key_size.unwrap_or(shape.key_size);
        shape.value_size = self.value_size.unwrap_or(shape.value_size);
        shape.key_space = self.key_space.unwrap_or(shape.key_space);
        shape.sequential_keys |= self.sequential_keys;
        shape.rate = self.rate.or(shape.rate);
        shape
    }

    /// The same without the number of clients and connections.
    pub(super) fn replace_sizes(&self, shape: Shape) -> Shape {
        let sizes = LoadOptions {
            conns: None,
            clients: None,
            ..self.clone()
        };
        sizes.replace(shape)
    }

    /// What comes before the measurement of a workload.
    #[must_use]
    pub fn warm_up(&self, shape: &Shape) -> WarmUp {
        let default = || WarmUp::Requests((shape.total / 20).max(u64::from(shape.clients)));
        self.warm_up.unwrap_or_else(default)
    }

    /// The first flag that was given although a profile answers it.
    pub(super) fn given(&self) -> Option<&'static str> {
        let flags = [
            ("--conns", self.conns.is_some()),
            ("--clients", self.clients.is_some()),
            ("--total", self.total.is_some()),
            ("--at-least", self.at_least.is_some()),
            ("--key-size", self.key_size.is_some()),
            ("--value-size", self.value_size.is_some()),
            ("--key-space", self.key_space.is_some()),
            ("--sequential-keys", self.sequential_keys),
            ("--rate", self.rate.is_some()),
        ];
        flags
            .into_iter()
            .find_map(|(flag, given)| given.then_some(flag))
    }
}

impl Options {
    /// How calls travel, where the protocol has a choice.
    #[must_use]
    pub fn wire(&self) -> Option<Wire> {
        match (self.protocol, self.wire) {
            (ProtocolArg::Etcd | ProtocolArg::Floor, _) => None,
            (ProtocolArg::Echo, _) => Some(Wire::Unary),
            (ProtocolArg::Dengine, Some(WireArg::Unary)) => Some(Wire::Unary),
            (ProtocolArg::Dengine, Some(WireArg::Etcd)) => Some(Wire::Etcd),
            (ProtocolArg::Dengine, Some(WireArg::Pipelined) | None) => Some(Wire::Pipelined),
        }
    }

    /// Which system is measured, and how calls travel to it.
    #[must_use]
    pub fn access(&self) -> Access {
        Access {
            protocol: self.protocol.into(),
            wire: self.wire(),
        }
    }
}
