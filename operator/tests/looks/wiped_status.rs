//! The status of a cluster is lost, or put back as it was long ago, as from a backup: that changes no decision.

use dengine_crds::cluster::ClusterPhase;
use dengine_crds::names::annotations;
use k8s_openapi::api::apps::v1::StatefulSet;
use serde_json::{Value, json};

use crate::{CLUSTER, World};

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

/// Members run 0.1.0.
#[tokio::test]
async fn no_version_is_skipped_and_none_goes_back() {
    for status in wiped() {
        for version in ["0.0.1", "0.3.0"] {
            let world = World::settled().await;
            world.look().await;
            let before = image(&world);
            let spec = json!({"image": format!("localhost/dengine:{version}")});
            world
                .api
                .put(CLUSTER, json!({"spec": spec, "status": status}));
            for _ in 0..5 {
                world.look().await;
            }
            assert_eq!(image(&world), before, "{version} {status}");
            let recorded = world.cluster().status.unwrap().cluster_version;
            assert_eq!(recorded.as_deref(), Some("0.1.0"), "{status}");
        }
    }
}

#[tokio::test]
async fn which_cluster_had_members_is_on_the_stateful_set_for_good() {
    let world = World::settled().await;
    let said = || {
        let annotations = set(&world).metadata.annotations.unwrap();
        annotations.get(annotations::CLUSTER_ID).cloned()
    };
    world.look().await;
    assert_eq!(said().as_deref(), Some("7"));
    // Nobody is there to say it.
    for pod in world.api.paths("/pods/") {
        world.api.put(&pod, json!({"status": {"podIP": null}}));
    }
    world.api.put(CLUSTER, json!({"status": null}));
    for _ in 0..4 {
        world.look().await;
        assert_eq!(said().as_deref(), Some("7"));
    }
    let recorded = world.cluster().status.unwrap();
    assert_eq!(recorded.cluster_id.as_deref(), Some("7"));
    assert_eq!(recorded.phase, Some(ClusterPhase::Unavailable));
}
