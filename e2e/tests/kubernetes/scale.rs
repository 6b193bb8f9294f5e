//! Members come and go as the spec asks, one at a time, and nothing that was acknowledged goes with them.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::{
    clusters::{check_claims, ids},
    load::{Load, connect},
    support::{World, test},
};

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

/// Somebody scales the StatefulSet itself: that takes pods away and no member, so they come back as who they were.
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
