//! Statuses, by example.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;

use super::*;
use crate::cluster::model::{Identity, Membership, Pod, Report};
use crate::cluster::plan::{Blocked, Waiting};
use crate::cluster::validate::tests::resource_with;

fn at(second: i64) -> Time {
    Time(Timestamp::from_second(second).unwrap())
}

fn pod(ordinal: u32) -> Pod {
    let identity = Identity {
        cluster_id: 7,
        member_id: u64::from(ordinal) + 1,
    };
    Pod {
        ready: true,
        template_hash: Some("t".to_owned()),
        report: Some(Report {
            folder_id: format!("f{ordinal}"),
            identity: Some(identity),
            version: format!("0.{}.0", 10 - ordinal),
            term: 2,
            ready: true,
            low_on_space: false,
            snapshot_lacks_bytes: 0,
            stalled: false,
        }),
        ..Pod::default()
    }
}

fn member(ordinal: u32) -> Member {
    Member {
        id: u64::from(ordinal) + 1,
        name: format!("demo-{ordinal}"),
        ordinal: Some(ordinal),
        folder_id: format!("f{ordinal}"),
        voter: true,
        leader: ordinal == 1,
        reachable: true,
        lag_entries: 0,
    }
}

fn healthy() -> Observed {
    Observed {
        cluster_id: Some(7),
        had_members: true,
        stateful_set_replicas: Some(3),
        pods: (0..3)
            .map(|ordinal| (ordinal, pod(ordinal)))
            .collect::<BTreeMap<_, _>>(),
        membership: Some(Membership {
            cluster_id: 7,
            term: 2,
            members: (0..3).map(member).collect(),
        }),
        ..Observed::default()
    }
}

fn outcome(observed: Observed, step: Step) -> Outcome {
    let wanted = Wanted {
        replicas: 3,
        template_hash: "t".to_owned(),
    };
    let observed = Box::new(observed);
    Outcome::Observed {
        observed,
        wanted,
        default_image: "older".to_owned(),
        step,
        paused: false,
        error: None,
        notice: None,
    }
}

fn status_of(observed: Observed, step: Step) -> DEngineClusterStatus {
    derive(
        &resource_with("demo", "{}"),
        &outcome(observed, step),
        Vec::new(),
        at(1),
    )
}

#[test]
fn a_full_disk_is_reported_with_what_to_do() {
    let mut full = healthy();
    let fine = status_of(full.clone(), Step::Done);
    let report = full.pods.get_mut(&2).unwrap().report.as_mut();
    report.unwrap().low_on_space = true;
    let status = status_of(full, Step::Done);
    let of = |status: &DEngineClusterStatus| {
        let mut all = status.conditions.iter();
        all.find(|c| c.type_ == types::LOW_ON_SPACE)
            .cloned()
            .unwrap()
    };
    let mut lacks = healthy();
    let report = lacks.pods.get_mut(&1).unwrap().report.as_mut();
    report.unwrap().snapshot_lacks_bytes = 1;
    let lacks = of(&status_of(lacks, Step::Done));
    assert_eq!(lacks.status, "True");
    assert!(
        lacks.message.starts_with("member 1 cannot catch up"),
        "{lacks:?}"
    );
    assert_eq!(of(&fine).status, "False");
    assert_eq!(of(&status).status, "True");
    assert!(
        of(&status)
            .message
            .starts_with("the disk of member 2 is nearly full"),
        "{:?}",
        of(&status)
    );
    let condition = "if its storage class allows expansion";
    assert!(of(&status).message.contains(condition));
}

#[test]
fn a_failed_expansion_is_reported_and_the_cluster_stays_ready() {
    let mut outcome = outcome(healthy(), Step::Done);
    if let Outcome::Observed { error, .. } = &mut outcome {
        *error = Some((reasons::EXPANDING_VOLUMES, "it cannot grow".to_owned()));
    }
    let status = derive(&resource_with("demo", "{}"), &outcome, Vec::new(), at(1));
    let said = |type_: &str| {
        let mut all = status.conditions.iter();
        let found = all.find(|c| c.type_ == type_);
        found.map(|c| (c.status.as_str(), c.message.as_str()))
    };
    assert_eq!(said(types::PROGRESSING), Some(("True", "it cannot grow")));
    assert_eq!(said(types::READY).map(|(status, _)| status), Some("True"));
}

/// It said that all is as the spec asks, while its phase was Bootstrapping.
#[test]
fn what_is_not_ready_yet_is_waited_for_in_words() {
    let mut observed = healthy();
    observed.pods.get_mut(&2).unwrap().ready = false;
    let status = status_of(observed, Step::Done);
    assert_eq!(status.phase, Some(ClusterPhase::Bootstrapping));
    let mut conditions = status.conditions.iter();
    let progressing = conditions.find(|c| c.type_ == types::PROGRESSING).unwrap();
    assert_eq!(progressing.message, "waiting for demo-2 to become ready");
}

#[test]
fn a_healthy_cluster_is_ready() {
    let status = status_of(healthy(), Step::Done);
    assert_eq!(status.phase, Some(ClusterPhase::Ready));
    assert_eq!(status.ready.as_deref(), Some("3/3"));
    assert_eq!(status.leader.as_deref(), Some("demo-1"));
    assert_eq!(
        status.version.as_deref(),
        Some("0.8.0"),
        "the lowest, not the first in letters"
    );
}

#[test]
fn an_unchanged_status_is_not_written() {
    let mut resource = resource_with("demo", "{}");
    let outcome = outcome(healthy(), Step::Done);
    resource.status = Some(derive(&resource, &outcome, Vec::new(), at(1)));
    let later = derive(&resource, &outcome, Vec::new(), at(1_000));
    assert_eq!(resource.status, Some(later));
}

#[test]
fn a_member_that_does_not_answer_degrades_the_cluster() {
    let mut observed = healthy();
    observed.pods.remove(&2);
    let status = status_of(observed, Step::Done);
    assert_eq!(status.phase, Some(ClusterPhase::Degraded));
    assert_eq!(status.ready.as_deref(), Some("2/3"));
    assert!(!status.members[2].healthy);
}

#[test]
fn without_a_quorum_the_last_known_members_stay() {
    let mut resource = resource_with("demo", "{}");
    let before = derive(
        &resource,
        &outcome(healthy(), Step::Done),
        Vec::new(),
        at(1),
    );
    resource.status = Some(before);
    let lost = Observed {
        membership: None,
        ..healthy()
    };
    let step = Step::Wait(Waiting::Quorum);
    let status = derive(&resource, &outcome(lost, step), Vec::new(), at(2));
    assert_eq!(status.phase, Some(ClusterPhase::Unavailable));
    assert_eq!(status.leader, None);
    assert_eq!(status.members.len(), 3);
    assert!(
        status
            .members
            .iter()
            .all(|m| !m.healthy && m.lag == Lag::Unknown)
    );
}

#[test]
fn an_unknown_member_shows_why_nothing_is_done() {
    let step = Step::Blocked(Blocked::UnknownMember {
        name: "stranger".to_owned(),
    });
    let status = status_of(healthy(), step);
    assert_eq!(status.phase, Some(ClusterPhase::Degraded));
    let degraded = status
        .conditions
        .iter()
        .find(|c| c.type_ == types::DEGRADED)
        .unwrap();
    assert!(
        degraded.message.contains("stranger"),
        "{}",
        degraded.message
    );
}

fn said(status: &DEngineClusterStatus, type_: &str) -> (String, String, String) {
    let mut all = status.conditions.iter();
    let found = all.find(|c| c.type_ == type_).unwrap();
    let found = found.clone();
    (found.status, found.reason, found.message)
}

#[test]
fn a_cluster_that_is_being_created_triggers_no_alert() {
    let new = Observed {
        stateful_set_replicas: Some(3),
        pods: (0..3).map(|ordinal| (ordinal, Pod::default())).collect(),
        ..Observed::default()
    };
    let step = Step::Wait(Waiting::Pods((0..3).collect()));
    let status = status_of(new, step);
    let (quorum, reason, _) = said(&status, types::QUORUM_AVAILABLE);
    assert_eq!(
        (quorum.as_str(), reason.as_str()),
        ("Unknown", "NotBootstrapped")
    );
    assert_eq!(said(&status, types::DEGRADED).0, "False");
    assert_eq!(said(&status, types::LOW_ON_SPACE).0, "Unknown");
}

/// Its members existed before this resource: they are missed, though its status never listed one.
#[test]
fn an_adopted_cluster_without_a_quorum_triggers_an_alert() {
    let adopted = Observed {
        had_members: false,
        membership: None,
        ..healthy()
    };
    let status = status_of(adopted.clone(), Step::Wait(Waiting::Quorum));
    let (quorum, reason, _) = said(&status, types::QUORUM_AVAILABLE);
    assert_eq!((quorum.as_str(), reason.as_str()), ("False", "QuorumLost"));
    assert_eq!(said(&status, types::DEGRADED).0, "True");
    assert_eq!(status.phase, Some(ClusterPhase::Unavailable));
    let being_made = Observed {
        seed_folder_id: Some("f0".to_owned()),
        ..adopted
    };
    let status = status_of(being_made, Step::Wait(Waiting::Seed));
    assert_eq!(said(&status, types::QUORUM_AVAILABLE).0, "Unknown");
}

/// They answer heartbeats, so they have a leader, and nothing is committed.
#[test]
fn a_majority_whose_disks_hang_is_no_quorum() {
    let mut observed = healthy();
    for (ordinal, quorum) in [(0, "True"), (2, "False")] {
        let pod = observed.pods.get_mut(&ordinal).unwrap();
        pod.report.as_mut().unwrap().stalled = true;
        let status = status_of(observed.clone(), Step::Done);
        let (told, reason, message) = said(&status, types::QUORUM_AVAILABLE);
        assert_eq!(told, quorum, "{reason}: {message}");
        if quorum == "False" {
            assert_eq!(reason, "DisksHang");
            assert!(message.contains("of demo-0, demo-2 hang"), "{message}");
        }
    }
}

#[test]
fn a_silent_member_is_reported() {
    let mut observed = healthy();
    let away = observed.pods.get_mut(&2).unwrap();
    away.report = None;
    away.silent = Some("its node is away".to_owned());
    let status = status_of(observed, Step::Done);
    let (_, _, message) = said(&status, types::DEGRADED);
    assert!(message.contains("member 2: its node is away"), "{message}");
}

/// A NetworkPolicy that keeps the operator from all members hides the quorum from it: the
/// conditions must say so.
#[test]
fn a_lost_quorum_is_reported_with_its_cause() {
    let mut observed = healthy();
    observed.membership = None;
    for pod in observed.pods.values_mut() {
        pod.report = None;
        pod.silent = Some("a policy keeps the operator out".to_owned());
    }
    let status = status_of(observed, Step::Wait(Waiting::Quorum));
    for type_ in [
        types::QUORUM_AVAILABLE,
        types::DEGRADED,
        types::READY,
        types::PROGRESSING,
    ] {
        let (_, _, message) = said(&status, type_);
        let told = message.contains("members 0, 1 and 2: a policy keeps");
        assert!(told, "{type_}: {message}");
    }
}

#[test]
fn every_wait_is_reported_with_its_cause() {
    let name = || "demo-2".to_owned();
    for waiting in [
        Waiting::Pods([2].into()),
        Waiting::Gone([2].into()),
        Waiting::Seed,
        Waiting::Quorum,
        Waiting::CatchUp { name: name() },
        Waiting::Member { name: name() },
    ] {
        let mut observed = healthy();
        let away = observed.pods.get_mut(&2).unwrap();
        away.report = None;
        away.trouble = Some("its node is gone".to_owned());
        let step = format!("{waiting:?}");
        let status = status_of(observed, Step::Wait(waiting));
        let (_, _, message) = said(&status, types::PROGRESSING);
        let told = message.contains("member 2: its node is gone");
        assert!(told, "{step}: {message}");
    }
}

#[test]
fn an_unavailable_member_does_not_meet_the_spec() {
    let mut observed = healthy();
    let away = observed.pods.get_mut(&2).unwrap();
    away.report = None;
    away.trouble = Some("its node is gone".to_owned());
    let status = status_of(observed, Step::Done);
    let (works, reason, message) = said(&status, types::PROGRESSING);
    assert_eq!(
        (works.as_str(), reason.as_str()),
        ("False", "MemberUnavailable")
    );
    assert!(message.contains("waiting for demo-2"), "{message}");
    assert!(message.contains("member 2: its node is gone"), "{message}");
    let (_, _, message) = said(&status, types::DEGRADED);
    assert!(message.contains("its node is gone"), "{message}");
}

/// After the replacement of a member whose node is gone: two vote, and the third has a pod that can
/// not be scheduled.
#[test]
fn fewer_members_do_not_meet_the_spec() {
    let mut observed = healthy();
    observed.membership.as_mut().unwrap().members.pop();
    let pending = observed.pods.get_mut(&2).unwrap();
    pending.report = None;
    let step = || Step::Wait(Waiting::Pods([2].into()));
    let mut resource = resource_with("demo", "{}");
    let settled = outcome(healthy(), Step::Done);
    resource.status = Some(derive(&resource, &settled, Vec::new(), at(1)));
    let starting = outcome(observed.clone(), step());
    let status = derive(&resource, &starting, Vec::new(), at(2));
    assert_eq!(said(&status, types::PROGRESSING).0, "True");
    assert_eq!(said(&status, types::DEGRADED).0, "False", "it only starts");
    assert_eq!(status.phase, Some(ClusterPhase::Updating));

    let pending = observed.pods.get_mut(&2).unwrap();
    pending.trouble = Some("its volume is on node far".to_owned());
    let kept_out = outcome(observed, step());
    let status = derive(&resource, &kept_out, Vec::new(), at(3));
    for type_ in [types::PROGRESSING, types::READY, types::DEGRADED] {
        let (_, _, message) = said(&status, type_);
        assert!(message.contains("node far"), "{type_}: {message}");
    }
    assert_eq!(said(&status, types::DEGRADED).0, "True");
    assert_eq!(said(&status, types::READY).0, "False");
    assert_eq!(status.phase, Some(ClusterPhase::Degraded));
    // A cluster that never was ready misses no member.
    resource.status = None;
    let status = derive(&resource, &kept_out, Vec::new(), at(3));
    assert_eq!(said(&status, types::DEGRADED).0, "False");
    assert_eq!(status.phase, Some(ClusterPhase::Bootstrapping));
}

#[test]
fn refused_pods_are_reported_in_every_condition() {
    let mut observed = healthy();
    observed.pods.remove(&2);
    observed.refused = Some("pods \"demo-2\" is forbidden: exceeded quota".to_owned());
    let status = status_of(observed, Step::Done);
    for type_ in [types::PROGRESSING, types::READY, types::DEGRADED] {
        let (_, _, message) = said(&status, type_);
        assert!(message.contains("exceeded quota"), "{type_}: {message}");
    }
}

#[test]
fn a_refused_version_is_reported_and_the_cluster_stays_ready() {
    let mut outcome = outcome(healthy(), Step::Done);
    if let Outcome::Observed { notice, .. } = &mut outcome {
        let message = "it skips versions".to_owned();
        *notice = Some(Notice::rests(reasons::VERSION_REFUSED, message));
    }
    let status = derive(&resource_with("demo", "{}"), &outcome, Vec::new(), at(1));
    assert_eq!(status.phase, Some(ClusterPhase::Invalid));
    assert_eq!(said(&status, types::MEMBERS_UPDATED).1, "VersionRefused");
    assert_eq!(said(&status, types::PROGRESSING).0, "False");
    assert_eq!(said(&status, types::READY).0, "True", "it serves");
}

#[test]
fn the_recorded_version_only_rises() {
    let status = status_of(healthy(), Step::Done);
    assert_eq!(status.cluster_version.as_deref(), Some("0.8.0"));
    let mut resource = resource_with("demo", "{}");
    resource.status = Some(DEngineClusterStatus {
        cluster_version: Some("0.9.0".to_owned()),
        ..DEngineClusterStatus::default()
    });
    let outcome = outcome(healthy(), Step::Done);
    let status = derive(&resource, &outcome, Vec::new(), at(1));
    assert_eq!(status.cluster_version.as_deref(), Some("0.9.0"));
}

#[test]
fn conditions_are_removed_or_unknown_when_the_spec_is_invalid() {
    let mut resource = resource_with("demo", "{}");
    let observed = outcome(healthy(), Step::Done);
    let mut before = derive(&resource, &observed, Vec::new(), at(1));
    before.conditions.push(Condition {
        type_: "OfAnOlderOperator".to_owned(),
        ..before.conditions[0].clone()
    });
    resource.status = Some(before);
    let invalid = Outcome::Invalid("even".to_owned());
    let status = derive(&resource, &invalid, Vec::new(), at(2));
    assert_eq!(said(&status, types::READY).0, "False");
    for type_ in [
        types::QUORUM_AVAILABLE,
        types::DEGRADED,
        types::MEMBERS_UPDATED,
    ] {
        assert_eq!(said(&status, type_).0, "Unknown", "nobody looked: {type_}");
    }
    assert!(
        status
            .conditions
            .iter()
            .all(|c| c.type_ != "OfAnOlderOperator")
    );
}

#[test]
fn paused_and_invalid_are_phases() {
    let Outcome::Observed {
        observed,
        wanted,
        default_image,
        step,
        ..
    } = outcome(healthy(), Step::Done)
    else {
        unreachable!("it was made so");
    };
    let paused = Outcome::Observed {
        observed,
        wanted,
        default_image,
        step,
        paused: true,
        error: None,
        notice: None,
    };
    let resource = resource_with("demo", "{}");
    let status = derive(&resource, &paused, Vec::new(), at(1));
    assert_eq!(status.phase, Some(ClusterPhase::Paused));
    let invalid = Outcome::Invalid("even".to_owned());
    let status = derive(&resource, &invalid, Vec::new(), at(1));
    assert_eq!(status.phase, Some(ClusterPhase::Invalid));
}

/// A member that was added by hand may have any name; messages of webhooks may be long.
#[test]
fn a_status_is_cut_to_the_limits_of_its_schema() {
    let mut observed = healthy();
    let members = &mut observed.membership.as_mut().unwrap().members;
    let stranger = Member {
        id: 100,
        name: "é".repeat(500),
        ordinal: None,
        leader: true,
        ..Member::default()
    };
    members.extend((0..20).map(|more| Member {
        id: 100 + more,
        ..stranger.clone()
    }));
    let status = status_of(observed, Step::Done);
    assert_eq!(status.members.len(), 16);
    let longest = status.members.iter().map(|m| m.name.chars().count()).max();
    assert_eq!(longest, Some(63));
    let replacement = dengine_crds::cluster::Replacement {
        name: "demo-1".to_owned(),
        member_id: "2".to_owned(),
        times: 1,
        at: at(0),
        kept_volume: None,
        not_kept: Some("no ".repeat(500)),
    };
    let recorded = within_limits(DEngineClusterStatus {
        replacements: vec![replacement],
        ..status.clone()
    });
    let message = recorded.replacements[0].not_kept.as_ref().unwrap();
    assert_eq!(message.chars().count(), 512);
    assert_eq!(within_limits(status.clone()), status);
}
