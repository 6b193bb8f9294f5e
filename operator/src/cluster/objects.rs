//! Applies the objects of a cluster. None of them touches the quorum: the StatefulSet shrinks only
//! by pods without a member, and restarts nothing by itself.

use std::fmt::Debug;

use dengine_crds::names::{annotations, cluster as names};
use dengine_crds::reasons::{cluster as reasons, events};
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::model::{Observed, Wanted};
use super::observe::{Caches, Observation, find};
use super::plan::stateful_set_replicas;
use super::resources::{
    client_service, peer_service, pod_disruption_budget, service_account, stateful_set,
};
use super::standing;
use super::validate::Cluster;
use super::volumes::claim_template_size;
use crate::apply::{Applied, ApplyError, ensure_once};
use crate::context::{Context, Event};

/// Why the objects are not as they should be.
#[derive(Debug, thiserror::Error)]
pub(super) enum ObjectsError {
    /// An object could not be applied that the next step needs.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// An object could not be applied that the members do not need.
    #[error(transparent)]
    Beside(ApplyError),
}

impl ObjectsError {
    pub(super) fn reason(&self) -> &'static str {
        let (Self::Apply(error) | Self::Beside(error)) = self;
        match error {
            ApplyError::NameTaken { .. } => reasons::NAME_TAKEN,
            ApplyError::OperatedByAnother { .. } => reasons::OPERATED_BY_ANOTHER,
            error if error.is_invalid() => reasons::INVALID_SPEC,
            ApplyError::Kube { .. } => reasons::STEP_FAILED,
        }
    }
}

/// Applies what differs. The StatefulSet comes last: its pods need the other objects when they are
/// created. Once the pods exist, a Service or a budget that the API server refuses must not keep
/// members from being repaired.
///
/// # Errors
/// The first object that could not be applied; the StatefulSet, if it is among them.
pub(super) async fn ensure(
    context: &Context,
    caches: &Caches,
    cluster: &Cluster,
    observation: &Observation,
    wanted: &Wanted,
) -> Result<(), ObjectsError> {
    let name = cluster.name.as_str();
    let account = find(&caches.accounts, cluster, &names::stateful_set(name));
    let wanted_account = service_account::build(cluster);
    apply(context, cluster, wanted_account, account.as_deref()).await?;
    let beside = ensure_beside(context, caches, cluster).await;

    let replicas = stateful_set_replicas(&observation.observed, wanted);
    let live = observation.stateful_set.as_deref();
    if live.is_none() {
        beside?;
        return ensure_set(context, cluster, &observation.observed, replicas, live).await;
    }
    ensure_set(context, cluster, &observation.observed, replicas, live).await?;
    beside.map_err(ObjectsError::Beside)
}

/// The Services and the PodDisruptionBudget: each is tried, whether the others fail or not.
async fn ensure_beside(
    context: &Context,
    caches: &Caches,
    cluster: &Cluster,
) -> Result<(), ApplyError> {
    let name = cluster.name.as_str();
    let peers = find(&caches.services, cluster, &names::peer_service(name));
    let wanted_peers = peer_service::build(cluster);
    let peers = apply(context, cluster, wanted_peers, peers.as_deref()).await;
    let clients = find(&caches.services, cluster, &names::client_service(name));
    let wanted_clients = client_service::build(cluster);
    let clients = apply(context, cluster, wanted_clients, clients.as_deref()).await;
    let budget = find(&caches.budgets, cluster, &names::stateful_set(name));
    let wanted_budget = pod_disruption_budget::build(cluster);
    let budget = apply(context, cluster, wanted_budget, budget.as_deref()).await;
    peers.and(clients).and(budget)
}

async fn ensure_set(
    context: &Context,
    cluster: &Cluster,
    observed: &Observed,
    replicas: u32,
    live: Option<&StatefulSet>,
) -> Result<(), ObjectsError> {
    // A StatefulSet that is being deleted must be gone before the next one can adopt its pods.
    if live.is_some_and(|live| live.metadata.deletion_timestamp.is_some()) {
        return Ok(());
    }
    let claim_size = live.and_then(claim_template_size);
    let mut set = stateful_set::build(cluster, replicas, claim_size.as_deref());
    let operator = (
        annotations::OPERATOR.to_owned(),
        context.identity.to_string(),
    );
    let said = standing::annotations(observed);
    set.annotations_mut().extend(said.chain([operator]));
    Ok(apply(context, cluster, set, live).await?)
}

async fn apply<K>(
    context: &Context,
    cluster: &Cluster,
    wanted: K,
    live: Option<&K>,
) -> Result<(), ApplyError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Serialize + DeserializeOwned + Clone + Debug,
{
    let (kind, name) = (K::kind(&()).into_owned(), wanted.name_any());
    let applied = ensure_once(&context.client, &context.altered, wanted, live).await?;
    if applied != Applied::Same {
        context.crash_point();
    }
    if applied == Applied::Altered {
        publish_altered(context, cluster, &kind, &name).await;
    }
    Ok(())
}

/// Publishes that a webhook has the last word on an object.
pub(super) async fn publish_altered(context: &Context, cluster: &Cluster, kind: &str, name: &str) {
    let note = format!(
        "an admission webhook changes {kind} {name} after the operator applies it; the change is \
         left as it is"
    );
    let event = Event::warning(events::OBJECT_CHANGED, note);
    context.publish(&cluster.reference(), &event).await;
}
