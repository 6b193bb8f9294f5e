//! Steps and states as messages for conditions and events. Pure.

use std::collections::{BTreeMap, BTreeSet};

use dengine_crds::reasons::cluster as reasons;

use super::model::{Membership, Observed, Ordinal};
use super::plan::{Blocked, MembershipStep, ObjectStep, Record, Removal, Step, Waiting};

/// Whether a step is work towards the spec, with its reason and message.
pub(super) fn progress(step: &Step, observed: &Observed) -> (bool, &'static str, String) {
    let (works, (reason, message)) = match step {
        Step::Done => (false, done(observed)),
        Step::Blocked(blocked) => (false, self::blocked(blocked)),
        Step::Wait(waiting) => (true, self::waiting(waiting, observed)),
        Step::Record(record) => (true, recording(record)),
        Step::Object(step) => (true, changing_object(step)),
        Step::Membership(step) => (true, changing_membership(step)),
    };
    (works, reason, message)
}

/// There is no step, which does not mean that all is well.
fn done(observed: &Observed) -> (&'static str, String) {
    let away: Vec<&str> = observed
        .membership
        .iter()
        .flat_map(Membership::voters)
        .filter(|member| !observed.is_healthy(member))
        .map(|member| member.name.as_str())
        .collect();
    let unready = not_ready(observed);
    let message = if !away.is_empty() {
        format!("waiting for {} to recover", away.join(", "))
    } else if observed.refused.is_some() {
        "waiting for its pods to recover".to_owned()
    } else if !unready.is_empty() {
        format!("waiting for {} to become ready", unready.join(", "))
    } else {
        let message = "the cluster is as the spec asks".to_owned();
        return (reasons::AS_SPECIFIED, message);
    };
    (
        reasons::MEMBER_UNAVAILABLE,
        with_troubles(message, observed),
    )
}

/// Voters whose pods do not count as ready yet, as for a moment after they have got their vote.
fn not_ready(observed: &Observed) -> Vec<&str> {
    let voters = observed.membership.iter().flat_map(Membership::voters);
    let not_ready = voters.filter(|member| {
        let pod = member.ordinal.and_then(|it| observed.pods.get(&it));
        pod.is_some_and(|pod| !pod.ready)
    });
    not_ready.map(|member| member.name.as_str()).collect()
}

/// Adds what keeps pods from running, if known.
pub(super) fn with_troubles(message: String, observed: &Observed) -> String {
    match troubles(observed) {
        Some(troubles) => format!("{message}; {troubles}"),
        None => message,
    }
}

fn recording(record: &Record) -> (&'static str, String) {
    match record {
        Record::NewCluster { .. } => {
            let message = "giving the first member its identity".to_owned();
            (reasons::BOOTSTRAPPING, message)
        }
        Record::Adopted { cluster_id } => {
            let message = format!("adopting the existing cluster {cluster_id}");
            (reasons::BOOTSTRAPPING, message)
        }
        Record::Replacement { name, .. } => {
            let message = format!("replacing {name}, which does not run");
            (reasons::REPLACING_MEMBER, message)
        }
    }
}

fn changing_object(step: &ObjectStep) -> (&'static str, String) {
    match step {
        ObjectStep::MarkClaim { ordinal, .. } => {
            let message = format!("preparing to remove member {ordinal}");
            (reasons::REMOVING_MEMBER, message)
        }
        ObjectStep::RestartPod { ordinal, .. } => {
            (reasons::ROLLING_OUT, format!("restarting member {ordinal}"))
        }
        ObjectStep::DeleteClaim { ordinal, .. } => {
            let message = format!("deleting the volume claim of the removed member {ordinal}");
            (reasons::REMOVING_MEMBER, message)
        }
    }
}

fn changing_membership(step: &MembershipStep) -> (&'static str, String) {
    match step {
        MembershipStep::Bootstrap { .. } => {
            let message = "giving the first member its identity".to_owned();
            (reasons::BOOTSTRAPPING, message)
        }
        MembershipStep::AddLearner { ordinal, .. } => {
            let message = format!("adding member {ordinal} as a learner");
            (reasons::ADDING_MEMBER, message)
        }
        MembershipStep::Join { ordinal, .. } => {
            let message = format!("joining member {ordinal} to the cluster");
            (reasons::ADDING_MEMBER, message)
        }
        MembershipStep::Promote { name, .. } => (
            reasons::ADDING_MEMBER,
            format!("promoting {name} to a voter"),
        ),
        MembershipStep::Remove { name, why, .. } => removing(name, *why),
        MembershipStep::TransferLeader { name, .. } => {
            let message = format!("transferring leadership to {name}");
            (reasons::TRANSFERRING_LEADER, message)
        }
    }
}

fn removing(name: &str, why: Removal) -> (&'static str, String) {
    let replaced = match why {
        Removal::ScaleDown => {
            let message = format!("removing {name}: the cluster is scaled down");
            return (reasons::REMOVING_MEMBER, message);
        }
        Removal::DataLost => format!("replacing {name}: it came back without its data"),
        Removal::VolumeLost => format!("replacing {name}: its volume is gone"),
        Removal::VolumeGivenUp => {
            format!("replacing {name}: its volume claim was deleted")
        }
        Removal::DataDamaged => {
            format!("replacing {name}: its data directory cannot be used any more")
        }
        Removal::Crashing => format!("replacing {name}: its server crashes again and again"),
    };
    (reasons::REPLACING_MEMBER, replaced)
}

fn waiting(waiting: &Waiting, observed: &Observed) -> (&'static str, String) {
    match waiting {
        Waiting::Pods(silent) => {
            let silent: Vec<u32> = silent.iter().copied().collect();
            let message = format!("waiting for {} to answer", members(&silent));
            (reasons::WAITING_FOR_PODS, with_troubles(message, observed))
        }
        Waiting::Gone(leaving) => {
            let leaving: Vec<u32> = leaving.iter().copied().collect();
            let message = format!(
                "waiting for the old pods of {} to end: they belong to another StatefulSet, or \
                 their volume claims are being deleted; if they stay, delete them (the volume of \
                 a deleted claim is deleted with its pod, unless its \
                 persistentVolumeReclaimPolicy is Retain)",
                members(&leaving)
            );
            (reasons::WAITING_FOR_PODS, with_troubles(message, observed))
        }
        Waiting::Seed => {
            let message = "waiting for the first voter to answer".to_owned();
            (reasons::WAITING_FOR_PODS, with_troubles(message, observed))
        }
        Waiting::Quorum => {
            let message = "waiting for a quorum of the members to answer".to_owned();
            (reasons::QUORUM_LOST, with_troubles(message, observed))
        }
        Waiting::CatchUp { name } => {
            let message = format!("{name} is catching up with the log");
            (reasons::CATCHING_UP, with_troubles(message, observed))
        }
        Waiting::Member { name } => {
            let message = format!("waiting for {name} to serve before the next restart");
            (reasons::ROLLING_OUT, with_troubles(message, observed))
        }
    }
}

/// Reason and message of a step that may not be taken.
pub(super) fn blocked(blocked: &Blocked) -> (&'static str, String) {
    match blocked {
        Blocked::ForeignData { names, cluster_ids } => {
            (reasons::FOREIGN_DATA, foreign_data(names, cluster_ids))
        }
        Blocked::AllEmpty => (
            reasons::QUORUM_LOST,
            "every volume is empty though the cluster had members; no second cluster is formed. \
             If the volumes with its data exist, bind them to the claims of these pods, else \
             delete this resource and its claims and create it again (runbook DEngineQuorumLost)"
                .to_owned(),
        ),
        Blocked::SeedLost => (
            reasons::BLOCKED,
            "the volume of the first voter is gone, and no member was ever seen; delete this \
             resource and its claims and create it again"
                .to_owned(),
        ),
        Blocked::RemovedByHand { ordinal, member_id } => (
            reasons::BLOCKED,
            format!(
                "the volume of pod {ordinal} holds member {member_id}, which was removed from \
                     the cluster by hand; delete its volume claim and the pod to let it join again"
            ),
        ),
        Blocked::UnknownMember { name } => (
            reasons::BLOCKED,
            format!("member {name:?} is not a pod of this cluster; remove it by hand"),
        ),
        Blocked::Quorum { name } => (
            reasons::BLOCKED,
            format!(
                "stopping or removing {name} now could cost the quorum; waiting for more \
                     members to answer"
            ),
        ),
        Blocked::Version { from, to, why } => (
            reasons::VERSION_REFUSED,
            format!("the rolling update stops: {}", why.message(*from, *to)),
        ),
        Blocked::ScaleDown { name, away } => (
            reasons::BLOCKED,
            format!(
                "{name} is not removed while {away} is unavailable: fewer members tolerate \
                     fewer failures"
            ),
        ),
        Blocked::ClaimDeleted { name } => (
            reasons::VOLUME_CLAIM_DELETED,
            format!(
                "{name} is not restarted: {}",
                goes_with_its_pod("its volume claim")
            ),
        ),
        Blocked::ReplacedBefore { name, times, next } => (
            reasons::REPLACED_BEFORE,
            format!(
                "{name} does not run although it was replaced ({times} in a row); it is not \
                     replaced again before {next}: check its node, its limits and its log"
            ),
        ),
    }
}

fn foreign_data(names: &BTreeSet<Ordinal>, cluster_ids: &BTreeSet<u64>) -> String {
    let names: Vec<Ordinal> = names.iter().copied().collect();
    let ids: Vec<String> = cluster_ids.iter().map(u64::to_string).collect();
    format!(
        "the volumes of {} belong to another cluster ({}); nothing is changed until they are \
         removed",
        members(&names),
        ids.join(", ")
    )
}

/// What happens to a volume whose claim was deleted while its member runs.
pub(super) fn goes_with_its_pod(claim: &str) -> String {
    format!(
        "{claim} was deleted, so the volume is deleted when the pod ends; delete the pod while all \
         other members serve, and it joins again with an empty volume; to keep the data, as of a \
         single member, first set persistentVolumeReclaimPolicy of the PersistentVolume to Retain"
    )
}

/// What keeps pods from running, as Kubernetes reports it; once for pods with the same trouble.
pub(super) fn troubles(observed: &Observed) -> Option<String> {
    let mut pods_by_trouble: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for (ordinal, pod) in &observed.pods {
        if let Some(trouble) = pod.trouble.as_ref().or(pod.silent.as_ref()) {
            pods_by_trouble.entry(trouble).or_default().push(*ordinal);
        }
    }
    let refused = observed.refused.as_ref();
    let refused = refused.map(|message| format!("Kubernetes refuses pods: {message}"));
    let troubles: Vec<String> = pods_by_trouble
        .iter()
        .map(|(trouble, pods)| format!("{}: {trouble}", members(pods)))
        .chain(refused)
        .chain(old_volumes(observed))
        .collect();
    (!troubles.is_empty()).then(|| troubles.join("; "))
}

/// The volumes of replaced members whose replacement does not vote yet.
fn old_volumes(observed: &Observed) -> impl Iterator<Item = String> {
    let is_awaited = |ordinal: Ordinal, member_id: u64| {
        let now = observed.member_at(ordinal);
        let place_is_there =
            observed.pods.contains_key(&ordinal) || observed.claims.contains_key(&ordinal);
        place_is_there && now.is_none_or(|now| !now.voter && now.id != member_id)
    };
    let kept = observed.kept.iter();
    let kept = kept.filter(move |volume| is_awaited(volume.ordinal, volume.of.member_id));
    let kept = kept.map(|volume| {
        let (ordinal, volume) = (volume.ordinal, &volume.name);
        format!(
            "old volume {volume} of member {ordinal} is kept until its replacement votes; if the \
             replacement gets no volume because of that, set persistentVolumeReclaimPolicy of \
             {volume} to Delete"
        )
    });
    let not_kept = observed.replaced.iter();
    let not_kept =
        not_kept.filter(move |(ordinal, replaced)| is_awaited(**ordinal, replaced.member_id));
    let not_kept = not_kept.filter_map(|(ordinal, replaced)| {
        let why = replaced.not_kept.as_ref()?;
        Some(format!(
            "the old volume of member {ordinal} is not kept: {why}"
        ))
    });
    kept.chain(not_kept)
}

/// "member 0", or "members 0, 1 and 2".
pub(super) fn members(of: &[u32]) -> String {
    let noun = if of.len() == 1 { "member" } else { "members" };
    format!("{noun} {}", ordinals(of))
}

/// "0, 1 and 2".
fn ordinals(ordinals: &[u32]) -> String {
    let texts: Vec<String> = ordinals.iter().map(u32::to_string).collect();
    match texts.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        Some((last, _)) => last.clone(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn lists_read_as_people_write_them() {
        assert_eq!(super::members(&[2]), "member 2");
        assert_eq!(super::members(&[0, 1, 2]), "members 0, 1 and 2");
    }
}
