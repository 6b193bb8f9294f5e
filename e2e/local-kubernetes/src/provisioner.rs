//! Makes a fresh, empty folder and a `local` PersistentVolume for each claim of the storage classes
//! `standard` and `sized`, and removes both once the claim is gone. (`local` rather than
//! `hostPath`: the kubelet honours `fsGroup` only there.) A folder of `sized` is a file system of
//! its own.
//!
//! What to do is derived from everything that is known, again on every change: nothing depends on
//! having seen an event.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{
    LocalVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectReference,
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, VolumeNodeAffinity,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::reflector::Store;
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Api, Client, Config, ResourceExt as _};
use serde_json::json;

use crate::layout::{Layout, PROVISIONER, SIZED_STORAGE_CLASS};
use crate::shell;

/// Who the control plane says should make a claim's volume.
const ASKED: &str = "volume.kubernetes.io/storage-provisioner";
/// Where the scheduler wants the claim's volume.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Who made a volume.
const MADE_BY: &str = "pv.kubernetes.io/provisioned-by";
/// What failed is tried again at least this often.
const RETRY: Duration = Duration::from_secs(1);

/// One thing to do.
#[derive(Debug, PartialEq)]
enum Action {
    Make(Box<PersistentVolume>),
    Remove {
        volume: String,
    },
    /// The claim asks for more than the volume says it has.
    Grow {
        namespace: String,
        claim: String,
        volume: String,
        size: Quantity,
    },
}

/// Serves claims until the process ends.
///
/// # Errors
/// When the cluster's credentials cannot be read.
pub async fn run(layout: &Layout) -> Result<()> {
    let kubeconfig = Kubeconfig::read_from(layout.pki().join("provisioner.kubeconfig"))?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    let (claims, claim_writer) = reflector::store::<PersistentVolumeClaim>();
    let (volumes, volume_writer) = reflector::store::<PersistentVolume>();
    let claim_changes = watcher(Api::all(client.clone()), watcher::Config::default())
        .default_backoff()
        .reflect(claim_writer)
        .map(|event| event.map(drop));
    let volume_changes = watcher(Api::all(client.clone()), watcher::Config::default())
        .default_backoff()
        .reflect(volume_writer)
        .map(|event| event.map(drop));
    let mut changes = pin!(futures::stream::select(claim_changes, volume_changes));
    let mut retry = tokio::time::interval(RETRY);
    let provisioner = Provisioner {
        client,
        folders: layout.volumes(),
    };
    loop {
        tokio::select! {
            Some(change) = changes.next() => if let Err(error) = change {
                tracing::warn!(%error, "watching failed; trying again");
            },
            _ = retry.tick() => {}
        }
        provisioner.pass(&claims, &volumes).await;
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Make(volume) => write!(f, "make {}", volume.name_any()),
            Self::Remove { volume } => write!(f, "remove {volume}"),
            Self::Grow { volume, size, .. } => write!(f, "grow {volume} to {}", size.0),
        }
    }
}

struct Provisioner {
    client: Client,
    folders: PathBuf,
}

impl Provisioner {
    async fn pass(&self, claims: &Store<PersistentVolumeClaim>, volumes: &Store<PersistentVolume>) {
        let (claims, volumes) = (claims.state(), volumes.state());
        let claims: Vec<&PersistentVolumeClaim> = claims.iter().map(AsRef::as_ref).collect();
        let volumes: Vec<&PersistentVolume> = volumes.iter().map(AsRef::as_ref).collect();
        for action in plan(&claims, &volumes, &self.folders) {
            if let Err(error) = self.act(&action).await {
                tracing::warn!(
                    error = format!("{error:#}"),
                    ?action,
                    "could not be done; trying again"
                );
            }
        }
    }

    async fn act(&self, action: &Action) -> Result<()> {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        match action {
            Action::Make(volume) => {
                let folder = self.folders.join(volume.name_any());
                fs_err::create_dir_all(&folder)?;
                if let Some(size) = size_of(volume) {
                    mount(&folder, size)?;
                }
                fs_err::set_permissions(&folder, std::fs::Permissions::from_mode(0o777))?;
                already(volumes.create(&PostParams::default(), volume).await, 409)?;
            }
            Action::Remove { volume } => {
                let folder = self.folders.join(volume);
                if is_mounted(&folder)? {
                    // Lazily: the pod may still be ending.
                    shell::run(shell::command("umount").arg("--lazy").arg(&folder))?;
                }
                if folder.is_dir() {
                    fs_err::remove_dir_all(folder)?;
                }
                already(volumes.delete(volume, &DeleteParams::default()).await, 404)?;
            }
            Action::Grow {
                namespace,
                claim,
                volume,
                size,
            } => {
                let folder = self.folders.join(volume);
                if is_mounted(&folder)? {
                    mount_with(&folder, "remount", size)?;
                }
                let patch = json!({"spec": {"capacity": {"storage": size}}});
                volumes
                    .patch(volume, &PatchParams::default(), &Patch::Merge(patch))
                    .await?;
                let claims: Api<PersistentVolumeClaim> =
                    Api::namespaced(self.client.clone(), namespace);
                let patch = json!({"status": {"capacity": {"storage": size}}});
                claims
                    .patch_status(claim, &PatchParams::default(), &Patch::Merge(patch))
                    .await?;
            }
        }
        tracing::info!(%action, "done");
        Ok(())
    }
}

/// How large the volume's file system is to be, if it gets one of its own.
fn size_of(volume: &PersistentVolume) -> Option<&Quantity> {
    let spec = volume.spec.as_ref()?;
    let sized = spec.storage_class_name.as_deref() == Some(SIZED_STORAGE_CLASS);
    let size = spec.capacity.as_ref()?.get("storage")?;
    sized.then_some(size)
}

/// A file system in memory, unless an earlier attempt has mounted it.
fn mount(folder: &Path, size: &Quantity) -> Result<()> {
    if is_mounted(folder)? {
        return Ok(());
    }
    mount_with(folder, "rw", size)
}

fn mount_with(folder: &Path, option: &str, size: &Quantity) -> Result<()> {
    // `1Gi` of Kubernetes is `1G` of mount.
    let size = size.0.trim_end_matches('i');
    let options = format!("{option},size={size}");
    let mut mount = shell::command("mount");
    mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]);
    shell::run(mount.arg(folder)).map(drop)
}

/// Whether the folder is another file system than the one it lies in.
fn is_mounted(folder: &Path) -> Result<bool> {
    let parent = folder.parent().context("a volume lies in a folder")?;
    Ok(folder.is_dir() && fs_err::metadata(folder)?.dev() != fs_err::metadata(parent)?.dev())
}

/// A refusal that says "it is so already" is no error: the store lags behind what was done.
fn already<T>(result: kube::Result<T>, code: u16) -> Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.code == code => Ok(()),
        other => other.map(drop).context("the API server refused"),
    }
}

fn plan(
    claims: &[&PersistentVolumeClaim],
    volumes: &[&PersistentVolume],
    folders: &Path,
) -> Vec<Action> {
    let made = claims
        .iter()
        .filter_map(|claim| make(claim, volumes, folders));
    let removed = volumes.iter().filter_map(|volume| remove(volume));
    let grown = claims.iter().filter_map(|claim| grow(claim, volumes));
    made.chain(removed).chain(grown).collect()
}

fn make(
    claim: &PersistentVolumeClaim,
    volumes: &[&PersistentVolume],
    folders: &Path,
) -> Option<Action> {
    let spec = claim.spec.as_ref()?;
    let node = claim.annotations().get(SELECTED_NODE)?;
    let asked = claim
        .annotations()
        .get(ASKED)
        .is_some_and(|who| who == PROVISIONER);
    let name = format!("pvc-{}", claim.uid()?);
    let exists = volumes.iter().any(|volume| volume.name_any() == name);
    if !asked || exists || spec.volume_name.is_some() || claim.metadata.deletion_timestamp.is_some()
    {
        return None;
    }
    let spec = PersistentVolumeSpec {
        access_modes: spec.access_modes.clone(),
        capacity: Some(BTreeMap::from([(
            "storage".into(),
            requested(claim)?.clone(),
        )])),
        claim_ref: Some(ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("PersistentVolumeClaim".into()),
            name: claim.metadata.name.clone(),
            namespace: claim.namespace(),
            uid: claim.uid(),
            ..ObjectReference::default()
        }),
        local: Some(LocalVolumeSource {
            path: folders.join(&name).display().to_string(),
            ..LocalVolumeSource::default()
        }),
        node_affinity: Some(only_on(node)),
        persistent_volume_reclaim_policy: Some("Delete".into()),
        storage_class_name: spec.storage_class_name.clone(),
        volume_mode: Some("Filesystem".into()),
        ..PersistentVolumeSpec::default()
    };
    let metadata = ObjectMeta {
        name: Some(name),
        annotations: Some(BTreeMap::from([(MADE_BY.into(), PROVISIONER.into())])),
        ..ObjectMeta::default()
    };
    Some(Action::Make(Box::new(PersistentVolume {
        metadata,
        spec: Some(spec),
        status: None,
    })))
}

fn remove(volume: &PersistentVolume) -> Option<Action> {
    let ours = volume
        .annotations()
        .get(MADE_BY)
        .is_some_and(|who| who == PROVISIONER);
    let released = volume.status.as_ref()?.phase.as_deref() == Some("Released");
    let delete = volume
        .spec
        .as_ref()?
        .persistent_volume_reclaim_policy
        .as_deref()
        == Some("Delete");
    let pending = volume.metadata.deletion_timestamp.is_none();
    (ours && released && delete && pending).then(|| Action::Remove {
        volume: volume.name_any(),
    })
}

fn grow(claim: &PersistentVolumeClaim, volumes: &[&PersistentVolume]) -> Option<Action> {
    let volume = claim.spec.as_ref()?.volume_name.clone()?;
    volumes.iter().find(|known| {
        known.name_any() == volume
            && known
                .annotations()
                .get(MADE_BY)
                .is_some_and(|who| who == PROVISIONER)
    })?;
    let size = requested(claim)?;
    // The API server lets a claim only grow, so "different" means "more".
    let has = claim.status.as_ref()?.capacity.as_ref()?.get("storage")?;
    (has != size).then(|| Action::Grow {
        namespace: claim.namespace().unwrap_or_default(),
        claim: claim.name_any(),
        volume,
        size: size.clone(),
    })
}

fn requested(claim: &PersistentVolumeClaim) -> Option<&Quantity> {
    claim
        .spec
        .as_ref()?
        .resources
        .as_ref()?
        .requests
        .as_ref()?
        .get("storage")
}

fn only_on(node: &str) -> VolumeNodeAffinity {
    let requirement = NodeSelectorRequirement {
        key: "kubernetes.io/hostname".into(),
        operator: "In".into(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm {
        match_expressions: Some(vec![requirement]),
        match_fields: None,
    };
    VolumeNodeAffinity {
        required: Some(NodeSelector {
            node_selector_terms: vec![term],
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(text: &str) -> PersistentVolumeClaim {
        serde_saphyr::from_str(text).unwrap()
    }

    fn waiting() -> PersistentVolumeClaim {
        claim(
            "
metadata:
  name: data-demo-0
  namespace: blue
  uid: u1
  annotations:
    volume.kubernetes.io/storage-provisioner: dengine.io/local-folder
    volume.kubernetes.io/selected-node: node1
spec: {accessModes: [ReadWriteOnce], storageClassName: standard, resources: {requests: {storage: \
             1Gi}}}
status: {phase: Pending}",
        )
    }

    fn planned(claims: &[&PersistentVolumeClaim], volumes: &[&PersistentVolume]) -> Vec<Action> {
        plan(claims, volumes, Path::new("/folders"))
    }

    fn made_for(claim: &PersistentVolumeClaim) -> PersistentVolume {
        match planned(&[claim], &[]).remove(0) {
            Action::Make(volume) => *volume,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_waiting_claim_gets_one_volume_of_its_own_folder() {
        let claim = waiting();
        let volume = made_for(&claim);
        let spec = volume.spec.clone().unwrap();
        assert_eq!(spec.local.unwrap().path, "/folders/pvc-u1");
        assert_eq!(spec.claim_ref.unwrap().uid.as_deref(), Some("u1"));
        assert_eq!(spec.storage_class_name.as_deref(), Some("standard"));
        assert_eq!(planned(&[&claim], &[&volume]), []);
    }

    #[test]
    fn only_the_class_that_says_so_gets_file_systems_of_a_size() {
        assert_eq!(size_of(&made_for(&waiting())), None);
        let mut sized = waiting();
        sized.spec.as_mut().unwrap().storage_class_name = Some("sized".into());
        let volume = made_for(&sized);
        assert_eq!(size_of(&volume).map(|size| size.0.as_str()), Some("1Gi"));
    }

    #[test]
    fn a_claim_that_waits_for_its_pod_or_for_somebody_else_is_left_alone() {
        let mut unscheduled = waiting();
        unscheduled.annotations_mut().remove(SELECTED_NODE);
        let mut foreign = waiting();
        foreign
            .annotations_mut()
            .insert(ASKED.into(), "somebody.else/disk".into());
        assert_eq!(planned(&[&unscheduled, &foreign], &[]), []);
    }

    #[test]
    fn only_a_released_volume_of_ours_with_policy_delete_is_removed() {
        let mut volume = made_for(&waiting());
        for (phase, policy, removed) in [
            ("Bound", "Delete", false),
            ("Released", "Retain", false),
            ("Released", "Delete", true),
        ] {
            volume.status = serde_json::from_value(json!({"phase": phase})).unwrap();
            volume
                .spec
                .as_mut()
                .unwrap()
                .persistent_volume_reclaim_policy = Some(policy.into());
            assert_eq!(
                !planned(&[], &[&volume]).is_empty(),
                removed,
                "{phase} {policy}"
            );
        }
        volume.annotations_mut().clear();
        assert_eq!(planned(&[], &[&volume]), []);
    }

    #[test]
    fn a_claim_that_asks_for_more_grows() {
        let volume = made_for(&waiting());
        let mut bound = waiting();
        bound.spec.as_mut().unwrap().volume_name = Some("pvc-u1".into());
        bound.status =
            serde_json::from_value(json!({"phase": "Bound", "capacity": {"storage": "1Gi"}}))
                .unwrap();
        assert_eq!(planned(&[&bound], &[&volume]), []);
        bound.status.as_mut().unwrap().capacity =
            serde_json::from_value(json!({"storage": "512Mi"})).unwrap();
        let actions = planned(&[&bound], &[&volume]);
        assert!(matches!(&actions[..], [Action::Grow { size, .. }] if size.0 == "1Gi"));
    }
}
