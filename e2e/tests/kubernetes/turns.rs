//! Benchmarks that wait: for each other, and while they are suspended; and a status that no
//! operator could read.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use dengine_crds::benchmark::BenchmarkPhase;
use dengine_crds::reasons::benchmark as reasons;
use dengine_crds::{DEngineBenchmark, conditions};
use dengine_e2e::observe;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::support::{World, test};

const PATIENCE: Duration = Duration::from_secs(120);

#[tokio::test]
async fn benchmarks_of_one_cluster_take_turns_and_suspended_ones_wait() {
    test("turns", async |world| {
        world.make_cluster("c", 1).await?;
        let benchmarks = world.api::<DEngineBenchmark>();
        for name in ["one", "two"] {
            make(world, name, json!({})).await?;
        }
        make(world, "later", json!({"suspend": true})).await?;
        let mut spans = Vec::new();
        for name in ["one", "two"] {
            spans.push(span(&await_end(&benchmarks, name).await?)?);
        }
        spans.sort();
        ensure!(spans[0].1 < spans[1].0, "they overlap: {spans:?}");

        let waits = observe::until(&benchmarks, "later", PATIENCE, |it| {
            reason(it) == Some(reasons::SUSPENDED.to_owned())
        });
        let waits = waits.await?;
        ensure!(waits.status.is_some_and(|status| status.run_id.is_none()));
        let resume = Patch::Merge(json!({"spec": {"suspend": false}}));
        benchmarks
            .patch("later", &PatchParams::default(), &resume)
            .await?;
        await_end(&benchmarks, "later").await?;
        poison(&benchmarks).await
    })
    .await;
}

/// What no reader could decode is refused by the API server.
async fn poison(benchmarks: &Api<DEngineBenchmark>) -> Result<()> {
    let status = json!({"status": {"runs": {"1": {"machine": {"processors": 5_000_000_000_u64}}}}});
    let refused = benchmarks
        .patch_status("one", &PatchParams::default(), &Patch::Merge(status))
        .await;
    let words = format!("{:?}", refused.err().context("it was taken")?);
    ensure!(words.contains("processors"), "{words}");
    Ok(())
}

async fn await_end(benchmarks: &Api<DEngineBenchmark>, name: &str) -> Result<DEngineBenchmark> {
    let done = observe::until(benchmarks, name, PATIENCE, |it| {
        let phase = it.status.as_ref().and_then(|status| status.phase);
        phase.is_some_and(BenchmarkPhase::is_final)
    })
    .await?;
    let phase = done.status.as_ref().and_then(|status| status.phase);
    ensure!(
        phase == Some(BenchmarkPhase::Succeeded),
        "{:?}",
        done.status
    );
    Ok(done)
}

/// When its load began and ended.
fn span(benchmark: &DEngineBenchmark) -> Result<(String, String)> {
    let runs = benchmark.status.as_ref().map(|status| &status.runs);
    let report = runs.and_then(|runs| runs.get("1")).context("run 1")?;
    let result = report.results.first().context("its result")?;
    Ok((result.started_at.clone(), result.finished_at.clone()))
}

fn reason(benchmark: &DEngineBenchmark) -> Option<String> {
    let all = benchmark
        .status
        .iter()
        .flat_map(|status| &status.conditions);
    let mut target = all.filter(|condition| condition.type_ == conditions::TARGET_READY);
    target.next().map(|condition| condition.reason.clone())
}

async fn make(world: &World, name: &str, more: Value) -> Result<()> {
    let mut spec = json!({
        "target": {"clusterRef": {"name": "c"}}, "workload": "put",
        "connections": 1, "clients": 2, "total": 400,
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
