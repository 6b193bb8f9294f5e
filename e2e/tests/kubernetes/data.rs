//! A cluster of three on Kubernetes keeps what it acknowledged, whatever happens to its leader.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use dengine_client::Consistency;
use dengine_crds::DEngineCluster;
use dengine_crds::cluster::MemberRole;
use dengine_e2e::observe;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::DeleteParams;

use crate::load::{Load, connect};
use crate::support::{READY_PATIENCE, World, test};

/// Acknowledged writes before, and after, the leader goes.
const ENOUGH: usize = 300;
const LOAD_PATIENCE: Duration = Duration::from_secs(120);

#[tokio::test]
async fn deleting_the_leaders_pod_under_load_loses_no_acknowledged_key() {
    test("leader", async |world| {
        let before = world.make_cluster("kv", 3).await?;
        ensure!(voters(&before) == ["kv-0", "kv-1", "kv-2"], "{before:?}");
        let load = Load::start(&connect(world, "kv").await?).await?;
        load.await_more(ENOUGH, LOAD_PATIENCE).await?;

        let leader = leader(&before)?;
        let pod = world.api::<Pod>().get(&leader).await?;
        world
            .api::<Pod>()
            .delete(&leader, &DeleteParams::default().grace_period(0))
            .await?;

        load.await_more(ENOUGH, LOAD_PATIENCE).await?;
        await_replacement(world, &pod).await?;
        let after = world.await_ready("kv").await?;
        ensure!(
            identity(&before) == identity(&after),
            "the cluster is another one: {after:?}"
        );
        load.check(world, "kv").await?;
        Ok(())
    })
    .await;
}

fn leader(cluster: &DEngineCluster) -> Result<String> {
    let status = cluster
        .status
        .as_ref()
        .context("a ready cluster has a status")?;
    status
        .leader
        .clone()
        .context("a ready cluster has a leader")
}

/// The names of the members that vote.
fn voters(cluster: &DEngineCluster) -> Vec<&str> {
    let members = cluster.status.iter().flat_map(|status| &status.members);
    let mut voters: Vec<&str> = members
        .filter(|member| member.role != MemberRole::Learner)
        .map(|member| member.name.as_str())
        .collect();
    voters.sort_unstable();
    voters
}

/// What must be the same after a pod was replaced: its volume made it the same member again.
fn identity(cluster: &DEngineCluster) -> Option<(Option<&str>, Vec<&str>)> {
    let status = cluster.status.as_ref()?;
    let mut members: Vec<&str> = status
        .members
        .iter()
        .map(|member| member.id.as_str())
        .collect();
    members.sort_unstable();
    Some((status.cluster_id.as_deref(), members))
}

async fn await_replacement(world: &World, old: &Pod) -> Result<()> {
    let is_new = |pod: &Pod| {
        let ready = pod
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_ref());
        pod.uid() != old.uid()
            && ready.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
    };
    observe::until(&world.api::<Pod>(), &old.name_any(), READY_PATIENCE, is_new)
        .await
        .map(drop)
}

#[tokio::test]
async fn one_member_serves_too() {
    test("single", async |world| {
        world.make_cluster("one", 1).await?;
        let client = connect(world, "one").await?;
        let put = client.put("color", "blue").await?;
        let got = client.get("color", Consistency::Linearizable).await?;
        let found = got.kv.context("it was just written")?;
        ensure!(
            found.mod_revision == put.header.revision && found.value == "blue",
            "{found:?}"
        );
        Ok(())
    })
    .await;
}
