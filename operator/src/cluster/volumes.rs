//! Volumes grow while members run: the claims that there are, one by one, and then the StatefulSet's template for those to
//! come. Kubernetes refuses to change that template, so the StatefulSet is made anew; its pods stay.

use std::collections::BTreeMap;
use std::sync::Arc;

use dengine_crds::names::{self, managers};
use dengine_crds::reasons::events;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolumeClaim};
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions, PropagationPolicy};
use kube::{Resource, ResourceExt};
use serde_json::json;

use super::model::Ordinal;
use super::observe::Observation;
use super::validate::Cluster;
use crate::apply::is_code;
use crate::context::{Context, Happening};
use crate::quantity;

/// Why the volumes are not as large as they should be.
#[derive(Debug, thiserror::Error)]
pub(super) enum VolumesError {
    /// The StatefulSet could not be made anew with larger volumes.
    #[error("the StatefulSet {name} can not be made anew: {source}")]
    Renew {
        /// Its name.
        name: String,
        /// The API server's words.
        source: Box<kube::Error>,
    },
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

/// Lets claims ask for what the spec asks for, and the StatefulSet's template once they all do. A claim that can not
/// grow holds up no other.
///
/// # Errors
/// The first object that the API server refused to change, after all were tried.
pub(super) async fn expand(
    context: &Context,
    cluster: &Cluster,
    observation: &Observation,
) -> Result<(), VolumesError> {
    let size = &cluster.spec.storage.size;
    let to_grow = to_grow(&observation.claims, size);
    let mut grown = Ok(());
    for claim in &to_grow {
        grown = grown.and(expand_claim(context, cluster, claim).await);
    }
    grown?;
    let Some(set) = observation.stateful_set.as_deref() else {
        return Ok(());
    };
    if to_grow.is_empty()
        && set.metadata.deletion_timestamp.is_none()
        && is_smaller(claim_template_size(set), size)
    {
        renew(context, cluster, set).await?;
    }
    Ok(())
}

/// The claims that ask for less than this. Kubernetes lets only a bound one grow; one that is bound later, or takes the
/// place of a lost one, has its turn then.
fn to_grow(claims: &BTreeMap<Ordinal, Arc<PersistentVolumeClaim>>, size: &str) -> Vec<String> {
    let stays = |claim: &PersistentVolumeClaim| claim.metadata.deletion_timestamp.is_none();
    let bound = |claim: &PersistentVolumeClaim| {
        let status = claim.status.as_ref();
        status.and_then(|status| status.phase.as_deref()) == Some("Bound")
    };
    claims
        .values()
        .filter(|claim| stays(claim) && bound(claim) && is_smaller(requested(claim), size))
        .map(|claim| claim.name_any())
        .collect()
}

async fn expand_claim(
    context: &Context,
    cluster: &Cluster,
    name: &str,
) -> Result<(), VolumesError> {
    let size = &cluster.spec.storage.size;
    let api: Api<PersistentVolumeClaim> =
        Api::namespaced(context.client.clone(), &cluster.namespace);
    let patch = json!({"spec": {"resources": {"requests": {"storage": size}}}});
    let parameters = PatchParams {
        field_manager: Some(managers::OPERATOR.to_owned()),
        ..PatchParams::default()
    };
    match api.patch(name, &parameters, &Patch::Merge(patch)).await {
        // The step before may have deleted it.
        Err(error) if is_code(&error, 404) => return Ok(()),
        patched => patched.map_err(|source| VolumesError::Expand {
            claim: name.to_owned(),
            size: size.clone(),
            source: Box::new(source),
        })?,
    };
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
) -> Result<(), VolumesError> {
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
        .map_err(|source| VolumesError::Renew {
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
    use k8s_openapi::api::core::v1::{
        PersistentVolumeClaimSpec, PersistentVolumeClaimStatus, VolumeResourceRequirements,
    };
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn claim(name: &str, size: &str, phase: &str) -> PersistentVolumeClaim {
        let requests = [("storage".to_owned(), Quantity(size.to_owned()))];
        let mut claim = PersistentVolumeClaim {
            spec: Some(PersistentVolumeClaimSpec {
                resources: Some(VolumeResourceRequirements {
                    requests: Some(requests.into()),
                    ..VolumeResourceRequirements::default()
                }),
                ..PersistentVolumeClaimSpec::default()
            }),
            status: Some(PersistentVolumeClaimStatus {
                phase: Some(phase.to_owned()),
                ..PersistentVolumeClaimStatus::default()
            }),
            ..PersistentVolumeClaim::default()
        };
        claim.metadata.name = Some(name.to_owned());
        claim
    }

    #[test]
    fn only_bound_claims_that_stay_are_asked_to_grow() {
        let mut going = claim("going", "1Gi", "Bound");
        going.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        let mut unknown = claim("unknown", "1Gi", "");
        unknown.status = None;
        let claims = (0..).zip([
            claim("unbound", "1Gi", "Pending"),
            claim("small", "1Gi", "Bound"),
            claim("lost", "1Gi", "Lost"),
            claim("large", "2Gi", "Bound"),
            going,
            unknown,
            claim("tiny", "64Mi", "Bound"),
        ]);
        let claims = claims.map(|(ordinal, claim)| (ordinal, Arc::new(claim)));
        assert_eq!(to_grow(&claims.collect(), "2Gi"), ["small", "tiny"]);
    }

    #[test]
    fn only_what_is_smaller_grows() {
        assert!(is_smaller(Some("1Gi".to_owned()), "2Gi"));
        assert!(!is_smaller(Some("1024Mi".to_owned()), "1Gi"));
        assert!(!is_smaller(Some("2Gi".to_owned()), "1Gi"));
        assert!(!is_smaller(None, "1Gi"), "nothing is known of it");
    }
}
