//! A node that is gone takes a member and its volume with it. The commands are those of the runbook, as they stand there.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use dengine_e2e::{cluster::Cluster, observe, product};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::{
    load::{Load, connect, say},
    support::{World, not_run, test},
};

const ENOUGH: usize = 100;
const PATIENCE: Duration = Duration::from_secs(60);
/// The member whose node is gone. It has not got so far as to join: a node without a kubelet runs nothing.
const MEMBER: &str = "l-2";

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
    world.make_cluster("l", 1).await?;
    let load = Load::start(&connect(world, "l").await?).await?;
    make_node_without_kubelet(world, node).await?;
    make_volume_there(world, node).await?;
    world.edit("l", json!({"spec": {"replicas": 3}})).await?;
    let pods = world.api::<Pod>();
    observe::until(&pods, MEMBER, PATIENCE, |pod| {
        let spec = pod.spec.as_ref();
        spec.and_then(|spec| spec.node_name.as_deref()) == Some(node)
    })
    .await?;
    let stuck = pods.get(MEMBER).await?.uid();
    world.kubectl(&["delete", "pod", MEMBER, "--wait=false"])?;
    let terminating = pods.get(MEMBER).await?;
    ensure!(
        terminating.uid() == stuck && terminating.metadata.deletion_timestamp.is_some(),
        "it ended without its node"
    );

    for command in commands("DEngineClusterDegraded", "### The node is gone", node)? {
        say(format_args!("    {}", command.join(" ")));
        let arguments: Vec<&str> = command[1..].iter().map(String::as_str).collect();
        let said = world.kubectl(&arguments)?;
        let asks = command.iter().any(|word| word.contains("QuorumAvailable"));
        ensure!(!asks || said.trim() == "True", "no quorum: {said}");
    }
    world.await_settled("l", 3).await?;
    load.await_more(ENOUGH, PATIENCE).await?;
    load.check(world, "l").await?;
    world.print_events("l").await
}

/// The scheduler believes that it runs.
async fn make_node_without_kubelet(world: &World, name: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(world.client.clone());
    let node = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
    }))?;
    nodes.create(&PostParams::default(), &node).await?;
    let room = json!({"cpu": "64", "memory": "64Gi", "pods": "10", "ephemeral-storage": "64Gi"});
    let status = json!({"status": {
        "capacity": room,
        "allocatable": room,
        "conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": ""}],
    }});
    nodes
        .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
        .await?;
    // Taken away by a controller once the node is ready, if it was put there at all.
    let untainted = json!({"spec": {"taints": null}});
    nodes
        .patch(name, &PatchParams::default(), &Patch::Merge(untainted))
        .await?;
    Ok(())
}

/// A volume that only that node has, for the member that is to come.
async fn make_volume_there(world: &World, node: &str) -> Result<()> {
    let claim = format!("data-{MEMBER}");
    let volume = serde_json::from_value(json!({
        "metadata": {"name": node},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "local": {"path": "/nowhere"},
            "claimRef": {"namespace": world.namespace, "name": claim},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]},
            ]}]}},
        },
    }))?;
    Api::<PersistentVolume>::all(world.client.clone())
        .create(&PostParams::default(), &volume)
        .await?;
    let made = serde_json::from_value(json!({
        "metadata": {"name": claim},
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

/// The commands below a heading of a runbook, filled in for [`MEMBER`] and this node, each as words.
fn commands(runbook: &str, heading: &str, node: &str) -> Result<Vec<Vec<String>>> {
    let file = product::workspace()?.join(format!("docs/runbooks/{runbook}.md"));
    let page = fs_err::read_to_string(file)?;
    let (_, section) = page.split_once(heading).context("the heading is there")?;
    let section = section.split("\n### ").next().unwrap_or_default();
    let blocks = section.split("```sh\n").skip(1);
    let lines = blocks.flat_map(|rest| rest.split("```").next().unwrap_or_default().lines());
    let commands: Vec<Vec<String>> = lines.map(|line| filled_in(line, node)).collect();
    ensure!(commands.len() >= 4, "{heading}: {commands:?}");
    Ok(commands)
}

/// No argument of these commands holds a space, so quotes need not be understood.
fn filled_in(line: &str, node: &str) -> Vec<String> {
    let (cluster, ordinal) = MEMBER.rsplit_once('-').expect("a name and a number");
    let line = line
        .replace('\'', "")
        .replace("NODE", node)
        .replace("NAME-N", &format!("{cluster}-{ordinal}"))
        .replace("NAME", cluster);
    line.split_whitespace().map(str::to_owned).collect()
}
