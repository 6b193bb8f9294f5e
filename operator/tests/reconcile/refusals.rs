//! Refusals by the API server are reported, and hold up nothing that does not depend on them.

use std::time::Duration;

use dengine_crds::conditions;
use dengine_crds::names::annotations;
use dengine_operator::cluster;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use serde_json::{Value, json};

use crate::old_volumes::{claim_goes, given_up};
use crate::{CLAIMS, CLUSTER, World};

const EVENTS: &str = "POST /apis/events.k8s.io";
const POD: &str = "/api/v1/namespaces/test/pods/demo-2";

/// How many requests of five reconciliations contain each of these texts.
async fn five_reconciliations(world: &World, within: [&str; 2]) -> [usize; 2] {
    let requests = world.costs(5, "").await;
    within.map(|within| {
        let those = requests.iter().filter(|request| request.contains(within));
        those.count()
    })
}

/// The pod `demo-2` while its server does not run.
fn ends(world: &World, metadata: &Value) {
    let status = json!({
        "phase": "Pending", "podIP": null, "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [{
            "name": "dengine", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ImagePullBackOff"}},
        }],
    });
    let pod = json!({"metadata": metadata, "status": status});
    world.api.put(POD, pod);
}

#[tokio::test]
async fn a_bystanders_condition_that_can_not_be_removed_blocks_nothing() {
    let world = World::settled().await;
    let mut said = serde_json::to_value(world.cluster().status.unwrap().conditions).unwrap();
    said.as_array_mut().unwrap().push(json!({
        "type": conditions::OPERATED_BY_ANOTHER, "status": "True", "reason": "OperatedByAnother",
        "message": "operator long/gone looks after this cluster, and so on",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }));
    world
        .api
        .put(CLUSTER, json!({"status": {"conditions": said}}));
    world.api.refuse("dengine-operator-bystander", "no");
    let status = format!("PATCH {CLUSTER}/status");
    assert_eq!(
        five_reconciliations(&world, [&status, EVENTS]).await,
        [1, 1],
        "once"
    );
}

#[tokio::test]
async fn an_annotation_that_can_not_be_removed_starts_one_run() {
    let world = World::settled().await;
    let asks = json!({"metadata": {"annotations": {annotations::BENCHMARK: "quick"}}});
    world.api.put(CLUSTER, asks);
    world.api.refuse("dengineclusters/demo?fieldManager", "no");
    let asked = "PATCH /apis/dengine.io/v1alpha1/namespaces/test/denginebenchmarks/demo-quick";
    // One for the benchmark, one for the annotation that stays.
    assert_eq!(
        five_reconciliations(&world, [asked, EVENTS]).await,
        [1, 2],
        "once"
    );
}

/// As by a policy that strips unknown annotations.
#[tokio::test]
async fn annotations_that_a_webhook_strips_are_written_once() {
    let world = World::settled().await;
    let notes = json!({annotations::IMAGE: null, annotations::CLUSTER_VERSION: null});
    world
        .api
        .change(CLAIMS, json!({"metadata": {"annotations": notes}}));
    let touch = |label: &str| {
        let labels =
            json!({"metadata": {"labels": {"touched": label}}, "spec": {"volumeName": label}});
        for claim in world.api.paths(CLAIMS) {
            world.api.put(&claim, labels.clone());
        }
    };
    let patch = format!("PATCH {CLAIMS}");
    touch("once");
    assert_eq!(five_reconciliations(&world, [&patch, EVENTS]).await, [3, 3]);
    assert_eq!(five_reconciliations(&world, [&patch, EVENTS]).await, [0, 0]);
    touch("again");
    let [patches, _] = five_reconciliations(&world, [&patch, EVENTS]).await;
    assert_eq!(patches, 3, "perhaps the webhook is gone");
}

/// The event of the StatefulSet controller for pods that the API server refuses.
fn is_refused(world: &World, name: &str, of: &str, message: &str) {
    let event = json!({
        "metadata": {"name": name, "namespace": "test"}, "reason": "FailedCreate",
        "involvedObject": {"kind": "StatefulSet", "name": "demo", "uid": of},
        "message": format!("create Pod demo-0 in StatefulSet demo failed error: {message}"),
        "lastTimestamp": Timestamp::now().to_string(),
    });
    let path = format!("/api/v1/namespaces/test/events/{name}");
    world.api.put(&path, event);
}

/// Only events show it: the StatefulSet does not, and there is no pod.
#[tokio::test]
async fn pods_refused_by_a_quota_are_reported() {
    let world = World::new().await;
    world.reconcile().await;
    let uid = world.api.list::<StatefulSet>("/statefulsets/demo")[0].uid();
    let quota = "pods \"demo-0\" is forbidden: exceeded quota: small, requested: cpu=1";
    is_refused(&world, "ours", &uid.unwrap(), quota);
    is_refused(&world, "another", "of-another", "a webhook says no");
    world.reconcile().await;
    let expected = format!("Kubernetes refuses pods: {quota}");
    for type_ in [conditions::READY, conditions::PROGRESSING] {
        let message = world.message(type_);
        assert!(message.ends_with(&expected), "{type_}: {message}");
    }
}

/// By itself the StatefulSet controller may wait for a quarter of an hour once the quota is raised.
#[tokio::test]
async fn refused_pods_are_retried_until_they_are_there() {
    let world = World::new().await;
    world.reconcile().await;
    let set = || {
        world
            .api
            .list::<StatefulSet>("/statefulsets/demo")
            .remove(0)
    };
    let (before, uid) = (set(), set().uid().unwrap());
    is_refused(&world, "ours", &uid, "pods \"demo-0\" is forbidden: no");
    let retry = "PATCH /apis/apps/v1/namespaces/test/statefulsets/demo";
    assert_eq!(five_reconciliations(&world, [retry, EVENTS]).await, [1, 0]);
    assert_ne!(set().resource_version(), before.resource_version());
    assert_eq!(set().spec, before.spec);

    let world = World::settled().await;
    let uid = world.api.list::<StatefulSet>("/statefulsets/demo")[0].uid();
    is_refused(&world, "ours", &uid.unwrap(), "it was, until a moment ago");
    assert_eq!(five_reconciliations(&world, [retry, EVENTS]).await, [0, 0]);
}

/// It was looked at less and less often, as every cluster is that does not change.
#[tokio::test]
async fn a_cluster_with_refused_pods_is_looked_at_as_often_as_they_are_retried() {
    let world = World::settled().await;
    let uid = world.api.list::<StatefulSet>("/statefulsets/demo")[0].uid();
    world.api.remove(POD);
    is_refused(&world, "ours", &uid.unwrap(), "exceeded quota: small");
    let mut next = Action::await_change();
    for _ in 0..10 {
        let (cluster, caches) = (world.cluster(), world.caches());
        let reconciled = cluster::reconcile(&cluster, &world.context, &caches).await;
        next = reconciled.unwrap();
    }
    assert_eq!(next, Action::requeue(Duration::from_secs(20)));
}

/// An image that cannot be pulled, and a webhook that forbids deleting its pod.
#[tokio::test]
async fn a_stuck_pod_that_can_not_be_deleted_blocks_nothing() {
    let world = given_up("test").await;
    let older = json!({"annotations": {annotations::TEMPLATE_HASH: "older"}});
    ends(&world, &older);
    world.api.refuse(POD, "not on a Friday");
    claim_goes(&world).await;
    let message = world.message(conditions::PROGRESSING);
    assert!(message.contains("not on a Friday"), "{message}");
    // The old volume is released.
    world.costs(3, "").await;
    let deletes = five_reconciliations(&world, [&format!("DELETE {POD}"), EVENTS]).await;
    assert_eq!(deletes, [0, 0], "a pause, and it was told");
    let message = world.message(conditions::PROGRESSING);
    assert!(message.contains("not on a Friday"), "{message}");
}

/// Its member stays: without the mark nothing would show later that the claim may be deleted.
#[tokio::test]
async fn a_claim_that_can_not_be_marked_keeps_its_member_only() {
    let world = given_up("test").await;
    ends(&world, &json!({}));
    let lost = json!({"status": {"phase": "Lost"}});
    world.api.put(&format!("{CLAIMS}/data-demo-2"), lost);
    world.api.refuse("data-demo-2", "not on a Friday");
    claim_goes(&world).await;
    let claim = world.api.list::<PersistentVolumeClaim>("data-demo-2");
    assert!(
        !claim[0]
            .annotations()
            .contains_key(annotations::REMOVED_MEMBER)
    );
    let message = world.message(conditions::PROGRESSING);
    assert!(message.contains("not on a Friday"), "{message}");
}
