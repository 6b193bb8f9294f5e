//! Volumes that fill up: the members refuse what needs space before there is none, say so, and go
//! on when there is some.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use dengine_client::{Client, ClientOptions, Consistency};
use dengine_crds::reasons::events;
use dengine_crds::{DEngineCluster, conditions, names};
use dengine_e2e::cluster::Cluster;
use dengine_e2e::observe;
use k8s_openapi::api::core::v1::Pod;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use serde_json::{Value, json};

use crate::clusters::{is_false, leader, message};
use crate::load::{Load, connect, say};
use crate::node::Process;
use crate::support::{World, not_run, test};

const ENOUGH: usize = 200;
const PATIENCE: Duration = Duration::from_secs(90);
/// Less than what a member keeps free (`--min-free-bytes`).
const LEFT_BYTES: u64 = 64 << 20;
/// Whatever is larger is no volume of this test.
const VOLUME_BYTES_MAX: u64 = 1 << 30;
const NOT_OURS: &str = "another's volumes are not ours to fill";
/// Beside the data folder, on the same volume.
const FILLER: &str = "/var/lib/dengine/filler";

#[tokio::test]
async fn a_full_volume_refuses_writes_until_it_grows_as_the_condition_advises() {
    test("full-volume", async |world| {
        if is_anothers(world) {
            return not_run(NOT_OURS);
        }
        world.make_cluster_with("f", spec(1)).await?;
        let load = Load::start(&connect(world, "f").await?).await?;
        load.await_more(ENOUGH, PATIENCE).await?;
        let pods = world.uids::<Pod>("f").await?;
        fill(world, "f-0").await?;
        let told = await_low(world).await?;
        refuses_only_what_needs_space(world).await?;

        let advice = message(&told, conditions::LOW_ON_SPACE);
        ensure!(advice.contains("raise spec.storage.size"), "{advice}");
        let larger = json!({"spec": {"storage": {"size": "1Gi"}}});
        world.edit("f", larger).await?;
        await_space(world).await?;
        load.await_more(ENOUGH, PATIENCE).await?;
        ensure!(world.uids::<Pod>("f").await? == pods, "a pod restarted");
        world.await_settled("f", 1).await?;
        load.check(world, "f").await?;
        world.print_events("f").await
    })
    .await;
}

#[tokio::test]
async fn a_leader_whose_volume_is_full_hands_over_and_writes_go_on() {
    test("full-leader", async |world| {
        if is_anothers(world) {
            return not_run(NOT_OURS);
        }
        let before = leader(&world.make_cluster_with("f", spec(3)).await?)?;
        let load = Load::start(&connect(world, "f").await?).await?;
        load.await_more(ENOUGH, PATIENCE).await?;
        let filler = fill(world, &before).await?;
        let told = await_low(world).await?;
        let words = message(&told, conditions::LOW_ON_SPACE);
        let ordinal = names::cluster::ordinal("f", &before).unwrap_or_default();
        ensure!(
            words.starts_with(&format!("the disk of member {ordinal} ")),
            "{words}"
        );
        let leads = |cluster: &DEngineCluster| leader(cluster).is_ok_and(|now| now != before);
        world.await_cluster("f", PATIENCE, leads).await?;
        load.await_more(ENOUGH, PATIENCE).await?;

        fs_err::remove_file(filler)?;
        await_space(world).await?;
        world.await_settled("f", 3).await?;
        let summary = load.check(world, "f").await?;
        ensure!(summary.refused == 0, "{:?}", summary.first_error);
        world.print_events("f").await
    })
    .await;
}

fn is_anothers(world: &World) -> bool {
    matches!(world.cluster(), Cluster::Current { .. })
}

fn spec(replicas: u32) -> Value {
    json!({"replicas": replicas, "storage": {"size": "512Mi", "storageClassName": "sized"}})
}

/// Takes the space of a member's volume but for a rest; returns the file that has it.
async fn fill(world: &World, pod: &str) -> Result<PathBuf> {
    let path = Process::of(world, pod).await?.path(FILLER);
    let file = rustix::fs::open(&path, OFlags::CREATE | OFlags::WRONLY, Mode::RUSR)?;
    let volume = rustix::fs::fstatvfs(&file)?;
    let size_bytes = volume.f_blocks * volume.f_frsize;
    ensure!(
        size_bytes <= VOLUME_BYTES_MAX,
        "{pod} has the machine's disk"
    );
    let bytes = (volume.f_bavail * volume.f_frsize).saturating_sub(LEFT_BYTES);
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
    Ok(path)
}

async fn await_low(world: &World) -> Result<DEngineCluster> {
    let low = |cluster: &DEngineCluster| observe::has_condition(cluster, conditions::LOW_ON_SPACE);
    let told = world.await_cluster("f", PATIENCE, low).await?;
    say(format_args!(
        "    full: {}",
        message(&told, conditions::LOW_ON_SPACE)
    ));
    await_event(world, events::LOW_ON_SPACE).await?;
    Ok(told)
}

async fn await_space(world: &World) -> Result<()> {
    let enough = |cluster: &DEngineCluster| is_false(cluster, conditions::LOW_ON_SPACE);
    world.await_cluster("f", PATIENCE, enough).await?;
    await_event(world, events::SPACE_IS_BACK).await
}

/// Events follow the condition that they tell of.
async fn await_event(world: &World, wanted: &str) -> Result<()> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let events = world.events("f").await?;
        if events.iter().any(|(reason, _)| reason == wanted) {
            return Ok(());
        }
        ensure!(
            tokio::time::Instant::now() < deadline,
            "no {wanted}: {events:#?}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn refuses_only_what_needs_space(world: &World) -> Result<()> {
    let options = ClientOptions {
        request_timeout: Duration::from_secs(3),
        ..ClientOptions::default()
    };
    let member = format!("{}:4100", world.pod_ip("f-0").await?);
    let client = Client::connect_with([member], options).await?;
    let written = client.put("full", "refused").await;
    let refused = written.as_ref().err().map(ToString::to_string);
    let words = refused.unwrap_or_default();
    ensure!(words.contains("nearly full"), "a write: {written:?}");
    client.get("full", Consistency::Linearizable).await?;
    client.delete("full").await?;
    Ok(())
}
