//! What the planner knows: the observed state of one cluster, without any Kubernetes or gRPC type.
//! Nothing is remembered but the recorded identity.

use std::collections::{BTreeMap, BTreeSet};

use super::versions::Version;

/// Ordinal of a pod in its StatefulSet.
pub type Ordinal = u32;

/// The membership that the spec asks for; the rest of the spec is in the pod template's hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Voting members.
    pub replicas: u32,
    /// Hash of the pod template that every member should run.
    pub template_hash: String,
}

/// Everything observed about one cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Recorded in the status before any member got it; if the status was lost, from the
    /// StatefulSet.
    pub cluster_id: Option<u64>,
    /// Recorded with the cluster id: the data directory that becomes the first voter. `None` for an
    /// adopted cluster.
    pub seed_folder_id: Option<String>,
    /// Whether the status or the StatefulSet says that the cluster had members, so that
    /// acknowledged data may exist.
    pub had_members: bool,
    /// Size of the StatefulSet; `None` while there is none.
    pub stateful_set_replicas: Option<u32>,
    /// Pods of the StatefulSet.
    pub pods: BTreeMap<Ordinal, Pod>,
    /// Volume claims of the StatefulSet.
    pub claims: BTreeMap<Ordinal, Claim>,
    /// Confirmed by a quorum; `None` if no quorum answered.
    pub membership: Option<Membership>,
    /// Why the API server refuses to create missing pods or claims.
    pub refused: Option<String>,
    /// Highest version that every member has run, as recorded in the status, on the StatefulSet or
    /// on claims.
    pub cluster_version: Option<Version>,
    /// The last replacement of each member, by the ordinal of its pod.
    pub replaced: BTreeMap<Ordinal, Replaced>,
    /// Volumes of replaced members that are kept.
    pub kept: Vec<OldVolume>,
}

/// The newest replacement of a member whose server did not run. Recorded in the status before its
/// data is given up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replaced {
    pub member_id: u64,
    /// Replacements so far, without a long break between two of them.
    pub times: u32,
    /// The pause after it is over.
    pub may_again: bool,
    /// When the pause ends, for people.
    pub next: String,
    /// Its volume, or that of an earlier member, if the status says that it is kept.
    pub kept_volume: Option<String>,
    /// Why its volume was not kept.
    pub not_kept: Option<String>,
}

/// The volume of a replaced member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldVolume {
    pub name: String,
    /// The pod that used it.
    pub ordinal: Ordinal,
    /// The member whose data it holds.
    pub of: Identity,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// UID of the pod.
    pub uid: String,
    /// It is being deleted.
    pub terminating: bool,
    /// It belongs to another StatefulSet than ours: that of a deleted resource, say, whose pods are
    /// not garbage-collected yet.
    pub of_another: bool,
    pub ready: bool,
    /// Hash of the template that it was created from.
    pub template_hash: Option<String>,
    /// What the member reports; `None` if it does not answer.
    pub report: Option<Report>,
    /// Why the pod does not run, as Kubernetes reports it.
    pub trouble: Option<String>,
    /// Why its server may not answer although it should run. Only for messages.
    pub silent: Option<String>,
    /// It does not run, and restarting it did not help.
    pub broken: Option<Broken>,
    /// Why the API server refuses to delete it, until that is retried.
    pub refused: Option<String>,
}

/// Why a member cannot recover by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The server reports that its data directory is damaged, or may lack what the member
    /// acknowledged.
    Folder,
    /// The server crashes again and again, for a reason that may lie in its data directory.
    Crashing,
}

/// What a member reports about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Id of its data directory.
    pub folder_id: String,
    /// `None` while it waits for one.
    pub identity: Option<Identity>,
    /// Version of the server program.
    pub version: String,
    /// Raft's term as this member knows it.
    pub term: u64,
    /// It can serve linearizable reads.
    pub ready: bool,
    /// Its disk is nearly full, so that it refuses writes that need space.
    pub low_on_space: bool,
    /// Bytes that its disk lacks for a snapshot that it needs to catch up; 0: none.
    pub snapshot_lacks_bytes: u64,
    /// Its disk hangs or is full, so that its log accepts nothing. It still answers heartbeats.
    pub stalled: bool,
}

/// Which member of which cluster a data directory belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub cluster_id: u64,
    pub member_id: u64,
}

/// One volume claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// UID of the claim.
    pub uid: String,
    /// The member that the operator is about to remove; the data is not needed afterwards.
    pub marked_for: Option<Identity>,
    /// It is being deleted.
    pub terminating: bool,
    /// Its volume is gone; no pod can use it any more.
    pub lost: bool,
    pub volume: Option<String>,
    /// It never had a volume, and none with data is meant for it.
    pub empty: bool,
    /// Why the API server refuses to mark or delete it, until that is retried.
    pub refused: Option<String>,
}

/// The member list as the leader sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// The cluster that answered.
    pub cluster_id: u64,
    /// Raft's term.
    pub term: u64,
    /// The members in the order of their ids.
    pub members: Vec<Member>,
}

/// One entry of the member list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    pub id: u64,
    /// Name of the member and of its pod.
    pub name: String,
    /// Ordinal of that pod; `None` if the name is not one of ours.
    pub ordinal: Option<Ordinal>,
    /// The data directory that the id is bound to.
    pub folder_id: String,
    pub voter: bool,
    pub leader: bool,
    /// The leader heard from it recently.
    pub reachable: bool,
    /// Log entries that it has not acknowledged.
    pub lag_entries: u64,
}

/// Up to this many unacknowledged entries a member counts as caught up: a busy log is always a
/// batch or two ahead of its followers.
pub(crate) const LAG_CAUGHT_UP_ENTRIES_MAX: u64 = 5_000;

impl Observed {
    /// What the pod of this member reports, if it is that member.
    pub(crate) fn report_of(&self, member: &Member) -> Option<&Report> {
        let report = self.pods.get(&member.ordinal?)?.report.as_ref()?;
        (report.folder_id == member.folder_id).then_some(report)
    }

    /// Whether it takes part: its pod answers with the right data directory, the leader hears from
    /// it, and the pod is not being deleted.
    pub(crate) fn is_healthy(&self, member: &Member) -> bool {
        let stays = member
            .ordinal
            .and_then(|ordinal| self.pods.get(&ordinal))
            .is_some_and(|pod| !pod.terminating);
        let knows_itself = self
            .report_of(member)
            .and_then(|report| report.identity)
            .is_some_and(|identity| identity.member_id == member.id);
        stays && knows_itself && (member.reachable || member.leader)
    }

    /// Healthy, and close enough behind the leader to stand in for another member.
    pub(crate) fn is_current(&self, member: &Member) -> bool {
        self.is_healthy(member) && member.lag_entries <= LAG_CAUGHT_UP_ENTRIES_MAX
    }

    /// Whether the cluster would keep running with this member if another one failed: its pod is
    /// ready, so that its disk accepts writes, and it is close behind the leader. Heartbeats alone
    /// do not show that.
    pub(crate) fn carries(&self, member: &Member) -> bool {
        let pod = member.ordinal.and_then(|ordinal| self.pods.get(&ordinal));
        pod.is_some_and(|pod| pod.ready) && self.is_current(member)
    }

    /// Whether the pod or claim is on its way out and does not belong to this cluster: the pod is
    /// another StatefulSet's, or the claim is deleted, so that the volume is deleted with its pod.
    pub(crate) fn leaves(&self, ordinal: Ordinal) -> bool {
        let pod = self.pods.get(&ordinal);
        let claim = self.claims.get(&ordinal);
        pod.is_some_and(|pod| pod.of_another) || claim.is_some_and(|claim| claim.terminating)
    }

    /// Whether the API server refuses to change the claim of this pod, for now.
    pub(crate) fn is_claim_refused(&self, ordinal: Ordinal) -> bool {
        let claim = self.claims.get(&ordinal);
        claim.is_some_and(|claim| claim.refused.is_some())
    }

    /// The member of this pod.
    pub(crate) fn member_at(&self, ordinal: Ordinal) -> Option<&Member> {
        self.membership
            .as_ref()?
            .members
            .iter()
            .find(|member| member.ordinal == Some(ordinal))
    }
}

impl Membership {
    pub(crate) fn voters(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.voter)
    }

    /// The ordinals below this size without a voter.
    pub(crate) fn not_voting(&self, size: u32) -> BTreeSet<Ordinal> {
        let vote: BTreeSet<Ordinal> = self.voters().filter_map(|member| member.ordinal).collect();
        (0..size)
            .filter(|ordinal| !vote.contains(ordinal))
            .collect()
    }

    pub(crate) fn leader(&self) -> Option<&Member> {
        self.members.iter().find(|member| member.leader)
    }
}

pub fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}
