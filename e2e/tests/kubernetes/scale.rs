//! Members come and go as the spec asks, one at a time, and nothing that was acknowledged goes with
//! them.

use std::time::Duration;

use anyhow::{Result, ensure};
use dengine_crds::{DEngineCluster, conditions};
use dengine_e2e::cluster::Cluster;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::clusters::{check_claims, ids, is_false, message, status};
use crate::load::{Load, connect, say};
use crate::node::{Cut, Process};
use crate::support::{World, not_run, test};

const ENOUGH: usize = 200;
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn from_one_to_three_and_back_with_a_stray_scale_between_loses_nothing() {
    test("scale", async |world| {
        world.make_cluster("s", 1).await?;
        let load = Load::start(&connect(world, "s").await?).await?;
        scale(world, &load, 3, How::Kubectl).await?;
        stray_scale(world, &load).await?;
        scale(world, &load, 1, How::Edit).await?;
        load.check(world, "s").await?;
        world.print_events("s").await
    })
    .await;
}

/// With one of three away, taking another would leave one of two: it waits, says for whom, and goes
/// on by itself.
#[tokio::test]
async fn a_scale_down_that_could_cost_the_quorum_waits_and_says_so() {
    test("scale-quorum", async |world| {
        if matches!(world.cluster(), Cluster::Current { .. }) {
            return not_run("another's nodes are not ours to reach into");
        }
        world.make_cluster("s", 3).await?;
        let load = Load::start(&connect(world, "s").await?).await?;
        load.await_more(ENOUGH, PATIENCE).await?;
        // The one that is to stay; if it leads, another does once it is cut off.
        let away = "s-0";
        let (mut others, process) = (Vec::new(), Process::of(world, away).await?);
        for name in ["s-0", "s-1", "s-2"]
            .into_iter()
            .filter(|name| *name != away)
        {
            others.push(world.pod_ip(name).await?);
        }
        process.cut_off(Cut::BothWays, &others)?;
        let refused = refuses_to_shrink(world, away).await;
        process.reconnect(Cut::BothWays, &others)?;
        refused?;
        world.await_settled("s", 1).await?;
        load.check(world, "s").await?;
        world.print_events("s").await
    })
    .await;
}

async fn refuses_to_shrink(world: &World, away: &str) -> Result<()> {
    let healthy = |cluster: &DEngineCluster| {
        let members = status(cluster).members;
        members.iter().any(|m| m.name == away && m.healthy)
    };
    world
        .await_cluster("s", PATIENCE, |cluster| !healthy(cluster))
        .await?;
    world.edit("s", json!({"spec": {"replicas": 1}})).await?;
    let blocked = world
        .await_cluster("s", PATIENCE, |cluster| {
            is_false(cluster, conditions::PROGRESSING)
                && message(cluster, conditions::PROGRESSING).contains("could cost the quorum")
        })
        .await?;
    say(format_args!(
        "    refused: {}",
        message(&blocked, conditions::PROGRESSING)
    ));
    ensure!(ids(&blocked).len() == 3, "{:?}", ids(&blocked));
    Ok(())
}

/// The two ways in which people scale.
#[derive(Clone, Copy)]
pub(crate) enum How {
    Kubectl,
    Edit,
}

/// Scales the cluster `s`, and looks at what became of members and claims.
pub(crate) async fn scale(world: &World, load: &Load, replicas: u32, how: How) -> Result<()> {
    let before = world.uids::<k8s_openapi::api::core::v1::PersistentVolumeClaim>("s");
    let before = before.await?;
    match how {
        How::Kubectl => {
            let replicas = format!("--replicas={replicas}");
            world.kubectl(&["scale", "denginecluster/s", &replicas])?;
        }
        How::Edit => {
            world
                .edit("s", json!({"spec": {"replicas": replicas}}))
                .await?;
        }
    }
    let settled = world.await_settled("s", replicas as usize).await?;
    let names: Vec<String> = (0..replicas)
        .map(|ordinal| format!("s-{ordinal}"))
        .collect();
    ensure!(ids(&settled).keys().eq(names.iter()), "{:?}", ids(&settled));
    check_claims(world, "s", replicas, &before).await?;
    load.await_more(ENOUGH, PATIENCE).await
}

/// Somebody scales the StatefulSet itself: that takes pods away and no member, so they come back as
/// who they were.
async fn stray_scale(world: &World, load: &Load) -> Result<()> {
    let before = world.await_settled("s", 3).await?;
    let claims = world.uids::<k8s_openapi::api::core::v1::PersistentVolumeClaim>("s");
    let claims = claims.await?;
    world.kubectl(&["scale", "statefulset/s", "--replicas=1"])?;
    let pods = world.uids::<Pod>("s").await?;
    dengine_e2e::observe::until(
        &world.api::<k8s_openapi::api::apps::v1::StatefulSet>(),
        "s",
        PATIENCE,
        |set| set.spec.as_ref().and_then(|spec| spec.replicas) == Some(3),
    )
    .await?;
    let after = world.await_settled("s", 3).await?;
    ensure!(ids(&before) == ids(&after), "members changed: {after:?}");
    check_claims(world, "s", 3, &claims).await?;
    ensure!(!pods.is_empty(), "pods were there");
    load.await_more(ENOUGH, PATIENCE).await
}
