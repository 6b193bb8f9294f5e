//! Keeps the objects of a cluster as they should be. None of this touches the quorum: the
//! StatefulSet only shrinks below pods that hold no member, and restarts nothing by itself.

use dengine_crds::names::{cluster as names, managers};
use dengine_crds::reasons::{cluster as reasons, events};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use super::model::Wanted;
use super::observe::{Caches, Observation, find};
use super::plan::stateful_set_replicas;
use super::resources::{
    client_service, peer_service, pod_disruption_budget, service_account, stateful_set,
};
use super::validate::Cluster;
use crate::apply::{ApplyError, ensure as apply};
use crate::context::{Context, Happening};
use crate::quantity;

/// Why the objects are not as they should be.
#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    /// An object could not be applied.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// A claim could not be enlarged.
    #[error("the volume claim {claim} can not grow to {size}: {source}")]
    Expand {
        /// Name of the claim.
        claim: String,
        /// The size asked for.
        size: String,
        /// The API server's words.
        source: Box<kube::Error>,
    },
}

impl ObjectsError {
    /// The reason for conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Apply(ApplyError::NameTaken { .. }) => reasons::NAME_TAKEN,
            Self::Apply(error) if error.is_invalid() => reasons::INVALID_SPEC,
            Self::Apply(_) => reasons::STEP_FAILED,
            Self::Expand { .. } => reasons::EXPANDING_VOLUMES,
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
    let client = &context.client;
    let name = cluster.name.as_str();
    let account = find(&caches.accounts, cluster, &names::stateful_set(name));
    apply(client, service_account::build(cluster), account.as_deref()).await?;
    let peers = find(&caches.services, cluster, &names::peer_service(name));
    apply(client, peer_service::build(cluster), peers.as_deref()).await?;
    let clients = find(&caches.services, cluster, &names::client_service(name));
    apply(client, client_service::build(cluster), clients.as_deref()).await?;
    let budget = find(&caches.budgets, cluster, &names::stateful_set(name));
    apply(
        client,
        pod_disruption_budget::build(cluster),
        budget.as_deref(),
    )
    .await?;

    let replicas = stateful_set_replicas(&observation.observed, wanted);
    let live = observation.stateful_set.as_deref();
    let claim_size = live.and_then(claim_template_size);
    let set = stateful_set::build(cluster, replicas, claim_size.as_deref());
    apply(client, set, live).await?;
    expand_claims(context, cluster, observation).await
}

fn claim_template_size(set: &StatefulSet) -> Option<String> {
    let template = set
        .spec
        .as_ref()?
        .volume_claim_templates
        .as_ref()?
        .first()?;
    requested(template)
}

fn requested(claim: &PersistentVolumeClaim) -> Option<String> {
    let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    requests.get("storage").map(|size| size.0.clone())
}

async fn expand_claims(
    context: &Context,
    cluster: &Cluster,
    observation: &Observation,
) -> Result<(), ObjectsError> {
    let size = &cluster.spec.storage.size;
    for claim in observation.claims.values() {
        let is_smaller = requested(claim)
            .and_then(|requested| Some(quantity::parse(&requested)? < quantity::parse(size)?))
            .unwrap_or(false);
        if !is_smaller || claim.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let name = claim.name_any();
        let api: Api<PersistentVolumeClaim> =
            Api::namespaced(context.client.clone(), &cluster.namespace);
        let patch = json!({"spec": {"resources": {"requests": {"storage": size}}}});
        let parameters = PatchParams {
            field_manager: Some(managers::OPERATOR.to_owned()),
            ..PatchParams::default()
        };
        api.patch(&name, &parameters, &Patch::Merge(patch))
            .await
            .map_err(|source| ObjectsError::Expand {
                claim: name.clone(),
                size: size.clone(),
                source: Box::new(source),
            })?;
        let about = k8s_openapi::api::core::v1::ObjectReference {
            name: Some(cluster.name.clone()),
            namespace: Some(cluster.namespace.clone()),
            uid: Some(cluster.owner.uid.clone()),
            kind: Some(cluster.owner.kind.clone()),
            api_version: Some(cluster.owner.api_version.clone()),
            ..Default::default()
        };
        let note = format!("the volume claim {name} grows to {size}");
        context
            .tell(&about, &Happening::normal(events::VOLUME_EXPANDED, note))
            .await;
    }
    Ok(())
}
