//! `DEngineBenchmark`: a load Job against a cluster. What it measured is in [`dengine_bench_model::results`].
#![expect(
    unreachable_pub,
    reason = "KubeSchema repeats each struct inside a function"
)]

use std::collections::BTreeMap;
use std::fmt;

use dengine_bench_model::results::{ReadConsistency, Report, Workload};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::{ImagePullPolicy, LocalRef, Resources, Scheduling};

/// Everything that changes the numbers. What says when to run, how to judge and what to keep may change at any time.
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
    && (has(self.keyPrefix) ? has(oldSelf.keyPrefix) \
    && self.keyPrefix == oldSelf.keyPrefix : !has(oldSelf.keyPrefix)) \
    && self.connections == oldSelf.connections \
    && self.clients == oldSelf.clients \
    && self.total == oldSelf.total \
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
        description = "99th percentile of the latency, from when the operation was wanted"
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
    printcolumn(name = "Placement", type_ = "string", json_path = ".status.placement", priority = 1),
    printcolumn(name = "Durability", type_ = "string", json_path = ".status.durability", priority = 1),
    validation = Rule::new("size(self.metadata.name) <= 52")
        .message("metadata.name must be no more than 52 characters, so that the names made from it stay valid"),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message("metadata.name must start with a letter and hold only lower-case letters, digits and '-', because Jobs are named after it")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.workload) != has(self.profile)")
    .message("the spec must hold exactly one of workload and profile"))]
#[x_kube(validation = Rule::new("(has(self.workload) && self.workload == 'range') || !has(self.consistency)")
    .message("consistency applies only to the workload range"))]
#[x_kube(validation = Rule::new("!has(self.compareWith) || has(self.target.clusterRef)")
    .message("compareWith needs a target.clusterRef: one DEngineCluster is held against one etcd"))]
#[x_kube(validation = Rule::new("!has(self.schedule) || !has(self.ttlSecondsAfterFinished)")
    .message("schedule and ttlSecondsAfterFinished exclude each other: what runs again is not deleted"))]
#[x_kube(validation = Rule::new("self.clients >= self.connections")
    .message("clients must be at least connections: a connection without a client carries nothing"))]
#[x_kube(validation = Rule::new("self.total >= self.clients")
    .message("total must be at least clients: a client without a request measures nothing"))]
#[x_kube(validation = Rule::new(MEASURED_STAYS)
    .message("what is measured changes only together with runId, so that a result always belongs to the spec it was measured with"))]
pub struct DEngineBenchmarkSpec {
    /// What is measured: exactly one of its fields.
    pub target: Target,
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
    /// Workloads that are measured one after the other, with shapes of their own; `dengine-bench run --list` shows
    /// them. Either this or `workload` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z][a-z0-9-]*$"))]
    pub profile: Option<String>,
    /// One workload of the shape below: put writes keys, range reads them one at a time, mixed does both, watch sees its
    /// own writes arrive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Workload>,
    /// An etcd that is measured right after the cluster, by the same tool in the same place with the same load. The
    /// status then says who won each workload, and by how much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compare_with: Option<CompareWith>,
    /// What the run has to reach, as `[WORKLOAD.]METRIC OPERATOR VALUE`, such as `p99 < 5ms` or `write.timesEtcd >= 4`.
    /// Metrics: opsPerSecond, errors, timesEtcd; and, with a unit (us, ms, s), avg, p50, p90, p99, p999, max.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 128), regex(pattern = *THRESHOLD_PATTERN)))]
    pub thresholds: Vec<String>,
    /// Runs by the clock too: a cron expression of five fields, such as `0 3 * * *`, in UTC or in `timeZone`.
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
    /// How late a run of the schedule may begin, if its moment passed while the target was not ready or busy, another run was
    /// under way, or nobody looked; after that it is skipped.
    #[serde(default = "default_starting_deadline_seconds")]
    #[schemars(range(min = 10, max = 86_400))]
    pub starting_deadline_seconds: u32,
    /// What a run of the schedule does when the one before is still under way: Forbid (the default) waits for its end, as long
    /// as `startingDeadlineSeconds` lets it; Replace ends that one, which has failed then.
    #[serde(default)]
    pub concurrency_policy: ConcurrencyPolicy,
    /// No run begins, neither by the schedule nor by `runId`. One that is under way goes on to its end.
    #[serde(default)]
    pub suspend: bool,
    /// Results of earlier runs that the status keeps.
    #[serde(default = "default_runs_history_limit")]
    #[schemars(range(min = 1, max = RUNS_HISTORY_MAX))]
    pub runs_history_limit: u32,
    /// Deletes this resource so long after its run ended. Not together with a schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub ttl_seconds_after_finished: Option<u32>,
    /// How fresh the reads of a range workload are: l (linearizable, the default), s (lease) or e (eventual).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consistency: Option<ReadConsistency>,
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
    /// Bytes of each key.
    #[serde(default = "default_key_size")]
    #[schemars(range(min = 1, max = 65_536))]
    pub key_size: u32,
    /// Bytes of each value.
    #[serde(default = "default_value_size")]
    #[schemars(range(min = 0, max = 2_000_000))]
    pub value_size: u32,
    /// Different keys; 0 means as many as requests.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000_000_000_i64))]
    pub key_space: u64,
    /// Where the keys lie: below it, each run in a folder of its own, which is deleted when the run has ended. Default:
    /// `dengine-bench/`.
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
    /// After this the run is cut short and has failed.
    #[serde(default = "default_timeout_seconds")]
    #[schemars(range(min = 1, max = 86_400))]
    pub timeout_seconds: u32,
    /// CPU and memory of the Job's pod.
    #[serde(default)]
    pub resources: Resources,
    /// Where the Job's pod may run.
    #[serde(default)]
    pub scheduling: Scheduling,
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

/// What a run of the schedule does when the one before is still under way. Two at once would spoil each other's numbers, so
/// there is no `Allow` as a CronJob has it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConcurrencyPolicy {
    /// It waits, and is skipped if that takes too long.
    #[default]
    Forbid,
    /// It ends the one before.
    Replace,
}

/// What is measured.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.clusterRef), has(self.etcd)].exists_one(x, x)")
    .message("target must hold exactly one of clusterRef and etcd"))]
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

/// What a cluster is held against.
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

/// Only what can be no address is refused: a stored one that breaks a rule could not be updated, its status neither, where the API
/// server does not yet take unchanged fields as they are.
const ENDPOINTS_HOLD_ADDRESSES: &str =
    "self.endpoints.all(e, e.matches('^[^[:space:],]+(,[^[:space:],]+)*$'))";
const ENDPOINTS_MESSAGE: &str = "each entry of endpoints is an address, host:port, or several separated by commas, without spaces";

/// Five fields, each a list without an empty element.
const SCHEDULE_PATTERN: &str =
    r"^\+?[0-9A-Za-z*/#?-]+(,[0-9A-Za-z*/#?-]+)*( +\+?[0-9A-Za-z*/#?-]+(,[0-9A-Za-z*/#?-]+)*){4}$";

/// A threshold: latencies say their unit, nothing else has one.
const THRESHOLD_PATTERN: &str = r"^([a-z][a-z0-9-]*\.)?((avg|p50|p90|p99|p999|max) *[<>]=? *[0-9]+(\.[0-9]+)?(us|ms|s)|(opsPerSecond|errors|timesEtcd) *[<>]=? *[0-9]+(\.[0-9]+)?)$";

/// Missed thresholds that a status has room for. Each threshold may be missed by every workload, so there may be more.
pub const MISSED_MAX: usize = 64;

/// Most runs whose results stay.
pub const RUNS_HISTORY_MAX: u32 = 10;

/// Results that a status has room for: those of the newest ten runs, with what each was compared with, and those of the run
/// that is being measured.
pub const RUNS_MAX: usize = 24;

/// What became of one workload that both systems ran.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    /// Name of the workload.
    #[schemars(length(max = 63))]
    pub workload: String,
    /// Who had the higher throughput.
    pub winner: Winner,
    /// How many times etcd's throughput the cluster reached.
    #[schemars(length(max = 16))]
    pub times: String,
    /// The cluster's requests per second, rounded.
    pub ops_per_second: i64,
    /// etcd's.
    pub etcd_ops_per_second: i64,
    /// 99th percentile of the cluster's latency, with its unit.
    #[schemars(length(max = 32))]
    pub p99: String,
    /// That of etcd.
    #[schemars(length(max = 32))]
    pub etcd_p99: String,
}

/// Who won a workload.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Winner {
    /// The cluster.
    Dengine,
    /// The etcd beside it.
    Etcd,
    /// They were as close as two runs of the same thing are.
    Draw,
}

/// Which of the two systems a Job measures.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leg {
    /// What `target` says.
    Target,
    /// What `compareWith` says, after it.
    Rival,
}

/// How a benchmark stands. `runs` is written by the Jobs, everything else by the operator.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct DEngineBenchmarkStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// One word for people, derived from the conditions.
    #[serde(
        deserialize_with = "crate::common::known",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub phase: Option<BenchmarkPhase>,
    /// What machines should look at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// The run that was started last; recorded before its Job is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub run_id: Option<String>,
    /// The `spec.runId` that had its turn last. Another one, or the schedule, asks for a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub spec_run_id: Option<String>,
    /// What that run measures: the profile, or the workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub measures: Option<String>,
    /// Which system its Job measures.
    #[serde(
        deserialize_with = "crate::common::known",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub leg: Option<Leg>,
    /// Job of that run; recorded before it is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub job_name: Option<String>,
    /// UID of the Job, once it was made: it is never made twice for one run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub job_uid: Option<String>,
    /// How often the API server refused the Job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tries: Option<u32>,
    /// When it is asked for again, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    pub retry_at: Option<String>,
    /// The cluster's members when the load began, as `NAME UID/RESTARTS`. If they are others in the end, the run does not
    /// count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 160)))]
    pub members: Vec<String>,
    /// Runs of the schedule that were skipped because they could not begin in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped_runs: Option<u32>,
    /// When the Job was made, RFC 3339.
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
    /// Where the load ran, and whether beside a member: that takes CPU from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub placement: Option<String>,
    /// Keys of the run that stayed on what it measured because they could not be deleted, in words. A later run below the
    /// same prefix deletes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub left_over: Option<String>,
    /// How often the leader changed during the run, if the server tells its term. With any, the run does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_changes: Option<u64>,
    /// Thresholds that the run missed, and by how much.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MISSED_MAX), inner(length(max = 512)))]
    pub missed: Vec<String>,
    /// Workloads that the cluster won of those that both systems measured, such as `won 5 of 6`.
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
    /// When the schedule asks for the next run, RFC 3339. A moment in the past is one whose run waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    pub next_run_at: Option<String>,
    /// Results by run id, as the Jobs posted them: of the newest ten. That of the etcd that a run is compared with is
    /// under the run id with `@etcd` behind it. One that this version can not read is there without any number.
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
    /// Waits for its target.
    Pending,
    /// The Job runs.
    Running,
    /// The result is in and every request succeeded.
    Succeeded,
    /// The Job failed, or requests did.
    Failed,
    /// The Job ended, or is gone, and its result never arrived.
    ResultMissing,
    /// Every request succeeded, and a threshold was missed.
    ThresholdsMissed,
    /// The result does not count; the conditions say why.
    Invalid,
}

impl BenchmarkPhase {
    /// Whether the run is over; it is never repeated then.
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Pending | Self::Running)
    }
}

impl fmt::Display for BenchmarkPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
