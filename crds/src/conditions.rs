//! Types of the conditions in both kinds' status. Reasons are in [`crate::reasons`].

/// Cluster: all members that the spec asks for are voters, caught up and serving.
pub const READY: &str = "Ready";
/// Cluster: the operator is working towards the spec.
pub const PROGRESSING: &str = "Progressing";
/// Cluster: voters do not take part, no quorum of them answers, or what is to be done would cost quorum or data.
pub const DEGRADED: &str = "Degraded";
/// Cluster: a majority of the voters answers, they have a leader, and their disks take what is written.
pub const QUORUM_AVAILABLE: &str = "QuorumAvailable";
/// Cluster: every member runs what the spec asks for.
pub const MEMBERS_UPDATED: &str = "MembersUpdated";
/// Cluster: a member's disk is nearly full, so that writes that need space are refused, or lacks space for a snapshot.
pub const LOW_ON_SPACE: &str = "LowOnSpace";
/// Cluster: `spec.paused` is set; the operator only reports.
pub const RECONCILIATION_PAUSED: &str = "ReconciliationPaused";

/// Cluster: an operator that is not the one that looks after it would, too, and leaves it alone. Written by that one.
pub const OPERATED_BY_ANOTHER: &str = "OperatedByAnother";

/// Every condition of a cluster that the operator writes which looks after it.
pub const OF_CLUSTER: [&str; 7] = [
    READY,
    PROGRESSING,
    DEGRADED,
    QUORUM_AVAILABLE,
    MEMBERS_UPDATED,
    LOW_ON_SPACE,
    RECONCILIATION_PAUSED,
];

/// Benchmark: what it measures can be measured now.
pub const TARGET_READY: &str = "TargetReady";
/// Benchmark: the run that the spec asks for ended, with a result and without a failed request.
pub const COMPLETE: &str = "Complete";
/// Benchmark: the run that the spec asks for ended otherwise.
pub const FAILED: &str = "Failed";

/// Every condition of a benchmark.
pub const OF_BENCHMARK: [&str; 3] = [TARGET_READY, COMPLETE, FAILED];
