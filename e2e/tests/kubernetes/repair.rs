//! A member whose data is gone or of no use is replaced under a new id, with an empty folder,
//! before anything else is done.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use dengine_crds::reasons::events;
use dengine_crds::{DEngineCluster, names};
use dengine_e2e::cluster::Cluster;
use serde_json::json;

use crate::clusters::{CHANGE_PATIENCE, follower, ids, status};
use crate::load::{Load, connect};
use crate::support::{World, not_run, test};

const ENOUGH: usize = 200;
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_member_with_a_damaged_log_is_replaced_before_the_cluster_grows() {
    test("repair", async |world| {
        repairs(
            world,
            json!({"replicas": 3}),
            Claim::New,
            async |folder, pod| {
                damage_log(folder)?;
                world.kill_pod(pod).await?;
                // While its pod is only away, the cluster may grow.
                world.await_refusal_of_folder(pod).await?;
                // Asked for meanwhile; it has to wait.
                world.edit("m", json!({"spec": {"replicas": 5}})).await
            },
        )
        .await?;
        let events = world.events("m").await?;
        let replaced = events
            .iter()
            .rposition(|(reason, note)| reason == events::MEMBER_REMOVED && !note.contains("m-3"))
            .with_context(|| format!("no event tells of the replacement: {events:#?}"))?;
        let grew = events
            .iter()
            .position(|(_, note)| note.starts_with("added m-3"))
            .with_context(|| format!("no event tells of m-3: {events:#?}"))?;
        ensure!(replaced < grew, "it grew first: {events:#?}");
        world.await_settled("m", 5).await?;
        old_volume_was_kept(world).await
    })
    .await;
}

/// While nobody voted in the place of the member that was replaced, and no longer.
async fn old_volume_was_kept(world: &World) -> Result<()> {
    let is_released = |cluster: &DEngineCluster| {
        let replaced = status(cluster).replacements;
        !replaced.is_empty() && replaced.iter().all(|one| one.kept_volume.is_none())
    };
    let cluster = world.await_cluster("m", PATIENCE, is_released).await?;
    let replaced = status(&cluster).replacements;
    ensure!(
        replaced.iter().all(|one| one.not_kept.is_none()),
        "{replaced:?}"
    );
    let told = world.events("m").await?;
    for expected in [events::VOLUME_KEPT, events::VOLUME_RELEASED] {
        let is_told = told.iter().any(|(reason, _)| reason == expected);
        ensure!(is_told, "{expected}: {told:#?}");
    }
    Ok(())
}

/// What becomes of the volume claim of a member that is replaced.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Claim {
    /// Its folder was emptied in place, so there is nothing to delete.
    Same,
    /// What is in it is of no use.
    New,
}

/// Harms a follower of a new cluster `m` while writers run; checks that it was replaced, and by
/// whom.
pub(crate) async fn repairs(
    world: &World,
    spec: serde_json::Value,
    claim: Claim,
    harm: impl AsyncFnOnce(&Path, &str) -> Result<()>,
) -> Result<()> {
    if matches!(world.cluster(), Cluster::Current { .. }) {
        return not_run("another's volumes are not ours to reach into");
    }
    let before = world.make_cluster_with("m", spec).await?;
    let load = Load::start(&connect(world, "m").await?).await?;
    load.await_more(ENOUGH, PATIENCE).await?;
    let ordinal = follower(&before)?;
    let (pod, folder) = (
        names::cluster::pod("m", ordinal),
        world.folder("m", ordinal).await?,
    );
    let (folder_id, claims) = (folder_id(&folder)?, claims(world).await?);
    harm(&folder, &pod).await?;

    let old = ids(&before).remove(&pod).context("the pod was a member")?;
    let replaced = |cluster: &DEngineCluster| ids(cluster).get(&pod).is_some_and(|id| *id != old);
    world.await_cluster("m", CHANGE_PATIENCE, replaced).await?;
    let size = usize::try_from(world.api::<DEngineCluster>().get("m").await?.spec.replicas)?;
    let after = world.await_settled("m", size).await?;
    load.await_more(ENOUGH, PATIENCE).await?;
    load.check(world, "m").await?;
    world.print_events("m").await?;

    for (name, id) in ids(&before) {
        let same = ids(&after).get(&name) == Some(&id);
        ensure!(same == (name != pod), "{name} has the id {:?}", ids(&after));
    }
    let is_new = self::folder_id(&world.folder("m", ordinal).await?)? != folder_id;
    ensure!(is_new, "{pod} has its old folder");
    let name = names::cluster::claim("m", ordinal);
    let is_new_claim = claims.get(&name) != self::claims(world).await?.get(&name);
    ensure!(is_new_claim == (claim == Claim::New), "the claim {name}");
    Ok(())
}

async fn claims(world: &World) -> Result<std::collections::BTreeMap<String, String>> {
    world
        .uids::<k8s_openapi::api::core::v1::PersistentVolumeClaim>("m")
        .await
}

fn folder_id(folder: &Path) -> Result<String> {
    let record = fs_err::read_to_string(folder.join("folder.toml"))?;
    let line = record.lines().find(|line| line.starts_with("folder_id"));
    line.map(str::to_owned).context("folder.toml names the id")
}

/// Flips a byte in what the log has had on disk for long: more of the same log follows, so it is no
/// torn end.
fn damage_log(folder: &Path) -> Result<()> {
    let mut segments: Vec<_> = fs_err::read_dir(folder.join("log"))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()?;
    segments.retain(|file| file.extension().is_some_and(|kind| kind == "segment"));
    segments.sort();
    let first = segments.first().context("the log has a segment")?;
    let mut file = fs_err::OpenOptions::new()
        .read(true)
        .write(true)
        .open(first)?;
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(DAMAGED_BYTE))?;
    let mut byte = [0];
    std::io::Read::read_exact(&mut file, &mut byte)?;
    byte[0] ^= 0xff;
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(DAMAGED_BYTE))?;
    std::io::Write::write_all(&mut file, &byte)?;
    Ok(file.sync_all()?)
}

/// Behind the segment's head and in one of the first batches.
const DAMAGED_BYTE: u64 = 6_000;
