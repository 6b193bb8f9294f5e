//! The volumes of members that were given up.

use dengine_crds::names::{annotations, labels};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::json;

use crate::{CLAIMS, CLUSTER, World};

const VOLUME: &str = "/api/v1/persistentvolumes/pv-3";

/// Member 9, at the pod `demo-3`, was given up and removed; its claim is marked and still there. Whose claim the volume names
/// is `bound_to`.
async fn given_up(bound_to: &str) -> World {
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

/// What the status records: the volume that is kept, and why none is.
fn recorded(world: &World) -> (Option<String>, Option<String>) {
    let mut replacements = world.cluster().status.unwrap().replacements;
    let replacement = replacements.remove(0);
    (replacement.kept_volume, replacement.not_kept)
}

#[tokio::test]
async fn a_volume_that_was_given_up_outlives_its_claim_for_as_long_as_it_may_be_needed() {
    let world = given_up("test").await;
    world.look().await;
    assert_eq!(policy(&world), "Retain");
    assert_eq!(recorded(&world), (Some("pv-3".to_owned()), None));
    assert!(claim_is_there(&world), "first the one, then the other");
    world.look().await;
    assert!(!claim_is_there(&world));
    assert_eq!(policy(&world), "Retain");
    // All that are wanted vote: nobody will vote in its place.
    world.look().await;
    assert_eq!(policy(&world), "Delete");
    assert_eq!(recorded(&world), (None, None));
    let volume = world.api.list::<PersistentVolume>(VOLUME).remove(0);
    let annotations = volume.metadata.annotations.unwrap_or_default();
    assert!(!annotations.contains_key(annotations::KEPT_FOR));
    world.look().await;
    assert_eq!(world.costs(3, "").await, Vec::<String>::new());
}

/// As in an installation for some namespaces: PersistentVolumes are in none.
#[tokio::test]
async fn who_may_change_no_volumes_says_so_and_goes_on() {
    let world = given_up("test").await;
    world.api.forbid("/persistentvolumes/");
    world.look().await;
    let (kept, why) = recorded(&world);
    assert_eq!((kept, policy(&world).as_str()), (None, "Delete"));
    let why = why.unwrap();
    assert!(
        why.contains("may not change PersistentVolume pv-3"),
        "{why}"
    );
    world.look().await;
    assert!(!claim_is_there(&world));
}

/// Whoever may make claims may write any volume's name into one.
#[tokio::test]
async fn a_claim_that_names_anothers_volume_changes_nothing_of_it() {
    let world = given_up("another").await;
    for _ in 0..3 {
        world.look().await;
    }
    assert_eq!(policy(&world), "Delete");
    let requests = world.api.requests();
    let written = |request: &String| request.starts_with("PATCH /api/v1/persistentvolumes");
    assert!(!requests.iter().any(written), "{requests:#?}");
}
