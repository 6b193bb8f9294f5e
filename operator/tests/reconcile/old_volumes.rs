//! Volumes of replaced members.

use std::sync::Arc;

use dengine_crds::conditions;
use dengine_crds::names::{annotations, labels};
use dengine_operator::cluster::older_volumes;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::json;

use crate::{CLAIMS, CLUSTER, World};

const VOLUME: &str = "/api/v1/persistentvolumes/pv-3";

/// Member 9 of the pod `demo-3` was replaced and removed; its claim is marked and still exists.
/// `bound_to` is the namespace of the claim that the volume names.
pub(crate) async fn given_up(bound_to: &str) -> World {
    let world = World::settled().await;
    let claim = json!({
        "metadata": {
            "name": "data-demo-3", "namespace": "test", "labels": {labels::CLUSTER: "demo"},
            "annotations": {annotations::REMOVED_MEMBER: "7/9"},
        },
        "spec": {"volumeName": "pv-3", "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
    });
    world.api.put(&format!("{CLAIMS}/data-demo-3"), claim);
    let volume = json!({
        "metadata": {"name": "pv-3"},
        "spec": {
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": bound_to, "name": "data-demo-3"},
        },
    });
    world.api.put(VOLUME, volume);
    let replacement =
        json!({"name": "demo-3", "memberId": "9", "times": 1, "at": "2026-01-01T00:00:00Z"});
    world
        .api
        .put(CLUSTER, json!({"status": {"replacements": [replacement]}}));
    world
}

fn policy(world: &World) -> String {
    let volume = world.api.list::<PersistentVolume>(VOLUME).remove(0);
    volume
        .spec
        .unwrap()
        .persistent_volume_reclaim_policy
        .unwrap()
}

fn claim_is_there(world: &World) -> bool {
    let claims: Vec<PersistentVolumeClaim> = world.api.list("data-demo-3");
    !claims.is_empty()
}

/// The kept volume in the status, and why none is kept.
fn recorded(world: &World) -> (Option<String>, Option<String>) {
    let mut replacements = world.cluster().status.unwrap().replacements;
    let replacement = replacements.remove(0);
    (replacement.kept_volume, replacement.not_kept)
}

#[tokio::test]
async fn the_volume_of_a_replaced_member_outlives_its_claim() {
    let world = given_up("test").await;
    world.reconcile().await;
    assert_eq!(policy(&world), "Retain");
    assert_eq!(recorded(&world), (Some("pv-3".to_owned()), None));
    assert!(!claim_is_there(&world));
    let volume = world.api.list::<PersistentVolume>(VOLUME).remove(0);
    let found = |marks: Option<std::collections::BTreeMap<String, String>>, mark: &str| {
        marks.unwrap().remove(mark).unwrap()
    };
    let found_by = volume.metadata.labels;
    assert_eq!(found(found_by.clone(), labels::KEPT_FOR), "demo");
    assert_eq!(found(found_by, labels::KEPT_FOR_NAMESPACE), "test");
    let policy_before = found(volume.metadata.annotations, annotations::RECLAIM_POLICY);
    assert_eq!(policy_before, "Delete");
    // All wanted members vote: none will vote in its place.
    world.reconcile().await;
    assert_eq!(policy(&world), "Delete");
    assert_eq!(recorded(&world), (None, None));
    let volume = world.api.list::<PersistentVolume>(VOLUME).remove(0);
    assert_eq!(volume.metadata.labels.unwrap_or_default().len(), 0);
    assert_eq!(volume.metadata.annotations.unwrap_or_default().len(), 0);
    world.reconcile().await;
    assert_eq!(world.costs(3, "").await, Vec::<String>::new());
}

/// As in an installation for some namespaces: PersistentVolumes are in none.
#[tokio::test]
async fn an_operator_without_permission_for_volumes_reports_it() {
    let world = given_up("test").await;
    world.api.forbid("/persistentvolumes/");
    world.reconcile().await;
    let (kept, why) = recorded(&world);
    assert_eq!((kept, policy(&world).as_str()), (None, "Delete"));
    let why = why.unwrap();
    assert!(
        why.contains("may not change PersistentVolume pv-3"),
        "{why}"
    );
    assert!(!claim_is_there(&world));
}

/// Anyone who may create claims may write any volume's name into one.
#[tokio::test]
async fn a_claim_that_names_anothers_volume_does_not_change_it() {
    let world = given_up("another").await;
    for _ in 0..3 {
        world.reconcile().await;
    }
    is_not_kept(&world);
}

/// The volume is unchanged, and the status does not say that it is kept.
fn is_not_kept(world: &World) {
    assert_eq!(policy(world), "Delete");
    let requests = world.api.requests();
    let written = |request: &String| request.starts_with("PATCH /api/v1/persistentvolumes");
    assert!(!requests.iter().any(written), "{requests:#?}");
    let (kept, why) = recorded(world);
    assert_eq!(kept, None);
    let why = why.unwrap();
    assert!(why.contains("belongs to another claim"), "{why}");
}

/// A claim may have the name of an earlier one, whose volume still exists.
#[tokio::test]
async fn the_volume_of_an_earlier_claim_of_this_name_is_not_kept() {
    for (uid, is_its) in [("of-an-earlier-one", false), ("of-this-one", true)] {
        let world = given_up("test").await;
        let claim = json!({"metadata": {"uid": "of-this-one"}});
        world.api.put(&format!("{CLAIMS}/data-demo-3"), claim);
        let volume = json!({"spec": {"claimRef": {"uid": uid}}});
        world.api.put(VOLUME, volume);
        claim_goes(&world).await;
        if is_its {
            assert_eq!(policy(&world), "Retain");
        } else {
            is_not_kept(&world);
        }
    }
}

/// As the operator marked it before there were labels: the owner, and nothing else.
fn kept_by_an_older_operator(world: &World, of: &str) {
    let volume = json!({
        "metadata": {"annotations": {labels::KEPT_FOR: of}},
        "spec": {
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": "test", "name": "data-demo-3",
                         "uid": "of-a-claim-that-is-gone"},
        },
    });
    world.api.put(VOLUME, volume);
}

/// Even without the status: it gets the label by which volumes are found.
#[tokio::test]
async fn a_volume_that_an_older_operator_kept_is_found_without_the_status() {
    for (of, expected) in [("uid-of-demo", "Delete"), ("another", "Retain")] {
        let world = given_up("test").await;
        claim_goes(&world).await;
        reconcile_times(&world, 1).await;
        kept_by_an_older_operator(&world, of);
        world.api.put(CLUSTER, json!({"status": null}));
        reconcile_times(&world, 3).await;
        assert_eq!(policy(&world), "Retain", "nobody finds it");
        older_volumes::label(&world.context).await.unwrap();
        reconcile_times(&world, 1).await;
        assert_eq!(policy(&world), expected, "{of}");
    }
}

#[tokio::test]
async fn a_volume_that_an_older_operator_kept_is_released() {
    for (of, expected) in [("uid-of-demo", "Delete"), ("another", "Retain")] {
        let world = given_up("test").await;
        claim_goes(&world).await;
        reconcile_times(&world, 1).await;
        kept_by_an_older_operator(&world, of);
        let replacement = json!({
            "name": "demo-3", "memberId": "9", "times": 1, "at": "2026-01-01T00:00:00Z",
            "keptVolume": "pv-3",
        });
        let status = json!({"status": {"replacements": [replacement]}});
        world.api.put(CLUSTER, status);
        reconcile_times(&world, 3).await;
        assert_eq!(policy(&world), expected, "{of}");
    }
}

/// Reconciles until the claim of the replaced member is gone, and not once more.
pub(crate) async fn claim_goes(world: &World) {
    for _ in 0..4 {
        if !claim_is_there(world) {
            return;
        }
        world.reconcile().await;
    }
    panic!("its claim stays: {:#?}", world.cluster().status);
}

async fn reconcile_times(world: &World, times: u32) {
    for _ in 0..times {
        world.reconcile().await;
    }
}

/// The status may be lost, or restored from before the volume was kept.
#[tokio::test]
async fn a_kept_volume_is_found_without_the_status() {
    let world = given_up("test").await;
    claim_goes(&world).await;
    assert_eq!(policy(&world), "Retain");
    world.api.put(CLUSTER, json!({"status": null}));
    reconcile_times(&world, 5).await;
    assert_eq!(policy(&world), "Delete");
}

/// Another resource that adopts the members of a deleted one has another UID.
#[tokio::test]
async fn a_kept_volume_is_found_by_the_cluster_that_adopts_its_members() {
    let world = given_up("test").await;
    claim_goes(&world).await;
    world.api.put(
        CLUSTER,
        json!({"metadata": {"uid": "another"}, "status": null}),
    );
    for object in world.api.paths("/namespaces/test/") {
        let orphan = json!({"metadata": {"ownerReferences": null}});
        world.api.put(&object, orphan);
    }
    reconcile_times(&world, 6).await;
    assert_eq!(policy(&world), "Delete");
}

/// As one that is restored from a backup again and again, or goes through CRDs that lack these
/// fields.
#[tokio::test]
async fn a_status_that_loses_kept_volumes_blocks_nothing() {
    for forbidden in [false, true] {
        let world = given_up("test").await;
        world.api.prune(&["keptVolume", "notKept"]);
        if forbidden {
            world.api.forbid("/persistentvolumes/");
        }
        claim_goes(&world).await;
        let kept = if forbidden { "Delete" } else { "Retain" };
        assert_eq!(policy(&world), kept);
        reconcile_times(&world, 3).await;
        assert_eq!(policy(&world), "Delete");
    }
}

#[tokio::test]
async fn a_volume_that_can_not_be_released_is_reported_and_blocks_nothing() {
    let mut world = given_up("test").await;
    claim_goes(&world).await;
    world.api.refuse("/persistentvolumes/", "not on a Friday");
    let patches = world.costs(10, "PATCH /api/v1/persistentvolumes").await;
    assert_eq!(patches.len(), 1, "once, then a pause");
    let message = world.message(conditions::PROGRESSING);
    assert!(
        message.contains("pv-3") && message.contains("not on a Friday"),
        "{message}"
    );
    world.edit(&json!({"engine": {"logLevel": "debug"}}));
    let restarted = world.costs(5, "DELETE /api/v1/namespaces/test/pods").await;
    assert!(!restarted.is_empty(), "nothing is rolled out");
    world.api.allow();
    world.start_pods();
    // As after the pause.
    world.context.retries = Arc::default();
    reconcile_times(&world, 3).await;
    assert_eq!(policy(&world), "Delete");
}

/// The schema allows 512 characters; a longer status would be refused with every retry.
#[tokio::test]
async fn the_message_of_a_refusal_fits_into_the_status() {
    let world = given_up("test").await;
    world.api.refuse("/persistentvolumes/", &"no ".repeat(500));
    world.reconcile().await;
    let (_, why) = recorded(&world);
    assert!(why.unwrap().chars().count() <= 512);
}

/// As when the operator was reinstalled for some namespaces.
#[tokio::test]
async fn an_unreadable_volume_is_not_forgotten() {
    let mut world = given_up("test").await;
    claim_goes(&world).await;
    world.api.forbid_all("/persistentvolumes/");
    reconcile_times(&world, 3).await;
    assert_eq!(recorded(&world).0.as_deref(), Some("pv-3"));
    let message = world.message(conditions::PROGRESSING);
    assert!(message.contains("pv-3"), "{message}");
    world.api.allow();
    world.context.retries = Arc::default();
    reconcile_times(&world, 2).await;
    assert_eq!(policy(&world), "Delete");
    assert_eq!(recorded(&world).0, None);
}
