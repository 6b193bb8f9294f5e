//! Decides the next step of one cluster. Pure: the same observation always gives the same step, and
//! a crash before, during or after any step is harmless because the next one is derived anew.
//!
//! Order: identity, then repair, then growth, then shrinking, then roll-out. A step that touches
//! quorum is taken only if a majority of the voters that remain is healthy afterwards.

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
    /// Pods that have to answer first.
    Pods(BTreeSet<Ordinal>),
    /// What was there before, and goes: only then is it known what this cluster is.
    Gone(BTreeSet<Ordinal>),
    /// The recorded seed's pod has to answer.
    Seed,
    /// A quorum has to answer.
    Quorum,
    /// A learner receives the log.
    CatchUp { name: String },
    /// A member has to serve again before the next is restarted.
    Member { name: String },
}

/// Why nothing may be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// Folders belong to other clusters.
    ForeignData {
        names: BTreeSet<Ordinal>,
        cluster_ids: BTreeSet<u64>,
    },
    /// Every folder is empty though the cluster once had members.
    AllEmpty,
    /// The folder that was chosen as the first voter is gone, and the cluster was never seen to have a member. It may have had
    /// one: it may be lost right after it was bootstrapped and took writes. So nobody else is chosen.
    SeedLost,
    /// A pod holds the folder of a member that somebody removed by hand.
    RemovedByHand { ordinal: Ordinal, member_id: u64 },
    /// The member list has an entry that no pod of this cluster can be.
    UnknownMember { name: String },
    /// The step would leave no healthy majority.
    Quorum { name: String },
    /// What was restarted with the new image turned out to be of a version that may not follow the others'.
    Version {
        from: Version,
        to: Version,
        why: Refusal,
    },
    /// Fewer members are wanted while one of those that are to stay does not take part.
    ScaleDown { name: String, away: String },
    /// A member is to be restarted whose claim somebody deleted: its volume would go with its pod.
    ClaimDeleted { name: String },
    /// A member that does not run was replaced lately, and that did not help.
    ReplacedBefore {
        name: String,
        times: u32,
        next: String,
    },
}

/// Why a member is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Its pod came back with another folder.
    DataLost,
    /// The volume behind its claim is gone.
    VolumeLost,
    /// Somebody deleted its claim, and its server does not run.
    VolumeGivenUp,
    /// Its folder can not be used any more.
    DataDamaged,
    /// Its server ends again and again, and another member shows that the template is not to blame.
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

/// Size that the StatefulSet should have. Never below what holds a member, so that shrinking it can
/// only take pods that the cluster has already let go.
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
        // Whoever has a claim may be needed for the quorum, also if somebody scaled it away by hand.
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

/// A pod from an older template that does not even answer takes no part: replacing it costs nothing
/// and may be the only way out of a bad image. Needs no quorum, so it touches no pod whose volume would go with it. One that the
/// API server keeps is in nobody's way: it takes no part, whatever the others do.
fn free_stuck_pod(observed: &Observed, wanted: &Wanted) -> Option<Step> {
    let (ordinal, pod) = observed.pods.iter().find(|(ordinal, pod)| {
        let is_stuck = pod.report.is_none() && !pod.ready && pod.trouble.is_some();
        let may_go = pod.refused.is_none() && !goes_with_its_pod(observed, **ordinal);
        is_stuck && is_outdated(pod, wanted) && may_go
    })?;
    Some(restart(*ordinal, pod))
}

/// Somebody deleted the claim of this pod. Kubernetes lets it, and the volume behind it, go as soon as the pod ends.
fn goes_with_its_pod(observed: &Observed, ordinal: Ordinal) -> bool {
    let claim = observed.claims.get(&ordinal);
    claim.is_some_and(|claim| claim.terminating)
}

/// No cluster id is recorded: adopt the one that exists, or draw one if it is certain that none does. A cluster of that name
/// that was deleted may still answer; it is over.
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
    // A folder that does not answer may hold a cluster, so every one has to say that it is empty.
    if !silent.is_empty() {
        return wait_for(observed, silent);
    }
    match own_reports(observed).next() {
        // A status that is lost does not make it another cluster.
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

/// For those that go to be gone, then for the others to answer.
fn wait_for(observed: &Observed, silent: BTreeSet<Ordinal>) -> Step {
    let leaving = silent.iter().copied();
    let leaving: BTreeSet<Ordinal> = leaving.filter(|it| observed.leaves(*it)).collect();
    Step::Wait(if leaving.is_empty() {
        Waiting::Pods(silent)
    } else {
        Waiting::Gone(leaving)
    })
}

/// Its claim never had a volume: the pod can not be scheduled, say. Only of a claim that is known: one that a person made
/// may have come without our labels.
fn is_surely_empty(observed: &Observed, ordinal: Ordinal) -> bool {
    let claim = observed.claims.get(&ordinal);
    claim.is_some_and(|claim| claim.empty)
}

/// A cluster id is recorded and no quorum answers: either nobody has the identity yet, or we wait.
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

/// Volumes that are kept and that nobody needs any more. Not while members are yet to be repaired, added or removed.
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

/// Wanted members that do not vote, and for whose pods nothing can be done but to wait.
fn not_voting(wanted: &Wanted, membership: &Membership) -> Option<Step> {
    let missing = membership.not_voting(wanted.replicas);
    (!missing.is_empty()).then_some(Step::Wait(Waiting::Pods(missing)))
}

/// Marks the claim before the member is removed, so that what follows is known after a crash too. If the API server refuses the
/// mark, the member stays: once it were removed, nobody could tell its claim from one that holds something.
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

/// Promotes the learner that is there, or adds the next one. One at a time.
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

/// Removes the members that are too many: those that take no part first, then from the highest ordinal down. Waits for
/// growth to end.
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
    // A smaller cluster survives fewer failures; one of those that stay is not to be the first.
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

/// Removing a member is safe if a majority of the voters that remain carries the cluster.
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

/// Whether the pod was made from another template than the wanted one.
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

/// What those say of themselves that are of this cluster, whichever that is.
fn own_reports(observed: &Observed) -> impl Iterator<Item = (Ordinal, &super::model::Report)> {
    reports(observed).filter(|(ordinal, _)| !observed.leaves(*ordinal))
}

/// Pods that should be there and of which it is not known what they are of: they do not answer, or are another's yet.
fn unknown_pods(observed: &Observed, wanted: &Wanted) -> BTreeSet<Ordinal> {
    let known: BTreeSet<Ordinal> = own_reports(observed).map(|(ordinal, _)| ordinal).collect();
    let places = places(observed, wanted);
    places.filter(|ordinal| !known.contains(ordinal)).collect()
}

/// Pods that should be there and do not answer; also existing ones beyond, since their folders count.
fn silent_pods(observed: &Observed, wanted: &Wanted) -> BTreeSet<Ordinal> {
    let answers: BTreeSet<Ordinal> = reports(observed).map(|(ordinal, _)| ordinal).collect();
    let places = places(observed, wanted);
    places
        .filter(|ordinal| !answers.contains(ordinal))
        .collect()
}

/// Ordinals of the pods that should be there, or are meant to be.
fn places(observed: &Observed, wanted: &Wanted) -> Range<Ordinal> {
    let current = observed.stateful_set_replicas.unwrap_or(0);
    0..current.max(wanted.replicas)
}
