//! More members, and fewer.

use dengine_operator::cluster::model::{Identity, Member};
use dengine_operator::cluster::plan::{
    Blocked, MembershipStep, ObjectStep, Removal, Step, Waiting, plan, stateful_set_replicas,
};

use super::{CLUSTER, empty_pod, folder, healthy, member, members, pod, pod_of, wanted};

#[test]
fn members_are_added_joined_and_promoted_one_at_a_time() {
    let mut observed = healthy(1);
    observed.pods.insert(1, empty_pod(1));
    observed.pods.insert(2, empty_pod(2));
    let add = Step::Membership(MembershipStep::AddLearner {
        ordinal: 1,
        folder_id: folder(1),
    });
    assert_eq!(plan(&observed, &wanted(3)), add);

    members(&mut observed).push(Member {
        voter: false,
        reachable: false,
        ..member(1, false)
    });
    let join = Step::Membership(MembershipStep::Join {
        ordinal: 1,
        member_id: 2,
        folder_id: folder(1),
    });
    assert_eq!(plan(&observed, &wanted(3)), join);

    observed.pods.insert(1, pod_of(1, 2));
    members(&mut observed)[1].reachable = true;
    members(&mut observed)[1].lag_entries = 1_000_000;
    let catch_up = Step::Wait(Waiting::CatchUp {
        name: "demo-1".to_owned(),
    });
    assert_eq!(plan(&observed, &wanted(3)), catch_up);

    members(&mut observed)[1].lag_entries = 0;
    let promote = Step::Membership(MembershipStep::Promote {
        member_id: 2,
        name: "demo-1".to_owned(),
    });
    assert_eq!(plan(&observed, &wanted(3)), promote);

    members(&mut observed)[1].voter = true;
    let add = Step::Membership(MembershipStep::AddLearner {
        ordinal: 2,
        folder_id: folder(2),
    });
    assert_eq!(plan(&observed, &wanted(3)), add);
}

#[test]
fn a_pod_that_is_briefly_gone_is_not_scaled_down() {
    let mut observed = healthy(3);
    observed.pods.remove(&1);
    members(&mut observed)[1].reachable = false;
    assert_eq!(plan(&observed, &wanted(3)), Step::Done);
    assert_eq!(stateful_set_replicas(&observed, &wanted(3)), 3);
}

#[test]
fn scaling_down_marks_removes_shrinks_and_only_then_deletes() {
    let mut observed = healthy(5);
    let identity = Identity {
        cluster_id: CLUSTER,
        member_id: 5,
    };
    let claim_uid = "claim-4".to_owned();
    let mark = Step::Object(ObjectStep::MarkClaim {
        ordinal: 4,
        claim_uid: claim_uid.clone(),
        identity,
    });
    assert_eq!(plan(&observed, &wanted(3)), mark);
    assert_eq!(stateful_set_replicas(&observed, &wanted(3)), 5);

    observed.claims.get_mut(&4).unwrap().marked_for = Some(identity);
    let name = "demo-4".to_owned();
    let remove = Step::Membership(MembershipStep::Remove {
        member_id: 5,
        name,
        why: Removal::ScaleDown,
    });
    assert_eq!(plan(&observed, &wanted(3)), remove);

    members(&mut observed).remove(4);
    assert_eq!(stateful_set_replicas(&observed, &wanted(3)), 4);
    observed.pods.remove(&4);
    assert_eq!(
        plan(&observed, &wanted(3)),
        Step::Object(ObjectStep::DeleteClaim {
            ordinal: 4,
            claim_uid,
            keep: None,
        })
    );
}

#[test]
fn a_surplus_leader_transfers_leadership_first() {
    let mut observed = healthy(3);
    members(&mut observed)[0].leader = false;
    members(&mut observed)[2].leader = true;
    let transfer = Step::Membership(MembershipStep::TransferLeader {
        member_id: 1,
        name: "demo-0".to_owned(),
    });
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
fn a_cluster_does_not_shrink_while_a_member_is_unavailable() {
    let all_away = |ordinals: &[u32]| {
        let mut observed = healthy(5);
        for member in members(&mut observed) {
            member.leader = member.id == 3;
        }
        for &ordinal in ordinals {
            members(&mut observed)[ordinal as usize].reachable = false;
            pod(&mut observed, ordinal).report = None;
        }
        observed
    };
    let away = |ordinal| all_away(&[ordinal]);
    let blocked = Step::Blocked(Blocked::ScaleDown {
        name: "demo-4".to_owned(),
        away: "demo-0".to_owned(),
    });
    assert_eq!(plan(&away(0), &wanted(3)), blocked);
    // An unavailable surplus member is removed first.
    assert!(matches!(
        plan(&away(3), &wanted(3)),
        Step::Object(ObjectStep::MarkClaim { ordinal: 3, .. })
    ));
    // And so are all surplus members, though all are unavailable.
    assert!(matches!(
        plan(&all_away(&[3, 4]), &wanted(3)),
        Step::Object(ObjectStep::MarkClaim { ordinal: 4, .. })
    ));
}

/// Its disk is full: it answers the leader's heartbeats, and acknowledges nothing.
#[test]
fn a_cluster_does_not_shrink_while_a_member_is_not_ready() {
    let mut observed = healthy(4);
    pod(&mut observed, 1).ready = false;
    let blocked = Step::Blocked(Blocked::ScaleDown {
        name: "demo-3".to_owned(),
        away: "demo-1".to_owned(),
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
