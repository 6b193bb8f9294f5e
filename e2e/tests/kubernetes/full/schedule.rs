//! Benchmarks by the clock, and those that go by themselves.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use dengine_crds::DEngineBenchmark;
use dengine_crds::benchmark::BenchmarkPhase;
use dengine_crds::names::annotations;
use dengine_e2e::observe;
use kube::ResourceExt as _;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::support::{World, test};

const PATIENCE: Duration = Duration::from_secs(180);

#[tokio::test]
async fn a_schedule_runs_it_again_and_keeps_what_was_before() {
    test("schedule", async |world| {
        world.make_cluster("c", 1).await?;
        make(world, "clock", json!({"schedule": "* * * * *"})).await?;
        let benchmarks = world.api::<DEngineBenchmark>();
        let twice = observe::until(&benchmarks, "clock", PATIENCE, |benchmark| {
            let status = benchmark.status.as_ref();
            status.is_some_and(|status| status.runs.len() >= 2)
        })
        .await?;
        let status = twice.status.context("it has a status")?;
        ensure!(
            status.runs.contains_key("1"),
            "the first run is gone: {:?}",
            status.runs.keys()
        );
        ensure!(status.next_run_at.is_some(), "when is the next one?");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn what_has_a_time_to_live_goes_after_it() {
    test("ttl", async |world| {
        world.make_cluster("c", 1).await?;
        make(world, "brief", json!({"ttlSecondsAfterFinished": 5})).await?;
        let benchmarks = world.api::<DEngineBenchmark>();
        let done = observe::until(&benchmarks, "brief", PATIENCE, |benchmark| {
            let phase = benchmark.status.as_ref().and_then(|status| status.phase);
            phase.is_some_and(BenchmarkPhase::is_final)
        })
        .await?;
        ensure!(
            done.metadata.deletion_timestamp.is_none(),
            "it went too early"
        );
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while benchmarks.get_opt("brief").await?.is_some() {
            ensure!(tokio::time::Instant::now() < deadline, "it is still there");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn an_annotation_asks_for_a_benchmark_once() {
    test("annotation", async |world| {
        world.make_cluster("c", 1).await?;
        world.kubectl(&["annotate", "denginecluster/c", "dengine.io/benchmark=quick"])?;
        let asked = observe::until(
            &world.api::<DEngineBenchmark>(),
            "c-quick",
            PATIENCE,
            |benchmark| benchmark.status.is_some(),
        )
        .await?;
        ensure!(
            asked.spec.profile.as_deref() == Some("quick"),
            "{:?}",
            asked.spec
        );
        world
            .await_cluster("c", PATIENCE, |cluster| {
                !cluster.annotations().contains_key(annotations::BENCHMARK)
            })
            .await?;
        let still = world.api::<DEngineBenchmark>().get("c-quick").await?;
        ensure!(
            still.spec.run_id == asked.spec.run_id,
            "it was asked for twice"
        );
        Ok(())
    })
    .await;
}

async fn make(world: &World, name: &str, more: Value) -> Result<()> {
    let mut spec = json!({
        "target": {"clusterRef": {"name": "c"}}, "workload": "put",
        "connections": 1, "clients": 2, "total": 100,
    });
    let more = more.as_object().context("an object")?.clone();
    spec.as_object_mut().context("an object")?.extend(more);
    let benchmark = json!({"metadata": {"name": name}, "spec": spec});
    let benchmark = serde_json::from_value(benchmark)?;
    world
        .api::<DEngineBenchmark>()
        .create(&PostParams::default(), &benchmark)
        .await?;
    Ok(())
}
