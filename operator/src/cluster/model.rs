//! What the planner knows: the truth about one cluster at one moment, without any Kubernetes or gRPC
//! type. Everything in here is observed; nothing is remembered, but for the recorded identity.

use std::collections::{BTreeMap, BTreeSet};

use super::versions::Version;

/// Ordinal of a pod in its StatefulSet.
pub type Ordinal = u32;

/// What the spec asks of the membership; the rest of the spec is in the pod template's hash.
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
    /// Recorded in the status before any member got it; of a lost status, what the StatefulSet says.
    pub cluster_id: Option<u64>,
    /// Recorded with the cluster id: the folder that becomes the first voter. `None` if it was adopted.
    pub seed_folder_id: Option<String>,
    /// Whether the status ever listed a member, as it or the StatefulSet says, so that acknowledged data may exist.
    pub had_members: bool,
    /// Size of the StatefulSet; `None` while there is none.
    pub stateful_set_replicas: Option<u32>,
    /// Pods of the StatefulSet.
    pub pods: BTreeMap<Ordinal, Pod>,
    /// Volume claims of the StatefulSet.
    pub claims: BTreeMap<Ordinal, Claim>,
    /// Confirmed by a quorum; `None` if no quorum answered.
    pub membership: Option<Membership>,
    /// Why the API server refuses pods or claims that are missing, in its words.
    pub refused: Option<String>,
    /// Highest version that every member has run, as the status records it, or the StatefulSet.
    pub cluster_version: Option<Version>,
    /// Members whose data the operator gave up before, by the ordinal of their pod.
    pub replaced: BTreeMap<Ordinal, Replaced>,
    /// Volumes of members of this cluster that are kept, as they say themselves, or the status does.
    pub kept: Vec<OldVolume>,
}

/// The newest replacement of a member whose server did not run. Recorded in the status before anything is given up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replaced {
    /// The member that was given up.
    pub member_id: u64,
    /// Replacements so far, without a long rest between two of them.
    pub times: u32,
    /// The pause after it is over.
    pub may_again: bool,
    /// When that is, for people.
    pub next: String,
    /// Its volume, or that of one before it, if the status says that it is kept.
    pub kept_volume: Option<String>,
    /// Why its volume went with its claim.
    pub not_kept: Option<String>,
}

/// The volume of a member that was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldVolume {
    /// Name of the PersistentVolume.
    pub name: String,
    /// Whose pod had it.
    pub ordinal: Ordinal,
    /// The member whose data is in it.
    pub of: Identity,
}

/// One pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Kubernetes' identity of this very pod.
    pub uid: String,
    /// It is being deleted.
    pub terminating: bool,
    /// It is of another StatefulSet than ours: that of a resource which was deleted, say, and whose pods are yet to be collected.
    pub of_another: bool,
    /// Kubernetes' readiness.
    pub ready: bool,
    /// Hash of the template it was made from.
    pub template_hash: Option<String>,
    /// What the member says of itself; `None` if it does not answer.
    pub report: Option<Report>,
    /// Why the pod does not run, in Kubernetes' words.
    pub trouble: Option<String>,
    /// Why its server, which should run, may not answer, in words. For people only.
    pub silent: Option<String>,
    /// It does not run, and starting it again did not help.
    pub broken: Option<Broken>,
    /// Why the API server does not let it be deleted. Until that is tried again, it stays.
    pub refused: Option<String>,
}

/// Why a member can not come back by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The server says that its folder is damaged, or may lack what the member acknowledged.
    Folder,
    /// The server ends again and again, each time for a fault that may lie in its folder.
    Crashing,
}

/// What a member says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Identity of its data folder.
    pub folder_id: String,
    /// `None` while it waits for one.
    pub identity: Option<Identity>,
    /// Version of the server program.
    pub version: String,
    /// Raft's term as this member knows it.
    pub term: u64,
    /// It could answer a linearizable read now.
    pub ready: bool,
    /// Its disk is nearly full, so that it refuses writes that need space.
    pub low_on_space: bool,
    /// Bytes that its disk lacks for the snapshot without which it can't catch up; 0: none.
    pub snapshot_lacks_bytes: u64,
    /// Its disk hangs or is full, so that nothing gets into its log. Heartbeats it answers all the same.
    pub stalled: bool,
}

/// Which member of which cluster a folder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub cluster_id: u64,
    /// The member.
    pub member_id: u64,
}

/// One volume claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Kubernetes' identity of this very claim.
    pub uid: String,
    /// The identity whose removal the operator set out to do; its data is then no longer needed.
    pub marked_for: Option<Identity>,
    /// It is being deleted.
    pub terminating: bool,
    /// The volume behind it is gone; no pod can use it any more.
    pub lost: bool,
    /// The volume that it is bound to.
    pub volume: Option<String>,
    /// It never had a volume, nor is it to get one with something in it.
    pub empty: bool,
    /// Why the API server does not let it be marked, or deleted. Until that is tried again, it stays as it is.
    pub refused: Option<String>,
}

/// The member list with the leader's view of it.
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
    /// Raft's id.
    pub id: u64,
    /// Name: that of its pod.
    pub name: String,
    /// Ordinal of the pod of that name; `None` if the name is not one of ours.
    pub ordinal: Option<Ordinal>,
    /// The folder that the id is bound to.
    pub folder_id: String,
    /// It votes.
    pub voter: bool,
    /// It leads.
    pub leader: bool,
    /// The leader heard from it lately.
    pub reachable: bool,
    /// Log entries it has not acknowledged.
    pub lag_entries: u64,
}

/// Up to this many unacknowledged entries a member counts as caught up: a busy log is always a batch
/// or two ahead of its followers.
pub(crate) const LAG_CAUGHT_UP_ENTRIES_MAX: u64 = 5_000;

impl Observed {
    /// What the pod of this member says, if it is the member it should be.
    pub(crate) fn report_of(&self, member: &Member) -> Option<&Report> {
        let report = self.pods.get(&member.ordinal?)?.report.as_ref()?;
        (report.folder_id == member.folder_id).then_some(report)
    }

    /// Takes part: its pod answers with its own folder, the leader hears from it, and nobody is about
    /// to take the pod away.
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

    /// Would keep the cluster going if another member went: its pod serves, so that its disk takes what it has to
    /// acknowledge, and it is close behind the leader. Heartbeats it would answer without.
    pub(crate) fn carries(&self, member: &Member) -> bool {
        let pod = member.ordinal.and_then(|ordinal| self.pods.get(&ordinal));
        pod.is_some_and(|pod| pod.ready) && self.is_current(member)
    }

    /// What is there goes, and nothing of it says anything of this cluster: the pod is another StatefulSet's, or the claim is
    /// deleted, so that the volume goes with its pod.
    pub(crate) fn leaves(&self, ordinal: Ordinal) -> bool {
        let pod = self.pods.get(&ordinal);
        let claim = self.claims.get(&ordinal);
        pod.is_some_and(|pod| pod.of_another) || claim.is_some_and(|claim| claim.terminating)
    }

    /// The API server does not let the claim of this pod be changed, for now.
    pub(crate) fn is_claim_refused(&self, ordinal: Ordinal) -> bool {
        let claim = self.claims.get(&ordinal);
        claim.is_some_and(|claim| claim.refused.is_some())
    }

    /// The member whose name is that of this pod.
    pub(crate) fn member_at(&self, ordinal: Ordinal) -> Option<&Member> {
        self.membership
            .as_ref()?
            .members
            .iter()
            .find(|member| member.ordinal == Some(ordinal))
    }
}

impl Membership {
    /// Members that vote.
    pub(crate) fn voters(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.voter)
    }

    /// The pods below this size that are no voter's.
    pub(crate) fn not_voting(&self, size: u32) -> BTreeSet<Ordinal> {
        let vote: BTreeSet<Ordinal> = self.voters().filter_map(|member| member.ordinal).collect();
        (0..size)
            .filter(|ordinal| !vote.contains(ordinal))
            .collect()
    }

    /// The member that leads.
    pub(crate) fn leader(&self) -> Option<&Member> {
        self.members.iter().find(|member| member.leader)
    }
}

/// Voters that must agree among `voters`.
pub fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}
