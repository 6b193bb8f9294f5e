//! What `dengine-bench` measured: one [`Report`] for a run of the tool, one [`RunResult`] for each
//! of its workloads. `--json` writes exactly this, a Job posts exactly this to `status.runs`, and
//! `compare` and `report` read it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Everything that one run of dengine-bench measured.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Label of the measured system, as given by `--system`, such as "etcd 3.6".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(length(max = 128)))]
    pub system: Option<String>,
    /// Label of the setup, as given by `--scenario`, such as "cluster".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(length(max = 128)))]
    pub scenario: Option<String>,
    /// The profile that names the workloads, if one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(length(max = 63)))]
    pub profile: Option<String>,
    /// The command line that measured this.
    #[cfg_attr(
        feature = "schemars",
        schemars(length(max = 64), inner(length(max = 1024)))
    )]
    pub command: Vec<String>,
    /// Where the load came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// Nodes of the pods that the load came from, in the order of the pods, if there were several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(
        feature = "schemars",
        schemars(length(max = 32), inner(length(max = 253)))
    )]
    pub nodes: Vec<String>,
    /// Memory of the servers before the first request, if they run on the same machine and were
    /// named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<IdleServers>,
    /// One for each workload, in the order in which they were measured.
    #[cfg_attr(feature = "schemars", schemars(length(max = 32)))]
    pub results: Vec<RunResult>,
    /// Keys that could not be deleted after the run, as text. A later run with the same prefix
    /// deletes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(length(max = 1024)))]
    pub left_over: Option<String>,
}

/// The machine that the load came from.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    /// CPU model, from /proc/cpuinfo.
    #[cfg_attr(feature = "schemars", schemars(length(max = 256)))]
    pub processor: String,
    /// Logical processors that the tool may use.
    pub processors: u32,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Name and version of the kernel.
    #[cfg_attr(feature = "schemars", schemars(length(max = 256)))]
    pub kernel: String,
}

/// Server processes before the load.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct IdleServers {
    /// How many there are.
    pub processes: u32,
    /// Resident memory of the one that has the most, without that of mapped files.
    pub resident_bytes_max: u64,
}

/// Result of one workload.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RunResult {
    /// Name of the workload; results of the same name are compared with each other.
    #[cfg_attr(feature = "schemars", schemars(length(max = 63)))]
    pub name: String,
    /// Wire protocol that was measured.
    pub protocol: Protocol,
    /// How calls travelled, if the protocol has a choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire: Option<Wire>,
    /// What was asked for.
    pub shape: Shape,
    /// Why the target cannot do this at all; nothing was sent then, and no other number counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(length(max = 1024)))]
    pub unsupported: Option<String>,
    /// Requests that were answered, failed ones included.
    pub requests: u64,
    /// Requests that failed. A result with failed requests does not count.
    pub errors: u64,
    /// The first failure, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(length(max = 1024)))]
    pub first_error: Option<String>,
    /// From the first request to the last answer.
    pub total_seconds: f64,
    /// Successful requests per second.
    pub ops_per_second: f64,
    /// Latency of the successful requests, in microseconds, from when each was wanted.
    pub latency_us: LatencyUs,
    /// The same as a curve, in ascending order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schemars", schemars(length(max = 64)))]
    pub curve: Vec<Quantile>,
    /// How far apart the repetitions lay, if there were any; the other numbers are those of the one
    /// with the median throughput.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread>,
    /// Each repetition, in the order in which they were measured, if there was more than one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schemars", schemars(length(max = 100)))]
    pub repetitions: Vec<Repetition>,
    /// CPU time of the load generator for one successful request, in microseconds; of all its pods
    /// together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_cpu_us: Option<f64>,
    /// The pods that sent the load together, if there were several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods: Option<Pods>,
    /// What the servers spent, if they run on the same machine and were named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers: Option<ServerUse>,
    /// How often the logs of all members were synced meanwhile (`fdatasync`), if the members ran
    /// inside the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_syncs: Option<u64>,
    /// Durability that the server reported, such as fsync.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(length(max = 32)))]
    pub durability: Option<String>,
    /// Version that the server reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(length(max = 64)))]
    pub engine_version: Option<String>,
    /// Version of dengine-bench.
    #[cfg_attr(feature = "schemars", schemars(length(max = 64)))]
    pub tool_version: String,
    /// When the first request was made, RFC 3339.
    #[cfg_attr(feature = "schemars", schemars(length(max = 40)))]
    pub started_at: String,
    /// When the last answer arrived, RFC 3339.
    #[cfg_attr(feature = "schemars", schemars(length(max = 40)))]
    pub finished_at: String,
    /// Raft's term before the first request, if the server tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term_before: Option<u64>,
    /// Raft's term after the last answer; another one means that the leader changed meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term_after: Option<u64>,
    /// Name of the member that led when the run ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(length(max = 63)))]
    pub leader: Option<String>,
    /// Names of the members when the run ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(
        feature = "schemars",
        schemars(length(max = 16), inner(length(max = 63)))
    )]
    pub members: Vec<String>,
    /// Whether all load went to the leader, instead of to every endpoint.
    pub target_leader: bool,
    /// Seed of keys and values: the same one sends the same requests.
    pub seed: u64,
    /// Requests before the first one that counts.
    pub warm_up: u64,
    /// How long these were sent, if a time was asked for instead of a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_up_seconds: Option<f64>,
    /// How the keys that the workload reads were written beforehand; not part of the other numbers.
    /// Absent if they were there already, from a workload before this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preload: Option<Preload>,
    /// How long the servers were given to finish what earlier writes left them to do, if they run
    /// on the same machine and were named. Not part of the other numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settling: Option<Settling>,
    /// How often all keys were listed meanwhile, and how long that took, in a list workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listing: Option<Listing>,
    /// Node that the load came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(length(max = 253)))]
    pub node: Option<String>,
}

impl RunResult {
    /// Whether the cluster was led by one leader from the first request to the last answer, as far
    /// as the server told.
    pub fn leader_was_stable(&self) -> bool {
        self.term_before == self.term_after
    }
}

/// The pods that sent a load together.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Pods {
    /// How many the run has.
    pub count: u32,
    /// How many of them sent this workload: one of fewer connections than pods comes from fewer.
    pub loading: u32,
    /// The last of these began at most so long after the first, in microseconds.
    pub began_within_us: u64,
    /// Why the numbers do not count: which pod was late or lost, and what to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(length(max = 1024)))]
    pub trouble: Option<String>,
}

/// The key space that was filled before a run.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Preload {
    /// Keys that were written, one request each.
    pub keys: u64,
    /// Time that it took.
    pub total_seconds: f64,
}

/// A wait before a measurement on keys that were written beforehand: stores merge in the
/// background what they were sent, and that is not what is measured.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Settling {
    /// Time that it took.
    pub total_seconds: f64,
    /// Whether the servers were idle in the end; if not, the wait was given up.
    pub idle: bool,
}

/// Lists of all keys beside a load, each of them page by page at one revision.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Listing {
    /// Keys of each list.
    pub keys: u64,
    /// Lists that came to their end, of all clients that list.
    pub lists: u64,
    /// Mean time of one.
    pub seconds_avg: f64,
    /// Longest time of one.
    pub seconds_max: f64,
}

/// Repetitions of one workload.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Spread {
    /// How often it was measured.
    pub runs: u32,
    /// Throughput of the slowest.
    pub ops_per_second_min: f64,
    /// Throughput of the fastest.
    pub ops_per_second_max: f64,
    /// Lowest 99th percentile, in microseconds.
    pub p99_us_min: u64,
    /// Highest 99th percentile, in microseconds.
    pub p99_us_max: u64,
}

/// One of several measurements of the same workload.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Repetition {
    /// When its first request was made, RFC 3339.
    #[cfg_attr(feature = "schemars", schemars(length(max = 40)))]
    pub started_at: String,
    /// From the first request to the last answer.
    pub total_seconds: f64,
    /// Successful requests per second.
    pub ops_per_second: f64,
    /// Latency of the successful requests, in microseconds, from when each was wanted.
    pub latency_us: LatencyUs,
    /// CPU time of the load generator for one successful request, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_cpu_us: Option<f64>,
    /// What the servers spent, if they run on the same machine and were named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers: Option<ServerUse>,
    /// How often the logs of all members were synced meanwhile, if the members ran inside the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_syncs: Option<u64>,
}

impl Repetition {
    /// The part of a result that differs from one repetition to the next.
    #[must_use]
    pub fn of(result: &RunResult) -> Self {
        Self {
            started_at: result.started_at.clone(),
            total_seconds: result.total_seconds,
            ops_per_second: result.ops_per_second,
            latency_us: result.latency_us,
            client_cpu_us: result.client_cpu_us,
            servers: result.servers,
            log_syncs: result.log_syncs,
        }
    }
}

/// What server processes spent on one workload, all of them together.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ServerUse {
    /// How many processes there are.
    pub processes: u32,
    /// CPU time (user and system) of all of them for one successful request, in microseconds.
    pub cpu_us: f64,
    /// Peak resident memory of one process during the workload, without mapped files.
    pub resident_bytes_max: u64,
}

/// Wire protocol of a run.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// DEngine's own.
    Dengine,
    /// etcd's v3 API.
    Etcd,
    /// No system, but what the machine does at best for a lone write. No custom resource has it.
    #[cfg_attr(feature = "schemars", schemars(skip))]
    Floor,
    /// No system, but a server of DEngine's own protocol that only echoes. No custom resource has
    /// it.
    #[cfg_attr(feature = "schemars", schemars(skip))]
    Echo,
}

impl Protocol {
    /// As the tool's flag spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dengine => "dengine",
            Self::Etcd => "etcd",
            Self::Floor => "floor",
            Self::Echo => "echo",
        }
    }

    /// Whether it is what the machine does at best, with no keys behind it.
    #[must_use]
    pub fn is_bound(self) -> bool {
        match self {
            Self::Dengine | Self::Etcd => false,
            Self::Floor | Self::Echo => true,
        }
    }
}

/// How calls travel to DEngine.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Wire {
    /// All calls of a connection share one stream, as DEngine's client makes them unless told
    /// otherwise.
    #[default]
    Pipelined,
    /// Each call is a request of its own, as with any gRPC client.
    Unary,
    /// The same in etcd's API, made by the very client that loads etcd.
    Etcd,
}

impl Wire {
    /// As the tool's flag spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pipelined => "pipelined",
            Self::Unary => "unary",
            Self::Etcd => "etcd",
        }
    }
}

/// What a run does.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// Writes.
    Put,
    /// Reads of one key each.
    Range,
    /// Reads and writes of one key each, drawn at random.
    Mixed,
    /// Writes, each timed until every watch of its key has received the event.
    Watch,
    /// Writes of each client's own key, each only if its last write is still the key's last.
    Swap,
    /// Writes at the leader, each timed until a follower has shown it: to a watch, and, where the
    /// system has them, to a session read.
    Seen,
    /// Writes on a filled key space, beside clients that list all of it, page by page.
    List,
    /// Reads of many keys in a row with their values, page by page at one revision.
    Scan,
}

impl Workload {
    /// As results spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Range => "range",
            Self::Mixed => "mixed",
            Self::Watch => "watch",
            Self::Swap => "swap",
            Self::Seen => "seen",
            Self::List => "list",
            Self::Scan => "scan",
        }
    }
}

/// How fresh reads are, in the tool's letters.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub enum ReadConsistency {
    /// Linearizable.
    #[serde(rename = "l")]
    Linearizable,
    /// As fresh as linearizable, by the leader's lease; etcd has none.
    #[serde(rename = "s")]
    Lease,
    /// Eventual; etcd calls it serializable.
    #[serde(rename = "e")]
    Eventual,
}

impl ReadConsistency {
    /// As the tool's flag spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Linearizable => "l",
            Self::Lease => "s",
            Self::Eventual => "e",
        }
    }

    /// As people say it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Linearizable => "linearizable",
            Self::Lease => "lease",
            Self::Eventual => "eventual",
        }
    }
}

/// What a run was asked to do.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Shape {
    /// Writes, reads, or both.
    pub workload: Workload,
    /// Of the reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consistency: Option<ReadConsistency>,
    /// Connections that the clients shared.
    pub connections: u32,
    /// Clients, each with one request in flight.
    pub clients: u32,
    /// Requests over all clients; more, if `at_least_seconds` had them go on.
    pub total: u64,
    /// For so long requests go on where `total` takes less; absent where they do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least_seconds: Option<f64>,
    /// Bytes of each key, without the prefix of the run.
    pub key_size: u32,
    /// Bytes of the run's prefix, which precedes each key.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub key_folder_size: u32,
    /// Bytes of each value.
    pub value_size: u32,
    /// Different keys; 0 means as many as requests.
    pub key_space: u64,
    /// Keys in ascending order instead of random ones.
    pub sequential_keys: bool,
    /// Share of reads in a mixed workload, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_percent: Option<u32>,
    /// Watches of each client's key in a watch workload; absent for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watchers: Option<u32>,
    /// Clients that list every key, over and over, beside those that write, in a list workload;
    /// absent for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listers: Option<u32>,
    /// Keys that each request of a scan workload reads; absent for all there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scan_keys: Option<u32>,
    /// Requests that are wanted in each second, over all clients, whether or not earlier ones were
    /// answered. Without it each client wants its next one when its last one was answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
}

impl Shape {
    /// For how long requests go on where [`total`](Self::total) takes less.
    #[must_use]
    pub fn at_least(&self) -> Option<Duration> {
        self.at_least_seconds.map(Duration::from_secs_f64)
    }

    /// Watches of each client's key; they matter to watch workloads alone.
    #[must_use]
    pub fn watches_each(&self) -> u32 {
        self.watchers.unwrap_or(1)
    }

    /// Clients that list every key beside those that send the requests.
    #[must_use]
    pub fn listers_beside(&self) -> u32 {
        match self.workload {
            Workload::List => self.listers.unwrap_or(1),
            Workload::Put
            | Workload::Range
            | Workload::Mixed
            | Workload::Watch
            | Workload::Swap
            | Workload::Seen
            | Workload::Scan => 0,
        }
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "what serde calls it with"
)]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Latencies in microseconds.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct LatencyUs {
    /// Mean.
    pub avg: f64,
    /// Shortest.
    pub min: u64,
    /// Longest.
    pub max: u64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
}

/// A point of the latency curve: this percentage of the requests took at most this long.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Quantile {
    /// From 0 to 100.
    pub percentile: f64,
    /// Latency in microseconds.
    pub us: u64,
}
