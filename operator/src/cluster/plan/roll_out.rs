//! Rolling update: brings every member to the current template, one at a time.

use std::cmp::Reverse;

use super::{Blocked, Step, Waiting, goes_with_its_pod, hand_over, is_outdated, reports, restart};
use crate::cluster::model::{
    LAG_CAUGHT_UP_ENTRIES_MAX, Membership, Observed, Ordinal, Pod, Wanted, quorum,
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
    let outdated = || {
        let pods = observed.pods.iter();
        pods.filter(|(_, pod)| is_outdated(pod, wanted) && pod.refused.is_none())
            .map(|(ordinal, pod)| (*ordinal, pod))
    };
    outdated().next()?;
    if let Some(refused) = refused_version(observed, wanted) {
        return Some(Step::Blocked(refused));
    }
    let mut held = outdated()
        .filter(|(ordinal, _)| goes_with_its_pod(observed, *ordinal))
        .filter_map(|(ordinal, _)| observed.member_at(ordinal));
    let mut outdated: Vec<(Ordinal, &Pod)> = outdated()
        .filter(|(ordinal, _)| {
            !goes_with_its_pod(observed, *ordinal) || observed.member_at(*ordinal).is_none()
        })
        .collect();
    let leads = |ordinal: Ordinal| observed.member_at(ordinal).is_some_and(|m| m.leader);
    // A busy log is always a little ahead of its followers; that is no lag.
    let lag = |ordinal: Ordinal| {
        let entries = observed.member_at(ordinal).map_or(0, |m| m.lag_entries);
        (entries > LAG_CAUGHT_UP_ENTRIES_MAX).then_some(entries)
    };
    // Pods that are not ready go first, then those that lag most, then from the highest ordinal
    // down.
    outdated.sort_by_key(|(ordinal, pod)| {
        (
            leads(*ordinal),
            pod.ready,
            Reverse(lag(*ordinal)),
            Reverse(*ordinal),
        )
    });
    let Some((ordinal, pod)) = outdated.first().copied() else {
        let name = held.next()?.name.clone();
        return Some(Step::Blocked(Blocked::ClaimDeleted { name }));
    };

    let Some(member) = observed
        .member_at(ordinal)
        .filter(|m| m.leader || m.reachable)
    else {
        return Some(restart(ordinal, pod));
    };
    let others = membership
        .members
        .iter()
        .filter(|other| other.id != member.id);
    let Some(busy) = others.clone().find(|other| !observed.carries(other)) else {
        let alone = membership.voters().count() == 1;
        let survivors = others.filter(|other| other.voter).count();
        let keeps_quorum = survivors >= quorum(membership.voters().count());
        return Some(if member.leader && !alone {
            hand_over(observed, membership, member, |_| true)
        } else if keeps_quorum || !member.voter || (alone && wanted.replicas == 1) {
            restart(ordinal, pod)
        } else {
            Step::Blocked(Blocked::Quorum {
                name: member.name.clone(),
            })
        });
    };
    Some(Step::Wait(Waiting::Member {
        name: busy.name.clone(),
    }))
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
