//! Changes that need a restart reach one member at a time, the leader last, and stop by themselves.

use std::time::Duration;

use anyhow::{Result, ensure};
use dengine_crds::conditions;
use dengine_crds::names::annotations;
use dengine_crds::reasons::events;
use dengine_e2e::observe;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tokio::time::Instant;

use crate::clusters::{CHANGE_PATIENCE, ids, leader, message};
use crate::load::{Load, connect, say};
use crate::support::{World, test};

const ENOUGH: usize = 200;
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_restart_takes_the_leader_last_after_it_handed_over() {
    test("roll", async |world| {
        world.make_cluster("r", 3).await?;
        let load = Load::start(&connect(world, "r").await?).await?;
        load.await_more(ENOUGH, PATIENCE).await?;
        let restart = json!({"metadata": {"annotations": {annotations::RESTART: "now"}}});
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

/// Changes the cluster `r` so that every member has to restart.
pub(crate) async fn roll(
    world: &World,
    load: &Load,
    what: &str,
    change: serde_json::Value,
) -> Result<()> {
    let before = world.await_settled("r", 3).await?;
    let (pods, told) = (
        world.uids::<Pod>("r").await?,
        world.events("r").await?.len(),
    );
    let started = Instant::now();
    world.edit("r", change).await?;
    world
        .await_cluster("r", PATIENCE, |cluster| {
            !observe::has_condition(cluster, conditions::MEMBERS_UPDATED)
        })
        .await?;
    let after = world.await_settled("r", 3).await?;
    load.await_more(ENOUGH, PATIENCE).await?;
    say(format_args!(
        "    {what}: three members in {:.1} s, longest pause between acknowledged writes {} ms",
        started.elapsed().as_secs_f64(),
        load.longest_pause_since(started).as_millis()
    ));
    ensure!(ids(&before) == ids(&after), "members changed: {after:?}");
    for (pod, uid) in world.uids::<Pod>("r").await? {
        ensure!(pods.get(&pod) != Some(&uid), "{pod} was not restarted");
    }
    leader_was_last(world, &leader(&before)?, told).await
}

/// As the events tell it.
async fn leader_was_last(world: &World, leader: &str, told_before: usize) -> Result<()> {
    let events = world.events("r").await?.split_off(told_before);
    let restarted: Vec<&(String, String)> = events
        .iter()
        .filter(|(reason, _)| reason == events::MEMBER_RESTARTED)
        .collect();
    let handed_over = events
        .iter()
        .position(|(reason, _)| reason == events::LEADER_TRANSFERRED);
    let last = events
        .iter()
        .rposition(|(reason, _)| reason == events::MEMBER_RESTARTED);
    ensure!(
        restarted.len() == 3 && handed_over.is_some() && handed_over < last,
        "{events:#?}"
    );
    ensure!(
        restarted
            .last()
            .is_some_and(|(_, note)| note.contains(leader)),
        "{leader} led and was not the last: {events:#?}"
    );
    Ok(())
}

/// A change that an updated member does not survive stops there; the words say why.
pub(crate) async fn stuck(world: &World, change: serde_json::Value, why: &str) -> Result<()> {
    world.edit("r", change).await?;
    let stopped = world
        .await_cluster("r", CHANGE_PATIENCE, |cluster| {
            message(cluster, conditions::READY).contains(why)
        })
        .await?;
    say(format_args!(
        "    stopped: {}",
        message(&stopped, conditions::READY)
    ));
    Ok(())
}
