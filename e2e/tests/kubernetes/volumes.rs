//! The local Kubernetes' own volumes: what a test of data loss stands on.

use std::time::Duration;

use anyhow::{Result, ensure};
use dengine_e2e::cluster::Cluster;
use dengine_e2e::observe;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::PostParams;
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::support::{World, not_run, test};

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_claim_gets_an_empty_folder_for_a_user_that_is_not_root_and_takes_it_along() {
    test("volumes", async |world| match world.cluster() {
        Cluster::Local(_) => claim_lives_and_dies(world).await,
        Cluster::Current { .. } => not_run("another's volumes are another's to test"),
    })
    .await;
}

async fn claim_lives_and_dies(world: &World) -> Result<()> {
    let (claims, pods) = (world.api::<PersistentVolumeClaim>(), world.api::<Pod>());
    claims.create(&PostParams::default(), &claim()?).await?;
    pods.create(&PostParams::default(), &pod()?).await?;
    let bound = observe::until(&claims, "data", PATIENCE, |claim| {
        phase(claim) == Some("Bound")
    })
    .await?;
    let volume = bound
        .spec
        .and_then(|spec| spec.volume_name)
        .unwrap_or_default();
    let volumes: Api<PersistentVolume> = Api::all(world.client.clone());
    let folder = folder(&volumes.get(&volume).await?)?;
    observe::until(&pods, "user", PATIENCE, is_running).await?;
    ensure!(
        fs_err::read_dir(&folder)?.next().is_none(),
        "{folder} is not empty"
    );
    ensure!(group(&folder)? == 65532, "{folder} is not the pod's");
    world.kubectl(&[
        "delete",
        "pod/user",
        "persistentvolumeclaim/data",
        "--grace-period=0",
        "--force",
    ])?;
    world.kubectl(&[
        "wait",
        "--for=delete",
        &format!("persistentvolume/{volume}"),
        "--timeout=60s",
    ])?;
    ensure!(
        !std::path::Path::new(&folder).exists(),
        "{folder} outlived its claim"
    );
    Ok(())
}

fn claim() -> Result<PersistentVolumeClaim> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "64Mi"}}},
    }))?)
}

fn pod() -> Result<Pod> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": "user"},
        "spec": {
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 65532, "fsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{
                "name": "user",
                "image": "localhost/pause:dev",
                "imagePullPolicy": "Never",
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        },
    }))?)
}

fn phase(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.status.as_ref()?.phase.as_deref()
}

fn is_running(pod: &Pod) -> bool {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        == Some("Running")
}

fn folder(volume: &PersistentVolume) -> Result<String> {
    let local = volume.spec.as_ref().and_then(|spec| spec.local.as_ref());
    anyhow::Context::with_context(local.map(|local| local.path.clone()), || {
        format!("{} is not a local volume", volume.name_any())
    })
}

fn group(folder: &str) -> Result<u32> {
    Ok(std::os::unix::fs::MetadataExt::gid(&fs_err::metadata(
        folder,
    )?))
}
