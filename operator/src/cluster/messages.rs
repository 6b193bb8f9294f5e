//! Steps and states in the words that people read in conditions and events. Pure.

use std::collections::BTreeMap;

use dengine_crds::reasons::cluster as reasons;

use super::model::{Membership, Observed, Ordinal};
use super::plan::{Blocked, MembershipStep, ObjectStep, Record, Removal, Step, Waiting};

/// Whether a step is work towards the spec, with its reason and its words.
pub(super) fn progress(step: &Step, observed: &Observed) -> (bool, &'static str, String) {
    let (works, (reason, words)) = match step {
        Step::Done => (false, done(observed)),
        Step::Blocked(blocked) => (false, self::blocked(blocked)),
        Step::Wait(waiting) => (true, self::waiting(waiting, observed)),
        Step::Record(record) => (true, recording(record)),
        Step::Object(step) => (true, changing_object(step)),
        Step::Membership(step) => (true, changing_membership(step)),
    };
    (works, reason, words)
}

/// Nothing is to be done; that is not to say that all is well.
fn done(observed: &Observed) -> (&'static str, String) {
    let away: Vec<&str> = observed
        .membership
        .iter()
        .flat_map(Membership::voters)
        .filter(|member| !observed.is_healthy(member))
        .map(|member| member.name.as_str())
        .collect();
    if away.is_empty() && observed.refused.is_none() {
        let words = "everything is as the spec asks".to_owned();
        return (reasons::AS_SPECIFIED, words);
    }
    let who = if away.is_empty() {
        "its pods".to_owned()
    } else {
        away.join(", ")
    };
    let words = format!("nothing can be done but to wait for {who}");
    (reasons::MEMBER_UNAVAILABLE, with_troubles(words, observed))
}

/// With what keeps pods from running, if something is known to.
pub(super) fn with_troubles(words: String, observed: &Observed) -> String {
    match troubles(observed) {
        Some(troubles) => format!("{words}; {troubles}"),
        None => words,
    }
}

fn recording(record: &Record) -> (&'static str, String) {
    match record {
        Record::NewCluster { .. } => {
            let words = "giving the first member its identity".to_owned();
            (reasons::BOOTSTRAPPING, words)
        }
        Record::Adopted { cluster_id } => {
            let words = format!("adopting the existing cluster {cluster_id}");
            (reasons::BOOTSTRAPPING, words)
        }
        Record::Replacement { name, .. } => {
            let words = format!("about to replace {name}, which does not run");
            (reasons::REPLACING_MEMBER, words)
        }
    }
}

fn changing_object(step: &ObjectStep) -> (&'static str, String) {
    match step {
        ObjectStep::MarkClaim { ordinal, .. } => {
            let words = format!("about to remove member {ordinal}");
            (reasons::REMOVING_MEMBER, words)
        }
        ObjectStep::RestartPod { ordinal, .. } => {
            (reasons::ROLLING_OUT, format!("restarting member {ordinal}"))
        }
        ObjectStep::DeleteClaim { ordinal, .. } => {
            let words = format!("deleting the volume claim of removed member {ordinal}");
            (reasons::REMOVING_MEMBER, words)
        }
    }
}

fn changing_membership(step: &MembershipStep) -> (&'static str, String) {
    match step {
        MembershipStep::Bootstrap { .. } => {
            let words = "giving the first member its identity".to_owned();
            (reasons::BOOTSTRAPPING, words)
        }
        MembershipStep::AddLearner { ordinal, .. } => {
            let words = format!("adding member {ordinal} as a learner");
            (reasons::ADDING_MEMBER, words)
        }
        MembershipStep::Join { ordinal, .. } => {
            let words = format!("telling member {ordinal} its identity");
            (reasons::ADDING_MEMBER, words)
        }
        MembershipStep::Promote { name, .. } => {
            (reasons::ADDING_MEMBER, format!("letting {name} vote"))
        }
        MembershipStep::Remove { name, why, .. } => removing(name, *why),
        MembershipStep::TransferLeader { name, .. } => {
            let words = format!("handing leadership to {name}");
            (reasons::TRANSFERRING_LEADER, words)
        }
    }
}

fn removing(name: &str, why: Removal) -> (&'static str, String) {
    let replaced = match why {
        Removal::ScaleDown => {
            let words = format!("removing {name}: fewer members are wanted");
            return (reasons::REMOVING_MEMBER, words);
        }
        Removal::DataLost => format!("{name} came back without its data and is replaced"),
        Removal::VolumeLost => format!("the volume of {name} is gone; it is replaced"),
        Removal::VolumeGivenUp => {
            format!("the volume claim of {name} was deleted; it is replaced")
        }
        Removal::DataDamaged => {
            format!("the data of {name} can not be used any more; it is replaced")
        }
        Removal::Crashing => format!("{name} ends again and again; it is replaced"),
    };
    (reasons::REPLACING_MEMBER, replaced)
}

fn waiting(waiting: &Waiting, observed: &Observed) -> (&'static str, String) {
    match waiting {
        Waiting::Pods(silent) => {
            let silent: Vec<u32> = silent.iter().copied().collect();
            let words = format!("waiting for {} to answer", members(&silent));
            (reasons::WAITING_FOR_PODS, with_troubles(words, observed))
        }
        Waiting::Gone(leaving) => {
            let leaving: Vec<u32> = leaving.iter().copied().collect();
            let words = format!(
                "waiting for the old pods of {} to end: another StatefulSet's, or with volume claims that are being deleted, they \
                 are no part of this cluster; if nobody deletes them, do (the volume of a deleted claim goes with its pod, unless \
                 its persistentVolumeReclaimPolicy is Retain)",
                members(&leaving)
            );
            (reasons::WAITING_FOR_PODS, with_troubles(words, observed))
        }
        Waiting::Seed => {
            let words = "waiting for the member that was chosen as the first voter".to_owned();
            (reasons::WAITING_FOR_PODS, with_troubles(words, observed))
        }
        Waiting::Quorum => {
            let words = "waiting for a quorum of the members to answer".to_owned();
            (reasons::QUORUM_LOST, with_troubles(words, observed))
        }
        Waiting::CatchUp { name } => {
            let words = format!("{name} receives the log");
            (reasons::CATCHING_UP, with_troubles(words, observed))
        }
        Waiting::Member { name } => {
            let words = format!("waiting for {name} to serve before the next restart");
            (reasons::ROLLING_OUT, with_troubles(words, observed))
        }
    }
}

/// The reason and the words for a step that may not be taken.
pub(super) fn blocked(blocked: &Blocked) -> (&'static str, String) {
    match blocked {
        Blocked::ForeignData { names, cluster_ids } => {
            let names: Vec<u32> = names.iter().copied().collect();
            let ids: Vec<String> = cluster_ids.iter().map(u64::to_string).collect();
            let words = format!(
                "the volumes of {} belong to another cluster ({}); nothing is changed until they are gone",
                members(&names),
                ids.join(", ")
            );
            (reasons::FOREIGN_DATA, words)
        }
        Blocked::AllEmpty => (
            reasons::QUORUM_LOST,
            "every volume is empty though the cluster had members, and no second cluster is formed under its name; if the volumes that hold its data exist, bind them to the claims of these pods, else delete this resource and its claims and create it anew (runbook DEngineQuorumLost)".to_owned(),
        ),
        Blocked::SeedLost => (
            reasons::BLOCKED,
            "the volume that was chosen for the first voter is gone, and the cluster was never seen to have a member; delete this resource and its claims and create it anew".to_owned(),
        ),
        Blocked::RemovedByHand { ordinal, member_id } => (
            reasons::BLOCKED,
            format!("the volume of pod {ordinal} holds member {member_id}, which was removed from the cluster by hand; delete that volume claim and the pod to let it join anew"),
        ),
        Blocked::UnknownMember { name } => (
            reasons::BLOCKED,
            format!("the cluster has a member {name:?} that is no pod of this resource; remove it by hand"),
        ),
        Blocked::Quorum { name } => (
            reasons::BLOCKED,
            format!("taking {name} away now could cost the quorum; waiting for more members to answer"),
        ),
        Blocked::Version { from, to, why } => (
            reasons::VERSION_REFUSED,
            format!("the roll-out stops: {}", why.words(*from, *to)),
        ),
        Blocked::ScaleDown { name, away } => (
            reasons::BLOCKED,
            format!("{name} is not removed while {away}, which is to stay, does not take part: fewer members would survive less"),
        ),
        Blocked::ClaimDeleted { name } => (
            reasons::VOLUME_CLAIM_DELETED,
            format!("{name} is not restarted: {}", goes_with_its_pod("its volume claim")),
        ),
        Blocked::ReplacedBefore { name, times, next } => (
            reasons::REPLACED_BEFORE,
            format!("{name} does not run, and was replaced before ({times} in a row), which did not help; its volume is kept, and not given up before {next}: look at its node, its limits and its log"),
        ),
    }
}

/// What becomes of a volume whose claim somebody deleted while its member runs.
pub(super) fn goes_with_its_pod(claim: &str) -> String {
    format!(
        "somebody deleted {claim}, and the volume goes when the pod ends; delete the pod while all other members \
         serve, and it joins anew with an empty volume; to keep the data, as that of a single member, first set \
         persistentVolumeReclaimPolicy of the PersistentVolume to Retain"
    )
}

/// What keeps pods from running, in Kubernetes' words; once for pods that have the same trouble.
pub(super) fn troubles(observed: &Observed) -> Option<String> {
    let mut pods_by_trouble: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for (ordinal, pod) in &observed.pods {
        if let Some(trouble) = pod.trouble.as_ref().or(pod.silent.as_ref()) {
            pods_by_trouble.entry(trouble).or_default().push(*ordinal);
        }
    }
    let refused = observed.refused.as_ref();
    let refused = refused.map(|words| format!("Kubernetes refuses pods: {words}"));
    let troubles: Vec<String> = pods_by_trouble
        .iter()
        .map(|(trouble, pods)| format!("{}: {trouble}", members(pods)))
        .chain(refused)
        .chain(old_volumes(observed))
        .collect();
    (!troubles.is_empty()).then(|| troubles.join("; "))
}

/// What became of the volumes of members that were given up and in whose place nobody votes yet.
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
            "the old volume of member {ordinal}, {volume}, is kept until another one votes; if that leaves no volume for it, \
             set persistentVolumeReclaimPolicy of {volume} to Delete"
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
