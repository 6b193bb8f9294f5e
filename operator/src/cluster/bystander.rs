//! Clusters that another operator looks after. Two releases may see the same namespace; each has a Lease of its own, so the
//! Lease does not keep them apart. The StatefulSet says whose the cluster is. Whoever it is not writes one condition and an
//! event, under a field manager of its own, and leaves everything else alone.

use std::time::Duration;

use dengine_crds::names::{annotations, managers};
use dengine_crds::reasons::{cluster as reasons, events};
use dengine_crds::{DEngineBenchmark, DEngineCluster, DEngineClusterStatus, conditions as types};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Client, Resource, ResourceExt};
use serde_json::{Value, json};

use super::benchmarks::reports_to;
use crate::conditions::{Conditions, State};
use crate::context::{Context, Happening, now};

/// How often it is looked at again; that the StatefulSet changed is told at once.
const AGAIN: Duration = Duration::from_secs(120);
/// The one that looks after the cluster takes the condition away after so long. Who still stands by writes it again; who is
/// gone does not.
const STALE_AFTER_SECONDS: i64 = 3600;

/// The other operator that this StatefulSet names.
fn named(set: &StatefulSet, ours: &str) -> Option<String> {
    let named = set.annotations().get(annotations::OPERATOR);
    named.filter(|named| *named != ours).cloned()
}

/// Who else looks after this cluster.
pub(super) fn other(
    sets: &Store<StatefulSet>,
    resource: &DEngineCluster,
    ours: &str,
) -> Option<String> {
    let name = dengine_crds::names::cluster::stateful_set(&resource.name_any());
    let set = sets.get(&ObjectRef::new(&name).within(&resource.namespace()?))?;
    named(&set, ours)
}

/// Who else looks after the cluster that this benchmark measures, and so after the benchmark.
///
/// # Errors
/// If the API server does not answer.
pub async fn of_benchmark(
    context: &Context,
    benchmark: &DEngineBenchmark,
) -> Result<Option<String>, kube::Error> {
    let Some(cluster) = reports_to(benchmark) else {
        return Ok(None);
    };
    let namespace = benchmark.namespace().unwrap_or_default();
    let api: Api<StatefulSet> = Api::namespaced(context.client.clone(), &namespace);
    let name = dengine_crds::names::cluster::stateful_set(&cluster);
    let set = api.get_opt(&name).await?;
    Ok(set.and_then(|set| named(&set, &context.identity)))
}

/// Does nothing for the cluster, and says so once.
///
/// # Errors
/// If the API server refuses the condition.
pub(super) async fn stand_by(
    context: &Context,
    resource: &DEngineCluster,
    other: &str,
) -> Result<Action, kube::Error> {
    let words = words(resource, &context.identity, other);
    if condition(resource).is_none_or(|said| said.message != words) {
        tracing::warn!(cluster = resource.name_any(), words, "left alone");
        write(&context.client, resource, said(resource, &words)).await?;
        let happening = Happening::warning(events::OPERATED_BY_ANOTHER, words);
        context.tell(&resource.object_ref(&()), &happening).await;
    }
    Ok(Action::requeue(AGAIN))
}

fn words(resource: &DEngineCluster, ours: &str, other: &str) -> String {
    let (namespace, name) = (
        resource.namespace().unwrap_or_default(),
        resource.name_any(),
    );
    format!(
        "operator {ours} leaves this cluster alone: operator {other} looks after it; to hand it over: kubectl --namespace \
         {namespace} annotate statefulset {name} {}={ours} --overwrite",
        annotations::OPERATOR
    )
}

fn said(resource: &DEngineCluster, words: &str) -> Value {
    let mut conditions = Conditions::new(&[], resource.metadata.generation, now());
    let state = State::yes(reasons::OPERATED_BY_ANOTHER, words);
    conditions.set(types::OPERATED_BY_ANOTHER, state);
    json!({ "conditions": conditions.into_vec() })
}

/// By the one that looks after the cluster: takes away what a bystander said once that is no longer so, or long ago.
///
/// # Errors
/// If the API server refuses.
pub(super) async fn forget(
    context: &Context,
    resource: &DEngineCluster,
) -> Result<(), kube::Error> {
    match condition(resource) {
        Some(said) if is_stale(said, &context.identity, &now()) => {
            write(&context.client, resource, json!({})).await
        }
        _ => Ok(()),
    }
}

fn is_stale(said: &Condition, ours: &str, now: &Time) -> bool {
    let of_us = said
        .message
        .contains(&format!(": operator {ours} looks after it;"));
    let age_seconds = now.0.as_second() - said.last_transition_time.0.as_second();
    !of_us || age_seconds > STALE_AFTER_SECONDS
}

fn condition(resource: &DEngineCluster) -> Option<&Condition> {
    let status = resource.status.as_ref()?;
    let mut conditions = status.conditions.iter();
    conditions.find(|condition| condition.type_ == types::OPERATED_BY_ANOTHER)
}

/// The status without what a bystander says in it: that is not for the one that looks after the cluster to write.
pub(super) fn without(mut status: DEngineClusterStatus) -> DEngineClusterStatus {
    let is_ours = |condition: &Condition| condition.type_ != types::OPERATED_BY_ANOTHER;
    status.conditions.retain(is_ours);
    status
}

async fn write(
    client: &Client,
    resource: &DEngineCluster,
    status: Value,
) -> Result<(), kube::Error> {
    let (namespace, name) = (
        resource.namespace().unwrap_or_default(),
        resource.name_any(),
    );
    let api: Api<DEngineCluster> = Api::namespaced(client.clone(), &namespace);
    let patch = json!({
        "apiVersion": DEngineCluster::api_version(&()),
        "kind": DEngineCluster::kind(&()),
        "metadata": {"name": name, "uid": resource.metadata.uid},
        "status": status,
    });
    let parameters = PatchParams::apply(managers::BYSTANDER).force();
    api.patch_status(&name, &parameters, &Patch::Apply(&patch))
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::cluster::validate::tests::resource_with;

    #[test]
    fn what_a_bystander_says_goes_when_it_is_no_longer_so() {
        let at = |second| Time(Timestamp::from_second(second).unwrap());
        let said = Condition {
            type_: types::OPERATED_BY_ANOTHER.to_owned(),
            status: "True".to_owned(),
            reason: reasons::OPERATED_BY_ANOTHER.to_owned(),
            message: words(&resource_with("demo", "{}"), "b/second", "a/first"),
            observed_generation: None,
            last_transition_time: at(0),
        };
        assert!(!is_stale(&said, "a/first", &at(3600)));
        assert!(
            is_stale(&said, "a/first", &at(3601)),
            "nobody said it again"
        );
        assert!(is_stale(&said, "b/second", &at(1)), "it was handed over");
    }

    #[test]
    fn a_set_without_a_name_is_anybodys() {
        let mut set = StatefulSet::default();
        assert_eq!(named(&set, "a/first"), None);
        let first = (annotations::OPERATOR.to_owned(), "a/first".to_owned());
        set.annotations_mut().extend([first]);
        assert_eq!(named(&set, "a/first"), None);
        assert_eq!(named(&set, "b/second").as_deref(), Some("a/first"));
    }
}
