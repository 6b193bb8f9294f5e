//! Rolling update: brings every member to the current template, one at a time.

use std::cmp::Reverse;

use super::{Blocked, Step, Waiting, goes_with_its_pod, hand_over, is_outdated, reports, restart};
use crate::cluster::model::{
    LAG_CAUGHT_UP_ENTRIES_MAX, Member, Membership, Observed, Ordinal, Pod, Wanted, quorum,
};
use crate::cluster::versions::Version;

/// Restarts members that run an older template: one at a time, the leader last, each only while all
/// others serve. An unavailable member is restarted first. Two kinds are skipped: a member whose
/// volume would be deleted with its pod, since only a person can decide that; and a pod that the
/// API server refuses to delete, until that is retried.
pub(super) fn roll_out(
    observed: &Observed,
    wanted: &Wanted,
    membership: &Membership,
) -> Option<Step> {
    let pods = observed.pods.iter();
    let outdated: Vec<(Ordinal, &Pod)> = pods
        .filter(|(_, pod)| is_outdated(pod, wanted) && pod.refused.is_none())
        .map(|(ordinal, pod)| (*ordinal, pod))
        .collect();
    if outdated.is_empty() {
        return None;
    }
    if let Some(refused) = refused_version(observed, wanted) {
        return Some(Step::Blocked(refused));
    }
    let free = outdated.iter().copied();
    let free = free.filter(|(ordinal, _)| held_by_its_volume(observed, *ordinal).is_none());
    let next = free.min_by_key(|(ordinal, pod)| turn(observed, *ordinal, pod));
    let Some((ordinal, pod)) = next else {
        let mut ordinals = outdated.iter().map(|(ordinal, _)| *ordinal);
        let held = ordinals.find_map(|ordinal| held_by_its_volume(observed, ordinal))?;
        let name = held.name.clone();
        return Some(Step::Blocked(Blocked::ClaimDeleted { name }));
    };
    let member = observed.member_at(ordinal);
    Some(match member.filter(|m| m.leader || m.reachable) {
        Some(member) => restart_serving(observed, wanted, membership, member, (ordinal, pod)),
        None => restart(ordinal, pod),
    })
}

/// The member of this place, if its volume would be deleted with its pod.
fn held_by_its_volume(observed: &Observed, ordinal: Ordinal) -> Option<&Member> {
    let member = observed.member_at(ordinal);
    member.filter(|_| goes_with_its_pod(observed, ordinal))
}

/// In which order pods are restarted. The leader is last; of the others, those that are not ready
/// go first, then those that lag most, then from the highest ordinal down.
fn turn(observed: &Observed, ordinal: Ordinal, pod: &Pod) -> impl Ord + use<> {
    let member = observed.member_at(ordinal);
    let leads = member.is_some_and(|m| m.leader);
    let entries = member.map_or(0, |m| m.lag_entries);
    // A busy log is always a little ahead of its followers; that is no lag.
    let lag = (entries > LAG_CAUGHT_UP_ENTRIES_MAX).then_some(entries);
    (leads, pod.ready, Reverse(lag), Reverse(ordinal))
}

/// The next step towards the restart of a member that serves: the others serve too, somebody else
/// leads, and a quorum is left.
fn restart_serving(
    observed: &Observed,
    wanted: &Wanted,
    membership: &Membership,
    member: &Member,
    (ordinal, pod): (Ordinal, &Pod),
) -> Step {
    let others = membership.members.iter();
    let others = others.filter(|other| other.id != member.id);
    if let Some(busy) = others.clone().find(|other| !observed.carries(other)) {
        return Step::Wait(Waiting::Member {
            name: busy.name.clone(),
        });
    }
    let voters = membership.voters().count();
    let alone = voters == 1;
    let keeps_quorum = others.filter(|other| other.voter).count() >= quorum(voters);
    if member.leader && !alone {
        hand_over(observed, membership, member, |_| true)
    } else if keeps_quorum || !member.voter || (alone && wanted.replicas == 1) {
        restart(ordinal, pod)
    } else {
        Step::Blocked(Blocked::Quorum {
            name: member.name.clone(),
        })
    }
}

/// Not every image's tag is a version. Then the first updated member reports it, and no other is
/// updated if the version may not follow.
fn refused_version(observed: &Observed, wanted: &Wanted) -> Option<Blocked> {
    let from = observed.cluster_version?;
    let updated = reports(observed).filter(|(ordinal, _)| {
        let pod = observed.pods.get(ordinal);
        pod.is_some_and(|pod| !is_outdated(pod, wanted))
    });
    updated
        .filter_map(|(_, report)| Version::parse(&report.version))
        .find_map(|to| {
            let why = from.may_become(to).err()?;
            Some(Blocked::Version { from, to, why })
        })
}
