//! Which cluster the data directories belong to, and whether there is one yet.

use std::collections::BTreeSet;

use dengine_operator::cluster::model::Claim;
use dengine_operator::cluster::plan::{Blocked, MembershipStep, Record, Step, Waiting, plan};

use super::{CLUSTER, claim, empty_pod, folder, healthy, identify, new_cluster, pod, wanted};

#[test]
fn a_healthy_cluster_needs_nothing() {
    assert_eq!(plan(&healthy(3), &wanted(3)), Step::Done);
}

#[test]
fn a_new_cluster_is_recorded_before_it_is_bootstrapped() {
    let mut observed = new_cluster(3);
    let record = Step::Record(Record::NewCluster {
        ordinal: 0,
        folder_id: folder(0),
    });
    assert_eq!(plan(&observed, &wanted(3)), record);
    observed.cluster_id = Some(CLUSTER);
    observed.seed_folder_id = Some(folder(0));
    let bootstrap = Step::Membership(MembershipStep::Bootstrap {
        ordinal: 0,
        cluster_id: CLUSTER,
        folder_id: folder(0),
    });
    assert_eq!(plan(&observed, &wanted(3)), bootstrap);
}

#[test]
fn no_cluster_is_formed_while_a_data_directory_may_hold_one() {
    let mut observed = new_cluster(3);
    pod(&mut observed, 2).report = None;
    let waiting = Step::Wait(Waiting::Pods(BTreeSet::from([2])));
    assert_eq!(plan(&observed, &wanted(3)), waiting);
}

#[test]
fn a_lost_status_adopts_the_cluster_of_a_quorum() {
    let mut observed = new_cluster(3);
    identify(pod(&mut observed, 0), CLUSTER, 1);
    identify(pod(&mut observed, 1), CLUSTER, 2);
    pod(&mut observed, 2).report = None;
    assert_eq!(
        plan(&observed, &wanted(3)),
        Step::Record(Record::Adopted {
            cluster_id: CLUSTER
        })
    );
    pod(&mut observed, 1).report = None;
    let waiting = Step::Wait(Waiting::Pods(BTreeSet::from([1, 2])));
    assert_eq!(plan(&observed, &wanted(3)), waiting);
}

/// The resource was deleted and recreated; its former objects are not garbage-collected yet.
#[test]
fn a_cluster_being_deleted_is_not_adopted() {
    let all_leave = Step::Wait(Waiting::Gone(BTreeSet::from([0, 1, 2])));
    let going = |ordinal| Claim {
        terminating: true,
        ..claim(ordinal)
    };
    let mut observed = new_cluster(3);
    for ordinal in 0..3 {
        identify(pod(&mut observed, ordinal), CLUSTER, u64::from(ordinal) + 1);
    }
    let mut by_claims = observed.clone();
    by_claims.claims = (0..3).map(|ordinal| (ordinal, going(ordinal))).collect();
    assert_eq!(plan(&by_claims, &wanted(3)), all_leave);
    for pod in observed.pods.values_mut() {
        pod.of_another = true;
    }
    assert_eq!(plan(&observed, &wanted(3)), all_leave, "with their claims");

    // Nor is a new cluster formed with an empty data directory that is being deleted, or by a
    // majority that counts it.
    let mut observed = new_cluster(3);
    observed.claims.insert(1, going(1));
    pod(&mut observed, 2).of_another = true;
    let two_leave = Step::Wait(Waiting::Gone(BTreeSet::from([1, 2])));
    assert_eq!(plan(&observed, &wanted(3)), two_leave);
    observed.pods.remove(&1);
    observed.claims.remove(&1);
    pod(&mut observed, 2).of_another = false;
    let waiting = Step::Wait(Waiting::Pods(BTreeSet::from([1])));
    assert_eq!(plan(&observed, &wanted(3)), waiting, "the next pod there");
}

/// The pods of the next StatefulSet report the cluster of the retained claims.
#[test]
fn a_majority_is_adopted_while_another_pod_is_being_deleted() {
    let mut observed = new_cluster(3);
    for ordinal in 0..3 {
        identify(pod(&mut observed, ordinal), CLUSTER, u64::from(ordinal) + 1);
    }
    pod(&mut observed, 2).of_another = true;
    let adopted = Step::Record(Record::Adopted {
        cluster_id: CLUSTER,
    });
    assert_eq!(plan(&observed, &wanted(3)), adopted);
    // A pod that is being deleted may belong to yet another cluster, and does not count.
    identify(pod(&mut observed, 2), 9, 1);
    assert_eq!(plan(&observed, &wanted(3)), adopted);
    pod(&mut observed, 1).of_another = true;
    let leave = Step::Wait(Waiting::Gone(BTreeSet::from([1, 2])));
    assert_eq!(plan(&observed, &wanted(3)), leave);
}

#[test]
fn no_data_directory_being_deleted_becomes_the_first_voter() {
    let mut observed = new_cluster(3);
    observed.cluster_id = Some(CLUSTER);
    observed.seed_folder_id = Some(folder(1));
    let going = Claim {
        terminating: true,
        ..claim(1)
    };
    observed.claims.insert(1, going);
    let leaves = Step::Wait(Waiting::Gone(BTreeSet::from([1])));
    assert_eq!(plan(&observed, &wanted(3)), leaves);
    // It is gone, and a new one took its place.
    observed.claims.insert(1, claim(1));
    pod(&mut observed, 1).report.as_mut().unwrap().folder_id = "next".to_owned();
    let lost = Step::Blocked(Blocked::SeedLost);
    assert_eq!(plan(&observed, &wanted(3)), lost);
}

#[test]
fn data_directories_of_two_clusters_block() {
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

/// Or restored without the cluster's id.
#[test]
fn a_lost_status_forms_no_second_cluster_over_lost_volumes() {
    let mut observed = new_cluster(3);
    observed.had_members = true;
    let blocked = Step::Blocked(Blocked::AllEmpty);
    assert_eq!(plan(&observed, &wanted(3)), blocked);
    // A member that still has an identity reports which cluster it was.
    identify(pod(&mut observed, 1), CLUSTER, 2);
    let adopted = Step::Record(Record::Adopted {
        cluster_id: CLUSTER,
    });
    assert_eq!(plan(&observed, &wanted(3)), adopted);
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
        Step::Record(Record::NewCluster { .. })
    ));
    // Not before there is a majority.
    for ordinal in [2, 3] {
        pod(&mut observed, ordinal).report = None;
        observed.claims.insert(ordinal, empty.clone());
    }
    let waiting = Step::Wait(Waiting::Pods(BTreeSet::from([2, 3, 4])));
    assert_eq!(plan(&observed, &wanted(5)), waiting);
}

#[test]
fn a_lost_seed_is_reported() {
    let mut observed = new_cluster(3);
    observed.cluster_id = Some(CLUSTER);
    observed.seed_folder_id = Some("gone".to_owned());
    assert_eq!(
        plan(&observed, &wanted(3)),
        Step::Blocked(Blocked::SeedLost)
    );
}
