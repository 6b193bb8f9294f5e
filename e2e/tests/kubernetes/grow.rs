//! Volumes grow while members serve.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use serde_json::json;

use crate::clusters::check_claims;
use crate::load::{Load, connect};
use crate::support::{World, test};

const ENOUGH: usize = 100;
const PATIENCE: Duration = Duration::from_secs(90);

#[tokio::test]
async fn volumes_grow_without_a_restart_and_those_to_come_are_as_large() {
    test("grow", async |world| {
        world.make_cluster("g", 1).await?;
        let load = Load::start(&connect(world, "g").await?).await?;
        let (pods, claims) = (
            world.uids::<Pod>("g").await?,
            world.uids::<PersistentVolumeClaim>("g").await?,
        );
        let set = world.uids::<StatefulSet>("g").await?;
        world
            .edit("g", json!({"spec": {"storage": {"size": "2Gi"}}}))
            .await?;
        dengine_e2e::observe::until(&world.api::<StatefulSet>(), "g", PATIENCE, |set| {
            template_size(set).as_deref() == Some("2Gi")
        })
        .await?;
        world.await_settled("g", 1).await?;
        ensure!(
            world.uids::<StatefulSet>("g").await? != set,
            "it was not made again"
        );
        ensure!(world.uids::<Pod>("g").await? == pods, "a pod restarted");
        load.await_more(ENOUGH, PATIENCE).await?;

        world.edit("g", json!({"spec": {"replicas": 3}})).await?;
        world.await_settled("g", 3).await?;
        check_claims(world, "g", 3, &claims).await?;
        for claim in world.uids::<PersistentVolumeClaim>("g").await?.keys() {
            ensure!(size_of(world, claim).await? == "2Gi", "{claim}");
        }
        load.check(world, "g").await?;
        world.print_events("g").await
    })
    .await;
}

fn template_size(set: &StatefulSet) -> Option<String> {
    let templates = set.spec.as_ref()?.volume_claim_templates.as_ref()?;
    let requests = templates.first()?.spec.as_ref()?.resources.as_ref()?;
    requests
        .requests
        .as_ref()?
        .get("storage")
        .map(|size| size.0.clone())
}

/// What the claim has, not only what it asks for.
async fn size_of(world: &World, claim: &str) -> Result<String> {
    let claim = world.api::<PersistentVolumeClaim>().get(claim).await?;
    let capacity = claim.status.and_then(|status| status.capacity);
    let size = capacity.and_then(|mut capacity| capacity.remove("storage"));
    size.map(|size| size.0).context("a bound claim has a size")
}
