//! `DEngineCluster`: a cluster of DEngine members, its spec and its status.
#![expect(
    unreachable_pub,
    reason = "KubeSchema repeats each struct inside a function"
)]

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::benchmark::BenchmarkPhase;
use crate::common::{ImagePullPolicy, LocalRef, QUANTITY_PATTERN, Resources, Scheduling};

/// Members that a cluster may have; more voters make every write slower and add little safety.
pub const REPLICAS_MAX: u32 = 7;

/// Spec of a cluster.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "dengine.io",
    version = "v1alpha1",
    kind = "DEngineCluster",
    plural = "dengineclusters",
    shortname = "dec",
    category = "dengine",
    namespaced,
    status = "DEngineClusterStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A strongly consistent key-value store of one to seven members.",
    annotation("helm.sh/resource-policy", "keep"),
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.ready",
        description = "Serving members of the members asked for"
    ),
    printcolumn(name = "Leader", type_ = "string", json_path = ".status.leader"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Term", type_ = "string", json_path = ".status.term", priority = 1),
    printcolumn(name = "Cluster-Id", type_ = "string", json_path = ".status.clusterId",
                priority = 1),
    validation = Rule::new("size(self.metadata.name) <= 52")
        .message("metadata.name must be no more than 52 characters, so that the names made from it \
            stay valid"),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message("metadata.name must start with a letter and contain only lower-case letters, \
            digits and '-', because Services are named after it")
)]
#[serde(rename_all = "camelCase")]
pub struct DEngineClusterSpec {
    /// Number of voting members: 1, 3, 5 or 7.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 1, max = 7))]
    #[x_kube(validation = Rule::new("self % 2 == 1")
        .message("replicas must be odd: one more member than an odd number raises the quorum and \
            tolerates no more failures"))]
    pub replicas: u32,
    /// Image of the server. Default: the operator's default when the cluster was created
    /// (`status.defaultImage`); upgrading the operator does not change it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,
    /// When the image is pulled. Default: what Kubernetes does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// Secrets with credentials of the image's registry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub image_pull_secrets: Vec<LocalRef>,
    /// The volume of each member.
    #[serde(default)]
    pub storage: Storage,
    /// CPU and memory of each member.
    #[serde(default)]
    pub resources: Resources,
    /// Settings of the engine, the same for every member.
    #[serde(default)]
    pub engine: Engine,
    /// Traces of single writes, for OpenTelemetry. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracing: Option<Tracing>,
    /// etcd's v3 API at port 2379, beside the engine's own. Default: not served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<Etcd>,
    /// Where the members may run.
    #[serde(default)]
    pub scheduling: Scheduling,
    /// Stops the operator from changing anything; it still reports the status.
    #[serde(default)]
    pub paused: bool,
}

fn default_replicas() -> u32 {
    3
}

/// The volume of each member.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.storageClassName) == has(oldSelf.storageClassName) && \
    (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)")
    .message("storageClassName cannot be changed: volumes never move between classes"))]
pub struct Storage {
    /// Size of each volume. It may grow if the storage class allows it. Volumes never shrink: after
    /// the size is lowered again, volumes that have grown keep their size and the others stop
    /// growing.
    #[serde(default = "default_size")]
    #[schemars(length(min = 1, max = 32), regex(pattern = *QUANTITY_PATTERN))]
    #[x_kube(validation = Rule::new("isQuantity(self) && \
        quantity(self).compareTo(quantity('512Mi')) >= 0")
        .message("size must be a quantity of at least 512Mi, such as 1Gi"))]
    pub size: String,
    /// Storage class of the volumes. Default: the Kubernetes cluster's default class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,
}

impl Default for Storage {
    fn default() -> Self {
        Self {
            size: default_size(),
            storage_class_name: None,
        }
    }
}

fn default_size() -> String {
    "1Gi".to_owned()
}

/// Settings of the engine.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.maxKeyBytes <= self.maxValueBytes")
    .message("maxKeyBytes must not exceed maxValueBytes"))]
pub struct Engine {
    /// When a write is acknowledged. fsync: once it is on disk at a majority. memory-first: once a
    /// majority has written it, before it is synced to their disks.
    #[serde(default = "default_durability")]
    pub durability: Durability,
    /// Length of a tick, the unit of the engine's timers.
    #[serde(default = "default_tick_ms")]
    #[schemars(range(min = 10, max = 5000))]
    pub tick_ms: u32,
    /// Ticks without a leader after which a member starts an election. A lower number detects a
    /// failed leader sooner, and more often mistakes a slow disk or network for a failure.
    #[serde(default = "default_election_ticks")]
    #[schemars(range(min = 5, max = 100))]
    pub election_ticks: u32,
    /// Longest key.
    #[serde(default = "default_max_key_bytes")]
    #[schemars(range(min = 1, max = 65_536))]
    pub max_key_bytes: u32,
    /// Longest value. The limit is there because two of the largest writes have to fit into one
    /// batch of the log.
    #[serde(default = "default_max_value_bytes")]
    #[schemars(range(min = 1, max = 2_000_000))]
    pub max_value_bytes: u32,
    /// How much history is kept for reads of the past and for watches. Of the two bounds the one
    /// that keeps more applies; one that is not set is the server's default: 100000 revisions and
    /// 300 seconds. At most as much is kept as was written with a quarter of the volume. With 0 for
    /// both, history is kept until a client compacts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
    /// How much the members log.
    #[serde(default = "default_log_level")]
    pub log_level: LogLevel,
    /// Requests that take this many milliseconds or longer are logged; 0 for none. Default: the
    /// server's, 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3_600_000))]
    pub slow_request_ms: Option<u32>,
    /// Milliseconds from which on a leader's disk may count as slow, so that it hands over to a
    /// member whose disk is three times as fast; 0: it never does. Default: the server's, 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3_600_000))]
    pub slow_disk_ms: Option<u32>,
    /// Memory of each member for caching blocks of the state's files, with their indexes and
    /// filters, in bytes. It fills up soon, so the memory limit must have room for it. Default: the
    /// server's, 64 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1_048_576, max = 274_877_906_944_i64))]
    pub state_block_cache_bytes: Option<u64>,
    /// Memory of each member for the newest state of keys changed or read lately, in bytes; 0 for
    /// none. Writes of such keys, and reads of those with values of at most 512 bytes, look into no
    /// file. With many keys it fills up, so the memory limit must have room for it. Default: the
    /// server's, a fifth of the memory limit (or of the node's memory, if there is none), and at
    /// least 48 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 274_877_906_944_i64))]
    pub state_key_cache_bytes: Option<u64>,
    /// Size of a write buffer (memtable) of a member, in bytes; up to three exist. Smaller ones
    /// make many files to merge, larger ones take longer to write. Default: the server's, 16 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1_048_576, max = 1_073_741_824))]
    pub state_write_buffer_bytes: Option<u64>,
}

/// How much history is kept: what neither bound keeps is compacted.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.revisions) || has(self.seconds)")
    .message("retention must have revisions, seconds or both"))]
pub struct Retention {
    /// Keeps this many of the newest revisions; 0 for no such bound. Each takes the space of the
    /// values that it changed. Default: the server's, 100000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000_000_000_i64))]
    pub revisions: Option<u64>,
    /// Keeps the revisions of this many seconds; 0 for no such bound. Default: the server's, 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub seconds: Option<u64>,
}

/// Where the members send traces of writes, and of how many.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Tracing {
    /// A collector that takes OTLP over gRPC without TLS, as `http://collector.monitoring:4317`.
    #[schemars(length(min = 1, max = 512))]
    #[x_kube(validation = Rule::new(COLLECTOR_RULE)
        .message("endpoint must be http://HOST:PORT, such as http://collector.monitoring:4317"))]
    pub endpoint: String,
    /// Part of the writes that are traced, 0 to 1. A call that says by its `traceparent` whether it
    /// is sampled is traced if it is, whatever this says. Default: the server's, 0.001.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub sample_ratio: Option<f64>,
}

/// etcd's v3 API at port 2379 of the members and of the Service `NAME-client`: the same keys, for
/// clients of etcd. Without TLS and authentication, as the engine's own.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Etcd {
    /// Whether the members serve it. To change it restarts them, one at a time. While it is served
    /// and `engine.retention` is not set, history is kept until a client compacts it, as in etcd.
    #[serde(default)]
    pub enabled: bool,
}

/// As strict as the members, which would not start.
const COLLECTOR_RULE: &str = "self.matches('^http://([-a-zA-Z0-9.]+|\\\\[[0-9a-fA-F:]+\\\\]):\
    ([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])/?$')";

impl Default for Engine {
    fn default() -> Self {
        Self {
            durability: default_durability(),
            tick_ms: default_tick_ms(),
            election_ticks: default_election_ticks(),
            max_key_bytes: default_max_key_bytes(),
            max_value_bytes: default_max_value_bytes(),
            retention: None,
            log_level: default_log_level(),
            slow_request_ms: None,
            slow_disk_ms: None,
            state_block_cache_bytes: None,
            state_key_cache_bytes: None,
            state_write_buffer_bytes: None,
        }
    }
}

fn default_durability() -> Durability {
    Durability::Fsync
}

fn default_tick_ms() -> u32 {
    100
}

fn default_election_ticks() -> u32 {
    10
}

fn default_max_key_bytes() -> u32 {
    32_768
}

fn default_max_value_bytes() -> u32 {
    1_572_864
}

fn default_log_level() -> LogLevel {
    LogLevel::Info
}

/// When a write is acknowledged.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// Once it is on disk at a majority.
    Fsync,
    /// Once a majority has written it, before it is synced to their disks: it survives killed pods,
    /// but not a power loss of a majority of the nodes.
    MemoryFirst,
}

impl Durability {
    /// As the server's flag spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fsync => "fsync",
            Self::MemoryFirst => "memory-first",
        }
    }
}

/// How much the members log.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Only failures.
    Error,
    /// Also warnings.
    Warn,
    /// Also rare events.
    Info,
    /// Also frequent events.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// As the server's flag spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// Status of a cluster. Written by the operator alone.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct DEngineClusterStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// One word for people, derived from the conditions.
    #[serde(
        deserialize_with = "crate::common::known",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub phase: Option<ClusterPhase>,
    /// Conditions, for programs and alerts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Id of the cluster, decimal. Recorded before any member gets it, never changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 20))]
    pub cluster_id: Option<String>,
    /// Id of the data directory that becomes the first voter; no other one is bootstrapped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub seed_folder_id: Option<String>,
    /// The operator that manages the cluster: `NAMESPACE/NAME` of its release. It records itself
    /// before it changes anything. The StatefulSet names the operator too; this field applies while
    /// there is no StatefulSet, as when it is recreated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub operator: Option<String>,
    /// Name of the leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub leader: Option<String>,
    /// Raft's term, decimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 20))]
    pub term: Option<String>,
    /// Version of the server program; the lowest while members differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub version: Option<String>,
    /// Highest version that every member has run: an older version, or one that skips a version, is
    /// refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub cluster_version: Option<String>,
    /// The image that members run while `spec.image` is not set: the operator's default when the
    /// cluster was created. It never changes by itself, so upgrading the operator restarts no
    /// member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub default_image: Option<String>,
    /// Serving members and wanted members, such as 3/3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub ready: Option<String>,
    /// The cluster's member list, as its leader sees it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["id".into()]))]
    pub members: Vec<MemberStatus>,
    /// Members whose server did not run and that were replaced with an empty volume. The next
    /// replacement of the same member waits longer each time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub replacements: Vec<Replacement>,
    /// Label selector of the members' pods, for the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub selector: Option<String>,
    /// Pods of the cluster, for the scale subresource.
    #[serde(default)]
    pub replicas: u32,
    /// Voters that are caught up and serve.
    #[serde(default)]
    pub ready_replicas: u32,
    /// The newest result of each benchmark of this cluster, one line each.
    #[serde(
        deserialize_with = "crate::common::known_items",
        default,
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub benchmarks: Vec<BenchmarkLine>,
}

/// One word for the state of a cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterPhase {
    /// Pods are not running yet.
    Pending,
    /// The first members get their identity.
    Bootstrapping,
    /// As the spec asks.
    Ready,
    /// Serves, while the operator works towards the spec.
    Updating,
    /// Serves with fewer members than the spec asks for.
    Degraded,
    /// Has no quorum and does not serve.
    Unavailable,
    /// `spec.paused` is set.
    Paused,
    /// The spec cannot be carried out; the conditions say why.
    Invalid,
}

impl fmt::Display for ClusterPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// One member, as the leader sees it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MemberStatus {
    /// Raft id of the member, decimal; never reused after its removal.
    #[schemars(length(min = 1, max = 20))]
    pub id: String,
    /// Name of the member and of its pod.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Role of the member.
    #[serde(deserialize_with = "crate::common::known_or_default")]
    pub role: MemberRole,
    /// How far it is behind the leader. Coarse: exact numbers would change the status all the time.
    #[serde(deserialize_with = "crate::common::known_or_default")]
    pub lag: Lag,
    /// Its pod reports the identity that the member list has, and the leader receives its answers.
    pub healthy: bool,
    /// Version of its server program; absent while it does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub version: Option<String>,
}

/// The newest replacement of a member whose server did not run. Recorded before its data is given
/// up.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Replacement {
    /// Name of the member and of its pod.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Raft id of the replaced member, decimal.
    #[schemars(length(min = 1, max = 20))]
    pub member_id: String,
    /// Number of replacements with less than a week between two of them.
    #[schemars(range(min = 1, max = 2_147_483_647_i64))]
    pub times: u32,
    /// Time of the replacement.
    pub at: Time,
    /// PersistentVolume of the replaced member. Its reclaim policy is Retain until the replacement
    /// votes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub kept_volume: Option<String>,
    /// Why the old volume could not be kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub not_kept: Option<String>,
}

/// Role of a member.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemberRole {
    /// Leads, and orders the writes.
    Leader,
    /// Votes and follows.
    #[default]
    Follower,
    /// Receives the log and does not vote.
    Learner,
}

/// How far a member is behind the leader.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lag {
    /// Less than about a second of a busy log.
    CaughtUp,
    /// Behind, but catching up with the log.
    Behind,
    /// Far behind.
    FarBehind,
    /// There is no leader to report it.
    #[default]
    Unknown,
}

/// The newest run of one benchmark of the cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BenchmarkLine {
    /// Name of the DEngineBenchmark.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// What was measured: a profile, or a workload.
    #[serde(default)]
    #[schemars(length(max = 63))]
    pub measures: String,
    /// How it ended, or its current phase.
    pub phase: BenchmarkPhase,
    /// Id of the run.
    #[schemars(length(max = 64))]
    pub run_id: String,
    /// Requests per second, rounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ops_per_second: Option<i64>,
    /// 99th percentile of the latency, with its unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub p99: Option<String>,
    /// Connections, clients and sizes in short.
    #[schemars(length(max = 128))]
    pub shape: String,
    /// Workloads won against the etcd beside it, such as `won 5 of 6`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub score: Option<String>,
    /// Durability under which it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub durability: Option<String>,
    /// When the run ended, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    pub finished_at: Option<String>,
}
