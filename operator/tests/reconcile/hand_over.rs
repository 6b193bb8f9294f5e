//! Which operator manages a cluster, if several see it.

use dengine_crds::conditions;
use dengine_crds::names::annotations;
use dengine_operator::cluster::observe::Caches;
use dengine_operator::cluster::{self};
use dengine_operator::context::Context;
use k8s_openapi::api::apps::v1::StatefulSet;
use serde_json::json;

use crate::{CLUSTER, World};

const SET: &str = "/apis/apps/v1/namespaces/test/statefulsets/demo";

fn called(world: &World, name: &str) -> Context {
    world.context.clone().with_identity(name.to_owned())
}

/// The operator that the StatefulSet names; `None` while there is none.
fn named_by_the_set(world: &World) -> Option<String> {
    let sets: Vec<StatefulSet> = world.api.list(SET);
    let annotations = sets.first()?.metadata.annotations.as_ref()?;
    annotations.get(annotations::OPERATOR).cloned()
}

/// A cache without StatefulSets.
fn without_sets(world: &World) -> Caches {
    Caches {
        stateful_sets: world.cached("/nothing/"),
        ..world.caches()
    }
}

/// Two releases that see the same namespace: the second one reports once that it stands by, and
/// touches nothing.
#[tokio::test]
async fn a_cluster_of_another_operator_is_left_alone_until_it_is_handed_over() {
    let world = World::settled().await;
    let another = called(&world, "there/another");
    let before = world.api.requests().len();
    for _ in 0..3 {
        world.reconcile_as(&another).await;
    }
    let mut requests = world.api.requests().split_off(before);
    requests.retain(|request| !request.contains("/events"));
    assert_eq!(requests, [format!("PATCH {CLUSTER}/status")], "once");
    let message = world.message(conditions::OPERATED_BY_ANOTHER);
    assert!(
        message.contains("operator dengine-operator manages this cluster"),
        "{message}"
    );
    // The cluster's operator ignores that.
    assert_eq!(world.costs(3, "").await, Vec::<String>::new());

    // As the message says.
    let name = json!({"metadata": {"annotations": {annotations::OPERATOR: "there/another"}}});
    world.api.put(SET, name);
    for _ in 0..2 {
        world.reconcile_as(&another).await;
    }
    assert_eq!(named_by_the_set(&world).as_deref(), Some("there/another"));
    let status = world.cluster().status.unwrap();
    let left = status.conditions.iter().map(|condition| &condition.type_);
    assert!(left.clone().any(|type_| type_ == conditions::READY));
    assert!(
        !left
            .clone()
            .any(|type_| type_ == conditions::OPERATED_BY_ANOTHER),
        "{status:#?}"
    );
    let patches = world.costs(3, &format!("PATCH {SET}")).await;
    assert_eq!(patches, Vec::<String>::new(), "the first lets go");
    let message = world.message(conditions::OPERATED_BY_ANOTHER);
    assert!(
        message.contains("operator there/another manages this cluster"),
        "{message}"
    );
}

/// Volumes grow, and the StatefulSet is recreated for that: a missing one names no operator.
#[tokio::test]
async fn no_operator_takes_over_while_the_stateful_set_is_recreated() {
    let world = World::settled().await;
    let another = called(&world, "there/another");
    world.edit(&json!({"storage": {"size": "2Gi"}}));
    for _ in 0..5 {
        if named_by_the_set(&world).is_some() {
            world.reconcile().await;
        }
    }
    assert_eq!(named_by_the_set(&world), None, "it is to be made again");
    for _ in 0..3 {
        world.reconcile_as(&another).await;
    }
    assert_eq!(named_by_the_set(&world), None, "taken over");
    let message = world.message(conditions::OPERATED_BY_ANOTHER);
    assert!(
        message.contains("patch dec demo --subresource=status"),
        "{message}"
    );
    world.reconcile().await;
    let named = || named_by_the_set(&world);
    assert_eq!(named().as_deref(), Some("dengine-operator"));

    // As the message says, when there is no StatefulSet.
    let api = kube::Api::<StatefulSet>::namespaced(world.api.client(), "test");
    api.delete("demo", &Default::default()).await.unwrap();
    let handed_over = json!({"status": {"operator": "there/another"}});
    world.api.put(CLUSTER, handed_over);
    world.reconcile().await;
    assert_eq!(named(), None, "the first lets go");
    world.reconcile_as(&another).await;
    assert_eq!(named().as_deref(), Some("there/another"));
}

/// They write the same message: otherwise they would overwrite each other again and again.
#[tokio::test]
async fn two_bystanders_write_one_condition() {
    let world = World::settled().await;
    let bystanders = ["b/second", "c/third"].map(|name| called(&world, name));
    let before = world.api.requests().len();
    for _ in 0..3 {
        for bystander in &bystanders {
            world.reconcile_as(bystander).await;
        }
    }
    let mut requests = world.api.requests().split_off(before);
    requests.retain(|request| request.starts_with("PATCH"));
    assert_eq!(requests, [format!("PATCH {CLUSTER}/status")], "once");
}

/// Before the cache has it: the API server decides.
#[tokio::test]
async fn a_stateful_set_of_another_operator_is_not_adopted() {
    let world = World::new().await;
    let (another, empty) = (called(&world, "there/another"), without_sets(&world));
    world.reconcile().await;
    // As restored from a backup without a status.
    world.api.put(CLUSTER, json!({"status": null}));
    let fresh = world.cluster();
    cluster::reconcile(&fresh, &another, &empty).await.unwrap();
    let named = || named_by_the_set(&world);
    assert_eq!(named().as_deref(), Some("dengine-operator"));
    let message = world.message(conditions::OPERATED_BY_ANOTHER);
    assert!(
        message.contains("operator dengine-operator manages"),
        "{message}"
    );

    // Handed over at the last moment.
    world
        .api
        .put(CLUSTER, json!({"status": {"operator": "there/another"}}));
    let fresh = world.cluster();
    cluster::reconcile(&fresh, &another, &empty).await.unwrap();
    assert_eq!(named().as_deref(), Some("dengine-operator"));
    let message = world.message(conditions::PROGRESSING);
    assert!(
        message.contains("looked after by operator dengine-operator"),
        "{message}"
    );
}

/// Both see a new cluster without an operator; the API server accepts the first one's write.
#[tokio::test]
async fn of_two_operators_one_takes_on_a_new_cluster() {
    let world = World::new().await;
    let (another, fresh) = (called(&world, "there/another"), world.cluster());
    world
        .api
        .put(CLUSTER, json!({"status": {"operator": "dengine-operator"}}));
    let late = cluster::reconcile(&fresh, &another, &world.caches()).await;
    late.unwrap();
    assert_eq!(named_by_the_set(&world), None);
    let status = world.cluster().status.unwrap();
    assert_eq!(status.operator.as_deref(), Some("dengine-operator"));
}
