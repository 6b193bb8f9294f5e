//! Steps and states in the words that people read in conditions and events. Pure.

use std::collections::BTreeMap;

use dengine_crds::reasons::cluster as reasons;

use super::model::Observed;
use super::plan::{Blocked, Removal, Step, Waiting};

/// Whether a step is work towards the spec, with its reason and its words.
pub(super) fn progress(step: &Step, observed: &Observed) -> (bool, &'static str, String) {
    let (works, (reason, words)) = match step {
        Step::Done => {
            let words = "everything is as the spec asks".to_owned();
            (false, (reasons::AS_SPECIFIED, words))
        }
        Step::Blocked(blocked) => (false, self::blocked(blocked)),
        Step::Wait(waiting) => (true, self::waiting(waiting, observed)),
        step => (true, doing(step)),
    };
    (works, reason, words)
}

fn doing(step: &Step) -> (&'static str, String) {
    match step {
        Step::RecordAdopted { cluster_id } => {
            let words = format!("adopting the existing cluster {cluster_id}");
            (reasons::BOOTSTRAPPING, words)
        }
        Step::AddLearner { ordinal, .. } => {
            let words = format!("adding member {ordinal} as a learner");
            (reasons::ADDING_MEMBER, words)
        }
        Step::Join { ordinal, .. } => {
            let words = format!("telling member {ordinal} its identity");
            (reasons::ADDING_MEMBER, words)
        }
        Step::Promote { name, .. } => (reasons::ADDING_MEMBER, format!("letting {name} vote")),
        Step::MarkClaim { ordinal, .. } => {
            let words = format!("about to remove member {ordinal}");
            (reasons::REMOVING_MEMBER, words)
        }
        Step::Remove { name, why, .. } => match why {
            Removal::DataLost => {
                let words = format!("{name} came back without its data and is replaced");
                (reasons::REPLACING_MEMBER, words)
            }
            Removal::DataDamaged => {
                let words = format!("the data of {name} can not be used any more; it is replaced");
                (reasons::REPLACING_MEMBER, words)
            }
            Removal::Crashing => {
                let words = format!("{name} ends again and again; it is replaced");
                (reasons::REPLACING_MEMBER, words)
            }
            Removal::ScaleDown => {
                let words = format!("removing {name}: fewer members are wanted");
                (reasons::REMOVING_MEMBER, words)
            }
        },
        Step::TransferLeader { name, .. } => {
            let words = format!("handing leadership to {name}");
            (reasons::TRANSFERRING_LEADER, words)
        }
        Step::RestartPod { ordinal, .. } => {
            (reasons::ROLLING_OUT, format!("restarting member {ordinal}"))
        }
        Step::DeleteClaim { ordinal, .. } => {
            let words = format!("deleting the volume claim of removed member {ordinal}");
            (reasons::REMOVING_MEMBER, words)
        }
        _ => {
            let words = "giving the first member its identity".to_owned();
            (reasons::BOOTSTRAPPING, words)
        }
    }
}

fn waiting(waiting: &Waiting, observed: &Observed) -> (&'static str, String) {
    match waiting {
        Waiting::Pods(silent) => {
            let silent: Vec<u32> = silent.iter().copied().collect();
            let mut words = format!("waiting for {} to answer", members(&silent));
            if let Some(troubles) = troubles(observed) {
                words = format!("{words}; {troubles}");
            }
            (reasons::WAITING_FOR_PODS, words)
        }
        Waiting::Seed => (
            reasons::WAITING_FOR_PODS,
            "waiting for the member that was chosen as the first voter".to_owned(),
        ),
        Waiting::Quorum => {
            let mut words = "waiting for a quorum of the members to answer".to_owned();
            if let Some(troubles) = troubles(observed) {
                words = format!("{words}; {troubles}");
            }
            (reasons::QUORUM_LOST, words)
        }
        Waiting::CatchUp { name } => (reasons::CATCHING_UP, format!("{name} receives the log")),
        Waiting::Member { name } => (
            reasons::ROLLING_OUT,
            format!("waiting for {name} to serve before the next restart"),
        ),
    }
}

fn blocked(blocked: &Blocked) -> (&'static str, String) {
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
            "every volume is empty though the cluster had members: its data is lost, and no second cluster is formed under its name; restore a volume, or delete this resource and create it anew".to_owned(),
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
    }
}

/// What keeps pods from running, in Kubernetes' words; once for pods that have the same trouble.
pub(super) fn troubles(observed: &Observed) -> Option<String> {
    let mut pods_by_trouble: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for (ordinal, pod) in &observed.pods {
        if let Some(trouble) = &pod.trouble {
            pods_by_trouble.entry(trouble).or_default().push(*ordinal);
        }
    }
    let troubles: Vec<String> = pods_by_trouble
        .iter()
        .map(|(trouble, pods)| format!("{}: {trouble}", members(pods)))
        .collect();
    (!troubles.is_empty()).then(|| troubles.join("; "))
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
