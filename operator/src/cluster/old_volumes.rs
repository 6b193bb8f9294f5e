//! Volumes of members that were given up. When the claim of one goes, a storage class usually deletes the volume too; so its
//! reclaim policy is Retain from before that until another member votes in its place. PersistentVolumes are in no namespace:
//! an operator that may look at some namespaces only can not do this, and says so.

use dengine_crds::DEngineCluster;
use dengine_crds::cluster::Replacement;
use dengine_crds::names::{self, annotations};
use dengine_crds::reasons::events;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use kube::api::{Api, Patch};
use serde_json::json;

use super::model::Ordinal;
use super::status_writer;
use super::validate::Cluster;
use crate::apply::{by_us, is_code};
use crate::context::{Context, Happening};

const DELETE: &str = "Delete";
const RETAIN: &str = "Retain";

/// Sees to it that the volume outlives the claim of this pod, and records that, or why not.
///
/// # Errors
/// If the API server does not answer, or the volume was changed meanwhile. If it refuses, the volume is not kept.
pub(super) async fn keep(
    context: &Context,
    cluster: &Cluster,
    resource: &mut DEngineCluster,
    ordinal: Ordinal,
    volume: &str,
) -> Result<Option<Happening>, kube::Error> {
    let not_kept = match retain(context, cluster, ordinal, volume).await {
        Ok(()) => None,
        Err(error) if is_code(&error, 403) => Some(format!(
            "the operator may not change PersistentVolume {volume}, as in an installation for some namespaces"
        )),
        Err(error) if is_code(&error, 404) => Some(format!("PersistentVolume {volume} is gone")),
        Err(error) if is_code(&error, 409) => return Err(error),
        // As of a webhook: it would say so for ever, and the member could never be replaced.
        Err(kube::Error::Api(status)) if (400..429).contains(&status.code) => Some(format!(
            "PersistentVolume {volume} can not be changed: {}",
            status.message
        )),
        Err(error) => return Err(error),
    };
    let pod = names::cluster::pod(&cluster.name, ordinal);
    let happening = match &not_kept {
        None => {
            let note = format!("the volume {volume} of {pod} is kept until another votes");
            Happening::normal(events::VOLUME_KEPT, note)
        }
        Some(why) => {
            let note = format!("the volume of {pod} goes with its claim: {why}");
            Happening::warning(events::VOLUME_KEPT, note)
        }
    };
    record(context, resource, &pod, |replacement| {
        replacement.kept_volume = not_kept.is_none().then(|| volume.to_owned());
        replacement.not_kept = not_kept;
    })
    .await?;
    Ok(Some(happening))
}

async fn retain(
    context: &Context,
    cluster: &Cluster,
    ordinal: Ordinal,
    volume: &str,
) -> Result<(), kube::Error> {
    let api: Api<PersistentVolume> = Api::all(context.client.clone());
    let there = api.get(volume).await?;
    // A claim may name any volume, another namespace's too; only the volume itself says whose it is.
    if !is_of(&there, cluster, ordinal) || policy(&there) != Some(DELETE) {
        return Ok(());
    }
    let kept_for = cluster.owner.uid.as_str();
    set_policy(&api, &there, RETAIN, Some(kept_for)).await
}

/// Leaves the volume to the policy that it had, and forgets it.
///
/// # Errors
/// If the API server refuses or does not answer.
pub(super) async fn release(
    context: &Context,
    cluster: &Cluster,
    resource: &mut DEngineCluster,
    ordinal: Ordinal,
    volume: &str,
) -> Result<Option<Happening>, kube::Error> {
    let api: Api<PersistentVolume> = Api::all(context.client.clone());
    let there = match api.get_opt(volume).await {
        Err(error) if is_code(&error, 403) => None,
        answer => answer?,
    };
    let changed_by_us = |there: &PersistentVolume| {
        let kept_for = there.annotations().get(annotations::KEPT_FOR);
        kept_for == Some(&cluster.owner.uid) && is_of(there, cluster, ordinal)
    };
    if let Some(there) = there.filter(changed_by_us) {
        set_policy(&api, &there, DELETE, None).await?;
    }
    let pod = names::cluster::pod(&cluster.name, ordinal);
    record(context, resource, &pod, |replacement| {
        replacement.kept_volume = None;
    })
    .await?;
    let note = format!("another member votes for {pod}; its old volume {volume} is no longer kept");
    Ok(Some(Happening::normal(events::VOLUME_RELEASED, note)))
}

fn is_of(volume: &PersistentVolume, cluster: &Cluster, ordinal: Ordinal) -> bool {
    let claim = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.claim_ref.as_ref());
    claim.is_some_and(|claim| {
        claim.namespace.as_ref() == Some(&cluster.namespace)
            && claim.name == Some(names::cluster::claim(&cluster.name, ordinal))
    })
}

fn policy(volume: &PersistentVolume) -> Option<&str> {
    let spec = volume.spec.as_ref()?;
    spec.persistent_volume_reclaim_policy.as_deref()
}

async fn set_policy(
    api: &Api<PersistentVolume>,
    there: &PersistentVolume,
    policy: &str,
    kept_for: Option<&str>,
) -> Result<(), kube::Error> {
    let patch = json!({
        "metadata": {
            "resourceVersion": there.resource_version(),
            "annotations": { annotations::KEPT_FOR: kept_for },
        },
        "spec": { "persistentVolumeReclaimPolicy": policy },
    });
    let name = there.name_any();
    api.patch(&name, &by_us(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// Changes what the status records of the newest replacement of this pod's member.
async fn record(
    context: &Context,
    resource: &mut DEngineCluster,
    pod: &str,
    change: impl FnOnce(&mut Replacement),
) -> Result<(), kube::Error> {
    let mut status = resource.status.clone().unwrap_or_default();
    let mut replacements = status.replacements.iter_mut();
    if let Some(replacement) = replacements.find(|replacement| replacement.name == pod) {
        change(replacement);
    }
    *resource = status_writer::write(&context.client, resource, &status).await?;
    Ok(())
}
