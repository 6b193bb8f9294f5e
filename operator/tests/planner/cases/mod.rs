//! Single situations with the one right step.

mod identity;
mod repair;
mod roll_out;
mod scale;

use std::collections::BTreeMap;

use dengine_operator::cluster::model::{
    Claim, Identity, Member, Membership, Observed, Pod, Replaced, Report, Wanted,
};
use dengine_operator::cluster::plan::{ObjectStep, Step};

const CLUSTER: u64 = 7;

fn wanted(replicas: u32) -> Wanted {
    Wanted {
        replicas,
        template_hash: "new".to_owned(),
    }
}

fn folder(ordinal: u32) -> String {
    format!("folder-{ordinal}")
}

/// A ready pod with an empty data directory.
fn empty_pod(ordinal: u32) -> Pod {
    Pod {
        uid: format!("pod-{ordinal}"),
        terminating: false,
        of_another: false,
        ready: true,
        template_hash: Some("new".to_owned()),
        report: Some(Report {
            folder_id: folder(ordinal),
            identity: None,
            version: "1.0.0".to_owned(),
            term: 0,
            ready: false,
            low_on_space: false,
            snapshot_lacks_bytes: 0,
            stalled: false,
        }),
        trouble: None,
        silent: None,
        broken: None,
        refused: None,
    }
}

fn pod_of(ordinal: u32, member_id: u64) -> Pod {
    let mut pod = empty_pod(ordinal);
    identify(&mut pod, CLUSTER, member_id);
    pod
}

fn identify(pod: &mut Pod, cluster_id: u64, member_id: u64) {
    pod.report.as_mut().unwrap().identity = Some(Identity {
        cluster_id,
        member_id,
    });
}

fn member(ordinal: u32, leader: bool) -> Member {
    Member {
        id: u64::from(ordinal) + 1,
        name: format!("demo-{ordinal}"),
        ordinal: Some(ordinal),
        folder_id: folder(ordinal),
        voter: true,
        leader,
        reachable: true,
        lag_entries: 0,
    }
}

/// A healthy cluster of this many voters; 0 leads.
fn healthy(size: u32) -> Observed {
    Observed {
        cluster_id: Some(CLUSTER),
        seed_folder_id: Some(folder(0)),
        had_members: true,
        stateful_set_replicas: Some(size),
        pods: (0..size)
            .map(|i| (i, pod_of(i, u64::from(i) + 1)))
            .collect(),
        claims: (0..size).map(|i| (i, claim(i))).collect(),
        membership: Some(Membership {
            cluster_id: CLUSTER,
            term: 2,
            members: (0..size).map(|i| member(i, i == 0)).collect(),
        }),
        ..Observed::default()
    }
}

fn claim(ordinal: u32) -> Claim {
    Claim {
        uid: format!("claim-{ordinal}"),
        marked_for: None,
        ..Claim::default()
    }
}

/// As the status records it once the member of this ordinal was, or is about to be, replaced.
fn replaced(observed: &mut Observed, ordinal: u32, member_id: u64, may_again: bool) {
    let replaced = Replaced {
        member_id,
        times: 1,
        may_again,
        next: "tomorrow".to_owned(),
        ..Replaced::default()
    };
    observed.replaced.insert(ordinal, replaced);
}

fn members(observed: &mut Observed) -> &mut Vec<Member> {
    &mut observed.membership.as_mut().unwrap().members
}

fn pod(observed: &mut Observed, ordinal: u32) -> &mut Pod {
    observed.pods.get_mut(&ordinal).unwrap()
}

/// The existing pod is deleted.
fn restart(ordinal: u32) -> Step {
    Step::Object(ObjectStep::RestartPod {
        ordinal,
        pod_uid: format!("pod-{ordinal}"),
    })
}

/// Pods with empty data directories, nothing recorded.
fn new_cluster(size: u32) -> Observed {
    Observed {
        stateful_set_replicas: Some(size),
        pods: (0..size).map(|i| (i, empty_pod(i))).collect(),
        claims: BTreeMap::new(),
        ..Observed::default()
    }
}
