//! Keeps the objects of a cluster as they should be. None of this touches the quorum: the
//! StatefulSet only shrinks below pods that hold no member, and restarts nothing by itself.

use std::fmt::Debug;

use dengine_crds::names::{annotations, cluster as names};
use dengine_crds::reasons::{cluster as reasons, events};
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt};
use serde::{Serialize, de::DeserializeOwned};

use super::model::Wanted;
use super::observe::{Caches, Observation, find};
use super::plan::stateful_set_replicas;
use super::resources::{
    client_service, peer_service, pod_disruption_budget, service_account, stateful_set,
};
use super::validate::Cluster;
use super::volumes::claim_template_size;
use crate::apply::{Applied, ApplyError, ensure_once};
use crate::context::{Context, Happening};

/// Why the objects are not as they should be.
#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    /// An object could not be applied.
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

impl ObjectsError {
    /// The reason for conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Apply(ApplyError::NameTaken { .. }) => reasons::NAME_TAKEN,
            Self::Apply(ApplyError::OperatedByAnother { .. }) => reasons::OPERATED_BY_ANOTHER,
            Self::Apply(error) if error.is_invalid() => reasons::INVALID_SPEC,
            Self::Apply(_) => reasons::STEP_FAILED,
        }
    }
}

/// Applies what differs. The StatefulSet comes last: its pods need the rest.
///
/// # Errors
/// The first object that could not be applied.
pub async fn ensure(
    context: &Context,
    caches: &Caches,
    cluster: &Cluster,
    observation: &Observation,
    wanted: &Wanted,
) -> Result<(), ObjectsError> {
    let name = cluster.name.as_str();
    let account = find(&caches.accounts, cluster, &names::stateful_set(name));
    apply(
        context,
        cluster,
        service_account::build(cluster),
        account.as_deref(),
    )
    .await?;
    let peers = find(&caches.services, cluster, &names::peer_service(name));
    apply(
        context,
        cluster,
        peer_service::build(cluster),
        peers.as_deref(),
    )
    .await?;
    let clients = find(&caches.services, cluster, &names::client_service(name));
    apply(
        context,
        cluster,
        client_service::build(cluster),
        clients.as_deref(),
    )
    .await?;
    let budget = find(&caches.budgets, cluster, &names::stateful_set(name));
    let wanted_budget = pod_disruption_budget::build(cluster);
    apply(context, cluster, wanted_budget, budget.as_deref()).await?;

    let replicas = stateful_set_replicas(&observation.observed, wanted);
    let live = observation.stateful_set.as_deref();
    // One that is going has its pods taken from it first; only then the next one can have them.
    if live.is_none_or(|live| live.metadata.deletion_timestamp.is_none()) {
        let claim_size = live.and_then(claim_template_size);
        let mut set = stateful_set::build(cluster, replicas, claim_size.as_deref());
        let operator = (
            annotations::OPERATOR.to_owned(),
            context.identity.to_string(),
        );
        set.annotations_mut().extend([operator]);
        apply(context, cluster, set, live).await?;
    }
    Ok(())
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
        context.wrote();
    }
    if applied == Applied::Altered {
        let note = format!(
            "{kind} {name} is not as the operator applied it: an admission webhook changes it, which is left as it is"
        );
        let happening = Happening::warning(events::OBJECT_CHANGED, note);
        context.tell(&cluster.reference(), &happening).await;
    }
    Ok(())
}
