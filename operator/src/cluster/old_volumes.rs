//! Volumes of replaced members. When a claim is deleted, its storage class usually deletes the
//! volume too; so the volume's reclaim policy is set to Retain before that, until another member
//! votes in its place. The volume itself is labelled with its cluster, member and former policy;
//! the status says it too, for people, but may be lost or restored from a backup. PersistentVolumes
//! are in no namespace: an operator for some namespaces only cannot do this, and reports it.

use std::collections::BTreeMap;

use dengine_crds::DEngineCluster;
use dengine_crds::cluster::Replacement;
use dengine_crds::names::{self, annotations, labels};
use dengine_crds::reasons::{cluster as reasons, events};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume};
use kube::ResourceExt;
use kube::api::{Api, Patch};
use kube::runtime::reflector::Store;
use serde_json::{Value, json};

use super::model::{Identity, OldVolume, Ordinal, Replaced};
use super::observe::{mark, parse_mark};
use super::status::Notice;
use super::validate::Cluster;
use super::{older_volumes, publish_failure};
use crate::apply::{by_us, is_code};
use crate::context::{Context, Event};
use crate::status_writer;

const RETAIN: &str = "Retain";
/// Policies under which a volume, or its content, is deleted with its claim.
const GOES: [&str; 2] = ["Delete", "Recycle"];

/// The volumes that are kept for a cluster: those with labels, and those that only the status
/// names, as when the operator may not list volumes.
pub(super) fn kept(
    volumes: &Store<PersistentVolume>,
    cluster: &Cluster,
    cluster_id: Option<u64>,
    replaced: &BTreeMap<Ordinal, Replaced>,
) -> Vec<OldVolume> {
    let Some(cluster_id) = cluster_id else {
        return Vec::new();
    };
    let there = volumes.state();
    let there = there
        .iter()
        .filter_map(|volume| seen(volume, cluster, cluster_id));
    let recorded = replaced.iter().filter_map(|(ordinal, replaced)| {
        let of = Identity {
            cluster_id,
            member_id: replaced.member_id,
        };
        Some(OldVolume {
            name: replaced.kept_volume.clone()?,
            ordinal: *ordinal,
            of,
        })
    });
    // The volume's own labels come last, and so count.
    let by_name: BTreeMap<String, OldVolume> = recorded
        .chain(there)
        .map(|volume| (volume.name.clone(), volume))
        .collect();
    by_name.into_values().collect()
}

/// What the volume's labels say, if it is kept for a member of this cluster.
fn seen(volume: &PersistentVolume, cluster: &Cluster, cluster_id: u64) -> Option<OldVolume> {
    let older = older_volumes::seen(volume, cluster, cluster_id);
    let said = older.or_else(|| marked(volume, cluster))?;
    // It may have been bound to another claim since.
    let is_its = said.of.cluster_id == cluster_id && is_of(volume, cluster, said.ordinal);
    is_its.then_some(said)
}

fn marked(volume: &PersistentVolume, cluster: &Cluster) -> Option<OldVolume> {
    let (labels, annotations) = (volume.labels(), volume.annotations());
    let ours = labels.get(labels::KEPT_FOR) == Some(&cluster.name)
        && labels.get(labels::KEPT_FOR_NAMESPACE) == Some(&cluster.namespace);
    let pod = annotations
        .get(annotations::KEPT_FOR_POD)
        .filter(|_| ours)?;
    Some(OldVolume {
        name: volume.name_any(),
        ordinal: names::cluster::ordinal(&cluster.name, pod)?,
        of: parse_mark(annotations.get(annotations::REMOVED_MEMBER)?)?,
    })
}

fn is_of(volume: &PersistentVolume, cluster: &Cluster, ordinal: Ordinal) -> bool {
    claim(volume).is_some_and(|claim| {
        claim.namespace.as_ref() == Some(&cluster.namespace)
            && claim.name == Some(names::cluster::claim(&cluster.name, ordinal))
    })
}

/// A volume that is only reserved for a claim of this name has no UID yet. Another UID is that of
/// an earlier claim of the name.
fn is_bound_to(volume: &PersistentVolume, claim_uid: &str) -> bool {
    let bound_to = claim(volume).and_then(|claim| claim.uid.as_deref());
    bound_to.is_none_or(|uid| uid == claim_uid)
}

pub(super) fn claim(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref()?.claim_ref.as_ref()
}

/// Makes the volume outlive its claim, publishes and records that, or why not.
///
/// # Errors
/// If the API server does not answer, or the volume was changed meanwhile. If it refuses, the
/// volume is not kept: a webhook would refuse every time, and the member could never be replaced.
pub(super) async fn keep(
    context: &Context,
    cluster: &Cluster,
    resource: &mut DEngineCluster,
    claim_uid: &str,
    old: &OldVolume,
) -> Result<(), kube::Error> {
    let volume = &old.name;
    let not_kept = match retain(context, cluster, claim_uid, old).await {
        Ok(not_kept) => not_kept,
        Err(error) if is_code(&error, 403) => Some(format!(
            "the operator may not change PersistentVolume {volume}; it is installed for some \
             namespaces only, or lacks the permission"
        )),
        Err(error) if is_code(&error, 409) => return Err(error),
        Err(kube::Error::Api(status)) if (400..429).contains(&status.code) => Some(format!(
            "PersistentVolume {volume} cannot be changed: {}",
            status.message
        )),
        Err(error) => return Err(error),
    };
    let pod = names::cluster::pod(&cluster.name, old.ordinal);
    let event = match &not_kept {
        None => {
            let note = format!("volume {volume} of {pod} is kept until its replacement votes");
            Event::normal(events::VOLUME_KEPT, note)
        }
        Some(why) => {
            let note = format!("the volume of {pod} is not kept: {why}");
            Event::warning(events::VOLUME_KEPT, note)
        }
    };
    context.publish(&cluster.reference(), &event).await;
    let is_its = |replacement: &Replacement| {
        replacement.name == pod && replacement.member_id == old.of.member_id.to_string()
    };
    record(context, resource, is_its, |replacement| {
        replacement.kept_volume = not_kept.is_none().then(|| volume.clone());
        replacement.not_kept.clone_from(&not_kept);
    })
    .await?;
    Ok(())
}

/// Returns why the volume is not kept, if the reason is not the API server's.
async fn retain(
    context: &Context,
    cluster: &Cluster,
    claim_uid: &str,
    old: &OldVolume,
) -> Result<Option<String>, kube::Error> {
    let api: Api<PersistentVolume> = Api::all(context.client.clone());
    let there = api.get(&old.name).await?;
    // A claim may name any volume, even another namespace's; only the volume itself says whose it
    // is.
    if !is_of(&there, cluster, old.ordinal) || !is_bound_to(&there, claim_uid) {
        let volume = &old.name;
        let why = format!("PersistentVolume {volume} belongs to another claim");
        return Ok(Some(why));
    }
    let policy = match policy(&there) {
        Some(RETAIN) if seen(&there, cluster, old.of.cluster_id).is_some() => policy_before(&there),
        policy => policy.filter(|policy| GOES.contains(policy)),
    };
    let Some(policy) = policy else {
        return Ok(None);
    };
    let marks = Marks {
        cluster: Some(&cluster.name),
        namespace: Some(&cluster.namespace),
        pod: Some(names::cluster::pod(&cluster.name, old.ordinal)),
        member: Some(mark(old.of)),
        policy: Some(policy),
    };
    change(context, &there, &marks, RETAIN).await?;
    context.crash_point();
    Ok(None)
}

/// Releases volumes that are no longer needed. A refusal by the API server holds up nothing: it is
/// retried after a growing pause. Returns what people should know.
pub(super) async fn release(
    context: &Context,
    cluster: &Cluster,
    resource: &mut DEngineCluster,
    no_longer_needed: &[OldVolume],
) -> Option<Notice> {
    let mut refused = Vec::new();
    for old in no_longer_needed {
        let attempt = format!("{} {}", cluster.owner.uid, old.name);
        if let Some(message) = context.retries.not_yet(&attempt) {
            refused.push(message);
            continue;
        }
        match let_go(context, cluster, resource, old).await {
            Ok(()) => context.retries.succeeded(&attempt),
            // It, or the cluster, was changed meanwhile; the next reconciliation sees its new
            // state.
            Err(error) if is_code(&error, 409) => {}
            Err(error) => {
                let message = stays(old, &error);
                context.retries.failed(&attempt, &message);
                let event = Event::warning(events::VOLUME_RELEASED, message.clone());
                publish_failure(context, resource, &event).await;
                refused.push(message);
            }
        }
    }
    (!refused.is_empty()).then(|| Notice::rests(reasons::OLD_VOLUMES_STAY, refused.join("; ")))
}

/// Restores the volume's former policy, and removes its labels. Only for a volume that is labelled
/// for this member: the status may name any.
async fn let_go(
    context: &Context,
    cluster: &Cluster,
    resource: &mut DEngineCluster,
    old: &OldVolume,
) -> Result<(), kube::Error> {
    let api: Api<PersistentVolume> = Api::all(context.client.clone());
    let there = api.get_opt(&old.name).await?;
    let there = there.filter(|there| seen(there, cluster, old.of.cluster_id).is_some());
    if let Some(there) = &there {
        // Another policy may have been set meanwhile.
        let now = policy(there).unwrap_or(RETAIN);
        let before = policy_before(there).filter(|_| now == RETAIN);
        change(context, there, &Marks::default(), before.unwrap_or(now)).await?;
        context.crash_point();
    }
    let volume = &old.name;
    let is_its = |replacement: &Replacement| replacement.kept_volume.as_ref() == Some(volume);
    let recorded = record(context, resource, is_its, |replacement| {
        replacement.kept_volume = None;
    })
    .await?;
    // The cache may lag, and all may have been done and published before.
    if there.is_some() || recorded {
        let pod = names::cluster::pod(&cluster.name, old.ordinal);
        let note = format!("old volume {volume} of {pod} is no longer needed and is released");
        let event = Event::normal(events::VOLUME_RELEASED, note);
        context.publish(&cluster.reference(), &event).await;
    }
    Ok(())
}

fn stays(old: &OldVolume, error: &kube::Error) -> String {
    let why = match error {
        kube::Error::Api(status) => status.message.clone(),
        error => error.to_string(),
    };
    let (ordinal, volume) = (old.ordinal, &old.name);
    format!(
        "old volume {volume} of member {ordinal} is no longer needed, but cannot be released \
         (runbook DEngineClusterDegraded): {why}"
    )
}

fn policy(volume: &PersistentVolume) -> Option<&str> {
    let spec = volume.spec.as_ref()?;
    spec.persistent_volume_reclaim_policy.as_deref()
}

/// The policy that a volume had before it was kept.
fn policy_before(volume: &PersistentVolume) -> Option<&str> {
    match volume.annotations().get(annotations::RECLAIM_POLICY) {
        Some(before) => GOES.into_iter().find(|policy| before == policy),
        None => older_volumes::is_marked(volume).then_some(older_volumes::POLICY_BEFORE),
    }
}

/// Labels and annotations of a volume that is kept; empty for one that is not.
#[derive(Debug, Default)]
struct Marks<'a> {
    cluster: Option<&'a str>,
    namespace: Option<&'a str>,
    pod: Option<String>,
    member: Option<String>,
    policy: Option<&'a str>,
}

/// Labels and policy in one write, so that no volume is kept without a label.
async fn change(
    context: &Context,
    there: &PersistentVolume,
    marks: &Marks<'_>,
    policy: &str,
) -> Result<(), kube::Error> {
    let api: Api<PersistentVolume> = Api::all(context.client.clone());
    let patch: Value = json!({
        "metadata": {
            "resourceVersion": there.resource_version(),
            "labels": {
                labels::KEPT_FOR: marks.cluster,
                labels::KEPT_FOR_NAMESPACE: marks.namespace,
            },
            "annotations": {
                annotations::KEPT_FOR_POD: marks.pod,
                annotations::REMOVED_MEMBER: marks.member,
                annotations::RECLAIM_POLICY: marks.policy,
                older_volumes::KEPT_FOR: Value::Null,
            },
        },
        "spec": { "persistentVolumeReclaimPolicy": policy },
    });
    let name = there.name_any();
    api.patch(&name, &by_us(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// Changes a recorded replacement, if there is one. Returns whether that changed anything.
async fn record(
    context: &Context,
    resource: &mut DEngineCluster,
    which: impl Fn(&Replacement) -> bool,
    change: impl FnOnce(&mut Replacement),
) -> Result<bool, kube::Error> {
    let mut status = resource.status.clone().unwrap_or_default();
    let mut replacements = status.replacements.iter_mut();
    let Some(replacement) = replacements.find(|replacement| which(replacement)) else {
        return Ok(false);
    };
    let before = replacement.clone();
    change(replacement);
    if *replacement == before {
        return Ok(false);
    }
    *resource = status_writer::write(&context.client, resource, &status).await?;
    Ok(true)
}
