//! A node that is gone takes a member and its volume with it. The commands are those of the
//! runbook, as they stand there.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use dengine_crds::cluster::ClusterPhase;
use dengine_crds::{DEngineCluster, conditions};
use dengine_e2e::cluster::Cluster;
use dengine_e2e::observe;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::clusters::{ids, message, status};
use crate::load::{Load, connect, say};
use crate::runbook;
use crate::support::{World, not_run, test};

const ENOUGH: usize = 100;
const PATIENCE: Duration = Duration::from_secs(60);
/// As the runbook has it.
const A_MINUTE_OR_TWO: Duration = Duration::from_secs(120);
/// The member whose node is lost.
const MEMBER: &str = "l-2";
const CLAIM: &str = "data-l-2";
/// Keeps the pods of other tests off the node: it runs none of them.
const TAINT: &str = "e2e.dengine.io/lost-node";

#[tokio::test]
async fn the_runbook_gets_a_member_off_a_node_that_is_gone() {
    test("lost-node", async |world| {
        if matches!(world.cluster(), Cluster::Current { .. }) {
            return not_run("another's nodes are not ours to lose");
        }
        let node = format!("gone-{}", world.namespace);
        let outcome = lose_and_repair(world, &node).await;
        // What the test made outside its namespace goes, however it ended.
        let nodes: Api<Node> = Api::all(world.client.clone());
        nodes.delete(&node, &DeleteParams::default()).await.ok();
        let volumes: Api<PersistentVolume> = Api::all(world.client.clone());
        volumes.delete(&node, &DeleteParams::default()).await.ok();
        outcome
    })
    .await;
}

async fn lose_and_repair(world: &World, node: &str) -> Result<()> {
    let tolerates =
        json!([{"key": TAINT, "operator": "Equal", "value": node, "effect": "NoSchedule"}]);
    let spec = json!({
        "replicas": 3, "storage": {"size": "1Gi"}, "scheduling": {"tolerations": tolerates},
    });
    let before = world.make_cluster_with("l", spec).await?;
    let load = Load::start(&connect(world, "l").await?).await?;
    load.await_more(ENOUGH, PATIENCE).await?;
    move_member(world, node).await?;
    let lost = lose(world, node).await?;

    let mut forced = false;
    let fill_in = [("NODE", node), ("NAME-N", MEMBER), ("NAME", "l")];
    let heading = "### The node is gone";
    for block in runbook::blocks("DEngineClusterDegraded", heading, &fill_in)? {
        block
            .run(world, async |line, said| {
                let asks = line.contains("QuorumAvailable");
                ensure!(!asks || said.trim() == "True", "no quorum: {said}");
                if line.contains("out-of-service") {
                    ends_by_itself(world, &lost).await?;
                }
                if line.contains("--force") && !std::mem::replace(&mut forced, true) {
                    told_why_it_waits(world, node).await?;
                }
                Ok(())
            })
            .await?;
    }
    ensure!(
        forced,
        "the runbook no longer deletes the pod by force: who looks at the cause in the status?"
    );
    let after = world.await_settled("l", 3).await?;
    load.await_more(ENOUGH, PATIENCE).await?;
    load.check(world, "l").await?;
    world.print_events("l").await?;
    let replaced: Vec<String> = ids(&before)
        .into_iter()
        .filter(|(name, id)| ids(&after).get(name) != Some(id))
        .map(|(name, _)| name)
        .collect();
    ensure!(replaced == [MEMBER], "replaced: {replaced:?}");
    Ok(())
}

/// The pod has no node now, and its claim a volume where none is: the status says so, and does not
/// say that all is well.
async fn told_why_it_waits(world: &World, node: &str) -> Result<()> {
    let said = world
        .await_cluster("l", PATIENCE, |cluster| {
            message(cluster, conditions::DEGRADED).contains("give up the volume")
        })
        .await?;
    say(format_args!(
        "      {}",
        message(&said, conditions::DEGRADED)
    ));
    let words = message(&said, conditions::PROGRESSING);
    ensure!(words.contains(node), "{words}");
    let phase = status(&said).phase;
    ensure!(phase == Some(ClusterPhase::Degraded), "{phase:?}");
    Ok(())
}

/// As if the member had always been on that node. While the cluster is paused nobody minds.
async fn move_member(world: &World, node: &str) -> Result<()> {
    world.edit("l", json!({"spec": {"paused": true}})).await?;
    let paused = |cluster: &DEngineCluster| status(cluster).phase == Some(ClusterPhase::Paused);
    world.await_cluster("l", PATIENCE, paused).await?;
    world.kubectl(&["scale", "statefulset", "l", "--replicas=2"])?;
    let claims = world.api::<PersistentVolumeClaim>();
    let labels = claims.get(CLAIM).await?.labels().clone();
    for what in [format!("pod/{MEMBER}"), format!("pvc/{CLAIM}")] {
        if what.starts_with("pvc") {
            world.kubectl(&["delete", &what, "--wait=false"])?;
        }
        world.kubectl(&["wait", "--for=delete", &what, "--timeout=60s"])?;
    }
    make_node_without_kubelet(world, node).await?;
    make_volume_there(world, node, &labels).await?;
    world.kubectl(&["scale", "statefulset", "l", "--replicas=3"])?;
    observe::until(&world.api::<Pod>(), MEMBER, PATIENCE, |pod| {
        let spec = pod.spec.as_ref();
        spec.and_then(|spec| spec.node_name.as_deref()) == Some(node)
    })
    .await?;
    world.edit("l", json!({"spec": {"paused": false}})).await
}

/// What Kubernetes does within a minute, the node is not known to be ready any more, and after
/// five: its pod is deleted, and nobody on the node ends it.
async fn lose(world: &World, node: &str) -> Result<Pod> {
    let pods = world.api::<Pod>();
    let stuck = pods.get(MEMBER).await?;
    let nodes: Api<Node> = Api::all(world.client.clone());
    report_ready(&nodes, node, "Unknown").await?;
    world.kubectl(&["delete", "pod", MEMBER, "--wait=false"])?;
    let terminating = pods.get(MEMBER).await?;
    ensure!(
        terminating.uid() == stuck.uid() && terminating.metadata.deletion_timestamp.is_some(),
        "it ended without its node"
    );
    Ok(stuck)
}

/// The runbook promises it of the taint alone: Kubernetes deletes the pod, and the StatefulSet
/// makes the next one.
async fn ends_by_itself(world: &World, lost: &Pod) -> Result<()> {
    let is_next = |pod: &Pod| pod.uid() != lost.uid();
    let pods = world.api::<Pod>();
    observe::until(&pods, MEMBER, A_MINUTE_OR_TWO, is_next).await?;
    Ok(())
}

/// The scheduler believes that it runs.
async fn make_node_without_kubelet(world: &World, name: &str) -> Result<()> {
    let taints = json!([{"key": TAINT, "value": name, "effect": "NoSchedule"}]);
    let nodes: Api<Node> = Api::all(world.client.clone());
    let node = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {"taints": taints},
    }))?;
    nodes.create(&PostParams::default(), &node).await?;
    let room = json!({"cpu": "64", "memory": "64Gi", "pods": "10", "ephemeral-storage": "64Gi"});
    let status = json!({"status": {"capacity": room, "allocatable": room}});
    nodes
        .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
        .await?;
    report_ready(&nodes, name, "True").await?;
    // Admission adds one that a controller takes away once the node is ready.
    let ours_alone = json!({"spec": {"taints": taints}});
    nodes
        .patch(name, &PatchParams::default(), &Patch::Merge(ours_alone))
        .await?;
    Ok(())
}

/// What a kubelet, or the controller that does not hear from one, says of its node.
async fn report_ready(nodes: &Api<Node>, name: &str, ready: &str) -> Result<()> {
    let condition = json!({"type": "Ready", "status": ready, "reason": "Test", "message": ""});
    let status = json!({"status": {"conditions": [condition]}});
    nodes
        .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
        .await?;
    Ok(())
}

/// A volume that only that node has, for the member's claim.
async fn make_volume_there(
    world: &World,
    node: &str,
    labels: &BTreeMap<String, String>,
) -> Result<()> {
    let volume = serde_json::from_value(json!({
        "metadata": {"name": node},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "local": {"path": "/nowhere"},
            "claimRef": {"namespace": world.namespace, "name": CLAIM},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]},
            ]}]}},
        },
    }))?;
    Api::<PersistentVolume>::all(world.client.clone())
        .create(&PostParams::default(), &volume)
        .await?;
    let made = serde_json::from_value(json!({
        "metadata": {
            "name": CLAIM, "labels": labels,
            // As of a volume that was made when the pod was scheduled.
            "annotations": {"volume.kubernetes.io/selected-node": node},
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "",
            "volumeName": node,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }))?;
    world
        .api::<PersistentVolumeClaim>()
        .create(&PostParams::default(), &made)
        .await?;
    Ok(())
}
