//! Rolling updates, one member at a time.

use dengine_operator::cluster::model::Observed;
use dengine_operator::cluster::plan::{Blocked, MembershipStep, ObjectStep, Step, Waiting, plan};
use dengine_operator::cluster::versions::Version;

use super::{empty_pod, healthy, members, pod, restart, wanted};

#[test]
fn a_rolling_update_stops_at_a_version_that_may_not_follow() {
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
    // To revert is to continue with the template of the others.
    for ordinal in [0, 1] {
        says(&mut observed, ordinal, "new", "1.2.0");
    }
    says(&mut observed, 2, "old", "1.4.0");
    assert!(matches!(
        plan(&observed, &wanted(3)),
        Step::Object(ObjectStep::RestartPod { ordinal: 2, .. })
    ));
}

#[test]
fn the_member_that_lags_most_is_restarted_first() {
    let mut observed = healthy(5);
    for ordinal in 0..5 {
        pod(&mut observed, ordinal).template_hash = Some("old".to_owned());
    }
    members(&mut observed)[1].lag_entries = 6_000;
    members(&mut observed)[2].lag_entries = 9_000;
    // Another one lags, so the restart has to wait for it; pods that are not ready go first.
    assert_eq!(
        plan(&observed, &wanted(5)),
        Step::Wait(Waiting::Member {
            name: "demo-1".to_owned()
        })
    );
    members(&mut observed)[1].lag_entries = 10;
    let restart = restart(2);
    assert_eq!(plan(&observed, &wanted(5)), restart);
}

#[test]
fn a_rolling_update_restarts_the_leader_last() {
    let mut observed = healthy(3);
    for ordinal in 0..3 {
        pod(&mut observed, ordinal).template_hash = Some("old".to_owned());
    }
    assert_eq!(plan(&observed, &wanted(3)), restart(2));

    // While it is down, no other member is restarted.
    pod(&mut observed, 2).template_hash = Some("new".to_owned());
    pod(&mut observed, 2).ready = false;
    let waiting = Step::Wait(Waiting::Member {
        name: "demo-2".to_owned(),
    });
    assert_eq!(plan(&observed, &wanted(3)), waiting);

    pod(&mut observed, 2).ready = true;
    assert_eq!(plan(&observed, &wanted(3)), restart(1));
    pod(&mut observed, 1).template_hash = Some("new".to_owned());
    let transfer = Step::Membership(MembershipStep::TransferLeader {
        member_id: 2,
        name: "demo-1".to_owned(),
    });
    assert_eq!(plan(&observed, &wanted(3)), transfer);
    members(&mut observed)[0].leader = false;
    members(&mut observed)[1].leader = true;
    assert_eq!(plan(&observed, &wanted(3)), restart(0));
}

/// However many others there are. Kubernetes does not end its pod, and only people know whether the
/// node comes back.
#[test]
fn a_rolling_update_waits_for_a_member_on_a_dead_node() {
    for size in [3, 5, 7] {
        let mut observed = healthy(size);
        for ordinal in 0..size {
            pod(&mut observed, ordinal).template_hash = Some("old".to_owned());
        }
        let lost = pod(&mut observed, 1);
        (lost.terminating, lost.ready, lost.report) = (true, false, None);
        members(&mut observed)[1].reachable = false;
        let waiting = Step::Wait(Waiting::Member {
            name: "demo-1".to_owned(),
        });
        assert_eq!(plan(&observed, &wanted(size)), waiting);
    }
}

/// Its claim was deleted: the volume would be deleted with the pod.
#[test]
fn a_rolling_update_skips_a_member_whose_claim_was_deleted() {
    let mut observed = healthy(3);
    for ordinal in 0..3 {
        pod(&mut observed, ordinal).template_hash = Some("old".to_owned());
    }
    observed.claims.get_mut(&2).unwrap().terminating = true;
    assert_eq!(plan(&observed, &wanted(3)), restart(1));
    // The others still go one at a time.
    pod(&mut observed, 1).template_hash = Some("new".to_owned());
    pod(&mut observed, 1).ready = false;
    let waiting = Step::Wait(Waiting::Member {
        name: "demo-1".to_owned(),
    });
    assert_eq!(plan(&observed, &wanted(3)), waiting);
    pod(&mut observed, 1).ready = true;
    assert!(matches!(
        plan(&observed, &wanted(3)),
        Step::Membership(MembershipStep::TransferLeader { .. })
    ));
    members(&mut observed)[0].leader = false;
    members(&mut observed)[1].leader = true;
    assert_eq!(plan(&observed, &wanted(3)), restart(0));
    pod(&mut observed, 0).template_hash = Some("new".to_owned());
    let blocked = Step::Blocked(Blocked::ClaimDeleted {
        name: "demo-2".to_owned(),
    });
    assert_eq!(plan(&observed, &wanted(3)), blocked);
    // Whatever it or the leader reports about it.
    members(&mut observed)[2].reachable = false;
    pod(&mut observed, 2).report = None;
    assert_eq!(plan(&observed, &wanted(3)), blocked);
}

#[test]
fn a_claim_without_a_member_blocks_no_restart() {
    let mut observed = healthy(3);
    let newcomer = empty_pod(3);
    observed.pods.insert(3, newcomer);
    pod(&mut observed, 3).template_hash = Some("old".to_owned());
    let claim = super::claim(3);
    observed.claims.insert(3, claim);
    observed.claims.get_mut(&3).unwrap().terminating = true;
    assert_eq!(plan(&observed, &wanted(3)), restart(3));
}

#[test]
fn the_only_member_is_restarted_when_it_is_meant_to_be_the_only_one() {
    let mut observed = healthy(1);
    pod(&mut observed, 0).template_hash = Some("old".to_owned());
    let restart = restart(0);
    assert_eq!(plan(&observed, &wanted(1)), restart);
    observed.stateful_set_replicas = Some(3);
    let blocked = Step::Blocked(Blocked::Quorum {
        name: "demo-0".to_owned(),
    });
    assert_eq!(plan(&observed, &wanted(3)), blocked);
}

/// By a webhook, say. It still serves; no other member waits for it.
#[test]
fn a_pod_that_may_not_be_deleted_does_not_hold_up_the_others() {
    let mut observed = healthy(3);
    for ordinal in 0..3 {
        pod(&mut observed, ordinal).template_hash = Some("old".to_owned());
    }
    pod(&mut observed, 2).refused = Some("not on a Friday".to_owned());
    assert_eq!(plan(&observed, &wanted(3)), restart(1));
}
