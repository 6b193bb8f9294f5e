//! Cuts in the network between members, both ways and one way. The operator still reaches
//! everybody, so its status must tell who takes part and who only thinks so.

use std::time::Duration;

use anyhow::{Result, ensure};
use dengine_client::{AdminClient, Client, ClientOptions, Consistency};
use dengine_crds::{DEngineCluster, conditions, names};
use dengine_e2e::cluster::Cluster;
use dengine_e2e::observe;

use crate::clusters::{leader, status};
use crate::load::{Load, connect, say};
use crate::node::{Cut, Process};
use crate::support::{World, not_run, test};

const ENOUGH: usize = 200;
const PATIENCE: Duration = Duration::from_secs(90);

#[tokio::test]
async fn a_leader_that_is_cut_off_serves_nothing_stale_and_comes_back() {
    partitions("cut-leader", true, &[Cut::BothWays, Cut::Deaf, Cut::Mute]).await;
}

#[tokio::test]
async fn a_follower_that_is_cut_off_disturbs_nobody_and_comes_back() {
    partitions(
        "cut-follower",
        false,
        &[Cut::BothWays, Cut::Deaf, Cut::Mute],
    )
    .await;
}

async fn partitions(name: &str, leader_is_cut_off: bool, cuts: &[Cut]) {
    test(name, async |world| {
        if matches!(world.cluster(), Cluster::Current { .. }) {
            return not_run("another's nodes are not ours to reach into");
        }
        world.make_cluster("p", 3).await?;
        let load = Load::start(&connect(world, "p").await?).await?;
        for cut in cuts {
            load.await_more(ENOUGH, PATIENCE).await?;
            let before = world.await_settled("p", 3).await?;
            let leads = leader(&before)?;
            let away = members().find(|name| (*name == leads) == leader_is_cut_off);
            partition(world, &load, *cut, &away.unwrap_or(leads)).await?;
        }
        load.check(world, "p").await?;
        agree(world).await
    })
    .await;
}

fn members() -> impl Iterator<Item = String> {
    (0..3).map(|ordinal| names::cluster::pod("p", ordinal))
}

/// Cuts `away` off from the others, looks at both sides, heals, and looks again.
async fn partition(world: &World, load: &Load, cut: Cut, away: &str) -> Result<()> {
    let (ip, process) = (world.pod_ip(away).await?, Process::of(world, away).await?);
    let mut others = Vec::new();
    for name in members().filter(|name| name != away) {
        others.push(world.pod_ip(&name).await?);
    }
    process.cut_off(cut, &others)?;
    let seen = during(world, load, cut, away, &ip).await;
    process.reconnect(cut, &others)?;
    seen?;
    world.await_settled("p", 3).await?;
    say(format_args!(
        "    {cut:?}, {away}: refused, reported and healed"
    ));
    Ok(())
}

async fn during(world: &World, load: &Load, cut: Cut, away: &str, ip: &str) -> Result<()> {
    let told = world
        .await_cluster("p", PATIENCE, |cluster| says_away(cluster, away))
        .await?;
    ensure!(
        observe::has_condition(&told, conditions::QUORUM_AVAILABLE),
        "two of three are a quorum: {told:?}"
    );
    minority_refuses(cut, ip).await?;
    load.await_more(ENOUGH, PATIENCE).await
}

/// Somebody else leads, and the member that is away is not healthy.
fn says_away(cluster: &DEngineCluster, away: &str) -> bool {
    let status = status(cluster);
    let healthy = |name: &str| status.members.iter().any(|m| m.name == name && m.healthy);
    status.leader.is_some_and(|leader| leader != away)
        && !healthy(away)
        && members()
            .filter(|name| name != away)
            .all(|name| healthy(&name))
}

/// The member by itself: what needs a quorum is refused, what does not is answered.
async fn minority_refuses(cut: Cut, ip: &str) -> Result<()> {
    let options = ClientOptions {
        request_timeout: Duration::from_secs(3),
        ..ClientOptions::default()
    };
    let alone = Client::connect_with([format!("{ip}:4100")], options).await?;
    for consistency in [Consistency::Linearizable, Consistency::Lease] {
        let read = alone.get("any", consistency).await;
        ensure!(
            read.is_err(),
            "{cut:?}: {consistency:?} was answered: {read:?}"
        );
    }
    let write = alone.put("minority", "lost").await;
    ensure!(
        write.is_err(),
        "{cut:?}: a write was acknowledged: {write:?}"
    );
    alone.get("any", Consistency::Eventual).await?;
    Ok(())
}

/// All members have the same state at the same index.
async fn agree(world: &World) -> Result<()> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let mut hashes = Vec::new();
        for name in members() {
            let address = format!("{}:4103", world.pod_ip(&name).await?);
            let hash = AdminClient::connect(&address).await?.hash().await?;
            hashes.push((hash.applied_index, hash.hash));
        }
        hashes.sort_unstable();
        let same_index = hashes.windows(2).all(|pair| pair[0].0 == pair[1].0);
        let same_hash = hashes.windows(2).all(|pair| pair[0].1 == pair[1].1);
        if same_index {
            ensure!(same_hash, "members differ: {hashes:?}");
            return Ok(());
        }
        // What the leader does by itself may come in between.
        ensure!(
            tokio::time::Instant::now() < deadline,
            "never at one index: {hashes:?}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
