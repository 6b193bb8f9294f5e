//! Clusters that another operator looks after. Two releases may see the same namespace; each has a Lease of its own, so the
//! Lease does not keep them apart. The StatefulSet says whose the cluster is, and while there is none, as when it is made anew
//! for larger volumes, the cluster's status. Whoever it is not writes one condition and an event, under a field manager of its
//! own, and leaves everything else alone.

use std::time::Duration;

use dengine_crds::names::{self, annotations, managers};
use dengine_crds::reasons::{cluster as reasons, events};
use dengine_crds::{DEngineBenchmark, DEngineCluster, DEngineClusterStatus, conditions as types};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::Api;
use kube::runtime::controller::Action;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Client, Resource, ResourceExt};
use serde_json::{Value, json};

use super::benchmarks::reports_to;
use crate::conditions::{Conditions, State};
use crate::context::{Context, Event, now};
use crate::guard::Guarded;
use crate::status_writer;

/// How often it is looked at again; that the StatefulSet changed is told at once.
const AGAIN: Duration = Duration::from_secs(120);
/// The one that looks after the cluster takes the condition away after so long. Who still stands by writes it again; who is
/// gone does not.
const STALE_AFTER_SECONDS: i64 = 3600;

/// Whose a cluster is, if it is another's, and what says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Other {
    name: String,
    /// There is a StatefulSet, and it names the other.
    by_set: bool,
}

/// The other operator that looks after a cluster. Its StatefulSet decides, for that is where a cluster is handed over; without
/// one, the status does.
fn another(
    set: Option<&StatefulSet>,
    status: Option<&DEngineClusterStatus>,
    ours: &str,
) -> Option<Other> {
    let by_set = set.is_some();
    let named = match set {
        Some(set) => set.annotations().get(annotations::OPERATOR),
        None => status.and_then(|status| status.operator.as_ref()),
    };
    let name = named.filter(|named| *named != ours)?.clone();
    Some(Other { name, by_set })
}

/// Who else looks after this cluster, as far as the cache knows.
pub(super) fn other(
    sets: &Store<StatefulSet>,
    resource: &DEngineCluster,
    ours: &str,
) -> Option<Other> {
    let name = names::cluster::stateful_set(&resource.name_any());
    let set = sets.get(&ObjectRef::new(&name).within(&resource.namespace()?));
    another(set.as_deref(), resource.status.as_ref(), ours)
}

/// Records that this operator looks after the cluster, before it does anything for it, unless it turns out to be another's:
/// the cache may be behind, so what is really there decides. Of two that try at once, the API server refuses one (409).
///
/// # Errors
/// If the API server refuses or does not answer.
pub(super) async fn take_on(
    context: &Context,
    resource: &mut DEngineCluster,
) -> Result<Option<Other>, kube::Error> {
    let ours = &*context.identity;
    let mut status = resource.status.clone().unwrap_or_default();
    if status.operator.as_deref() == Some(ours) {
        return Ok(None);
    }
    let namespace = resource.namespace().unwrap_or_default();
    let sets: Api<StatefulSet> = Api::namespaced(context.client.clone(), &namespace);
    let name = names::cluster::stateful_set(&resource.name_any());
    let set = sets.get_opt(&name).await?;
    if let Some(other) = another(set.as_ref(), Some(&status), ours) {
        return Ok(Some(other));
    }
    status.operator = Some(ours.to_owned());
    *resource = status_writer::write(&context.client, resource, &without(status)).await?;
    context.crash_point();
    Ok(None)
}

/// Who else looks after the cluster that this benchmark measures, and so after the benchmark.
///
/// # Errors
/// If the API server does not answer.
pub(crate) async fn of_benchmark(
    context: &Context,
    benchmark: &DEngineBenchmark,
) -> Result<Option<String>, kube::Error> {
    let Some(cluster) = reports_to(benchmark) else {
        return Ok(None);
    };
    let namespace = benchmark.namespace().unwrap_or_default();
    let sets: Api<StatefulSet> = Api::namespaced(context.client.clone(), &namespace);
    let name = names::cluster::stateful_set(&cluster);
    let set = sets.get_opt(&name).await?;
    let status = if set.is_some() {
        None
    } else {
        let client = context.client.clone();
        let clusters: Api<Guarded<DEngineCluster>> = Api::namespaced(client, &namespace);
        let there = clusters.get_opt(&cluster).await?;
        // Of one that can not be read nobody is known.
        there.and_then(|there| there.0.ok()?.status)
    };
    let other = another(set.as_ref(), status.as_ref(), &context.identity);
    Ok(other.map(|other| other.name))
}

/// Does nothing for the cluster, and says so once.
///
/// # Errors
/// If the API server refuses the condition.
pub(super) async fn stand_by(
    context: &Context,
    resource: &DEngineCluster,
    other: &Other,
) -> Result<Action, kube::Error> {
    let words = words(resource, other);
    if condition(resource).is_none_or(|said| said.message != words) {
        let ours = &*context.identity;
        tracing::warn!(cluster = resource.name_any(), ours, words, "left alone");
        write(&context.client, resource, said(resource, &words)).await?;
        let event = Event::warning(events::OPERATED_BY_ANOTHER, words);
        context.publish(&resource.object_ref(&()), &event).await;
    }
    Ok(Action::requeue(AGAIN))
}

/// The same whoever stands by: two would write their own in turn for ever.
fn words(resource: &DEngineCluster, other: &Other) -> String {
    let (namespace, name) = (
        resource.namespace().unwrap_or_default(),
        resource.name_any(),
    );
    let kubectl = format!("kubectl --namespace {namespace}");
    let hand_over = if other.by_set {
        let operator = annotations::OPERATOR;
        format!("annotate statefulset {name} {operator}=NEW-NAMESPACE/NEW-NAME --overwrite")
    } else {
        let patch = r#"{"status":{"operator":"NEW-NAMESPACE/NEW-NAME"}}"#;
        format!("patch dec {name} --subresource=status --type=merge --patch='{patch}'")
    };
    format!(
        "{}, and every other operator that sees it leaves it alone; to hand it over: {kubectl} {hand_over}",
        looked_after_by(&other.name)
    )
}

fn looked_after_by(name: &str) -> String {
    format!("operator {name} looks after this cluster")
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
/// If the API server does not answer.
pub(super) async fn forget(
    context: &Context,
    resource: &DEngineCluster,
) -> Result<(), kube::Error> {
    match condition(resource) {
        Some(said) if is_stale(said, &context.identity, &now()) => {
            let attempt = format!("forget {}", resource.uid().unwrap_or_default());
            let what_fails =
                "what another operator said long ago can not be taken out of the status";
            let forgotten = write(&context.client, resource, json!({}));
            let about = resource.object_ref(&());
            context
                .best_effort(&about, &attempt, what_fails, forgotten)
                .await
        }
        _ => Ok(()),
    }
}

fn is_stale(said: &Condition, ours: &str, now: &Time) -> bool {
    let of_us = said
        .message
        .starts_with(&format!("{},", looked_after_by(ours)));
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
    let written = status_writer::apply(client, managers::BYSTANDER, resource, None, &status);
    written.await.map(drop)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::cluster::validate::tests::resource_with;

    #[test]
    fn what_a_bystander_says_goes_when_it_is_no_longer_so() {
        let at = |second| Time(Timestamp::from_second(second).unwrap());
        for by_set in [true, false] {
            let other = Other {
                name: "a/first".to_owned(),
                by_set,
            };
            let said = Condition {
                type_: types::OPERATED_BY_ANOTHER.to_owned(),
                status: "True".to_owned(),
                reason: reasons::OPERATED_BY_ANOTHER.to_owned(),
                message: words(&resource_with("demo", "{}"), &other),
                observed_generation: None,
                last_transition_time: at(0),
            };
            assert!(!is_stale(&said, "a/first", &at(3600)));
            assert!(
                is_stale(&said, "a/first", &at(3601)),
                "nobody said it again"
            );
            assert!(is_stale(&said, "b/second", &at(1)), "it was handed over");
            assert!(is_stale(&said, "a/firs", &at(1)), "another's name");
        }
    }

    #[test]
    fn the_set_decides_and_without_one_the_status() {
        let status = |operator: Option<&str>| DEngineClusterStatus {
            operator: operator.map(str::to_owned),
            ..DEngineClusterStatus::default()
        };
        let recorded = status(Some("a/first"));
        let who = |set: Option<&StatefulSet>, status: &DEngineClusterStatus, ours: &str| {
            another(set, Some(status), ours).map(|other| other.name)
        };
        assert_eq!(who(None, &status(None), "b/second"), None, "a new one");
        assert_eq!(who(None, &recorded, "a/first"), None);
        assert_eq!(
            who(None, &recorded, "b/second").as_deref(),
            Some("a/first"),
            "the set is being made anew"
        );
        let mut set = StatefulSet::default();
        assert_eq!(who(Some(&set), &recorded, "b/second"), None, "let go");
        let second = (annotations::OPERATOR.to_owned(), "b/second".to_owned());
        set.annotations_mut().extend([second]);
        assert_eq!(who(Some(&set), &recorded, "b/second"), None, "handed over");
        assert_eq!(
            who(Some(&set), &recorded, "a/first").as_deref(),
            Some("b/second")
        );
    }
}
