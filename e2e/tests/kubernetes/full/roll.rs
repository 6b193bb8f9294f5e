//! Every kind of change that restarts members, and those that have to be taken back.

use std::time::Duration;

use anyhow::{Result, ensure};
use dengine_crds::{conditions, names::annotations};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::{
    clusters::message,
    load::{Load, connect},
    node::second_tag,
    roll::{roll, stuck},
    support::{World, test},
};

const PATIENCE: Duration = Duration::from_secs(120);

#[tokio::test]
async fn settings_resources_image_and_annotation_reach_every_member() {
    test("rolls", async |world| {
        world.make_cluster("r", 3).await?;
        let load = Load::start(&connect(world, "r").await?).await?;
        let settings = json!({"spec": {"engine": {"logLevel": "debug"}}});
        roll(world, &load, "engine settings", settings).await?;
        let resources = json!({"spec": {"resources": {"requests": {"cpu": "50m"}}}});
        roll(world, &load, "resources", resources).await?;
        if let Some(image) = second_tag(world, "localhost/dengine:upgraded")? {
            roll(world, &load, "image", json!({"spec": {"image": image}})).await?;
        }
        let restart = json!({"metadata": {"annotations": {annotations::RESTART: "again"}}});
        roll(world, &load, "restart", restart).await?;
        let summary = load.check(world, "r").await?;
        ensure!(
            summary.refused == 0,
            "requests failed: {:?}",
            summary.first_error
        );
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_bad_image_stops_at_the_first_member_and_is_taken_back() {
    test("bad-image", async |world| {
        world.make_cluster("r", 3).await?;
        let load = Load::start(&connect(world, "r").await?).await?;
        let before = world.uids::<Pod>("r").await?;
        let bad = json!({"spec": {"image": "localhost/dengine:none", "imagePullPolicy": "Never"}});
        stuck(world, bad, "ErrImageNeverPull").await?;
        untouched_but_one(world, &before).await?;
        let undo = json!({"spec": {"image": null, "imagePullPolicy": null}});
        world.edit("r", undo).await?;
        world.await_settled("r", 3).await?;
        untouched_but_one(world, &before).await?;
        load.check(world, "r").await.map(drop)
    })
    .await;
}

#[tokio::test]
async fn settings_that_a_member_does_not_survive_cost_nobodys_data() {
    test("bad-memory", async |world| {
        world.make_cluster("r", 3).await?;
        let load = Load::start(&connect(world, "r").await?).await?;
        let before = world.uids::<Pod>("r").await?;
        let claims = world.uids::<k8s_openapi::api::core::v1::PersistentVolumeClaim>("r");
        let claims = claims.await?;
        // Too little to start with: killed for it, again and again.
        let bad = json!({"spec": {"resources": {"limits": {"memory": "6Mi"}, "requests": {"memory": "6Mi"}}}});
        stuck(world, bad, "code").await?;
        // Longer than it takes until a crashing member would be given up.
        world
            .await_cluster("r", PATIENCE, |cluster| {
                message(cluster, conditions::PROGRESSING).contains("before the next restart")
            })
            .await?;
        tokio::time::sleep(Duration::from_secs(100)).await;
        untouched_but_one(world, &before).await?;
        world.edit("r", json!({"spec": {"resources": null}})).await?;
        world.await_settled("r", 3).await?;
        let after = world.uids::<k8s_openapi::api::core::v1::PersistentVolumeClaim>("r");
        ensure!(after.await? == claims, "a claim was replaced");
        load.check(world, "r").await.map(drop)
    })
    .await;
}

#[tokio::test]
async fn a_change_taken_back_half_way_restarts_only_who_had_it() {
    test("half-way", async |world| {
        world.make_cluster("r", 3).await?;
        let load = Load::start(&connect(world, "r").await?).await?;
        let before = world.uids::<Pod>("r").await?;
        world
            .edit("r", json!({"spec": {"engine": {"logLevel": "debug"}}}))
            .await?;
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while world.uids::<Pod>("r").await? == before {
            ensure!(tokio::time::Instant::now() < deadline, "nobody restarted");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        world
            .edit("r", json!({"spec": {"engine": {"logLevel": "info"}}}))
            .await?;
        world.await_settled("r", 3).await?;
        untouched_but_one(world, &before).await?;
        load.check(world, "r").await.map(drop)
    })
    .await;
}

async fn untouched_but_one(
    world: &World,
    before: &std::collections::BTreeMap<String, String>,
) -> Result<()> {
    let now = world.uids::<Pod>("r").await?;
    let same = now
        .iter()
        .filter(|(name, uid)| before.get(*name) == Some(*uid));
    ensure!(same.count() == 2, "before {before:?}, now {now:?}");
    Ok(())
}
