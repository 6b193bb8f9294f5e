//! Pods that a quota refuses: the status says why, and the runbook's commands, as they stand there,
//! bring them.

use std::time::Duration;

use anyhow::{Result, ensure};
use dengine_crds::conditions;
use dengine_e2e::observe;
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::clusters::message;
use crate::load::say;
use crate::runbook;
use crate::support::{World, test};

const PATIENCE: Duration = Duration::from_secs(90);
const QUOTA: &str = "small";

#[tokio::test]
async fn a_pod_beyond_a_quota_comes_when_the_runbook_raises_it() {
    test("quota", async |world| {
        limit(world, json!({"pods": "2"})).await?;
        begin(world, 3).await?;
        let raised = [("RESOURCE", "pods"), ("AMOUNT", "3")];
        follow_the_runbook(world, "exceeded quota: small", "QUOTA", &raised).await?;
        world.await_settled("q", 3).await.map(drop)
    })
    .await;
}

#[tokio::test]
async fn pods_that_ask_for_nothing_come_when_the_runbook_has_them_ask() {
    test("quota-of-requests", async |world| {
        limit(
            world,
            json!({"requests.cpu": "1", "requests.memory": "1Gi"}),
        )
        .await?;
        begin(world, 1).await?;
        let asked = [("CPU", "50m"), ("MEMORY", "64Mi")];
        follow_the_runbook(world, "must specify requests.cpu", "CPU", &asked).await?;
        world.await_settled("q", 1).await.map(drop)
    })
    .await;
}

/// Nothing more than that in the test's namespace, from now on.
async fn limit(world: &World, hard: Value) -> Result<()> {
    let quotas = world.api::<ResourceQuota>();
    let quota = serde_json::from_value(json!({
        "metadata": {"name": QUOTA}, "spec": {"hard": hard},
    }))?;
    quotas.create(&PostParams::default(), &quota).await?;
    // Until it has been counted, everything is refused, for another reason.
    observe::until(&quotas, QUOTA, PATIENCE, |quota| {
        let status = quota.status.as_ref();
        status.is_some_and(|status| status.hard.is_some() && status.used.is_some())
    })
    .await
    .map(drop)
}

async fn begin(world: &World, replicas: u32) -> Result<()> {
    let spec = json!({"replicas": replicas, "storage": {"size": "1Gi"}});
    world.begin_cluster("q", spec).await
}

/// Once the status names the cause: looks as the runbook says, and runs those of its commands in
/// which this is to be filled in.
async fn follow_the_runbook(
    world: &World,
    cause: &str,
    mends: &str,
    fill_in: &[(&str, &str)],
) -> Result<()> {
    let told = world
        .await_cluster("q", PATIENCE, |cluster| {
            let words = message(cluster, conditions::READY);
            words.contains("Kubernetes refuses pods: ") && words.contains(cause)
        })
        .await?;
    say(format_args!("      {}", message(&told, conditions::READY)));
    let (page, heading) = ("DEngineClusterDegraded", "### Kubernetes refuses pods");
    let as_written = runbook::blocks(page, heading, &[])?;
    let fill_in = [fill_in, &[("QUOTA", QUOTA), ("NAME", "q")]].concat();
    let filled_in = runbook::blocks(page, heading, &fill_in)?;
    let (mut looked, mut mended) = (false, false);
    for (written, block) in as_written.iter().zip(filled_in) {
        let (looks, mends) = (
            written.text.contains("describe"),
            written.text.contains(mends),
        );
        if !looks && !mends {
            continue;
        }
        block
            .run(world, async |line, said| {
                let is_seen = !line.contains("statefulset") || said.contains(cause);
                ensure!(is_seen, "the events do not say it: {said}");
                Ok(())
            })
            .await?;
        (looked, mended) = (looked || looks, mended || mends);
    }
    ensure!(
        looked && mended,
        "the runbook has no such commands any more"
    );
    Ok(())
}
