//! Decides the next step of one cluster. Pure: the same observation always gives the same step, and
//! a crash before, during or after any step is harmless because the next step is planned from the
//! new state.
//!
//! Order: identity, then repair, then growth, then shrinking, then rolling update. A step that
//! touches quorum is taken only if a majority of the remaining voters is healthy afterwards.

mod repair;
mod roll_out;

use std::collections::BTreeSet;
use std::ops::Range;

use dengine_crds::cluster::REPLICAS_MAX;

use super::model::{
    Identity, Member, Membership, Observed, OldVolume, Ordinal, Pod, Wanted, quorum,
};
use super::versions::{Refusal, Version};
use repair::{gives_up_data, held_back, is_over, repair};
use roll_out::roll_out;

/// The one thing to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Everything is as wanted.
    Done,
    /// Nothing to do until something changes by itself.
    Wait(Waiting),
    /// Nothing may be done until a person or a member changes something.
    Blocked(Blocked),
    /// Write something into the cluster's status before it is acted on.
    Record(Record),
    /// Change a pod or a volume claim of one member.
    Object(ObjectStep),
    /// Change the membership, or who leads, through the members' Admin service.
    Membership(MembershipStep),
}

/// What is recorded in the status before it is acted on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Draw a cluster id and record it with the data directory that will be the first voter.
    NewCluster { ordinal: Ordinal, folder_id: String },
    /// Record the cluster that the data directories already belong to.
    Adopted { cluster_id: u64 },
    /// Record that a member that does not run is about to be replaced, so that replacements are
    /// limited.
    Replacement {
        ordinal: Ordinal,
        member_id: u64,
        name: String,
        voted: bool,
    },
}

/// A change of one pod or one volume claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectStep {
    /// Mark the claim: its member is about to be removed and its data no longer needed.
    MarkClaim {
        ordinal: Ordinal,
        claim_uid: String,
        identity: Identity,
    },
    /// Delete a pod so that it comes back from the current template.
    RestartPod { ordinal: Ordinal, pod_uid: String },
    /// Delete the claim of a removed member, after its volume is retained if that is to be kept.
    DeleteClaim {
        ordinal: Ordinal,
        claim_uid: String,
        keep: Option<Box<OldVolume>>,
    },
}

/// A call of the members' Admin service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipStep {
    /// Make the recorded data directory the first voter of the recorded cluster.
    Bootstrap {
        ordinal: Ordinal,
        cluster_id: u64,
        folder_id: String,
    },
    /// Add an empty member to the cluster.
    AddLearner { ordinal: Ordinal, folder_id: String },
    /// Give an empty member the identity of the learner that was added for it.
    Join {
        ordinal: Ordinal,
        member_id: u64,
        folder_id: String,
    },
    /// Make a learner a voter.
    Promote { member_id: u64, name: String },
    /// Remove a member.
    Remove {
        member_id: u64,
        name: String,
        why: Removal,
    },
    /// Transfer leadership.
    TransferLeader { member_id: u64, name: String },
}

impl Step {
    /// Whether it changes anything.
    pub(crate) fn acts(&self) -> bool {
        match self {
            Self::Done | Self::Wait(_) | Self::Blocked(_) => false,
            Self::Record(_) | Self::Object(_) | Self::Membership(_) => true,
        }
    }
}

/// What the cluster waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Pods have to answer first.
    Pods(BTreeSet<Ordinal>),
    /// Pods or claims of an earlier cluster have to be deleted before this one can be identified.
    Gone(BTreeSet<Ordinal>),
    /// The pod of the recorded first voter has to answer.
    Seed,
    /// A quorum has to answer.
    Quorum,
    /// A learner receives the log.
    CatchUp { name: String },
    /// A member has to serve again before the next restart.
    Member { name: String },
}

/// Why nothing may be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// Data directories belong to other clusters.
    ForeignData {
        names: BTreeSet<Ordinal>,
        cluster_ids: BTreeSet<u64>,
    },
    /// Every data directory is empty though the cluster once had members.
    AllEmpty,
    /// The data directory that was chosen as the first voter is gone, and the status never listed a
    /// member. There may have been one: the directory may be lost right after it was bootstrapped
    /// and took writes. So no other one is chosen.
    SeedLost,
    /// A pod has the data directory of a member that was removed by hand.
    RemovedByHand { ordinal: Ordinal, member_id: u64 },
    /// The member list has an entry that is no pod of this cluster.
    UnknownMember { name: String },
    /// The step would leave no healthy majority.
    Quorum { name: String },
    /// A member that was updated reported a version that may not follow the others'.
    Version {
        from: Version,
        to: Version,
        why: Refusal,
    },
    /// Fewer members are wanted while one of those that stay is unavailable.
    ScaleDown { name: String, away: String },
    /// A member should be restarted, but its claim was deleted: its volume would be deleted with
    /// its pod.
    ClaimDeleted { name: String },
    /// A member that does not run was replaced recently, and that did not help.
    ReplacedBefore {
        name: String,
        times: u32,
        next: String,
    },
}

/// Why a member is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Its pod came back with another data directory.
    DataLost,
    /// The volume of its claim is gone.
    VolumeLost,
    /// Its claim was deleted, and its server does not run.
    VolumeGivenUp,
    /// Its data directory cannot be used any more.
    DataDamaged,
    /// Its server crashes again and again, while another member runs with the same template.
    Crashing,
    /// Fewer members are wanted.
    ScaleDown,
}

/// The next step for this cluster.
pub fn plan(observed: &Observed, wanted: &Wanted) -> Step {
    if let Some(step) = free_stuck_pod(observed, wanted) {
        return step;
    }
    let Some(cluster_id) = observed.cluster_id else {
        return identify(observed, wanted);
    };
    if let Some(blocked) = foreign(observed, cluster_id) {
        return Step::Blocked(blocked);
    }
    match &observed.membership {
        Some(membership) => run(observed, wanted, membership),
        None => start(observed, wanted, cluster_id),
    }
}

/// Size of the StatefulSet. It always covers every member, so that shrinking it deletes only pods
/// that hold none.
pub fn stateful_set_replicas(observed: &Observed, wanted: &Wanted) -> u32 {
    let current = observed.stateful_set_replicas.unwrap_or(0);
    match &observed.membership {
        Some(membership) => {
            let holds_member = membership
                .members
                .iter()
                .filter_map(|member| member.ordinal);
            let size = holds_member.max().map_or(0, |ordinal| ordinal + 1);
            size.max(wanted.replicas)
        }
        // A member with a claim may be needed for the quorum, even if its pod was scaled away by
        // hand.
        None => {
            let held = observed
                .claims
                .iter()
                .filter(|(_, claim)| !claim.terminating);
            let size = held.map(|(ordinal, _)| ordinal + 1).max().unwrap_or(0);
            current.max(wanted.replicas).max(size.min(REPLICAS_MAX))
        }
    }
}

/// A pod from an older template that does not even answer is no loss: replacing it costs nothing
/// and may be the only way out of a bad image. This needs no quorum, so it skips pods whose volume
/// would be deleted with them, and pods that the API server refuses to delete.
fn free_stuck_pod(observed: &Observed, wanted: &Wanted) -> Option<Step> {
    let (ordinal, pod) = observed.pods.iter().find(|(ordinal, pod)| {
        let is_stuck = pod.report.is_none() && !pod.ready && pod.trouble.is_some();
        let may_go = pod.refused.is_none() && !goes_with_its_pod(observed, **ordinal);
        is_stuck && is_outdated(pod, wanted) && may_go
    })?;
    Some(restart(*ordinal, pod))
}

/// Whether the pod's claim was deleted. Kubernetes then deletes the claim, and its volume, when the
/// pod ends.
fn goes_with_its_pod(observed: &Observed, ordinal: Ordinal) -> bool {
    let claim = observed.claims.get(&ordinal);
    claim.is_some_and(|claim| claim.terminating)
}

/// No cluster id is recorded: adopt the cluster that exists, or create one if it is certain that
/// there is none. Members of a deleted cluster of that name may still answer; they do not count.
fn identify(observed: &Observed, wanted: &Wanted) -> Step {
    let identities: Vec<(Ordinal, Identity)> = own_reports(observed)
        .filter_map(|(ordinal, report)| Some((ordinal, report.identity?)))
        .collect();
    let cluster_ids: BTreeSet<u64> = identities.iter().map(|(_, id)| id.cluster_id).collect();
    if cluster_ids.len() > 1 {
        let names = identities.iter().map(|(ordinal, _)| *ordinal).collect();
        return Step::Blocked(Blocked::ForeignData { names, cluster_ids });
    }
    let unknown = unknown_pods(observed, wanted);
    let mut silent = unknown.clone();
    silent.retain(|ordinal| !is_surely_empty(observed, *ordinal));
    if let Some(cluster_id) = cluster_ids.first() {
        let confirmed = identities.len() >= quorum(wanted.replicas as usize) || silent.is_empty();
        return if confirmed {
            Step::Record(Record::Adopted {
                cluster_id: *cluster_id,
            })
        } else {
            wait_for(observed, silent)
        };
    }
    // A data directory that does not answer may hold a cluster, so every one has to report that it
    // is empty.
    if !silent.is_empty() {
        return wait_for(observed, silent);
    }
    match own_reports(observed).next() {
        // A lost status does not make it a new cluster.
        Some(_) if observed.had_members => Step::Blocked(Blocked::AllEmpty),
        Some((ordinal, report))
            if own_reports(observed).count() >= quorum(wanted.replicas as usize) =>
        {
            Step::Record(Record::NewCluster {
                ordinal,
                folder_id: report.folder_id.clone(),
            })
        }
        _ => wait_for(observed, unknown),
    }
}

/// Waits for those that are being deleted, then for the others to answer.
fn wait_for(observed: &Observed, silent: BTreeSet<Ordinal>) -> Step {
    let leaving = silent.iter().copied();
    let leaving: BTreeSet<Ordinal> = leaving.filter(|it| observed.leaves(*it)).collect();
    Step::Wait(if leaving.is_empty() {
        Waiting::Pods(silent)
    } else {
        Waiting::Gone(leaving)
    })
}

/// Whether its claim never had a volume, for example because the pod cannot be scheduled. Only for
/// a known claim: one that was created by hand may lack our labels.
fn is_surely_empty(observed: &Observed, ordinal: Ordinal) -> bool {
    let claim = observed.claims.get(&ordinal);
    claim.is_some_and(|claim| claim.empty)
}

/// A cluster id is recorded and no quorum answers: bootstrap the first voter if no member was ever
/// seen, else wait.
fn start(observed: &Observed, wanted: &Wanted, cluster_id: u64) -> Step {
    if reports(observed).any(|(_, report)| report.identity.is_some()) || observed.had_members {
        let silent = silent_pods(observed, wanted);
        let all_empty = silent.is_empty() && reports(observed).all(|(_, r)| r.identity.is_none());
        return if all_empty {
            Step::Blocked(Blocked::AllEmpty)
        } else {
            Step::Wait(Waiting::Quorum)
        };
    }
    let Some(seed) = &observed.seed_folder_id else {
        return Step::Wait(Waiting::Quorum);
    };
    match reports(observed).find(|(_, report)| report.folder_id == *seed) {
        Some((ordinal, _)) if observed.leaves(ordinal) => wait_for(observed, [ordinal].into()),
        Some((ordinal, _)) => Step::Membership(MembershipStep::Bootstrap {
            ordinal,
            cluster_id,
            folder_id: seed.clone(),
        }),
        None if silent_pods(observed, wanted).is_empty() => Step::Blocked(Blocked::SeedLost),
        None => Step::Wait(Waiting::Seed),
    }
}

/// Volumes that are kept and no longer needed. Only while no member has to be repaired, added or
/// removed.
pub fn no_longer_needed(observed: &Observed, wanted: &Wanted) -> Vec<OldVolume> {
    let Some(membership) = &observed.membership else {
        return Vec::new();
    };
    let busy = repair(observed, wanted, membership)
        .or_else(|| grow(observed, wanted, membership))
        .or_else(|| shrink(observed, wanted, membership));
    if observed.kept.is_empty() || busy.is_some() {
        return Vec::new();
    }
    let kept = observed.kept.iter();
    let over = kept.filter(|volume| is_over(observed, wanted, membership, volume));
    over.cloned().collect()
}

/// A quorum answers.
fn run(observed: &Observed, wanted: &Wanted, membership: &Membership) -> Step {
    repair(observed, wanted, membership)
        .or_else(|| grow(observed, wanted, membership))
        .or_else(|| shrink(observed, wanted, membership))
        .or_else(|| roll_out(observed, wanted, membership))
        .or_else(|| held_back(observed, wanted, membership))
        .or_else(|| not_voting(wanted, membership))
        .unwrap_or(Step::Done)
}

/// Wanted members that do not vote, and whose pods can only be waited for.
fn not_voting(wanted: &Wanted, membership: &Membership) -> Option<Step> {
    let missing = membership.not_voting(wanted.replicas);
    (!missing.is_empty()).then_some(Step::Wait(Waiting::Pods(missing)))
}

/// Marks the claim before the member is removed, so that its purpose is known after a crash too. If
/// the API server refuses the mark, the member stays: after its removal nothing would distinguish
/// its claim from one with data.
fn give_up(
    observed: &Observed,
    membership: &Membership,
    member: &Member,
    ordinal: Ordinal,
    why: Removal,
) -> Step {
    let identity = Identity {
        cluster_id: membership.cluster_id,
        member_id: member.id,
    };
    let removal = remove(observed, membership, member, why);
    if !matches!(removal, Step::Membership(MembershipStep::Remove { .. })) {
        return removal;
    }
    let replaced = observed.replaced.get(&ordinal);
    if gives_up_data(why) && replaced.is_none_or(|last| last.member_id != member.id) {
        return Step::Record(Record::Replacement {
            ordinal,
            member_id: member.id,
            name: member.name.clone(),
            voted: member.voter,
        });
    }
    match observed.claims.get(&ordinal) {
        Some(claim) if claim.marked_for != Some(identity) => Step::Object(ObjectStep::MarkClaim {
            ordinal,
            claim_uid: claim.uid.clone(),
            identity,
        }),
        _ => removal,
    }
}

/// Promotes the existing learner, or adds the next one. One at a time.
fn grow(observed: &Observed, wanted: &Wanted, membership: &Membership) -> Option<Step> {
    let mut learners = membership.members.iter().filter(|member| {
        !member.voter
            && member
                .ordinal
                .is_some_and(|ordinal| ordinal < wanted.replicas)
    });
    if let Some(learner) = learners.find(|learner| observed.is_healthy(learner)) {
        return Some(if observed.is_current(learner) {
            Step::Membership(MembershipStep::Promote {
                member_id: learner.id,
                name: learner.name.clone(),
            })
        } else {
            Step::Wait(Waiting::CatchUp {
                name: learner.name.clone(),
            })
        });
    }
    reports(observed)
        .filter(|(ordinal, report)| *ordinal < wanted.replicas && report.identity.is_none())
        .find(|(ordinal, _)| observed.member_at(*ordinal).is_none())
        .map(|(ordinal, report)| {
            Step::Membership(MembershipStep::AddLearner {
                ordinal,
                folder_id: report.folder_id.clone(),
            })
        })
}

/// Removes surplus members: unavailable ones first, then from the highest ordinal down. Growth ends
/// before.
fn shrink(observed: &Observed, wanted: &Wanted, membership: &Membership) -> Option<Step> {
    let is_surplus = |member: &Member| {
        member
            .ordinal
            .is_some_and(|ordinal| ordinal >= wanted.replicas)
    };
    let surplus = membership
        .members
        .iter()
        .filter(|member| is_surplus(member))
        .max_by_key(|member| (!observed.is_healthy(member), member.ordinal))?;
    let ordinal = surplus.ordinal?;
    if observed.is_claim_refused(ordinal) {
        return None;
    }
    let removal = give_up(observed, membership, surplus, ordinal, Removal::ScaleDown);
    // A smaller cluster tolerates fewer failures, so none of the members that stay may be
    // unavailable.
    let mut voters = membership.voters();
    let away = voters.find(|member| !is_surplus(member) && !observed.carries(member));
    Some(match away {
        _ if !removal.acts() => removal,
        Some(away) => Step::Blocked(Blocked::ScaleDown {
            name: surplus.name.clone(),
            away: away.name.clone(),
        }),
        None if surplus.leader => hand_over(observed, membership, surplus, |member| {
            let ordinal = member.ordinal;
            ordinal.is_some_and(|ordinal| ordinal < wanted.replicas)
        }),
        None => removal,
    })
}

fn hand_over(
    observed: &Observed,
    membership: &Membership,
    from: &Member,
    eligible: impl Fn(&Member) -> bool,
) -> Step {
    membership
        .voters()
        .filter(|member| member.id != from.id && eligible(member) && observed.is_current(member))
        .min_by_key(|member| member.lag_entries)
        .map_or_else(
            || {
                Step::Wait(Waiting::Member {
                    name: from.name.clone(),
                })
            },
            |to| {
                Step::Membership(MembershipStep::TransferLeader {
                    member_id: to.id,
                    name: to.name.clone(),
                })
            },
        )
}

/// Removing a member is safe if a majority of the remaining voters is healthy.
fn remove(observed: &Observed, membership: &Membership, member: &Member, why: Removal) -> Step {
    let remaining: Vec<&Member> = membership.voters().filter(|m| m.id != member.id).collect();
    let healthy = remaining.iter().filter(|m| observed.carries(m)).count();
    let safe = !member.voter || (!remaining.is_empty() && healthy >= quorum(remaining.len()));
    if safe {
        Step::Membership(MembershipStep::Remove {
            member_id: member.id,
            name: member.name.clone(),
            why,
        })
    } else {
        Step::Blocked(Blocked::Quorum {
            name: member.name.clone(),
        })
    }
}

fn foreign(observed: &Observed, cluster_id: u64) -> Option<Blocked> {
    let others: Vec<(Ordinal, u64)> = reports(observed)
        .filter_map(|(ordinal, report)| Some((ordinal, report.identity?.cluster_id)))
        .filter(|(_, id)| *id != cluster_id)
        .collect();
    (!others.is_empty()).then(|| Blocked::ForeignData {
        names: others.iter().map(|(ordinal, _)| *ordinal).collect(),
        cluster_ids: others.iter().map(|(_, id)| *id).collect(),
    })
}

/// Whether the pod was created from another template than the wanted one.
pub(crate) fn is_outdated(pod: &Pod, wanted: &Wanted) -> bool {
    !pod.terminating && pod.template_hash.as_deref() != Some(wanted.template_hash.as_str())
}

fn restart(ordinal: Ordinal, pod: &Pod) -> Step {
    Step::Object(ObjectStep::RestartPod {
        ordinal,
        pod_uid: pod.uid.clone(),
    })
}

fn reports(observed: &Observed) -> impl Iterator<Item = (Ordinal, &super::model::Report)> {
    observed
        .pods
        .iter()
        .filter(|(_, pod)| !pod.terminating)
        .filter_map(|(ordinal, pod)| Some((*ordinal, pod.report.as_ref()?)))
}

/// Reports of the pods that belong to this cluster for certain.
fn own_reports(observed: &Observed) -> impl Iterator<Item = (Ordinal, &super::model::Report)> {
    reports(observed).filter(|(ordinal, _)| !observed.leaves(*ordinal))
}

/// Pods that should exist and whose cluster is unknown: they do not answer, or still belong to
/// another StatefulSet.
fn unknown_pods(observed: &Observed, wanted: &Wanted) -> BTreeSet<Ordinal> {
    let known: BTreeSet<Ordinal> = own_reports(observed).map(|(ordinal, _)| ordinal).collect();
    let places = places(observed, wanted);
    places.filter(|ordinal| !known.contains(ordinal)).collect()
}

/// Pods that should exist and do not answer; also surplus pods, since their data directories count.
fn silent_pods(observed: &Observed, wanted: &Wanted) -> BTreeSet<Ordinal> {
    let answers: BTreeSet<Ordinal> = reports(observed).map(|(ordinal, _)| ordinal).collect();
    let places = places(observed, wanted);
    places
        .filter(|ordinal| !answers.contains(ordinal))
        .collect()
}

/// Ordinals of the pods that exist or are wanted.
fn places(observed: &Observed, wanted: &Wanted) -> Range<Ordinal> {
    let current = observed.stateful_set_replicas.unwrap_or(0);
    0..current.max(wanted.replicas)
}
