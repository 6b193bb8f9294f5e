//! Every machine of a `memory-first` cluster loses power at once. The commands are those of the
//! runbook, as they stand there.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use dengine_client::Consistency;
use dengine_crds::{conditions, names};
use dengine_e2e::cluster::Cluster;
use dengine_local_kubernetes::shell;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::repair::pretend_another_boot;
use crate::clusters::{CHANGE_PATIENCE, is_false, message};
use crate::load::connect;
use crate::node::Process;
use crate::runbook;
use crate::support::{World, not_run, test};

const CLUSTER: &str = "r";
const MEMBERS: u32 = 3;
const PATIENCE: Duration = Duration::from_secs(120);
const KEYS: u32 = 100;

#[tokio::test]
async fn the_runbook_brings_a_memory_first_cluster_back_after_a_power_loss() {
    test("recover", async |world| {
        if matches!(world.cluster(), Cluster::Current { .. }) {
            return not_run("another's volumes are not ours to reach into");
        }
        let spec = json!({
            "replicas": MEMBERS,
            "storage": {"size": "1Gi"},
            "engine": {"durability": "memory-first"},
        });
        world.make_cluster_with(CLUSTER, spec).await?;
        let client = connect(world, CLUSTER).await?;
        for key in 0..KEYS {
            client.put(format!("kept/{key}"), key.to_string()).await?;
        }
        lose_power(world).await?;
        let lost = world
            .await_cluster(CLUSTER, PATIENCE, |cluster| {
                is_false(cluster, conditions::QUORUM_AVAILABLE)
                    && message(cluster, conditions::DEGRADED).contains("code 3")
            })
            .await?;
        let words = message(&lost, conditions::DEGRADED);
        ensure!(
            words.contains("recover"),
            "the way out is not named: {words}"
        );

        follow_the_runbook(world).await?;
        world.await_settled(CLUSTER, MEMBERS as usize).await?;
        let client = connect(world, CLUSTER).await?;
        // The machine did not really lose power, so nothing may be missing.
        for key in 0..KEYS {
            let found = client
                .get(format!("kept/{key}"), Consistency::Linearizable)
                .await?;
            ensure!(
                found.kv.is_some_and(|kv| kv.value == key.to_string()),
                "kept/{key} is gone"
            );
        }
        world.print_events(CLUSTER).await
    })
    .await;
}

/// Every folder was written under another start of its machine, and every server ends without a
/// word.
async fn lose_power(world: &World) -> Result<()> {
    let mut servers = Vec::new();
    for ordinal in 0..MEMBERS {
        let pod = names::cluster::pod(CLUSTER, ordinal);
        servers.push(Process::of(world, &pod).await?);
        pretend_another_boot(&world.folder(CLUSTER, ordinal).await?)?;
    }
    servers.into_iter().try_for_each(Process::kill)
}

/// Blocks: stop the members; for each a pod and what is done with it; start the members.
async fn follow_the_runbook(world: &World) -> Result<()> {
    let heading = "### `memory-first`, and a majority of the machines lost power at once";
    let image = image(world).await?;
    let replicas = MEMBERS.to_string();
    let blocks = |ordinal: u32| {
        let member = names::cluster::pod(CLUSTER, ordinal);
        let fill_in = [
            ("NAME-N", member.as_str()),
            ("NAME", CLUSTER),
            ("IMAGE", image.as_str()),
            ("REPLICAS", replicas.as_str()),
        ];
        runbook::blocks("DEngineQuorumLost", heading, &fill_in)
    };
    let run = async |block: &runbook::Block| block.run(world, async |_, _| Ok(())).await;
    let of_first = blocks(0)?;
    let [stop, _, _, start] = &of_first[..] else {
        anyhow::bail!("four blocks are expected")
    };
    run(stop).await?;
    for ordinal in 0..MEMBERS {
        let blocks = blocks(ordinal)?;
        let (pod, recover) = (&blocks[1], &blocks[2]);
        ensure!(pod.language == "yaml", "{pod:?} is no object");
        let mut kubectl = world.cluster().kubectl();
        kubectl.args(["--namespace", &world.namespace, "create", "--filename=-"]);
        shell::run_with_input(&mut kubectl, &pod.text)?;
        recover
            .run(world, async |line, said| {
                let logs = line.contains(" logs ");
                let goes_on = said.contains("will continue with what is in its data directory");
                ensure!(!logs || goes_on, "{said}");
                Ok(())
            })
            .await?;
    }
    run(start).await?;
    world
        .await_cluster(CLUSTER, CHANGE_PATIENCE, |cluster| {
            is_false(cluster, conditions::RECONCILIATION_PAUSED)
        })
        .await
        .map(drop)
}

/// What the members run.
async fn image(world: &World) -> Result<String> {
    let pod = names::cluster::pod(CLUSTER, 0);
    let spec = world.api::<Pod>().get(&pod).await?.spec;
    let spec = spec.context("a pod has a spec")?;
    let server = spec.containers.into_iter().next();
    server
        .and_then(|server| server.image)
        .context("a container has an image")
}
