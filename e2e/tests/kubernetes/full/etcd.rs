//! DEngine and a real etcd of three members on the same Kubernetes, measured by one benchmark.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use dengine_crds::benchmark::{BenchmarkPhase, DEngineBenchmarkStatus};
use dengine_crds::{DEngineBenchmark, DEngineCluster, names};
use dengine_e2e::cluster::Cluster;
use dengine_e2e::observe;
use dengine_local_kubernetes::shell;
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::api::PostParams;
use serde_json::json;

use crate::load::say;
use crate::plugin::dengine;
use crate::support::{READY_PATIENCE, World, not_run, test_alone};

const PATIENCE: Duration = Duration::from_secs(600);
const RUN: &str = "1";

#[tokio::test]
async fn one_benchmark_says_who_won_each_workload_and_by_how_much() {
    // Alone: whatever runs beside it would be measured too.
    test_alone("etcd", async |world| {
        let Cluster::Local(local) = world.cluster() else {
            return not_run("the image of etcd is made for the local Kubernetes");
        };
        make_etcd(world, &local.load_program("etcd")?).await?;
        world.make_cluster("fast", 3).await?;
        let status = measure(world).await?;
        judge(&status)?;
        page(world)?;
        say(format_args!(
            "{}",
            world.kubectl(&["get", "denginebenchmarks", "--output=wide"])?
        ));
        let line = |cluster: &DEngineCluster| {
            let mut lines = cluster.status.iter().flat_map(|status| &status.benchmarks);
            lines.any(|line| line.name == "versus" && line.score == status.score)
        };
        world.await_cluster("fast", PATIENCE, line).await.map(drop)
    })
    .await;
}

async fn make_etcd(world: &World, image: &str) -> Result<()> {
    let manifest = include_str!("../../../manifests/etcd.yaml")
        .replace("IMAGE", image)
        .replace("NAMESPACE", &world.namespace);
    let mut apply = world.cluster().kubectl();
    apply.args(["--namespace", &world.namespace, "apply", "--filename=-"]);
    shell::run_with_input(&mut apply, &manifest)?;
    observe::until(&world.api::<StatefulSet>(), "etcd", READY_PATIENCE, |set| {
        set.status.as_ref().and_then(|status| status.ready_replicas) == Some(3)
    })
    .await
    .map(drop)
}

async fn measure(world: &World) -> Result<DEngineBenchmarkStatus> {
    let endpoints: Vec<String> = (0..3)
        .map(|member| format!("etcd-{member}.etcd.{}.svc:2379", world.namespace))
        .collect();
    let benchmark = json!({
        "metadata": {"name": "versus"},
        "spec": {
            "target": {"clusterRef": {"name": "fast"}},
            "profile": "quick",
            "compareWith": {"etcd": {"endpoints": endpoints}},
            "thresholds": ["errors <= 0"],
            "runId": RUN,
        },
    });
    let benchmarks = world.api::<DEngineBenchmark>();
    let benchmark = serde_json::from_value(benchmark)?;
    benchmarks
        .create(&PostParams::default(), &benchmark)
        .await?;
    let done = observe::until(&benchmarks, "versus", PATIENCE, |benchmark| {
        let phase = benchmark.status.as_ref().and_then(|status| status.phase);
        phase.is_some_and(BenchmarkPhase::is_final)
    })
    .await?;
    done.status.context("a finished benchmark has a status")
}

/// One command, and both are on it.
fn page(world: &World) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("versus.html");
    let html = format!("--html={}", file.display());
    dengine(world, &["report", "versus", &html])?;
    let page = fs_err::read_to_string(file)?;
    for named in ["</i>DEngine (fast)", "</i>etcd", "linearizable-read"] {
        ensure!(page.contains(named), "the page lacks {named}");
    }
    Ok(())
}

fn judge(status: &DEngineBenchmarkStatus) -> Result<()> {
    ensure!(
        status.phase == Some(BenchmarkPhase::Succeeded),
        "{:?}: {:?}",
        status.phase,
        status.conditions
    );
    for row in &status.comparison {
        say(format_args!(
            "    {:<20} {:?} {:>6}x   {:>8} and {:>8} per second, p99 {} and {}",
            row.workload,
            row.winner,
            row.times,
            row.ops_per_second,
            row.etcd_ops_per_second,
            row.p99,
            row.etcd_p99
        ));
    }
    ensure!(
        // All but the lease reads, which etcd does not have.
        status.comparison.len() == 5 && status.score.is_some(),
        "{:?}",
        status.comparison
    );
    for run in [RUN.to_owned(), names::benchmark::rival(RUN)] {
        let report = status.runs.get(&run);
        ensure!(
            report.is_some_and(|report| report.results.len() == 6),
            "{run}"
        );
    }
    ensure!(status.placement.is_some(), "where did the load run?");
    Ok(())
}
