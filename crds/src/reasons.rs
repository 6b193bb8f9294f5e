//! Reasons of conditions and events. One place, because people write alerts against them.

/// Cluster conditions.
pub mod cluster {
    /// Everything is as the spec asks.
    pub const AS_SPECIFIED: &str = "AsSpecified";
    /// No member has an identity yet.
    pub const BOOTSTRAPPING: &str = "Bootstrapping";
    /// Pods exist, but too few of them answer.
    pub const WAITING_FOR_PODS: &str = "WaitingForPods";
    /// A member is being added.
    pub const ADDING_MEMBER: &str = "AddingMember";
    /// A learner receives the log.
    pub const CATCHING_UP: &str = "CatchingUp";
    /// A member is being removed.
    pub const REMOVING_MEMBER: &str = "RemovingMember";
    /// A member lost its data and is being replaced.
    pub const REPLACING_MEMBER: &str = "ReplacingMember";
    /// Members are restarted one at a time to run what the spec asks for.
    pub const ROLLING_OUT: &str = "RollingOut";
    /// Leadership is being handed over before its pod restarts.
    pub const TRANSFERRING_LEADER: &str = "TransferringLeader";
    /// Volume claims are being enlarged.
    pub const EXPANDING_VOLUMES: &str = "ExpandingVolumes";
    /// Volumes are larger than the spec asks for, and stay so.
    pub const VOLUMES_STAY_LARGER: &str = "VolumesStayLarger";
    /// Volumes of members that were replaced are no longer needed, and the API server refuses to let them go.
    pub const OLD_VOLUMES_STAY: &str = "OldVolumesStay";
    /// The image is of an older version than members have run, or skips one; members keep what they run.
    pub const VERSION_REFUSED: &str = "VersionRefused";
    /// A member that does not run was replaced lately; it is not replaced again before a pause is over.
    pub const REPLACED_BEFORE: &str = "ReplacedBefore";
    /// Somebody deleted the volume claim of a member that runs: its volume goes when its pod ends.
    pub const VOLUME_CLAIM_DELETED: &str = "VolumeClaimDeleted";
    /// Nobody answered, or nothing was looked at.
    pub const NOT_KNOWN: &str = "NotKnown";
    /// A member does not serve.
    pub const MEMBER_UNAVAILABLE: &str = "MemberUnavailable";
    /// A majority of the voters answers.
    pub const MAJORITY_ANSWERS: &str = "MajorityAnswers";
    /// No majority of the voters answers, or they have no leader.
    pub const QUORUM_LOST: &str = "QuorumLost";
    /// A majority answers, but the disks of so many take nothing that nothing can be written.
    pub const DISKS_HANG: &str = "DisksHang";
    /// There is no cluster yet whose quorum could be asked for.
    pub const NOT_BOOTSTRAPPED: &str = "NotBootstrapped";
    /// The next step could cost quorum, so nothing is done until more members answer.
    pub const BLOCKED: &str = "Blocked";
    /// The pods belong to another cluster than the status says, or to several.
    pub const FOREIGN_DATA: &str = "ForeignData";
    /// An object of the name that we need exists and belongs to somebody else.
    pub const NAME_TAKEN: &str = "NameTaken";
    /// Another operator looks after the cluster.
    pub const OPERATED_BY_ANOTHER: &str = "OperatedByAnother";
    /// The spec can not be carried out.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// The Kubernetes API or a member refused a step; it is tried again.
    pub const STEP_FAILED: &str = "StepFailed";
    /// A member's disk is nearly full, or lacks space for a snapshot.
    pub const DISK_NEARLY_FULL: &str = "DiskNearlyFull";
    /// Every member that answers has space.
    pub const ENOUGH_SPACE: &str = "EnoughSpace";
    /// `spec.paused` is set.
    pub const PAUSED: &str = "Paused";
    /// `spec.paused` is not set.
    pub const NOT_PAUSED: &str = "NotPaused";
    /// Members run something else than the spec asks for.
    pub const OUTDATED: &str = "Outdated";
}

/// Benchmark conditions.
pub mod benchmark {
    /// The target answers.
    pub const TARGET_READY: &str = "TargetReady";
    /// The cluster does not exist.
    pub const TARGET_NOT_FOUND: &str = "TargetNotFound";
    /// The cluster is not Ready.
    pub const TARGET_NOT_READY: &str = "TargetNotReady";
    /// The Job runs.
    pub const RUNNING: &str = "Running";
    /// The Job is there, and its pod is refused, can not be scheduled or does not start.
    pub const JOB_STUCK: &str = "JobStuck";
    /// The Job is about to be made.
    pub const STARTING: &str = "Starting";
    /// The result is in and every request succeeded.
    pub const SUCCEEDED: &str = "Succeeded";
    /// The Job failed before it had a result.
    pub const JOB_FAILED: &str = "JobFailed";
    /// The result is in and says that requests failed.
    pub const REQUESTS_FAILED: &str = "RequestsFailed";
    /// The Job ended, or is gone, and its result never arrived.
    pub const RESULT_MISSING: &str = "ResultMissing";
    /// The result is in, and a threshold was missed.
    pub const THRESHOLDS_MISSED: &str = "ThresholdsMissed";
    /// The spec can not be carried out.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// Another benchmark loads the same target.
    pub const TARGET_BUSY: &str = "TargetBusy";
    /// `spec.suspend` is set.
    pub const SUSPENDED: &str = "Suspended";
    /// A run of the schedule was skipped: its target could not be measured in time.
    pub const RUN_SKIPPED: &str = "RunSkipped";
    /// The next run of the schedule ended this one.
    pub const REPLACED: &str = "Replaced";
    /// The API server refused the Job each time.
    pub const JOB_REFUSED: &str = "JobRefused";
    /// Members restarted, or were replaced, while the run measured them.
    pub const MEMBERS_CHANGED: &str = "MembersChanged";
    /// The leader changed while the run measured it.
    pub const LEADER_CHANGED: &str = "LeaderChanged";
    /// An object of the name that we need exists and belongs to somebody else.
    pub const NAME_TAKEN: &str = "NameTaken";
}

/// Events.
pub mod events {
    /// The first member of a new cluster got its identity.
    pub const BOOTSTRAPPED: &str = "Bootstrapped";
    /// The status had no cluster id; a quorum of existing folders told it.
    pub const ADOPTED: &str = "Adopted";
    /// A learner was added.
    pub const MEMBER_ADDED: &str = "MemberAdded";
    /// A waiting member was told its identity.
    pub const MEMBER_JOINED: &str = "MemberJoined";
    /// A learner became a voter.
    pub const MEMBER_PROMOTED: &str = "MemberPromoted";
    /// A member was removed.
    pub const MEMBER_REMOVED: &str = "MemberRemoved";
    /// Leadership was handed over.
    pub const LEADER_TRANSFERRED: &str = "LeaderTransferred";
    /// A member's pod was deleted so that it comes back as the spec asks.
    pub const MEMBER_RESTARTED: &str = "MemberRestarted";
    /// A member's disk is nearly full; it refuses writes that need space.
    pub const LOW_ON_SPACE: &str = "LowOnSpace";
    /// Every member has space again.
    pub const SPACE_IS_BACK: &str = "SpaceIsBack";
    /// A claim asks for a larger volume.
    pub const VOLUME_EXPANDING: &str = "VolumeExpanding";
    /// Members to come get larger, or smaller, volumes.
    pub const VOLUME_TEMPLATE_CHANGED: &str = "VolumeTemplateChanged";
    /// What was applied is not what is there: an admission webhook changes it.
    pub const OBJECT_CHANGED: &str = "ObjectChanged";
    /// The data of a member that does not run is about to be given up.
    pub const MEMBER_REPLACED: &str = "MemberReplaced";
    /// The volume of a member that was given up is kept until another votes in its place, or can not be kept.
    pub const VOLUME_KEPT: &str = "VolumeKept";
    /// A volume that was kept is left to its reclaim policy.
    pub const VOLUME_RELEASED: &str = "VolumeReleased";
    /// A claim was deleted after its member had been removed.
    pub const VOLUME_DELETED: &str = "VolumeDeleted";
    /// Another operator looks after the cluster; this one leaves it alone.
    pub const OPERATED_BY_ANOTHER: &str = "OperatedByAnother";
    /// A step was refused; it is tried again.
    pub const STEP_FAILED: &str = "StepFailed";
    /// The object can not be read by this version of the operator, which does nothing for it.
    pub const UNREADABLE: &str = "Unreadable";
    /// An annotation of the cluster asked for a benchmark.
    pub const BENCHMARK_ASKED: &str = "BenchmarkAsked";
    /// A benchmark's Job was made.
    pub const RUN_STARTED: &str = "RunStarted";
    /// A run of a benchmark's schedule was skipped.
    pub const RUN_SKIPPED: &str = "RunSkipped";
    /// A benchmark's run ended.
    pub const RUN_FINISHED: &str = "RunFinished";
}
