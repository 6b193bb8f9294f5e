//! Reasons of conditions and events. One place, because people write alerts against them.

/// Cluster conditions.
pub mod cluster {
    /// The cluster is as the spec asks.
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
    /// A rolling update restarts the members one at a time.
    pub const ROLLING_OUT: &str = "RollingOut";
    /// Leadership is being transferred before the leader's pod restarts.
    pub const TRANSFERRING_LEADER: &str = "TransferringLeader";
    /// Volume claims are being enlarged.
    pub const EXPANDING_VOLUMES: &str = "ExpandingVolumes";
    /// Volumes are larger than the spec asks for, and are not shrunk.
    pub const VOLUMES_STAY_LARGER: &str = "VolumesStayLarger";
    /// Volumes of replaced members are no longer needed, and the API server refuses to release
    /// them.
    pub const OLD_VOLUMES_STAY: &str = "OldVolumesStay";
    /// The image is of an older version than members have run, or skips a version; members keep the
    /// one that they run.
    pub const VERSION_REFUSED: &str = "VersionRefused";
    /// A member that does not run was replaced recently; the next replacement waits.
    pub const REPLACED_BEFORE: &str = "ReplacedBefore";
    /// The volume claim of a running member was deleted: its volume is deleted when its pod ends.
    pub const VOLUME_CLAIM_DELETED: &str = "VolumeClaimDeleted";
    /// No member answered, or the cluster was not observed.
    pub const NOT_KNOWN: &str = "NotKnown";
    /// A member does not serve.
    pub const MEMBER_UNAVAILABLE: &str = "MemberUnavailable";
    /// A majority of the voters answers.
    pub const MAJORITY_ANSWERS: &str = "MajorityAnswers";
    /// No majority of the voters answers, or they have no leader.
    pub const QUORUM_LOST: &str = "QuorumLost";
    /// A majority answers, but so many disks hang or are full that nothing can be committed.
    pub const DISKS_HANG: &str = "DisksHang";
    /// The cluster was not bootstrapped yet, so it has no quorum to check.
    pub const NOT_BOOTSTRAPPED: &str = "NotBootstrapped";
    /// The next step could cost quorum, so nothing is done until more members answer.
    pub const BLOCKED: &str = "Blocked";
    /// The volumes belong to another cluster than the one in the status, or to several.
    pub const FOREIGN_DATA: &str = "ForeignData";
    /// An object of the required name exists and belongs to something else.
    pub const NAME_TAKEN: &str = "NameTaken";
    /// Another operator manages the cluster.
    pub const OPERATED_BY_ANOTHER: &str = "OperatedByAnother";
    /// The spec cannot be carried out.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// The Kubernetes API or a member refused a step; it is retried.
    pub const STEP_FAILED: &str = "StepFailed";
    /// A member's disk is nearly full, or lacks space for a snapshot.
    pub const DISK_NEARLY_FULL: &str = "DiskNearlyFull";
    /// Every member that answers has space.
    pub const ENOUGH_SPACE: &str = "EnoughSpace";
    /// `spec.paused` is set.
    pub const PAUSED: &str = "Paused";
    /// `spec.paused` is not set.
    pub const NOT_PAUSED: &str = "NotPaused";
    /// Members run another template than the spec asks for.
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
    /// The Job exists, and its pod is refused, cannot be scheduled or does not start.
    pub const JOB_STUCK: &str = "JobStuck";
    /// The Job is about to be created.
    pub const STARTING: &str = "Starting";
    /// The result is in and every request succeeded.
    pub const SUCCEEDED: &str = "Succeeded";
    /// The Job failed before it had a result.
    pub const JOB_FAILED: &str = "JobFailed";
    /// The result is in and says that requests failed.
    pub const REQUESTS_FAILED: &str = "RequestsFailed";
    /// The Job has ended or is gone, and its result never arrived.
    pub const RESULT_MISSING: &str = "ResultMissing";
    /// The result is in, and a threshold was missed.
    pub const THRESHOLDS_MISSED: &str = "ThresholdsMissed";
    /// The spec cannot be carried out.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// Another benchmark loads the same target.
    pub const TARGET_BUSY: &str = "TargetBusy";
    /// `spec.suspend` is set.
    pub const SUSPENDED: &str = "Suspended";
    /// A scheduled run was skipped: its target could not be measured in time.
    pub const RUN_SKIPPED: &str = "RunSkipped";
    /// The next scheduled run cancelled this one.
    pub const REPLACED: &str = "Replaced";
    /// The API server refused the Job each time.
    pub const JOB_REFUSED: &str = "JobRefused";
    /// Members restarted or were replaced during the run.
    pub const MEMBERS_CHANGED: &str = "MembersChanged";
    /// The leader changed during the run.
    pub const LEADER_CHANGED: &str = "LeaderChanged";
    /// One of the several pods that sent the load began late, or was lost.
    pub const POD_LATE_OR_LOST: &str = "PodLateOrLost";
    /// An object of the required name exists and belongs to something else.
    pub const NAME_TAKEN: &str = "NameTaken";
}

pub mod events {
    /// The first member of a new cluster got its identity.
    pub const BOOTSTRAPPED: &str = "Bootstrapped";
    /// The status had no cluster id; a quorum of existing data directories has one.
    pub const ADOPTED: &str = "Adopted";
    /// A learner was added.
    pub const MEMBER_ADDED: &str = "MemberAdded";
    /// A waiting member got its identity.
    pub const MEMBER_JOINED: &str = "MemberJoined";
    /// A learner became a voter.
    pub const MEMBER_PROMOTED: &str = "MemberPromoted";
    /// A member was removed.
    pub const MEMBER_REMOVED: &str = "MemberRemoved";
    /// Leadership was transferred.
    pub const LEADER_TRANSFERRED: &str = "LeaderTransferred";
    /// A member's pod was deleted so that it comes back as the spec asks.
    pub const MEMBER_RESTARTED: &str = "MemberRestarted";
    /// A member's disk is nearly full; it refuses writes that need space.
    pub const LOW_ON_SPACE: &str = "LowOnSpace";
    /// Every member has space again.
    pub const SPACE_IS_BACK: &str = "SpaceIsBack";
    /// A claim requests a larger volume.
    pub const VOLUME_EXPANDING: &str = "VolumeExpanding";
    /// New members get larger, or smaller, volumes.
    pub const VOLUME_TEMPLATE_CHANGED: &str = "VolumeTemplateChanged";
    /// An admission webhook changed an object that the operator applied.
    pub const OBJECT_CHANGED: &str = "ObjectChanged";
    /// A member that does not run is about to be replaced.
    pub const MEMBER_REPLACED: &str = "MemberReplaced";
    /// The volume of a replaced member is kept until its replacement votes, or could not be kept.
    pub const VOLUME_KEPT: &str = "VolumeKept";
    /// A volume that was kept got its reclaim policy back.
    pub const VOLUME_RELEASED: &str = "VolumeReleased";
    /// A claim was deleted after its member had been removed.
    pub const VOLUME_DELETED: &str = "VolumeDeleted";
    /// Another operator manages the cluster; this one leaves it alone.
    pub const OPERATED_BY_ANOTHER: &str = "OperatedByAnother";
    /// A step was refused; it is retried.
    pub const STEP_FAILED: &str = "StepFailed";
    /// This version of the operator cannot read the object and does nothing for it.
    pub const UNREADABLE: &str = "Unreadable";
    /// An annotation of the cluster asked for a benchmark.
    pub const BENCHMARK_ASKED: &str = "BenchmarkAsked";
    /// A benchmark's Job was created.
    pub const RUN_STARTED: &str = "RunStarted";
    /// A scheduled run of a benchmark was skipped.
    pub const RUN_SKIPPED: &str = "RunSkipped";
    /// A benchmark's run ended.
    pub const RUN_FINISHED: &str = "RunFinished";
}
