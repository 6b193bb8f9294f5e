//! `DEngineBenchmark`: a load Job against a cluster. What it measured is in
//! [`dengine_bench_model::results`].
#![expect(
    unreachable_pub,
    reason = "KubeSchema repeats each struct inside a function"
)]

use std::collections::BTreeMap;
use std::fmt;

use dengine_bench_model::pods;
use dengine_bench_model::results::{ReadConsistency, Report, Wire, Workload};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::{ImagePullPolicy, LocalRef, Resources, Scheduling};

/// All fields that change the numbers. Those that say when to run, how to judge the result and what
/// to keep may change at any time.
const MEASURED_STAYS: &str = "self.runId != oldSelf.runId || (self.target == oldSelf.target \
    && (has(self.image) ? has(oldSelf.image) \
    && self.image == oldSelf.image : !has(oldSelf.image)) \
    && (has(self.profile) ? has(oldSelf.profile) \
    && self.profile == oldSelf.profile : !has(oldSelf.profile)) \
    && (has(self.workload) ? has(oldSelf.workload) \
    && self.workload == oldSelf.workload : !has(oldSelf.workload)) \
    && (has(self.compareWith) ? has(oldSelf.compareWith) \
    && self.compareWith == oldSelf.compareWith : !has(oldSelf.compareWith)) \
    && (has(self.consistency) ? has(oldSelf.consistency) \
    && self.consistency == oldSelf.consistency : !has(oldSelf.consistency)) \
    && (has(self.readPercent) ? has(oldSelf.readPercent) \
    && self.readPercent == oldSelf.readPercent : !has(oldSelf.readPercent)) \
    && (has(self.watchers) ? has(oldSelf.watchers) \
    && self.watchers == oldSelf.watchers : !has(oldSelf.watchers)) \
    && (has(self.wire) ? has(oldSelf.wire) \
    && self.wire == oldSelf.wire : !has(oldSelf.wire)) \
    && (has(self.keyPrefix) ? has(oldSelf.keyPrefix) \
    && self.keyPrefix == oldSelf.keyPrefix : !has(oldSelf.keyPrefix)) \
    && self.pods == oldSelf.pods \
    && self.connections == oldSelf.connections \
    && self.clients == oldSelf.clients \
    && self.total == oldSelf.total \
    && (has(self.atLeastSeconds) ? has(oldSelf.atLeastSeconds) \
    && self.atLeastSeconds == oldSelf.atLeastSeconds : !has(oldSelf.atLeastSeconds)) \
    && self.keySize == oldSelf.keySize \
    && self.valueSize == oldSelf.valueSize \
    && self.keySpace == oldSelf.keySpace \
    && self.sequentialKeys == oldSelf.sequentialKeys \
    && self.scheduling == oldSelf.scheduling)";

/// What to measure.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "dengine.io",
    version = "v1alpha1",
    kind = "DEngineBenchmark",
    plural = "denginebenchmarks",
    shortname = "deb",
    category = "dengine",
    namespaced,
    status = "DEngineBenchmarkStatus",
    derive = "PartialEq",
    doc = "A load run inside the Kubernetes cluster, with its result in the status.",
    annotation("helm.sh/resource-policy", "keep"),
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.target.clusterRef.name"),
    printcolumn(name = "Measures", type_ = "string", json_path = ".status.measures"),
    printcolumn(name = "Verdict", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Ops/s",
        type_ = "integer",
        json_path = ".status.opsPerSecond",
        description = "Requests per second of the newest finished run"
    ),
    printcolumn(
        name = "P99",
        type_ = "string",
        json_path = ".status.p99",
        description = "99th percentile of the latency, from the scheduled start of the operation"
    ),
    printcolumn(
        name = "Vs-etcd",
        type_ = "string",
        json_path = ".status.score",
        description = "Workloads won of those that both measured"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Schedule", type_ = "string", json_path = ".spec.schedule", priority = 1),
    printcolumn(name = "Suspend", type_ = "boolean", json_path = ".spec.suspend", priority = 1),
    printcolumn(name = "Run", type_ = "string", json_path = ".status.runId", priority = 1),
    printcolumn(name = "Pods", type_ = "integer", json_path = ".spec.pods", priority = 1,
                description = "Pods that send the load together"),
    printcolumn(name = "Placement", type_ = "string", json_path = ".status.placement",
                priority = 1),
    printcolumn(name = "Durability", type_ = "string", json_path = ".status.durability",
                priority = 1),
    validation = Rule::new("size(self.metadata.name) <= 52")
        .message("metadata.name must be no more than 52 characters, so that the names made from it \
            stay valid"),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message("metadata.name must start with a letter and contain only lower-case letters, \
            digits and '-', because Jobs are named after it"),
    validation = Rule::new("size(self.metadata.name) <= 51 || self.spec.pods <= 10")
        .message("metadata.name must be no more than 51 characters for more than 10 pods, so that \
            the names of the pods stay valid")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.workload) != has(self.profile)")
    .message("the spec must have exactly one of workload and profile"))]
#[x_kube(validation = Rule::new("(has(self.workload) && self.workload in ['range', 'mixed']) || \
    !has(self.consistency)")
    .message("consistency applies only to the workloads range and mixed"))]
#[x_kube(validation = Rule::new("(has(self.workload) && self.workload == 'mixed') || \
    !has(self.readPercent)")
    .message("readPercent applies only to the workload mixed"))]
#[x_kube(validation = Rule::new("(has(self.workload) && self.workload == 'watch') || \
    !has(self.watchers)")
    .message("watchers applies only to the workload watch"))]
#[x_kube(validation = Rule::new("!has(self.compareWith) || has(self.target.clusterRef)")
    .message("compareWith needs a target.clusterRef: it compares one DEngineCluster with one \
        etcd"))]
#[x_kube(validation = Rule::new("!has(self.wire) || has(self.target.clusterRef)")
    .message("wire needs a target.clusterRef: an etcd is loaded in its own API"))]
#[x_kube(validation = Rule::new("!has(self.wire) || self.wire != 'etcd' || \
    !has(self.consistency) || self.consistency != 's'")
    .message("consistency s excludes wire etcd: etcd's API has no lease reads"))]
#[x_kube(validation = Rule::new("!has(self.schedule) || !has(self.ttlSecondsAfterFinished)")
    .message("schedule and ttlSecondsAfterFinished exclude each other: what runs again is not \
        deleted"))]
#[x_kube(validation = Rule::new("self.clients * (has(self.watchers) ? self.watchers : 1) >= \
    self.connections")
    .message("clients must be at least connections: a connection without a client carries \
        nothing"))]
#[x_kube(validation = Rule::new("self.pods == 1 || !has(self.workload) || \
    (self.pods <= self.connections && self.connections <= self.clients)")
    .message("with several pods, pods must be at most connections and connections at most clients: \
        each pod has a connection of its own, and each connection a client"))]
#[x_kube(validation = Rule::new("self.pods == 1 || !has(self.workload) || \
    !(self.workload in ['seen', 'list'])")
    .message("the workloads seen and list come from one pod"))]
#[x_kube(validation = Rule::new("!has(self.watchers) || self.clients * self.watchers <= 100000")
    .message("clients times watchers must be at most 100000"))]
#[x_kube(validation = Rule::new("self.total >= self.clients")
    .message("total must be at least clients: a client without a request measures nothing"))]
#[x_kube(validation = Rule::new("!has(self.atLeastSeconds) || \
    (has(self.workload) && self.workload != 'list')")
    .message("atLeastSeconds is for one workload, and not for list, whose rate says how long it \
        takes: a profile has its own"))]
#[x_kube(validation = Rule::new("!has(self.atLeastSeconds) || \
    self.atLeastSeconds < self.timeoutSeconds")
    .message("atLeastSeconds must be less than timeoutSeconds, after which the run is stopped"))]
#[x_kube(validation = Rule::new(MEASURED_STAYS)
    .message("what is measured changes only together with runId, so that a result always belongs \
        to the spec it was measured with"))]
pub struct DEngineBenchmarkSpec {
    /// What is measured: exactly one of its fields.
    pub target: Target,
    /// How calls travel to the cluster: pipelined (the default), unary, or etcd, which is etcd's
    /// API and needs the cluster's `spec.etcd.enabled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire: Option<Wire>,
    /// Image of dengine-bench. Default: the one that the operator was installed with.
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
    /// Workloads that are measured one after the other, each with its own parameters;
    /// `dengine-bench run --list` shows them. Either this or `workload` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z][a-z0-9-]*$"))]
    pub profile: Option<String>,
    /// One workload with the parameters below: put writes keys, range reads them one at a time,
    /// mixed does both, watch receives the events of its own writes, swap writes each client's own
    /// key by its revision, as holders of a Lease of Kubernetes do, seen writes at the leader until
    /// a follower shows it, list writes while a client lists all keys, a million unless `keySpace`
    /// says otherwise, scan lists all keys with each request, 100,000 unless `keySpace` says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Workload>,
    /// An etcd that is measured right after the cluster, by the same tool in the same place with
    /// the same load. The status then shows which one won each workload, and by how much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compare_with: Option<CompareWith>,
    /// Thresholds that the run has to meet, as `[WORKLOAD.]METRIC OPERATOR VALUE`, such as `p99 <
    /// 5ms` or `write.timesEtcd >= 4`. Metrics: opsPerSecond, errors, timesEtcd; and, with a unit
    /// (us, ms, s), avg, p50, p90, p99, p999, max.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 128), regex(pattern = *THRESHOLD_PATTERN)))]
    pub thresholds: Vec<String>,
    /// Also runs on a schedule: a cron expression of five fields, such as `0 3 * * *`, in UTC or in
    /// `timeZone`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 9, max = 64), regex(pattern = *SCHEDULE_PATTERN))]
    pub schedule: Option<String>,
    /// Time zone of the schedule, such as Europe/Berlin. Default: UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 64),
        regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9_+/-]*$")
    )]
    pub time_zone: Option<String>,
    /// How late a scheduled run may start if its time passed while the target was busy or not
    /// ready, another run was in progress, or the operator was down. A later one is skipped.
    #[serde(default = "default_starting_deadline_seconds")]
    #[schemars(range(min = 10, max = 86_400))]
    pub starting_deadline_seconds: u32,
    /// What a scheduled run does while the previous run is in progress: Forbid (the default) waits
    /// for its end, for up to `startingDeadlineSeconds`; Replace cancels the previous run, which
    /// then counts as failed.
    #[serde(default)]
    pub concurrency_policy: ConcurrencyPolicy,
    /// Starts no run, neither by the schedule nor by `runId`. A run in progress continues.
    #[serde(default)]
    pub suspend: bool,
    /// How many results of earlier runs the status keeps.
    #[serde(default = "default_runs_history_limit")]
    #[schemars(range(min = 1, max = RUNS_HISTORY_MAX))]
    pub runs_history_limit: u32,
    /// Deletes this resource this long after its run ended. Cannot be combined with a schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub ttl_seconds_after_finished: Option<u32>,
    /// Consistency of the reads of the workloads range and mixed: l (linearizable, the default), s
    /// (lease) or e (eventual).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consistency: Option<ReadConsistency>,
    /// How many percent of the workload mixed are reads; the others are writes. Default: 80.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub read_percent: Option<u32>,
    /// Number of watches on each client's key in the workload watch: a write is complete when every
    /// watch has received its event. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub watchers: Option<u32>,
    /// Pods that send the load together, each its share of the clients and connections, with one
    /// result. A workload of fewer connections than pods, as of one client, comes from fewer of
    /// them. If one of them begins late or is lost, the run is Invalid.
    #[serde(default = "default_pods")]
    #[schemars(range(min = 1, max = pods::MAX))]
    pub pods: u32,
    /// Connections that the clients share.
    #[serde(default = "default_connections")]
    #[schemars(range(min = 1, max = 10_000))]
    pub connections: u32,
    /// Clients, each with one request in flight.
    #[serde(default = "default_clients")]
    #[schemars(range(min = 1, max = 100_000))]
    pub clients: u32,
    /// Requests over all clients.
    #[serde(default = "default_total")]
    #[schemars(range(min = 1, max = 1_000_000_000_i64))]
    pub total: u64,
    /// Requests go on for so long where `total` takes less; keys that are used up begin again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub at_least_seconds: Option<u32>,
    /// Bytes of each key.
    #[serde(default = "default_key_size")]
    #[schemars(range(min = 1, max = 65_536))]
    pub key_size: u32,
    /// Bytes of each value.
    #[serde(default = "default_value_size")]
    #[schemars(range(min = 0, max = 2_000_000))]
    pub value_size: u32,
    /// Number of distinct keys; 0 means as many as requests.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000_000_000_i64))]
    pub key_space: u64,
    /// Prefix of all keys. Each run uses a prefix of its own below it, and deletes its keys when it
    /// ends. Default: `dengine-bench/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[A-Za-z0-9._/-]+$"))]
    pub key_prefix: Option<String>,
    /// Keys in ascending order instead of random ones.
    #[serde(default)]
    pub sequential_keys: bool,
    /// Names the run. Change it to run again; a finished run is never repeated.
    #[serde(default = "default_run_id")]
    #[schemars(
        length(min = 1, max = 64),
        regex(pattern = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
    )]
    pub run_id: String,
    /// A run that takes longer is stopped and has failed.
    #[serde(default = "default_timeout_seconds")]
    #[schemars(range(min = 1, max = 86_400))]
    pub timeout_seconds: u32,
    /// CPU and memory of each of the Job's pods.
    #[serde(default)]
    pub resources: Resources,
    /// Where the Job's pods may run. Several are spread over the nodes as far as possible, unless
    /// this says how.
    #[serde(default)]
    pub scheduling: Scheduling,
}

fn default_pods() -> u32 {
    1
}

fn default_connections() -> u32 {
    10
}

fn default_clients() -> u32 {
    100
}

fn default_total() -> u64 {
    10_000
}

fn default_key_size() -> u32 {
    8
}

fn default_value_size() -> u32 {
    256
}

fn default_run_id() -> String {
    "1".to_owned()
}

fn default_timeout_seconds() -> u32 {
    600
}

fn default_starting_deadline_seconds() -> u32 {
    600
}

fn default_runs_history_limit() -> u32 {
    RUNS_HISTORY_MAX
}

/// What a scheduled run does while the previous run is in progress. Two runs at once would distort
/// each other's numbers, so there is no `Allow` as in a CronJob.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConcurrencyPolicy {
    /// Waits, and is skipped if that takes too long.
    #[default]
    Forbid,
    /// Cancels the previous run.
    Replace,
}

/// What is measured.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.clusterRef), has(self.etcd)].exists_one(x, x)")
    .message("target must have exactly one of clusterRef and etcd"))]
pub struct Target {
    /// A DEngineCluster in the same namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_ref: Option<ClusterRef>,
    /// An etcd, measured by the same tool in the same place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdTarget>,
}

/// Name of a DEngineCluster in the same namespace.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
pub struct ClusterRef {
    /// Name of the cluster.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
}

/// An etcd to compare with.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new(ENDPOINTS_HOLD_ADDRESSES).message(ENDPOINTS_MESSAGE))]
pub struct EtcdTarget {
    /// Its client addresses, host:port each. An entry may be several, separated by commas.
    #[schemars(length(min = 1, max = 16), inner(length(min = 1, max = 512)))]
    pub endpoints: Vec<String>,
    /// The cluster whose status also shows the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report_to: Option<ClusterRef>,
}

/// The system that a cluster is compared with.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CompareWith {
    /// An etcd.
    pub etcd: EtcdEndpoints,
}

/// Where an etcd is.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new(ENDPOINTS_HOLD_ADDRESSES).message(ENDPOINTS_MESSAGE))]
pub struct EtcdEndpoints {
    /// Its client addresses, host:port each. An entry may be several, separated by commas.
    #[schemars(length(min = 1, max = 16), inner(length(min = 1, max = 512)))]
    pub endpoints: Vec<String>,
}

/// Refuses only what cannot be an address. A stored object that breaks a rule could not be
/// updated, nor could its status, on API servers that do not accept unchanged fields as they are.
const ENDPOINTS_HOLD_ADDRESSES: &str =
    "self.endpoints.all(e, e.matches('^[^[:space:],]+(,[^[:space:],]+)*$'))";
const ENDPOINTS_MESSAGE: &str = "each entry of endpoints is an address, host:port, or several \
    separated by commas, without spaces";

/// Five fields, each a list without an empty element.
const SCHEDULE_PATTERN: &str =
    r"^\+?[0-9A-Za-z*/#?-]+(,[0-9A-Za-z*/#?-]+)*( +\+?[0-9A-Za-z*/#?-]+(,[0-9A-Za-z*/#?-]+)*){4}$";

/// A threshold: latencies have a unit, all other metrics have none.
const THRESHOLD_PATTERN: &str = r"^([a-z][a-z0-9-]*\.)?((avg|p50|p90|p99|p999|max) *[<>]=? *[0-9]+(\.[0-9]+)?(us|ms|s)|(opsPerSecond|errors|timesEtcd) *[<>]=? *[0-9]+(\.[0-9]+)?)$";

/// Missed thresholds that a status has room for. There may be more: every workload may miss each
/// threshold.
pub const MISSED_MAX: usize = 64;

/// Most runs whose results are kept.
pub const RUNS_HISTORY_MAX: u32 = 10;

/// Results that a status has room for: those of the newest ten runs, with those that they were
/// compared with, and those of the run in progress.
pub const RUNS_MAX: usize = 24;

/// Comparison of one workload that both systems ran.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    /// Name of the workload.
    #[schemars(length(max = 63))]
    pub workload: String,
    /// Which system had the higher throughput.
    pub winner: Winner,
    /// Throughput of the cluster divided by that of etcd.
    #[schemars(length(max = 16))]
    pub times: String,
    /// The cluster's requests per second, rounded.
    pub ops_per_second: i64,
    /// Requests per second of etcd, rounded.
    pub etcd_ops_per_second: i64,
    /// 99th percentile of the cluster's latency, with its unit.
    #[schemars(length(max = 32))]
    pub p99: String,
    /// 99th percentile of etcd's latency, with its unit.
    #[schemars(length(max = 32))]
    pub etcd_p99: String,
    /// CPU time of the load generator for one request of the cluster, with its unit. It bounds what
    /// can be measured: compare it with the CPU that its pods have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub tool_cpu: Option<String>,
    /// CPU time of the load generator for one request of etcd, with its unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub etcd_tool_cpu: Option<String>,
}

/// Winner of a workload.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Winner {
    /// The cluster.
    Dengine,
    /// The etcd that was measured beside it.
    Etcd,
    /// They differ no more than two runs of the same system do.
    Draw,
}

/// Which of the two systems a Job measures.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leg {
    /// The one in `target`.
    Target,
    /// The one in `compareWith`, measured after it.
    Rival,
}

/// Status of a benchmark. `runs` is written by the Jobs, everything else by the operator.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct DEngineBenchmarkStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// One word for people, derived from the conditions.
    #[serde(
        deserialize_with = "crate::common::known",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub phase: Option<BenchmarkPhase>,
    /// Conditions, for programs and alerts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// The run that was started last; recorded before its Job is created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub run_id: Option<String>,
    /// The last `spec.runId` that was run. Another one, or the schedule, starts a new run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub spec_run_id: Option<String>,
    /// What that run measures: the profile, or the workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub measures: Option<String>,
    /// Which system its Job measures: the target, or the rival that it is compared with.
    #[serde(
        deserialize_with = "crate::common::known",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub leg: Option<Leg>,
    /// Job of that run; recorded before it is created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub job_name: Option<String>,
    /// UID of the Job, once it was created: it is never created twice for one run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub job_uid: Option<String>,
    /// How often the API server refused the Job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tries: Option<u32>,
    /// When the Job is created again, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    pub retry_at: Option<String>,
    /// The cluster's members when the load began, as `NAME UID/RESTARTS`. If they differ when it
    /// ends, the run does not count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 160)))]
    pub members: Vec<String>,
    /// How many scheduled runs were skipped because they could not start in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped_runs: Option<u32>,
    /// When the Job was created, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    pub started_at: Option<String>,
    /// When the run ended, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    pub finished_at: Option<String>,
    /// Requests per second of the run, rounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ops_per_second: Option<i64>,
    /// 99th percentile of the latency, with its unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub p99: Option<String>,
    /// Durability under which it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub durability: Option<String>,
    /// Nodes that the load ran on, and whether members run on them too: the load takes CPU from
    /// those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub placement: Option<String>,
    /// Why keys of the run were not deleted. A later run with the same prefix deletes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub left_over: Option<String>,
    /// How often the leader changed during the run, if the server reports its term. Any change
    /// makes the run not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_changes: Option<u64>,
    /// Thresholds that the run missed, and by how much.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MISSED_MAX), inner(length(max = 512)))]
    pub missed: Vec<String>,
    /// Workloads that the cluster won, of those that both systems measured, such as `won 5 of 6`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub score: Option<String>,
    /// Each workload that both systems measured.
    #[serde(
        deserialize_with = "crate::common::known_items",
        default,
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["workload".into()]))]
    pub comparison: Vec<Comparison>,
    /// When the schedule starts the next run, RFC 3339. A time in the past belongs to a run that
    /// waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    pub next_run_at: Option<String>,
    /// Results by run id, as posted by the Jobs: those of the newest ten runs. Results of an etcd
    /// that a run is compared with are under the run id followed by `@etcd`. Results that this
    /// version cannot read have no numbers.
    #[serde(
        deserialize_with = "crate::common::known_values",
        default,
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    #[schemars(extend("maxProperties" = RUNS_MAX))]
    pub runs: BTreeMap<String, Report>,
}

/// One word for the state of a benchmark.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum BenchmarkPhase {
    /// Waiting for its target.
    Pending,
    /// The Job runs.
    Running,
    /// The result is in and every request succeeded.
    Succeeded,
    /// The Job failed, or requests did.
    Failed,
    /// The Job has ended or is gone, and its result never arrived.
    ResultMissing,
    /// Every request succeeded, and a threshold was missed.
    ThresholdsMissed,
    /// The result does not count; the conditions say why.
    Invalid,
}

impl BenchmarkPhase {
    /// Whether the run has ended; it is never repeated then.
    pub fn is_final(self) -> bool {
        match self {
            Self::Pending | Self::Running => false,
            Self::Succeeded
            | Self::Failed
            | Self::ResultMissing
            | Self::ThresholdsMissed
            | Self::Invalid => true,
        }
    }
}

impl fmt::Display for BenchmarkPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
