//! `make demo`: from nothing to three members on Kubernetes and a benchmark's numbers in
//! `kubectl get`.

use std::fmt;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};
use dengine_bench_model::results::RunResult;
use dengine_crds::benchmark::BenchmarkPhase;
use dengine_crds::{DEngineBenchmark, DEngineCluster, conditions};
use dengine_local_kubernetes::progress::ProgressStep;
use dengine_local_kubernetes::{down, shell};
use kube::Api;

use crate::cluster::{Cluster, LocalArgs, USE_CURRENT_CONTEXT};
use crate::product::{self, Profile};
use crate::{install, made, observe};

const CLUSTER: &str = "demo";
const NAMESPACE: &str = "default";
const READY_PATIENCE: Duration = Duration::from_secs(300);
const BENCHMARK_PATIENCE: Duration = Duration::from_secs(600);

/// The benchmarks of the demo, one after the other: side by side they would measure each other.
const BENCHMARKS: [Shape; 3] = [
    Shape {
        name: "demo-write",
        workload: "put",
        consistency: None,
        total: 20_000,
    },
    Shape {
        name: "demo-read",
        workload: "range",
        consistency: Some("l"),
        total: 20_000,
    },
    Shape {
        name: "demo-read-eventual",
        workload: "range",
        consistency: Some("e"),
        total: 20_000,
    },
];

struct Shape {
    name: &'static str,
    workload: &'static str,
    consistency: Option<&'static str>,
    total: u64,
}

/// Runs the demo; what is there already is used, and the benchmarks run again.
///
/// # Errors
/// When a step fails; the error says what a person needs to see why.
pub async fn up(own_program: &Path, wanted: LocalArgs) -> Result<()> {
    let cluster = Cluster::choose(own_program, wanted)?;
    let images = product::ensure(Profile::Release)?;
    cluster.load(&images)?;
    install::operator(&cluster, &images)?;
    let client = cluster.client().await?;
    make_cluster(&cluster, &Api::namespaced(client.clone(), NAMESPACE)).await?;
    let mut results = Vec::new();
    for shape in &BENCHMARKS {
        results.push(measure(&cluster, &Api::namespaced(client.clone(), NAMESPACE), shape).await?);
    }
    report(&cluster, &results)
}

/// Removes everything that the demo made, and the local cluster with it. In another's cluster, what
/// was there before stays.
///
/// # Errors
/// When the API server refuses.
pub fn down() -> Result<()> {
    if std::env::var(USE_CURRENT_CONTEXT).is_ok_and(|value| value == "1") {
        return install::remove_demo(&Cluster::current()?, NAMESPACE, CLUSTER);
    }
    down::down()
}

fn make(cluster: &Cluster, kind: &str, name: &str, manifest: &str) -> Result<()> {
    let kubectl = |arguments: &[&str]| shell::run(cluster.kubectl().args(arguments));
    made::make(&kubectl, NAMESPACE, kind, name, || cluster.apply(manifest))
}

async fn make_cluster(cluster: &Cluster, clusters: &Api<DEngineCluster>) -> Result<()> {
    let mut step = ProgressStep::start(format!("DEngineCluster {CLUSTER}: three members"));
    let manifest = include_str!("../manifests/demo-cluster.yaml");
    make(cluster, "denginecluster", CLUSTER, manifest)?;
    let ready = observe::until(clusters, CLUSTER, READY_PATIENCE, |found| {
        step.note(Standing(found));
        observe::has_condition(found, conditions::READY)
    })
    .await
    .with_context(|| observe::report(cluster, NAMESPACE))?;
    let leader = ready
        .status
        .and_then(|status| status.leader)
        .unwrap_or_default();
    step.done(format_args!("{leader} leads"));
    Ok(())
}

async fn measure(
    cluster: &Cluster,
    benchmarks: &Api<DEngineBenchmark>,
    shape: &Shape,
) -> Result<(String, RunResult)> {
    let mut step = ProgressStep::start(format!("DEngineBenchmark {}", shape.name));
    let run = SystemTime::now()
        .duration_since(UNIX_EPOCH)?
        .as_secs()
        .to_string();
    make(
        cluster,
        "denginebenchmark",
        shape.name,
        &shape.manifest(&run),
    )?;
    let found = observe::until(benchmarks, shape.name, BENCHMARK_PATIENCE, |found| {
        let status = found
            .status
            .as_ref()
            .filter(|status| status.run_id.as_ref() == Some(&run));
        let phase = status.and_then(|status| status.phase);
        step.note(phase.map_or_else(
            || "waiting for the operator".to_owned(),
            |phase| phase.to_string(),
        ));
        phase.is_some_and(BenchmarkPhase::is_final)
    })
    .await
    .with_context(|| observe::report(cluster, NAMESPACE))?;
    let status = found.status.unwrap_or_default();
    let report = status.runs.get(&run);
    match (
        status.phase,
        report.and_then(|report| report.results.first()),
    ) {
        (Some(BenchmarkPhase::Succeeded), Some(result)) => {
            step.done(format_args!(
                "{:.0} requests a second",
                result.ops_per_second
            ));
            Ok((shape.name.to_owned(), result.clone()))
        }
        (phase, _) => {
            let phase = phase.map_or_else(|| "nowhere".to_owned(), |phase| phase.to_string());
            bail!(
                "benchmark {} ended as {phase}\n{}",
                shape.name,
                observe::report(cluster, NAMESPACE)
            )
        }
    }
}

impl Shape {
    fn manifest(&self, run: &str) -> String {
        let consistency = self
            .consistency
            .map(|letter| format!("  consistency: {letter}\n"))
            .unwrap_or_default();
        format!(
            "apiVersion: dengine.io/v1alpha1
kind: DEngineBenchmark
metadata:
  name: {}
  namespace: {NAMESPACE}
spec:
  target:
    clusterRef:
      name: {CLUSTER}
  workload: {}
{consistency}  connections: 10
  clients: 100
  total: {}
  keySpace: {}
  valueSize: 256
  runId: \"{run}\"
",
            self.name, self.workload, self.total, self.total,
        )
    }
}

/// What the cluster's status says, in a line.
struct Standing<'a>(&'a DEngineCluster);

impl fmt::Display for Standing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(status) = &self.0.status else {
            return f.write_str("waiting for the operator");
        };
        let phase = status
            .phase
            .map_or_else(|| "Pending".to_owned(), |phase| phase.to_string());
        let members = status.members.len();
        write!(
            f,
            "{phase}: {members} members, {} ready",
            status.ready_replicas
        )?;
        match &status.leader {
            Some(leader) => write!(f, ", {leader} leads")?,
            None => f.write_str(", no leader yet")?,
        }
        let progressing = status
            .conditions
            .iter()
            .find(|condition| condition.type_ == conditions::PROGRESSING);
        match progressing {
            Some(condition) if !condition.message.is_empty() => {
                write!(f, " ({})", condition.message)
            }
            _ => Ok(()),
        }
    }
}

fn report(cluster: &Cluster, results: &[(String, RunResult)]) -> Result<()> {
    let mut get = cluster.kubectl();
    get.args([
        "--namespace",
        NAMESPACE,
        "get",
        "dengineclusters,denginebenchmarks",
    ]);
    let objects = shell::run(&mut get)?;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "\n$ kubectl get dengineclusters,denginebenchmarks\n{objects}"
    )?;
    writeln!(out, "{}\n", table(results))?;
    let mut variable = format!(" {USE_CURRENT_CONTEXT}=1");
    if let Some(kubeconfig) = cluster.kubeconfig() {
        writeln!(out, "export KUBECONFIG={}", kubeconfig.display())?;
        variable.clear();
    }
    writeln!(
        out,
        "try: kubectl delete pod -l dengine.io/cluster={CLUSTER} --field-selector \
         metadata.name=$(kubectl get dec {CLUSTER} -o jsonpath='{{.status.leader}}') && kubectl \
         get dec {CLUSTER} --watch      # `make demo-down{variable}` removes everything"
    )?;
    Ok(())
}

fn table(results: &[(String, RunResult)]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY).set_header([
        "benchmark",
        "requests",
        "errors",
        "seconds",
        "ops/s",
        "avg µs",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "durability",
    ]);
    for (name, result) in results {
        let latency = &result.latency_us;
        table.add_row([
            name.clone(),
            result.requests.to_string(),
            result.errors.to_string(),
            format!("{:.2}", result.total_seconds),
            format!("{:.0}", result.ops_per_second),
            format!("{:.0}", latency.avg),
            latency.p50.to_string(),
            latency.p99.to_string(),
            latency.p999.to_string(),
            result.durability.clone().unwrap_or_default(),
        ]);
    }
    table
        .column_iter_mut()
        .skip(1)
        .for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

#[cfg(test)]
mod tests {
    use dengine_bench_model::results::ReadConsistency;
    use kube::ResourceExt as _;

    use super::*;

    #[test]
    fn the_manifests_are_what_the_types_say() {
        let demo: DEngineCluster =
            serde_saphyr::from_str(include_str!("../manifests/demo-cluster.yaml")).unwrap();
        assert_eq!((demo.name_any().as_str(), demo.spec.replicas), (CLUSTER, 3));
        for shape in &BENCHMARKS {
            let benchmark: DEngineBenchmark = serde_saphyr::from_str(&shape.manifest("1")).unwrap();
            let workload = benchmark.spec.workload.expect("each names one");
            assert_eq!(workload.as_str(), shape.workload);
            assert_eq!(
                benchmark.spec.consistency.map(ReadConsistency::as_str),
                shape.consistency
            );
        }
    }
}
