//! Volumes grow while members run: the claims that there are, one by one, and then the StatefulSet's template for those to
//! come. Kubernetes refuses to change that template, so the StatefulSet is made anew; its pods stay.

use dengine_crds::names::{self, managers};
use dengine_crds::reasons::events;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolumeClaim};
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions, PropagationPolicy};
use kube::{Resource, ResourceExt};
use serde_json::json;

use super::objects::ObjectsError;
use super::observe::Observation;
use super::validate::Cluster;
use crate::context::{Context, Happening};
use crate::quantity;

/// Size in the claim template of a StatefulSet that exists.
pub(super) fn claim_template_size(set: &StatefulSet) -> Option<String> {
    let template = set
        .spec
        .as_ref()?
        .volume_claim_templates
        .as_ref()?
        .first()?;
    requested(template)
}

/// Lets claims ask for what the spec asks for, and the StatefulSet's template once they all do.
///
/// # Errors
/// The first object that the API server refused to change.
pub(super) async fn expand(
    context: &Context,
    cluster: &Cluster,
    observation: &Observation,
) -> Result<(), ObjectsError> {
    let size = &cluster.spec.storage.size;
    let mut all_ask = true;
    for claim in observation.claims.values() {
        if claim.metadata.deletion_timestamp.is_none() && is_smaller(requested(claim), size) {
            all_ask = false;
            expand_claim(context, cluster, &claim.name_any()).await?;
        }
    }
    let Some(set) = observation.stateful_set.as_deref() else {
        return Ok(());
    };
    if all_ask
        && set.metadata.deletion_timestamp.is_none()
        && is_smaller(claim_template_size(set), size)
    {
        renew(context, cluster, set).await?;
    }
    Ok(())
}

async fn expand_claim(
    context: &Context,
    cluster: &Cluster,
    name: &str,
) -> Result<(), ObjectsError> {
    let size = &cluster.spec.storage.size;
    let api: Api<PersistentVolumeClaim> =
        Api::namespaced(context.client.clone(), &cluster.namespace);
    let patch = json!({"spec": {"resources": {"requests": {"storage": size}}}});
    let parameters = PatchParams {
        field_manager: Some(managers::OPERATOR.to_owned()),
        ..PatchParams::default()
    };
    api.patch(name, &parameters, &Patch::Merge(patch))
        .await
        .map_err(|source| ObjectsError::Expand {
            claim: name.to_owned(),
            size: size.clone(),
            source: Box::new(source),
        })?;
    context.wrote();
    let note = format!("the volume claim {name} grows to {size}");
    let happening = Happening::normal(events::VOLUME_EXPANDED, note);
    context.tell(&about(cluster), &happening).await;
    Ok(())
}

/// Deletes the StatefulSet and nothing that it owns; the next look finds none and makes it.
async fn renew(
    context: &Context,
    cluster: &Cluster,
    set: &StatefulSet,
) -> Result<(), ObjectsError> {
    let name = names::cluster::stateful_set(&cluster.name);
    let api: Api<StatefulSet> = Api::namespaced(context.client.clone(), &cluster.namespace);
    let parameters = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Orphan),
        preconditions: Some(Preconditions {
            uid: set.meta().uid.clone(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    api.delete(&name, &parameters)
        .await
        .map_err(|source| ObjectsError::Renew {
            name: name.clone(),
            source: Box::new(source),
        })?;
    context.wrote();
    let size = &cluster.spec.storage.size;
    let note = format!(
        "the StatefulSet {name} is made anew, so that further members get volumes of {size}; its pods stay"
    );
    let happening = Happening::normal(events::VOLUME_EXPANDED, note);
    context.tell(&about(cluster), &happening).await;
    Ok(())
}

fn about(cluster: &Cluster) -> ObjectReference {
    ObjectReference {
        name: Some(cluster.name.clone()),
        namespace: Some(cluster.namespace.clone()),
        uid: Some(cluster.owner.uid.clone()),
        kind: Some(cluster.owner.kind.clone()),
        api_version: Some(cluster.owner.api_version.clone()),
        ..ObjectReference::default()
    }
}

fn requested(claim: &PersistentVolumeClaim) -> Option<String> {
    let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    requests.get("storage").map(|size| size.0.clone())
}

fn is_smaller(size: Option<String>, than: &str) -> bool {
    size.and_then(|size| Some(quantity::parse(&size)? < quantity::parse(than)?))
        .unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_smaller_grows() {
        assert!(is_smaller(Some("1Gi".to_owned()), "2Gi"));
        assert!(!is_smaller(Some("1024Mi".to_owned()), "1Gi"));
        assert!(!is_smaller(Some("2Gi".to_owned()), "1Gi"));
        assert!(!is_smaller(None, "1Gi"), "nothing is known of it");
    }
}
