//! Members whose data is gone, damaged or left over: they are replaced under a new id, with an
//! empty data directory. Comes before growth, and never waits for the member that it replaces.

use super::{
    Blocked, MembershipStep, ObjectStep, Removal, Step, give_up, is_outdated, remove, reports,
    restart,
};
use crate::cluster::model::{
    Broken, Claim, Identity, Member, Membership, Observed, OldVolume, Ordinal, Pod, Wanted,
};

/// Removes members whose data is gone or unusable, and joins members that were added.
pub(super) fn repair(
    observed: &Observed,
    wanted: &Wanted,
    membership: &Membership,
) -> Option<Step> {
    for member in &membership.members {
        let Some(ordinal) = member.ordinal else {
            return Some(Step::Blocked(Blocked::UnknownMember {
                name: member.name.clone(),
            }));
        };
        if let Some(why) = beyond_help(observed, wanted, member, ordinal)
            && !is_held_back(observed, member, why)
            && !observed.is_claim_refused(ordinal)
        {
            return Some(give_up(observed, membership, member, ordinal, why));
        }
        let pod = observed.pods.get(&ordinal).filter(|pod| !pod.terminating);
        let Some(report) = pod.and_then(|pod| pod.report.as_ref()) else {
            continue;
        };
        if report.folder_id != member.folder_id && report.identity.is_none() {
            return Some(remove(observed, membership, member, Removal::DataLost));
        }
        if report.folder_id == member.folder_id && report.identity.is_none() {
            return Some(Step::Membership(MembershipStep::Join {
                ordinal,
                member_id: member.id,
                folder_id: member.folder_id.clone(),
            }));
        }
    }
    return_of_the_removed(observed, wanted, membership)
}

/// Why a member that does not answer will not recover.
fn beyond_help(
    observed: &Observed,
    wanted: &Wanted,
    member: &Member,
    ordinal: Ordinal,
) -> Option<Removal> {
    let pod = observed.pods.get(&ordinal);
    if pod.is_some_and(|pod| pod.report.is_some()) {
        return None;
    }
    // Checked first: the pod of a dead node stays terminating.
    let claim = observed.claims.get(&ordinal);
    if claim.is_some_and(|claim| claim.lost) {
        return Some(Removal::VolumeLost);
    }
    // A deleted claim stays only for its pod, and that does not run. Deleting the claim of a lost
    // node tells the operator that the volume will not come back.
    if claim.is_some_and(|claim| claim.terminating) && pod.is_none_or(is_away) {
        return Some(Removal::VolumeGivenUp);
    }
    let pod = pod.filter(|pod| !pod.terminating)?;
    match pod.broken? {
        Broken::Folder => Some(Removal::DataDamaged),
        Broken::Crashing => {
            template_works(observed, wanted, member, pod).then_some(Removal::Crashing)
        }
    }
}

/// Its server does not run, and not only for a moment. A pod that was just deleted still serves for
/// a while, and may lead; one that should have ended long ago has a trouble.
fn is_away(pod: &Pod) -> bool {
    pod.report.is_none() && pod.trouble.is_some()
}

/// A volume that still exists is given up once, and again only after a growing pause: the cause may
/// be the node, the disk or a limit, and then a new volume does not help.
pub(super) fn is_held_back(observed: &Observed, member: &Member, why: Removal) -> bool {
    let replaced = member
        .ordinal
        .and_then(|ordinal| observed.replaced.get(&ordinal));
    gives_up_data(why)
        && replaced.is_some_and(|last| last.member_id != member.id && !last.may_again)
}

/// Whether the data of an existing volume is given up.
pub(super) fn gives_up_data(why: Removal) -> bool {
    match why {
        Removal::DataDamaged | Removal::Crashing => true,
        Removal::DataLost | Removal::VolumeLost | Removal::VolumeGivenUp | Removal::ScaleDown => {
            false
        }
    }
}

/// The member that would be replaced, if it had not been replaced recently. Blocks no other step.
pub(super) fn held_back(
    observed: &Observed,
    wanted: &Wanted,
    membership: &Membership,
) -> Option<Step> {
    let held = |member: &&Member| {
        let ordinal = member.ordinal;
        let why = ordinal.and_then(|ordinal| beyond_help(observed, wanted, member, ordinal));
        why.is_some_and(|why| is_held_back(observed, member, why))
    };
    let member = membership.members.iter().find(held)?;
    let last = observed.replaced.get(&member.ordinal?)?;
    Some(Step::Blocked(Blocked::ReplacedBefore {
        name: member.name.clone(),
        times: last.times,
        next: last.next.clone(),
    }))
}

/// Whether another member serves with the template that this pod crashes with. Without one, the
/// image or the settings may be bad, and no member's data is given up for that.
fn template_works(observed: &Observed, wanted: &Wanted, member: &Member, pod: &Pod) -> bool {
    let witness = |other: &Member| {
        let pod = other
            .ordinal
            .and_then(|ordinal| observed.pods.get(&ordinal));
        other.id != member.id
            && pod.is_some_and(|pod| !is_outdated(pod, wanted))
            && observed.carries(other)
    };
    !is_outdated(pod, wanted)
        && observed
            .membership
            .iter()
            .flat_map(|m| &m.members)
            .any(witness)
}

/// A pod with the data directory of a removed member: ids are never reused, so the directory is
/// useless. It is deleted if this operator removed the member.
fn return_of_the_removed(
    observed: &Observed,
    wanted: &Wanted,
    membership: &Membership,
) -> Option<Step> {
    let gone = |id: u64| membership.members.iter().all(|member| member.id != id);
    for (ordinal, claim) in &observed.claims {
        let pod = observed.pods.get(ordinal);
        let in_use = pod
            .and_then(|pod| pod.report.as_ref())
            .and_then(|report| report.identity);
        let Some(marked) = claim.marked_for else {
            continue;
        };
        let removed = marked.cluster_id == membership.cluster_id && gone(marked.member_id);
        // Without a pod nothing writes to the claim. With one, it must be the removed member's, or
        // unable to tell whose it is.
        let broken = pod.is_some_and(|pod| pod.broken.is_some()) || claim.lost;
        let given_up = claim.terminating && pod.is_some_and(is_away);
        let still_its_own = in_use == Some(marked)
            || (in_use.is_none() && (broken || given_up))
            || (pod.is_none() && *ordinal >= wanted.replicas);
        // The mark may be older than the current member.
        let vacant = observed.member_at(*ordinal).is_none();
        if !removed || !still_its_own || !vacant || claim.refused.is_some() {
            continue;
        }
        if !claim.terminating {
            return Some(Step::Object(ObjectStep::DeleteClaim {
                ordinal: *ordinal,
                claim_uid: claim.uid.clone(),
                keep: to_keep(observed, wanted, membership, *ordinal, claim, marked).map(Box::new),
            }));
        }
        // The claim is deleted once its pod is.
        let may_go = |pod: &&Pod| !pod.terminating && pod.refused.is_none();
        if let Some(pod) = pod.filter(|pod| may_go(pod) && *ordinal < wanted.replicas) {
            return Some(restart(*ordinal, pod));
        }
    }
    if let Some(step) = let_claim_go(observed, wanted) {
        return Some(step);
    }
    reports(observed)
        .filter(|(ordinal, _)| *ordinal < wanted.replicas && !observed.is_claim_refused(*ordinal))
        .filter_map(|(ordinal, report)| Some((ordinal, report.identity?.member_id)))
        .find(|(_, member_id)| gone(*member_id))
        .map(|(ordinal, member_id)| Step::Blocked(Blocked::RemovedByHand { ordinal, member_id }))
}

/// Whether to keep the volume: until another member has caught up and votes, it may hold the last
/// copy of some data. The status records what was given up; if it was lost, the volume is kept
/// unless it is surely not needed.
fn to_keep(
    observed: &Observed,
    wanted: &Wanted,
    membership: &Membership,
    ordinal: Ordinal,
    claim: &Claim,
    removed: Identity,
) -> Option<OldVolume> {
    let volume = OldVolume {
        name: claim.volume.clone().filter(|_| !claim.lost)?,
        ordinal,
        of: removed,
    };
    let replaced = observed.replaced.get(&ordinal);
    let keep = match replaced.filter(|replaced| replaced.member_id == removed.member_id) {
        // That of an earlier member is kept if this one never voted.
        Some(replaced) => {
            let kept = replaced.kept_volume.as_ref();
            kept.is_none_or(|kept| *kept == volume.name)
        }
        None => !is_over(observed, wanted, membership, &volume),
    };
    keep.then_some(volume)
}

/// Whether a kept volume is no longer needed: another member votes in its place, or that place is
/// no longer wanted and all wanted members vote.
pub(super) fn is_over(
    observed: &Observed,
    wanted: &Wanted,
    membership: &Membership,
    volume: &OldVolume,
) -> bool {
    match observed.member_at(volume.ordinal) {
        Some(member) => {
            member.voter && member.id != volume.of.member_id && observed.is_current(member)
        }
        None => {
            volume.ordinal >= wanted.replicas && membership.not_voting(wanted.replicas).is_empty()
        }
    }
}

/// A deleted claim whose pod never joined: only that pod keeps it.
fn let_claim_go(observed: &Observed, wanted: &Wanted) -> Option<Step> {
    let deleted = observed.claims.iter().filter(|(ordinal, claim)| {
        claim.terminating && **ordinal < wanted.replicas && observed.member_at(**ordinal).is_none()
    });
    deleted
        .filter_map(|(ordinal, _)| Some((*ordinal, observed.pods.get(ordinal)?)))
        .find(|(_, pod)| is_away(pod) && !pod.terminating && pod.refused.is_none())
        .map(|(ordinal, pod)| restart(ordinal, pod))
}
