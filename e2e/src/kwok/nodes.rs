//! The nodes that are not there.

use std::time::Duration;

use anyhow::Result;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use super::{AT_ONCE, until};

/// Pods that a node takes at most: what a kubelet says by default.
pub(super) const PODS_EACH_MAX: u32 = 110;
/// What kwok, and the pods, know them by. It is a label, and a taint, so that nothing else is put
/// there.
pub(super) const MARK: (&str, &str) = ("type", "kwok");

/// Makes them and waits until pods may be put there.
pub(super) async fn make(client: &Client, count: u32, patience: Duration) -> Result<()> {
    let nodes = Api::<Node>::all(client.clone());
    stream::iter(0..count)
        .map(|number| make_one(&nodes, number))
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await?;
    let ours = ListParams::default().labels(&format!("{}={}", MARK.0, MARK.1));
    until("all nodes are Ready", patience, async || {
        let listed = nodes.list(&ours).await?.items;
        let ready = listed.iter().filter(|node| takes_pods(node)).count();
        anyhow::ensure!(ready == count as usize, "{ready} of {count} nodes");
        Ok(())
    })
    .await
}

async fn make_one(nodes: &Api<Node>, number: u32) -> Result<()> {
    let name = format!("kwok-{number:05}");
    let room = json!({"cpu": "32", "memory": "256Gi", "pods": PODS_EACH_MAX.to_string()});
    let node = json!({
        "metadata": {
            "name": name,
            "labels": {MARK.0: MARK.1, "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
        },
        "spec": {"taints": [{"key": MARK.0, "value": MARK.1, "effect": "NoSchedule"}]},
        "status": {"allocatable": room, "capacity": room},
    });
    let node = serde_json::from_value(node)?;
    nodes.create(&PostParams::default(), &node).await?;
    Ok(())
}

/// It is Ready, and what Kubernetes put there until it was has gone.
fn takes_pods(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|it| it.conditions.as_ref());
    let ready = conditions
        .into_iter()
        .flatten()
        .any(|it| it.type_ == "Ready" && it.status == "True");
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    ready && taints.into_iter().flatten().all(|it| it.key == MARK.0)
}
