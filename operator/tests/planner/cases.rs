//! Single situations with the one step that is right in them.

use std::collections::{BTreeMap, BTreeSet};

use dengine_operator::cluster::model::{
    Broken, Claim, Identity, Member, Membership, Observed, Pod, Replaced, Report, Wanted,
};
use dengine_operator::cluster::plan::{
    Blocked, Removal, Step, Waiting, plan, stateful_set_replicas,
};
use dengine_operator::cluster::versions::Version;

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

/// A ready pod whose folder is empty.
fn empty_pod(ordinal: u32) -> Pod {
    Pod {
        uid: format!("pod-{ordinal}"),
        terminating: false,
        ready: true,
        template_hash: Some("new".to_owned()),
        report: Some(Report {
            folder_id: folder(ordinal),
            identity: None,
            version: "1.0.0".to_owned(),
            term: 0,
            ready: false,
            low_on_space: false,
        }),
        trouble: None,
        broken: None,
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

/// A cluster of this many voters in which all is well; 0 leads.
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
    };
    observed.replaced.insert(ordinal, replaced);
}

fn members(observed: &mut Observed) -> &mut Vec<Member> {
    &mut observed.membership.as_mut().unwrap().members
}

fn pod(observed: &mut Observed, ordinal: u32) -> &mut Pod {
    observed.pods.get_mut(&ordinal).unwrap()
}

/// Pods that are there and empty, nothing recorded.
fn new_cluster(size: u32) -> Observed {
    Observed {
        stateful_set_replicas: Some(size),
        pods: (0..size).map(|i| (i, empty_pod(i))).collect(),
        claims: BTreeMap::new(),
        ..Observed::default()
    }
}

#[test]
fn a_healthy_cluster_needs_nothing() {
    assert_eq!(plan(&healthy(3), &wanted(3)), Step::Done);
}

#[test]
fn a_new_cluster_is_recorded_before_it_is_bootstrapped() {
    let mut observed = new_cluster(3);
    let record = Step::RecordNewCluster {
        ordinal: 0,
        folder_id: folder(0),
    };
    assert_eq!(plan(&observed, &wanted(3)), record);
    observed.cluster_id = Some(CLUSTER);
    observed.seed_folder_id = Some(folder(0));
    let bootstrap = Step::Bootstrap {
        ordinal: 0,
        cluster_id: CLUSTER,
        folder_id: folder(0),
    };
    assert_eq!(plan(&observed, &wanted(3)), bootstrap);
}

#[test]
fn no_cluster_is_drawn_while_a_folder_could_still_hold_one() {
    let mut observed = new_cluster(3);
    pod(&mut observed, 2).report = None;
    let waiting = Step::Wait(Waiting::Pods(BTreeSet::from([2])));
    assert_eq!(plan(&observed, &wanted(3)), waiting);
}

#[test]
fn a_lost_status_adopts_what_a_quorum_of_folders_says() {
    let mut observed = new_cluster(3);
    identify(pod(&mut observed, 0), CLUSTER, 1);
    identify(pod(&mut observed, 1), CLUSTER, 2);
    pod(&mut observed, 2).report = None;
    assert_eq!(
        plan(&observed, &wanted(3)),
        Step::RecordAdopted {
            cluster_id: CLUSTER
        }
    );
    pod(&mut observed, 1).report = None;
    let waiting = Step::Wait(Waiting::Pods(BTreeSet::from([1, 2])));
    assert_eq!(plan(&observed, &wanted(3)), waiting);
}

#[test]
fn folders_of_two_clusters_are_left_to_a_person() {
    let mut observed = new_cluster(3);
    identify(pod(&mut observed, 0), 1, 1);
    identify(pod(&mut observed, 1), 2, 1);
    assert!(matches!(
        plan(&observed, &wanted(3)),
        Step::Blocked(Blocked::ForeignData { .. })
    ));
    let mut observed = healthy(3);
    identify(pod(&mut observed, 1), 2, 1);
    assert!(matches!(
        plan(&observed, &wanted(3)),
        Step::Blocked(Blocked::ForeignData { .. })
    ));
}

#[test]
fn a_wiped_single_member_never_forms_a_second_cluster() {
    let mut observed = healthy(1);
    observed.membership = None;
    *pod(&mut observed, 0) = empty_pod(0);
    assert_eq!(
        plan(&observed, &wanted(1)),
        Step::Blocked(Blocked::AllEmpty)
    );
}

#[test]
fn newcomers_are_added_told_and_promoted_one_at_a_time() {
    let mut observed = healthy(1);
    observed.pods.insert(1, empty_pod(1));
    observed.pods.insert(2, empty_pod(2));
    let add = Step::AddLearner {
        ordinal: 1,
        folder_id: folder(1),
    };
    assert_eq!(plan(&observed, &wanted(3)), add);

    members(&mut observed).push(Member {
        voter: false,
        reachable: false,
        ..member(1, false)
    });
    let join = Step::Join {
        ordinal: 1,
        member_id: 2,
        folder_id: folder(1),
    };
    assert_eq!(plan(&observed, &wanted(3)), join);

    observed.pods.insert(1, pod_of(1, 2));
    members(&mut observed)[1].reachable = true;
    members(&mut observed)[1].lag_entries = 1_000_000;
    let catch_up = Step::Wait(Waiting::CatchUp {
        name: "demo-1".to_owned(),
    });
    assert_eq!(plan(&observed, &wanted(3)), catch_up);

    members(&mut observed)[1].lag_entries = 0;
    let promote = Step::Promote {
        member_id: 2,
        name: "demo-1".to_owned(),
    };
    assert_eq!(plan(&observed, &wanted(3)), promote);

    members(&mut observed)[1].voter = true;
    let add = Step::AddLearner {
        ordinal: 2,
        folder_id: folder(2),
    };
    assert_eq!(plan(&observed, &wanted(3)), add);
}

#[test]
fn a_pod_that_is_briefly_gone_is_no_scale_in() {
    let mut observed = healthy(3);
    observed.pods.remove(&1);
    members(&mut observed)[1].reachable = false;
    assert_eq!(plan(&observed, &wanted(3)), Step::Done);
    assert_eq!(stateful_set_replicas(&observed, &wanted(3)), 3);
}

#[test]
fn a_member_without_its_data_is_replaced() {
    let mut observed = healthy(3);
    members(&mut observed)[1].reachable = false;
    pod(&mut observed, 1).report.as_mut().unwrap().folder_id = "fresh".to_owned();
    pod(&mut observed, 1).report.as_mut().unwrap().identity = None;
    let name = "demo-1".to_owned();
    let remove = Step::Remove {
        member_id: 2,
        name,
        why: Removal::DataLost,
    };
    assert_eq!(plan(&observed, &wanted(3)), remove);

    members(&mut observed).remove(1);
    let add = Step::AddLearner {
        ordinal: 1,
        folder_id: "fresh".to_owned(),
    };
    assert_eq!(plan(&observed, &wanted(3)), add);
}

/// `observed` without what the pod of this ordinal says: its server does not run.
fn broken(mut observed: Observed, ordinal: u32, how: Broken) -> Observed {
    let pod = pod(&mut observed, ordinal);
    (pod.report, pod.ready, pod.broken) = (None, false, Some(how));
    members(&mut observed)[ordinal as usize].reachable = false;
    observed
}

#[test]
fn a_member_with_a_damaged_folder_is_replaced_before_anything_else() {
    let mut observed = broken(healthy(3), 1, Broken::Folder);
    let record = Step::RecordReplacement {
        ordinal: 1,
        member_id: 2,
        name: "demo-1".to_owned(),
    };
    assert_eq!(plan(&observed, &wanted(5)), record);
    replaced(&mut observed, 1, 2, false);
    let identity = Identity {
        cluster_id: CLUSTER,
        member_id: 2,
    };
    let mark = Step::MarkClaim {
        ordinal: 1,
        claim_uid: "claim-1".to_owned(),
        identity,
    };
    assert_eq!(plan(&observed, &wanted(5)), mark);
    observed.claims.get_mut(&1).unwrap().marked_for = Some(identity);
    let remove = Step::Remove {
        member_id: 2,
        name: "demo-1".to_owned(),
        why: Removal::DataDamaged,
    };
    assert_eq!(plan(&observed, &wanted(5)), remove);
    members(&mut observed).remove(1);
    let delete = Step::DeleteClaim {
        ordinal: 1,
        claim_uid: "claim-1".to_owned(),
    };
    assert_eq!(plan(&observed, &wanted(5)), delete);
    observed.claims.get_mut(&1).unwrap().terminating = true;
    let restart = Step::RestartPod {
        ordinal: 1,
        pod_uid: "pod-1".to_owned(),
    };
    assert_eq!(plan(&observed, &wanted(5)), restart);
}

#[test]
fn a_damaged_member_stays_while_the_rest_is_no_majority() {
    let mut observed = broken(healthy(5), 1, Broken::Folder);
    for away in [3, 4] {
        pod(&mut observed, away).report = None;
    }
    let blocked = Step::Blocked(Blocked::Quorum {
        name: "demo-1".to_owned(),
    });
    assert_eq!(plan(&observed, &wanted(5)), blocked);
}

#[test]
fn a_crashing_member_is_given_up_only_if_another_serves_with_its_template() {
    let mut observed = broken(healthy(3), 1, Broken::Crashing);
    assert!(matches!(
        plan(&observed, &wanted(3)),
        Step::RecordReplacement { ordinal: 1, .. }
    ));
    // A roll-out of something bad: whoever has it crashes, and nobody's data is given up for that.
    for ordinal in [0, 2] {
        pod(&mut observed, ordinal).template_hash = Some("old".to_owned());
    }
    let waiting = Step::Wait(Waiting::Member {
        name: "demo-1".to_owned(),
    });
    assert_eq!(plan(&observed, &wanted(3)), waiting);
}

#[test]
fn a_member_whose_volume_is_gone_is_replaced() {
    let mut observed = healthy(3);
    pod(&mut observed, 1).report = None;
    members(&mut observed)[1].reachable = false;
    assert_eq!(plan(&observed, &wanted(3)), Step::Done, "it may come back");
    observed.claims.get_mut(&1).unwrap().lost = true;
    assert!(matches!(
        plan(&observed, &wanted(3)),
        Step::MarkClaim { ordinal: 1, .. }
    ));
}

#[test]
fn a_lost_volume_is_looked_at_before_the_pod_that_never_ends() {
    let mut observed = healthy(3);
    let away = pod(&mut observed, 1);
    (away.report, away.ready, away.terminating) = (None, false, true);
    members(&mut observed)[1].reachable = false;
    assert_eq!(plan(&observed, &wanted(3)), Step::Done, "it may come back");
    observed.claims.get_mut(&1).unwrap().lost = true;
    assert!(matches!(
        plan(&observed, &wanted(3)),
        Step::MarkClaim { ordinal: 1, .. }
    ));
    let identity = Identity {
        cluster_id: CLUSTER,
        member_id: 2,
    };
    observed.claims.get_mut(&1).unwrap().marked_for = Some(identity);
    let remove = Step::Remove {
        member_id: 2,
        name: "demo-1".to_owned(),
        why: Removal::VolumeLost,
    };
    assert_eq!(plan(&observed, &wanted(3)), remove);
    members(&mut observed).remove(1);
    let delete = Step::DeleteClaim {
        ordinal: 1,
        claim_uid: "claim-1".to_owned(),
    };
    assert_eq!(plan(&observed, &wanted(3)), delete);
}

#[test]
fn a_replacement_that_did_not_help_is_not_repeated_at_once() {
    for how in [Broken::Folder, Broken::Crashing] {
        let mut observed = broken(healthy(3), 1, how);
        // The one before it had another id.
        replaced(&mut observed, 1, 9, false);
        let blocked = Step::Blocked(Blocked::ReplacedBefore {
            name: "demo-1".to_owned(),
            times: 1,
            next: "tomorrow".to_owned(),
        });
        assert_eq!(plan(&observed, &wanted(3)), blocked);
        // It keeps nobody from anything else.
        let mut growing = observed.clone();
        growing.pods.insert(3, empty_pod(3));
        assert!(matches!(
            plan(&growing, &wanted(5)),
            Step::AddLearner { ordinal: 3, .. }
        ));
        replaced(&mut observed, 1, 9, true);
        assert!(matches!(
            plan(&observed, &wanted(3)),
            Step::RecordReplacement { ordinal: 1, .. }
        ));
    }
}

#[test]
fn a_new_cluster_does_not_wait_for_a_pod_that_never_had_a_volume() {
    let mut observed = new_cluster(5);
    pod(&mut observed, 4).report = None;
    let waiting = Step::Wait(Waiting::Pods(BTreeSet::from([4])));
    assert_eq!(
        plan(&observed, &wanted(5)),
        waiting,
        "it may hold a cluster"
    );
    let empty = Claim {
        empty: true,
        ..claim(4)
    };
    observed.claims.insert(4, empty.clone());
    assert!(matches!(
        plan(&observed, &wanted(5)),
        Step::RecordNewCluster { .. }
    ));
    // Not before a majority is there.
    for ordinal in [2, 3] {
        pod(&mut observed, ordinal).report = None;
        observed.claims.insert(ordinal, empty.clone());
    }
    let waiting = Step::Wait(Waiting::Pods(BTreeSet::from([2, 3, 4])));
    assert_eq!(plan(&observed, &wanted(5)), waiting);
}

#[test]
fn a_seed_that_is_gone_before_it_mattered_is_said_to_be_that() {
    let mut observed = new_cluster(3);
    observed.cluster_id = Some(CLUSTER);
    observed.seed_folder_id = Some("gone".to_owned());
    assert_eq!(
        plan(&observed, &wanted(3)),
        Step::Blocked(Blocked::SeedLost)
    );
}

#[test]
fn a_roll_out_stops_at_a_version_that_may_not_follow() {
    let says = |observed: &mut Observed, ordinal: u32, template: &str, version: &str| {
        let pod = pod(observed, ordinal);
        pod.template_hash = Some(template.to_owned());
        pod.report.as_mut().unwrap().version = version.to_owned();
    };
    let mut observed = healthy(3);
    observed.cluster_version = Version::parse("1.2.0");
    says(&mut observed, 0, "old", "1.2.0");
    says(&mut observed, 1, "old", "1.2.0");
    for (version, refused) in [
        ("1.3.0", false),
        ("1.2.5", false),
        ("1.4.0", true),
        ("1.1.9", true),
    ] {
        says(&mut observed, 2, "new", version);
        let blocked = matches!(
            plan(&observed, &wanted(3)),
            Step::Blocked(Blocked::Version { .. })
        );
        assert_eq!(blocked, refused, "{version}");
    }
    // To take it back is to go on with what the others run.
    for ordinal in [0, 1] {
        says(&mut observed, ordinal, "new", "1.2.0");
    }
    says(&mut observed, 2, "old", "1.4.0");
    assert!(matches!(
        plan(&observed, &wanted(3)),
        Step::RestartPod { ordinal: 2, .. }
    ));
}

#[test]
fn whoever_lags_most_is_restarted_before_who_does_not() {
    let mut observed = healthy(5);
    for ordinal in 0..5 {
        pod(&mut observed, ordinal).template_hash = Some("old".to_owned());
    }
    members(&mut observed)[1].lag_entries = 6_000;
    members(&mut observed)[2].lag_entries = 9_000;
    // Another one lags, so that the restart has to wait for it; who does not serve goes first.
    assert_eq!(
        plan(&observed, &wanted(5)),
        Step::Wait(Waiting::Member {
            name: "demo-1".to_owned()
        })
    );
    members(&mut observed)[1].lag_entries = 10;
    let restart = Step::RestartPod {
        ordinal: 2,
        pod_uid: "pod-2".to_owned(),
    };
    assert_eq!(plan(&observed, &wanted(5)), restart);
}

#[test]
fn scaling_down_marks_removes_shrinks_and_only_then_deletes() {
    let mut observed = healthy(5);
    let identity = Identity {
        cluster_id: CLUSTER,
        member_id: 5,
    };
    let claim_uid = "claim-4".to_owned();
    let mark = Step::MarkClaim {
        ordinal: 4,
        claim_uid: claim_uid.clone(),
        identity,
    };
    assert_eq!(plan(&observed, &wanted(3)), mark);
    assert_eq!(stateful_set_replicas(&observed, &wanted(3)), 5);

    observed.claims.get_mut(&4).unwrap().marked_for = Some(identity);
    let name = "demo-4".to_owned();
    let remove = Step::Remove {
        member_id: 5,
        name,
        why: Removal::ScaleDown,
    };
    assert_eq!(plan(&observed, &wanted(3)), remove);

    members(&mut observed).remove(4);
    assert_eq!(stateful_set_replicas(&observed, &wanted(3)), 4);
    observed.pods.remove(&4);
    assert_eq!(
        plan(&observed, &wanted(3)),
        Step::DeleteClaim {
            ordinal: 4,
            claim_uid
        }
    );
}

#[test]
fn a_leader_that_is_too_many_hands_over_first() {
    let mut observed = healthy(3);
    members(&mut observed)[0].leader = false;
    members(&mut observed)[2].leader = true;
    let transfer = Step::TransferLeader {
        member_id: 1,
        name: "demo-0".to_owned(),
    };
    assert_eq!(plan(&observed, &wanted(1)), transfer);
}

#[test]
fn nothing_is_removed_when_the_rest_has_no_healthy_majority() {
    let mut observed = healthy(3);
    for (member, leads) in members(&mut observed).iter_mut().zip([false, true, false]) {
        (member.leader, member.reachable) = (leads, member.id != 1);
    }
    pod(&mut observed, 0).report = None;
    let blocked = Step::Blocked(Blocked::Quorum {
        name: "demo-2".to_owned(),
    });
    assert_eq!(plan(&observed, &wanted(1)), blocked);
}

#[test]
fn a_cluster_does_not_shrink_around_a_member_that_is_away() {
    let away = |ordinal: u32| {
        let mut observed = healthy(5);
        for member in members(&mut observed) {
            member.leader = member.id == 3;
        }
        members(&mut observed)[ordinal as usize].reachable = false;
        pod(&mut observed, ordinal).report = None;
        observed
    };
    let blocked = Step::Blocked(Blocked::ScaleDown {
        name: "demo-4".to_owned(),
        away: "demo-0".to_owned(),
    });
    assert_eq!(plan(&away(0), &wanted(3)), blocked);
    // One that is too many goes first if it is the one that is away.
    assert!(matches!(
        plan(&away(3), &wanted(3)),
        Step::MarkClaim { ordinal: 3, .. }
    ));
}

#[test]
fn a_claim_that_was_not_marked_is_never_deleted() {
    let mut observed = healthy(3);
    observed.claims.insert(3, claim(3));
    assert_eq!(plan(&observed, &wanted(3)), Step::Done);
}

#[test]
fn a_removed_member_that_comes_back_is_cleared_if_we_removed_it() {
    let mut observed = healthy(3);
    observed.stateful_set_replicas = Some(5);
    observed.pods.insert(3, pod_of(3, 9));
    observed.claims.insert(3, claim(3));
    let by_hand = Step::Blocked(Blocked::RemovedByHand {
        ordinal: 3,
        member_id: 9,
    });
    assert_eq!(plan(&observed, &wanted(5)), by_hand);

    let claim = observed.claims.get_mut(&3).unwrap();
    claim.marked_for = Some(Identity {
        cluster_id: CLUSTER,
        member_id: 9,
    });
    let delete = Step::DeleteClaim {
        ordinal: 3,
        claim_uid: "claim-3".to_owned(),
    };
    assert_eq!(plan(&observed, &wanted(5)), delete);
    observed.claims.get_mut(&3).unwrap().terminating = true;
    let restart = Step::RestartPod {
        ordinal: 3,
        pod_uid: "pod-3".to_owned(),
    };
    assert_eq!(plan(&observed, &wanted(5)), restart);
}

#[test]
fn a_roll_out_takes_the_leader_last_and_hands_over_first() {
    let mut observed = healthy(3);
    for ordinal in 0..3 {
        pod(&mut observed, ordinal).template_hash = Some("old".to_owned());
    }
    let restart = |ordinal: u32| Step::RestartPod {
        ordinal,
        pod_uid: format!("pod-{ordinal}"),
    };
    assert_eq!(plan(&observed, &wanted(3)), restart(2));

    // While it is away, nobody else goes.
    pod(&mut observed, 2).template_hash = Some("new".to_owned());
    pod(&mut observed, 2).ready = false;
    let waiting = Step::Wait(Waiting::Member {
        name: "demo-2".to_owned(),
    });
    assert_eq!(plan(&observed, &wanted(3)), waiting);

    pod(&mut observed, 2).ready = true;
    assert_eq!(plan(&observed, &wanted(3)), restart(1));
    pod(&mut observed, 1).template_hash = Some("new".to_owned());
    let transfer = Step::TransferLeader {
        member_id: 2,
        name: "demo-1".to_owned(),
    };
    assert_eq!(plan(&observed, &wanted(3)), transfer);
    members(&mut observed)[0].leader = false;
    members(&mut observed)[1].leader = true;
    assert_eq!(plan(&observed, &wanted(3)), restart(0));
}

#[test]
fn a_bad_image_can_be_undone_without_a_quorum() {
    let mut observed = healthy(3);
    observed.membership = None;
    for ordinal in 0..3 {
        let pod = pod(&mut observed, ordinal);
        (pod.report, pod.ready) = (None, false);
        pod.trouble = Some("ImagePullBackOff".to_owned());
        pod.template_hash = Some("bad".to_owned());
    }
    let restart = Step::RestartPod {
        ordinal: 0,
        pod_uid: "pod-0".to_owned(),
    };
    assert_eq!(plan(&observed, &wanted(3)), restart);
}

#[test]
fn the_only_member_is_restarted_when_it_is_meant_to_be_the_only_one() {
    let mut observed = healthy(1);
    pod(&mut observed, 0).template_hash = Some("old".to_owned());
    let restart = Step::RestartPod {
        ordinal: 0,
        pod_uid: "pod-0".to_owned(),
    };
    assert_eq!(plan(&observed, &wanted(1)), restart);
    observed.stateful_set_replicas = Some(3);
    let blocked = Step::Blocked(Blocked::Quorum {
        name: "demo-0".to_owned(),
    });
    assert_eq!(plan(&observed, &wanted(3)), blocked);
}

#[test]
fn without_a_quorum_the_stateful_set_does_not_shrink() {
    let mut observed = healthy(5);
    observed.membership = None;
    assert_eq!(stateful_set_replicas(&observed, &wanted(3)), 5);
    assert_eq!(plan(&observed, &wanted(3)), Step::Wait(Waiting::Quorum));
}
