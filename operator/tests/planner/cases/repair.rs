//! Members that do not recover by themselves.

use std::collections::BTreeSet;

use dengine_operator::cluster::model::{Broken, Identity, Observed, OldVolume};
use dengine_operator::cluster::plan::{
    Blocked, MembershipStep, ObjectStep, Record, Removal, Step, Waiting, no_longer_needed, plan,
};

use super::{
    CLUSTER, claim, empty_pod, healthy, member, members, pod, pod_of, replaced, restart, wanted,
};

#[test]
fn a_member_without_its_data_is_replaced() {
    let mut observed = healthy(3);
    members(&mut observed)[1].reachable = false;
    pod(&mut observed, 1).report.as_mut().unwrap().folder_id = "fresh".to_owned();
    pod(&mut observed, 1).report.as_mut().unwrap().identity = None;
    let name = "demo-1".to_owned();
    let remove = Step::Membership(MembershipStep::Remove {
        member_id: 2,
        name,
        why: Removal::DataLost,
    });
    assert_eq!(plan(&observed, &wanted(3)), remove);

    members(&mut observed).remove(1);
    let add = Step::Membership(MembershipStep::AddLearner {
        ordinal: 1,
        folder_id: "fresh".to_owned(),
    });
    assert_eq!(plan(&observed, &wanted(3)), add);
}

/// `observed` with the server of this ordinal down.
fn broken(mut observed: Observed, ordinal: u32, how: Broken) -> Observed {
    let pod = pod(&mut observed, ordinal);
    (pod.report, pod.ready, pod.broken) = (None, false, Some(how));
    members(&mut observed)[ordinal as usize].reachable = false;
    observed
}

/// The claim of `demo-1` is marked, and then the member removed.
fn is_marked_and_removed(observed: &mut Observed, replicas: u32, why: Removal) {
    let identity = Identity {
        cluster_id: CLUSTER,
        member_id: 2,
    };
    let mark = Step::Object(ObjectStep::MarkClaim {
        ordinal: 1,
        claim_uid: "claim-1".to_owned(),
        identity,
    });
    assert_eq!(plan(observed, &wanted(replicas)), mark);
    observed.claims.get_mut(&1).unwrap().marked_for = Some(identity);
    let remove = Step::Membership(MembershipStep::Remove {
        member_id: 2,
        name: "demo-1".to_owned(),
        why,
    });
    assert_eq!(plan(observed, &wanted(replicas)), remove);
    members(observed).remove(1);
}

#[test]
fn a_member_with_a_damaged_data_directory_is_replaced_first() {
    let mut observed = broken(healthy(3), 1, Broken::Folder);
    let record = Step::Record(Record::Replacement {
        ordinal: 1,
        member_id: 2,
        name: "demo-1".to_owned(),
        voted: true,
    });
    assert_eq!(plan(&observed, &wanted(5)), record);
    replaced(&mut observed, 1, 2, false);
    is_marked_and_removed(&mut observed, 5, Removal::DataDamaged);
    let delete = Step::Object(ObjectStep::DeleteClaim {
        ordinal: 1,
        claim_uid: "claim-1".to_owned(),
        keep: None,
    });
    assert_eq!(plan(&observed, &wanted(5)), delete);
    observed.claims.get_mut(&1).unwrap().terminating = true;
    let restart = restart(1);
    assert_eq!(plan(&observed, &wanted(5)), restart);
}

#[test]
fn a_replaced_members_volume_is_kept_until_another_votes() {
    let mut observed = broken(healthy(3), 1, Broken::Crashing);
    observed.claims.get_mut(&1).unwrap().volume = Some("pv-1".to_owned());
    replaced(&mut observed, 1, 2, false);
    is_marked_and_removed(&mut observed, 3, Removal::Crashing);
    let volume = |name: &str| OldVolume {
        name: name.to_owned(),
        ordinal: 1,
        of: Identity {
            cluster_id: CLUSTER,
            member_id: 2,
        },
    };
    let delete = |keep| {
        Step::Object(ObjectStep::DeleteClaim {
            ordinal: 1,
            claim_uid: "claim-1".to_owned(),
            keep,
        })
    };
    let keep = delete(Some(Box::new(volume("pv-1"))));
    assert_eq!(plan(&observed, &wanted(3)), keep);
    // The operator may crash in between, and the status may be lost, or never contain it.
    let mut recorded = observed.clone();
    let replacement = recorded.replaced.get_mut(&1).unwrap();
    replacement.kept_volume = Some("pv-1".to_owned());
    assert_eq!(plan(&recorded, &wanted(3)), keep);
    let mut forgotten = observed.clone();
    forgotten.replaced.clear();
    assert_eq!(plan(&forgotten, &wanted(3)), keep);
    // The volume of an earlier member, which voted, while this one never did.
    let mut earlier = observed.clone();
    let replacement = earlier.replaced.get_mut(&1).unwrap();
    replacement.kept_volume = Some("pv-0".to_owned());
    assert_eq!(plan(&earlier, &wanted(3)), delete(None));

    // The replacement joins, catches up, and votes.
    observed.kept = vec![volume("pv-1")];
    observed.claims.insert(1, claim(1));
    observed.pods.insert(1, pod_of(1, 9));
    let mut next = member(1, false);
    (next.id, next.voter) = (9, false);
    members(&mut observed).push(next);
    let promote = plan(&observed, &wanted(3));
    assert!(matches!(
        promote,
        Step::Membership(MembershipStep::Promote { member_id: 9, .. })
    ));
    assert_eq!(no_longer_needed(&observed, &wanted(3)), []);
    members(&mut observed)[2].voter = true;
    assert_eq!(plan(&observed, &wanted(3)), Step::Done);
    assert_eq!(no_longer_needed(&observed, &wanted(3)), [volume("pv-1")]);
    // Another member fails meanwhile, so the volume is kept for now.
    let mut busy = broken(observed.clone(), 0, Broken::Folder);
    members(&mut busy)[0].leader = false;
    members(&mut busy)[1].leader = true;
    assert_eq!(no_longer_needed(&busy, &wanted(3)), []);
    observed.membership = None;
    assert_eq!(no_longer_needed(&observed, &wanted(3)), []);
}

#[test]
fn a_damaged_member_stays_without_a_majority_of_others() {
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
fn a_crashing_member_is_replaced_only_if_its_template_works() {
    let mut observed = broken(healthy(3), 1, Broken::Crashing);
    assert!(matches!(
        plan(&observed, &wanted(3)),
        Step::Record(Record::Replacement { ordinal: 1, .. })
    ));
    // A bad rolling update: every updated member crashes, and no member's data is given up for
    // that.
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
        Step::Object(ObjectStep::MarkClaim { ordinal: 1, .. })
    ));
}

#[test]
fn a_lost_volume_counts_though_its_pod_never_ends() {
    let mut observed = healthy(3);
    let away = pod(&mut observed, 1);
    (away.report, away.ready, away.terminating) = (None, false, true);
    members(&mut observed)[1].reachable = false;
    assert_eq!(plan(&observed, &wanted(3)), Step::Done, "it may come back");
    observed.claims.get_mut(&1).unwrap().lost = true;
    is_marked_and_removed(&mut observed, 3, Removal::VolumeLost);
    let delete = Step::Object(ObjectStep::DeleteClaim {
        ordinal: 1,
        claim_uid: "claim-1".to_owned(),
        keep: None,
    });
    assert_eq!(plan(&observed, &wanted(3)), delete);
}

#[test]
fn a_replacement_that_did_not_help_is_not_repeated_at_once() {
    for how in [Broken::Folder, Broken::Crashing] {
        let mut observed = broken(healthy(3), 1, how);
        // The member before it had another id.
        replaced(&mut observed, 1, 9, false);
        let blocked = Step::Blocked(Blocked::ReplacedBefore {
            name: "demo-1".to_owned(),
            times: 1,
            next: "tomorrow".to_owned(),
        });
        assert_eq!(plan(&observed, &wanted(3)), blocked);
        // It blocks no other step.
        let mut growing = observed.clone();
        growing.pods.insert(3, empty_pod(3));
        assert!(matches!(
            plan(&growing, &wanted(5)),
            Step::Membership(MembershipStep::AddLearner { ordinal: 3, .. })
        ));
        replaced(&mut observed, 1, 9, true);
        assert!(matches!(
            plan(&observed, &wanted(3)),
            Step::Record(Record::Replacement { ordinal: 1, .. })
        ));
    }
}

#[test]
fn a_claim_that_was_not_marked_is_never_deleted() {
    let mut observed = healthy(3);
    observed.claims.insert(3, claim(3));
    assert_eq!(plan(&observed, &wanted(3)), Step::Done);
}

#[test]
fn a_removed_member_that_comes_back_is_deleted_if_marked() {
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
    let delete = Step::Object(ObjectStep::DeleteClaim {
        ordinal: 3,
        claim_uid: "claim-3".to_owned(),
        keep: None,
    });
    assert_eq!(plan(&observed, &wanted(5)), delete);
    observed.claims.get_mut(&3).unwrap().terminating = true;
    let restart = restart(3);
    assert_eq!(plan(&observed, &wanted(5)), restart);
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
    let restart = restart(0);
    assert_eq!(plan(&observed, &wanted(3)), restart);
}

/// Without a quorum its volume may be needed for one.
#[test]
fn a_stuck_pod_whose_claim_was_deleted_stays() {
    let mut observed = healthy(3);
    observed.membership = None;
    for ordinal in 0..2 {
        let pod = pod(&mut observed, ordinal);
        (pod.report, pod.ready) = (None, false);
        pod.trouble = Some("ImagePullBackOff".to_owned());
        pod.template_hash = Some("bad".to_owned());
    }
    observed.claims.get_mut(&0).unwrap().terminating = true;
    assert_eq!(plan(&observed, &wanted(3)), restart(1));
    pod(&mut observed, 1).template_hash = Some("new".to_owned());
    assert_eq!(plan(&observed, &wanted(3)), Step::Wait(Waiting::Quorum));
}

/// `demo-1` cannot be scheduled only because its volume is on a node that is gone.
fn without_its_node(mut observed: Observed) -> Observed {
    let pod = pod(&mut observed, 1);
    (pod.report, pod.ready) = (None, false);
    pod.trouble = Some("0/2 nodes are available".to_owned());
    members(&mut observed)[1].reachable = false;
    observed
}

#[test]
fn a_claim_deleted_by_hand_gives_up_its_volume() {
    let mut observed = without_its_node(healthy(3));
    assert_eq!(plan(&observed, &wanted(3)), Step::Done, "it may come back");
    observed.claims.get_mut(&1).unwrap().terminating = true;
    is_marked_and_removed(&mut observed, 3, Removal::VolumeGivenUp);
    let restart = restart(1);
    assert_eq!(
        plan(&observed, &wanted(3)),
        restart,
        "so that the claim goes"
    );
    pod(&mut observed, 1).terminating = true;
    let waiting = Step::Wait(Waiting::Pods(BTreeSet::from([1])));
    assert_eq!(plan(&observed, &wanted(3)), waiting);
}

#[test]
fn a_serving_member_keeps_its_deleted_claim() {
    let mut observed = healthy(3);
    observed.claims.get_mut(&1).unwrap().terminating = true;
    assert_eq!(plan(&observed, &wanted(3)), Step::Done);
    // Between two starts of its server.
    let pod = pod(&mut observed, 1);
    (pod.report, pod.ready) = (None, false);
    assert_eq!(plan(&observed, &wanted(3)), Step::Done);
}

/// It still serves for a while, and may be the leader, which is never removed.
#[test]
fn a_pod_that_was_just_deleted_is_not_down() {
    let mut observed = healthy(3);
    observed.claims.get_mut(&0).unwrap().terminating = true;
    let ending = pod(&mut observed, 0);
    (ending.report, ending.terminating) = (None, true);
    assert_eq!(plan(&observed, &wanted(3)), Step::Done);
    pod(&mut observed, 0).trouble = Some("its pod should have ended".to_owned());
    members(&mut observed)[0].leader = false;
    members(&mut observed)[1].leader = true;
    assert!(matches!(
        plan(&observed, &wanted(3)),
        Step::Object(ObjectStep::MarkClaim { ordinal: 0, .. })
    ));
}

#[test]
fn a_replaced_members_volume_is_kept_while_it_may_be_needed() {
    let mut observed = without_its_node(healthy(3));
    observed.claims.get_mut(&1).unwrap().terminating = true;
    pod(&mut observed, 2).report = None;
    let blocked = Step::Blocked(Blocked::Quorum {
        name: "demo-1".to_owned(),
    });
    assert_eq!(plan(&observed, &wanted(3)), blocked);
    observed.membership = None;
    assert_eq!(plan(&observed, &wanted(3)), Step::Wait(Waiting::Quorum));
}

#[test]
fn a_pod_that_waits_for_a_deleted_claim_is_restarted() {
    let mut observed = without_its_node(healthy(3));
    members(&mut observed).remove(1);
    let waiting = Step::Wait(Waiting::Pods(BTreeSet::from([1])));
    assert_eq!(
        plan(&observed, &wanted(3)),
        waiting,
        "fewer members than the spec asks for are not what it asks for"
    );
    observed.claims.get_mut(&1).unwrap().terminating = true;
    let restart = restart(1);
    assert_eq!(plan(&observed, &wanted(3)), restart);
    pod(&mut observed, 1).trouble = None;
    assert_eq!(plan(&observed, &wanted(3)), waiting, "it may start yet");
}
