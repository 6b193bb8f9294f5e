//! Every kind of change that restarts members, and those that have to be taken back.

use std::time::Duration;

use anyhow::{Result, ensure};
use dengine_client::AdminClient;
use dengine_crds::names::{self, annotations};
use dengine_crds::{DEngineCluster, conditions};
use dengine_e2e::cluster::Cluster;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tokio::time::Instant;

use crate::clusters::{CHANGE_PATIENCE, follower, ids, message};
use crate::load::{Load, connect, say};
use crate::node::second_tag;
use crate::roll::{roll, stuck};
use crate::support::{World, not_run, test};

const PATIENCE: Duration = Duration::from_secs(120);
const HAND_OVERS: usize = 100;
/// Acknowledged writes before and after each.
const BETWEEN_HAND_OVERS: usize = 50;

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

/// Each as the operator asks for it before it restarts a leader. How long nothing is acknowledged
/// meanwhile is printed and not judged: that is up to the machine.
#[tokio::test]
async fn a_hundred_hand_overs_fail_no_request() {
    test("hand-overs", async |world| {
        if matches!(world.cluster(), Cluster::Current { .. }) {
            return not_run("members of another's cluster cannot be reached from here");
        }
        world.make_cluster("r", 3).await?;
        let load = Load::start(&connect(world, "r").await?).await?;
        let mut pauses = Vec::new();
        for turn in 0..HAND_OVERS {
            load.await_more(BETWEEN_HAND_OVERS, PATIENCE).await?;
            let started = Instant::now();
            hand_over(world, turn).await?;
            load.await_more(BETWEEN_HAND_OVERS, PATIENCE).await?;
            pauses.push(load.longest_pause_since(started));
        }
        pauses.sort_unstable();
        let percentile = |percent: usize| pauses[HAND_OVERS * percent / 100 - 1];
        say(format_args!(
            "    {HAND_OVERS} hand-overs, longest pause between acknowledged writes: p50 {} ms, \
             p90 {} ms, p99 {} ms",
            percentile(50).as_millis(),
            percentile(90).as_millis(),
            percentile(99).as_millis()
        ));
        let summary = load.check(world, "r").await?;
        ensure!(summary.refused == 0, "{:?}", summary.first_error);
        Ok(())
    })
    .await;
}

/// From whoever leads to the next member, round and round.
async fn hand_over(world: &World, turn: usize) -> Result<()> {
    let address = async |ordinal: usize| -> Result<String> {
        let name = format!("r-{}", ordinal % 3);
        Ok(format!("{}:4103", world.pod_ip(&name).await?))
    };
    let next = AdminClient::connect(&address(turn).await?).await?;
    let next = next.status().await?;
    for ordinal in 0..3 {
        let member = AdminClient::connect(&address(ordinal).await?).await?;
        let status = member.status().await?;
        if status.leader_id == status.member_id && status.member_id != next.member_id {
            member.transfer_leader(next.member_id).await?;
        }
    }
    Ok(())
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
        let little = json!({"memory": "6Mi"});
        let bad = json!({"spec": {"resources": {"limits": little, "requests": little}}});
        stuck(world, bad, "OOMKilled").await?;
        // Longer than it takes until a crashing member would be given up.
        world
            .await_cluster("r", PATIENCE, |cluster| {
                message(cluster, conditions::PROGRESSING).contains("before the next restart")
            })
            .await?;
        tokio::time::sleep(Duration::from_secs(100)).await;
        untouched_but_one(world, &before).await?;
        world
            .edit("r", json!({"spec": {"resources": null}}))
            .await?;
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
        let deadline = Instant::now() + PATIENCE;
        while world.uids::<Pod>("r").await? == before {
            ensure!(Instant::now() < deadline, "nobody restarted");
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

/// Its volume would go with its pod: when, is for whoever deleted the claim to say.
#[tokio::test]
async fn a_roll_out_leaves_a_member_to_people_whose_claim_was_deleted() {
    test("deleted-claim", async |world| {
        let before = world.make_cluster("r", 3).await?;
        let load = Load::start(&connect(world, "r").await?).await?;
        let held = names::cluster::pod("r", follower(&before)?);
        let pods = world.uids::<Pod>("r").await?;
        world.kubectl(&["delete", "pvc", &format!("data-{held}"), "--wait=false"])?;
        world
            .edit("r", json!({"spec": {"engine": {"logLevel": "debug"}}}))
            .await?;
        let stopped = world
            .await_cluster("r", CHANGE_PATIENCE, |cluster| {
                message(cluster, conditions::PROGRESSING).contains("its volume claim was deleted")
            })
            .await?;
        let words = message(&stopped, conditions::PROGRESSING);
        say(format_args!("    stopped: {words}"));
        for (pod, uid) in world.uids::<Pod>("r").await? {
            let same = pods.get(&pod) == Some(&uid);
            ensure!(same == (pod == held), "{pod}: {words}");
        }
        // As the words say.
        world.kubectl(&["delete", "pod", &held])?;
        let old = ids(&before).remove(&held);
        let replaced = |cluster: &DEngineCluster| {
            let id = ids(cluster).remove(&held);
            id.is_some() && id != old
        };
        world.await_cluster("r", CHANGE_PATIENCE, replaced).await?;
        world.await_settled("r", 3).await?;
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
