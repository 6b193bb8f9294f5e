//! The status of a cluster is lost, or restored from an old backup: that changes no decision.

use dengine_crds::cluster::ClusterPhase;
use dengine_crds::conditions;
use dengine_crds::names::annotations;
use k8s_openapi::api::apps::v1::StatefulSet;
use serde_json::{Value, json};

use crate::{CLAIMS, CLUSTER, World};

const SET: &str = "/apis/apps/v1/namespaces/test/statefulsets/demo";

fn set(world: &World) -> StatefulSet {
    world.api.list::<StatefulSet>(SET).remove(0)
}

fn image(world: &World) -> String {
    let pod = set(world).spec.unwrap().template.spec.unwrap();
    pod.containers[0].image.clone().unwrap()
}

fn wiped() -> [Value; 2] {
    let long_ago = json!({"members": [], "clusterVersion": "0.0.1"});
    [Value::Null, long_ago]
}

/// Their pods keep them.
fn delete_claims(world: &World) {
    for claim in world.api.paths(CLAIMS) {
        let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        world.api.put(&claim, going);
    }
}

/// Deletes the objects that Kubernetes garbage-collects after the resource is deleted.
fn collect(world: &World, which: impl Fn(&str) -> bool) {
    for object in world.api.paths("/namespaces/test/") {
        let stays = object == CLUSTER || object.starts_with(CLAIMS);
        if !stays && which(&object) {
            world.api.remove(&object);
        }
    }
}

/// Members run 0.1.0.
#[tokio::test]
async fn a_lost_status_allows_no_skipped_or_older_version() {
    for status in wiped() {
        for version in ["0.0.1", "0.3.0"] {
            let world = World::settled().await;
            world.reconcile().await;
            let before = image(&world);
            let spec = json!({"image": format!("localhost/dengine:{version}")});
            world
                .api
                .put(CLUSTER, json!({"spec": spec, "status": status}));
            for _ in 0..5 {
                world.reconcile().await;
            }
            assert_eq!(image(&world), before, "{version} {status}");
            let recorded = world.cluster().status.unwrap().cluster_version;
            assert_eq!(recorded.as_deref(), Some("0.1.0"), "{status}");
        }
    }
}

/// What `kubectl delete dec demo --cascade=orphan` leaves is adopted by another resource of the
/// name, which has no status.
#[tokio::test]
async fn an_adopted_orphan_keeps_its_image() {
    // An owner that does not control it.
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "c"}]);
    for (spec, owners, message) in [
        (json!({}), Value::Null, "the cluster is as the spec asks"),
        (json!({}), owner, "the cluster is as the spec asks"),
        (
            json!({"image": "localhost/dengine:0.3.0"}),
            Value::Null,
            "skips",
        ),
    ] {
        let mut world = World::settled().await;
        world.reconcile().await;
        let before = image(&world);
        for object in world.api.paths("/namespaces/test/") {
            let orphan = json!({"metadata": {"ownerReferences": owners}});
            world.api.put(&object, orphan);
        }
        let another = json!({"metadata": {"uid": "another"}, "spec": spec, "status": null});
        world.api.put(CLUSTER, another);
        // The operator is newer by now.
        world.context.defaults.image = "localhost/dengine:0.2.0".to_owned();
        for _ in 0..6 {
            world.reconcile().await;
        }
        assert_eq!(image(&world), before, "{spec}");
        let restarts = world.api.requests();
        let is_restart = |request: &&String| request.starts_with("DELETE ");
        assert_eq!(restarts.iter().find(is_restart), None, "{spec}");
        let said = world.message(conditions::PROGRESSING);
        assert!(said.contains(message), "{said}");
        let owner = set(&world).metadata.owner_references.unwrap().remove(0);
        assert_eq!(owner.uid, "another", "it is taken up");
    }
}

/// As when a resource is restored by GitOps, or from a backup, and finds only its claims.
#[tokio::test]
async fn retained_claims_are_opened_by_a_compatible_version() {
    for spec in [json!({}), json!({"image": "localhost/dengine:0.3.0"})] {
        let mut world = World::settled().await;
        world.reconcile().await;
        let before = image(&world);
        world.context.defaults.image = "localhost/dengine:0.2.0".to_owned();
        let another = json!({"metadata": {"uid": "another"}, "spec": spec, "status": null});
        world.api.put(CLUSTER, another);
        // The garbage collector deletes the old objects a moment later.
        world.reconcile().await;
        collect(&world, |_| true);
        for _ in 0..3 {
            world.reconcile().await;
        }
        assert_eq!(image(&world), before, "{spec}");
    }
}

/// As after `kubectl delete dec` and `kubectl delete pvc --wait=false`: the new cluster has none of
/// the old data.
#[tokio::test]
async fn claims_being_deleted_do_not_limit_the_version() {
    let world = World::settled().await;
    world.reconcile().await;
    for object in world.api.paths("/namespaces/test/") {
        if object.starts_with(CLAIMS) {
            let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
            world.api.put(&object, going);
        } else if object != CLUSTER {
            world.api.remove(&object);
        }
    }
    let older = json!({"image": "localhost/dengine:0.0.1"});
    let another = json!({"metadata": {"uid": "another"}, "spec": older, "status": null});
    world.api.put(CLUSTER, another);
    for _ in 0..3 {
        world.reconcile().await;
    }
    assert_eq!(image(&world), "localhost/dengine:0.0.1");
}

/// `kubectl delete dec` and `kubectl apply` right after it: objects that are not garbage-collected
/// yet still run, and answer.
#[tokio::test]
async fn a_new_resource_does_not_adopt_the_cluster_being_deleted() {
    for (set_goes_last, claims_go) in [(true, true), (false, true), (true, false), (false, false)] {
        let world = World::settled().await;
        let controller = json!([{
            "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "demo", "uid": "former",
            "controller": true,
        }]);
        world.api.put(SET, json!({"metadata": {"uid": "former"}}));
        for pod in world.api.paths("/pods/") {
            let owned = json!({"metadata": {"ownerReferences": controller}});
            world.api.put(&pod, owned);
        }
        if claims_go {
            delete_claims(&world);
        }
        if !set_goes_last {
            collect(&world, |path| !path.contains("/pods/"));
        }
        let another = json!({"metadata": {"uid": "another"}, "status": null});
        world.api.put(CLUSTER, another);
        for _ in 0..3 {
            world.reconcile().await;
        }
        let id = || world.cluster().status.unwrap().cluster_id;
        let what = format!("{set_goes_last} {claims_go}");
        assert_eq!(id(), None, "{what}");
        if !set_goes_last {
            let message = world.message(conditions::PROGRESSING);
            assert!(
                message.contains("old pods of members 0, 1 and 2"),
                "{message}"
            );
        }
        // The next pods report what the claims hold.
        collect(&world, |path| set_goes_last || path.contains("/pods/"));
        if claims_go {
            for claim in world.api.paths(CLAIMS) {
                world.api.remove(&claim);
            }
        }
        world.reconcile().await;
        world.start_pods();
        for _ in 0..3 {
            world.reconcile().await;
        }
        assert_eq!(id().as_deref(), Some("7"), "{what}");
    }
}

/// Because its claim is deleted, though its pod belongs to the right StatefulSet.
#[tokio::test]
async fn a_new_resource_does_not_adopt_volumes_being_deleted() {
    let world = World::new().await;
    world.reconcile().await;
    world.start_pods();
    delete_claims(&world);
    for _ in 0..3 {
        world.reconcile().await;
    }
    assert_eq!(world.cluster().status.unwrap().cluster_id, None);
    let message = world.message(conditions::PROGRESSING);
    assert!(
        message.contains("old pods of members 0, 1 and 2"),
        "{message}"
    );
}

#[tokio::test]
async fn the_stateful_set_keeps_the_cluster_id() {
    let world = World::settled().await;
    let said = || {
        let annotations = set(&world).metadata.annotations.unwrap();
        annotations.get(annotations::CLUSTER_ID).cloned()
    };
    world.reconcile().await;
    assert_eq!(said().as_deref(), Some("7"));
    // No member answers.
    for pod in world.api.paths("/pods/") {
        world.api.put(&pod, json!({"status": {"podIP": null}}));
    }
    world.api.put(CLUSTER, json!({"status": null}));
    for _ in 0..4 {
        world.reconcile().await;
        assert_eq!(said().as_deref(), Some("7"));
    }
    let recorded = world.cluster().status.unwrap();
    assert_eq!(recorded.cluster_id.as_deref(), Some("7"));
    assert_eq!(recorded.phase, Some(ClusterPhase::Unavailable));
}
