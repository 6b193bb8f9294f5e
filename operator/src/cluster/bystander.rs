//! Clusters that another operator manages. Two releases may see the same namespace; each has a
//! Lease of its own, so the Lease does not keep them apart. The StatefulSet names the operator of
//! the cluster; while there is none, as when it is recreated for larger volumes, the cluster's
//! status does. Any other operator is a bystander: it writes one condition and an event, under its
//! own field manager, and leaves everything else alone.

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
use crate::conditions::{ConditionState, Conditions};
use crate::context::{Context, Event, now};
use crate::guard::Guarded;
use crate::status_writer;

/// How often it is checked again; a change of the StatefulSet triggers at once.
const AGAIN: Duration = Duration::from_secs(120);
/// The cluster's operator removes the condition after this time. A bystander that still exists
/// writes it again.
const STALE_AFTER_SECONDS: i64 = 3600;

/// The other operator that manages a cluster, and where it is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Other {
    name: String,
    /// The StatefulSet names it.
    by_set: bool,
}

/// The other operator that manages a cluster. The StatefulSet decides, for it is changed to hand a
/// cluster over; without one, the status does.
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

/// The other operator of this cluster, as far as the cache knows.
pub(super) fn other(
    sets: &Store<StatefulSet>,
    resource: &DEngineCluster,
    ours: &str,
) -> Option<Other> {
    let name = names::cluster::stateful_set(&resource.name_any());
    let set = sets.get(&ObjectRef::new(&name).within(&resource.namespace()?));
    another(set.as_deref(), resource.status.as_ref(), ours)
}

/// Records that this operator manages the cluster, before it does anything for it, unless another
/// one does: the cache may lag, so the API server is asked. If two try at once, the API server
/// refuses one (409).
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

/// The other operator that manages the cluster that this benchmark measures, and so the benchmark.
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
        // A cluster that cannot be read has no known operator.
        there.and_then(|there| there.0.ok()?.status)
    };
    let other = another(set.as_ref(), status.as_ref(), &context.identity);
    Ok(other.map(|other| other.name))
}

/// Does nothing for the cluster, and reports that once.
pub(super) async fn stand_by(
    context: &Context,
    resource: &DEngineCluster,
    other: &Other,
) -> Result<Action, kube::Error> {
    let message = message(resource, other);
    if condition(resource).is_none_or(|said| said.message != message) {
        let ours = &*context.identity;
        tracing::warn!(cluster = resource.name_any(), ours, message, "left alone");
        write(&context.client, resource, said(resource, &message)).await?;
        let event = Event::warning(events::OPERATED_BY_ANOTHER, message);
        context.publish(&resource.object_ref(&()), &event).await;
    }
    Ok(Action::requeue(AGAIN))
}

/// The message does not name the bystander, and its wording is fixed: two bystanders, perhaps of
/// different versions, would replace each other's message again and again.
fn message(resource: &DEngineCluster, other: &Other) -> String {
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
        "{}, and every other operator that sees it leaves it alone; to hand it over: {kubectl} \
         {hand_over}",
        managed_by(&other.name)
    )
}

fn managed_by(name: &str) -> String {
    format!("operator {name} manages this cluster")
}

/// What versions before this one wrote.
fn looked_after_by(name: &str) -> String {
    format!("operator {name} looks after this cluster")
}

fn said(resource: &DEngineCluster, message: &str) -> Value {
    let mut conditions = Conditions::new(&[], resource.metadata.generation, now());
    let state = ConditionState::yes(reasons::OPERATED_BY_ANOTHER, message);
    conditions.set(types::OPERATED_BY_ANOTHER, state);
    json!({ "conditions": conditions.into_vec() })
}

/// Called by the cluster's operator: removes a bystander's condition when it is no longer true, or
/// old.
pub(super) async fn forget(
    context: &Context,
    resource: &DEngineCluster,
) -> Result<(), kube::Error> {
    match condition(resource) {
        Some(said) if is_stale(said, &context.identity, &now()) => {
            let attempt = format!("forget {}", resource.uid().unwrap_or_default());
            let what_fails = "the outdated condition of another operator cannot be removed";
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
    let of_us = [managed_by(ours), looked_after_by(ours)]
        .iter()
        .any(|words| said.message.starts_with(&format!("{words},")));
    let age_seconds = now.0.as_second() - said.last_transition_time.0.as_second();
    !of_us || age_seconds > STALE_AFTER_SECONDS
}

fn condition(resource: &DEngineCluster) -> Option<&Condition> {
    let status = resource.status.as_ref()?;
    let mut conditions = status.conditions.iter();
    conditions.find(|condition| condition.type_ == types::OPERATED_BY_ANOTHER)
}

/// The status without a bystander's condition, which the cluster's operator must not write.
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
    fn a_bystanders_condition_is_removed_when_it_is_not_true() {
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
                message: message(&resource_with("demo", "{}"), &other),
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
            let of_before = Condition {
                message: said.message.replace("manages", "looks after"),
                ..said
            };
            assert!(!is_stale(&of_before, "a/first", &at(3600)));
            assert!(is_stale(&of_before, "b/second", &at(1)));
        }
    }

    #[test]
    fn the_stateful_set_names_the_operator_or_else_the_status() {
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
            "the set is being made again"
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
