//! Types of the conditions in both kinds' status. Reasons are in [`crate::reasons`].

/// Cluster: all members that the spec asks for are voters, caught up and serving.
pub const READY: &str = "Ready";
/// Cluster: the operator is working towards the spec.
pub const PROGRESSING: &str = "Progressing";
/// Cluster: voters are unavailable, no quorum of them answers, or the next step could cost quorum
/// or data.
pub const DEGRADED: &str = "Degraded";
/// Cluster: a majority of the voters answers, they have a leader, and their disks accept writes.
pub const QUORUM_AVAILABLE: &str = "QuorumAvailable";
/// Cluster: every member runs the template that the spec asks for.
pub const MEMBERS_UPDATED: &str = "MembersUpdated";
/// Cluster: a member's disk is nearly full, so that it refuses writes that need space, or it lacks
/// space for a snapshot.
pub const LOW_ON_SPACE: &str = "LowOnSpace";
/// Cluster: `spec.paused` is set; the operator only reports.
pub const RECONCILIATION_PAUSED: &str = "ReconciliationPaused";

/// Cluster: another operator manages it. Written by an operator that sees the cluster and leaves it
/// alone.
pub const OPERATED_BY_ANOTHER: &str = "OperatedByAnother";

/// Every condition that a cluster's operator writes.
pub const OF_CLUSTER: [&str; 7] = [
    READY,
    PROGRESSING,
    DEGRADED,
    QUORUM_AVAILABLE,
    MEMBERS_UPDATED,
    LOW_ON_SPACE,
    RECONCILIATION_PAUSED,
];

/// Benchmark: its target can be measured now.
pub const TARGET_READY: &str = "TargetReady";
/// Benchmark: the run ended with a result and without a failed request.
pub const COMPLETE: &str = "Complete";
/// Benchmark: the run ended in any other way.
pub const FAILED: &str = "Failed";

/// Every condition of a benchmark.
pub const OF_BENCHMARK: [&str; 3] = [TARGET_READY, COMPLETE, FAILED];
