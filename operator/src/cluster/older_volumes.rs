//! Volumes that were kept by an operator before the label `dengine.io/kept-for` existed: an
//! annotation of that name holds the UID of the cluster, nothing names the member, and the policy
//! was Delete. They get the label once, and are then found and released like all others.

use dengine_crds::names::{self, labels};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch};
use serde_json::{Value, json};

use super::controller::PAGE;
use super::model::{Identity, OldVolume};
use super::old_volumes::claim;
use super::validate::Cluster;
use crate::apply::by_us;
use crate::context::Context;

pub(super) const KEPT_FOR: &str = labels::KEPT_FOR;
/// Only volumes with this policy were kept.
pub(super) const POLICY_BEFORE: &str = "Delete";
/// No member has this id. The member had been removed before its volume was kept, so any voter is
/// another one.
const NOBODY: u64 = 0;

/// What the volume's annotation says, if such an operator kept it for this resource.
pub(super) fn seen(
    volume: &PersistentVolume,
    cluster: &Cluster,
    cluster_id: u64,
) -> Option<OldVolume> {
    let ours = volume.annotations().get(KEPT_FOR) == Some(&cluster.owner.uid);
    let pod = claim(volume)?.name.as_deref().and_then(pod)?;
    ours.then_some(OldVolume {
        name: volume.name_any(),
        ordinal: names::cluster::ordinal(&cluster.name, pod)?,
        of: Identity {
            cluster_id,
            member_id: NOBODY,
        },
    })
}

pub(super) fn is_marked(volume: &PersistentVolume) -> bool {
    volume.annotations().contains_key(KEPT_FOR)
}

/// The pod whose claim has this name.
fn pod(claim: &str) -> Option<&str> {
    claim
        .strip_prefix(names::cluster::VOLUME)?
        .strip_prefix('-')
}

/// Labels the existing ones, so that the operator's watch selects them. Finding them takes a list
/// of all volumes, so this is done once, at start.
pub async fn label(context: &Context) -> Result<(), kube::Error> {
    let api: Api<PersistentVolume> = Api::all(context.client.clone());
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let volumes = api.list_metadata(&page).await?;
        for volume in &volumes.items {
            let found = volume.annotations().contains_key(KEPT_FOR)
                && !volume.labels().contains_key(labels::KEPT_FOR);
            if found {
                label_one(context, &api, &volume.name_any()).await?;
            }
        }
        match volumes.metadata.continue_ {
            Some(next) if !next.is_empty() => page = page.continue_token(&next),
            _ => return Ok(()),
        }
    }
}

async fn label_one(
    context: &Context,
    api: &Api<PersistentVolume>,
    name: &str,
) -> Result<(), kube::Error> {
    let there = api.get_opt(name).await?;
    let Some(labels) = there.as_ref().and_then(missing_labels) else {
        return Ok(());
    };
    let version = there.and_then(|there| there.resource_version());
    let patch = json!({"metadata": {"resourceVersion": version, "labels": labels}});
    api.patch(name, &by_us(), &Patch::Merge(patch)).await?;
    context.crash_point();
    tracing::info!(
        volume = name,
        "a volume that an older operator kept was labelled"
    );
    Ok(())
}

/// Labels for the cluster of the claim that it belonged to.
fn missing_labels(volume: &PersistentVolume) -> Option<Value> {
    let claim = claim(volume)?;
    let (cluster, _) = pod(claim.name.as_deref()?)?.rsplit_once('-')?;
    Some(json!({
        labels::KEPT_FOR: cluster,
        labels::KEPT_FOR_NAMESPACE: claim.namespace.as_ref()?,
    }))
}
