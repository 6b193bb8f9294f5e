//! `kubectl dengine bench`: makes a `DEngineBenchmark`, or runs one again, and waits for its
//! numbers.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::bail;
use clap::Args;
use dengine_bench_model::pods;
use dengine_bench_model::results::Workload;
use dengine_crds::benchmark::{BenchmarkPhase, DEngineBenchmarkStatus};
use dengine_crds::{DEngineBenchmark, DEngineCluster, conditions};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Resource;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::access::{Access, object};
use crate::say;
use crate::words::{UNSEEN_MAX, Words, condition, holds, unseen};

/// Who owns the fields that this program sets.
const MANAGER: &str = "kubectl-dengine";

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Name of the cluster.
    cluster: String,
    /// Several workloads with shapes of their own, such as quick or standard;
    /// `dengine-bench run --list` shows them.
    #[arg(long, conflicts_with_all = ["workload", "connections", "clients", "total", "value_size"])]
    profile: Option<String>,
    /// One workload of the shape that the flags below give.
    #[arg(long, default_value = "put", value_parser = workload)]
    workload: Workload,
    /// Connections that the clients share.
    #[arg(long, default_value_t = 10)]
    connections: u32,
    /// Clients, each with one request in flight.
    #[arg(long, default_value_t = 100)]
    clients: u32,
    /// Requests over all clients.
    #[arg(long, default_value_t = 10_000)]
    total: u64,
    /// Bytes of each value.
    #[arg(long, default_value_t = 256)]
    value_size: u32,
    /// Pods that send the load together, each its share of the clients and connections.
    #[arg(
        long,
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(pods::MAX))
    )]
    pods: u32,
    /// Do not wait for the numbers.
    #[arg(long)]
    no_wait: bool,
}

fn workload(text: &str) -> Result<Workload, String> {
    serde_json::from_value(Value::from(text)).map_err(|error| error.to_string())
}

pub(crate) async fn run(access: &Access, options: &Options) -> anyhow::Result<()> {
    let run = SystemTime::now()
        .duration_since(UNIX_EPOCH)?
        .as_secs()
        .to_string();
    let measures = options
        .profile
        .as_deref()
        .unwrap_or(options.workload.as_str());
    let name = format!("{}-{measures}", options.cluster);
    let (cluster, namespace) = (&options.cluster, &access.namespace);
    let there = access.api::<DEngineCluster>().get_opt(cluster).await?;
    if there.is_none() {
        bail!("there is no cluster {cluster} in the namespace {namespace}");
    }
    let benchmark = manifest(&name, &run, options);
    let _: DEngineBenchmark = object(benchmark.clone())?;
    access
        .api::<DEngineBenchmark>()
        .patch(
            &name,
            &PatchParams::apply(MANAGER).force(),
            &Patch::Apply(&benchmark),
        )
        .await?;
    say(format_args!("denginebenchmark/{name}: run {run}"));
    if options.no_wait {
        return Ok(());
    }
    let status = wait(access, &name, &run).await?;
    let phase = status
        .phase
        .map_or("nowhere".to_owned(), |phase| phase.to_string());
    let condition = status
        .conditions
        .iter()
        .find(|c| c.type_ == conditions::COMPLETE);
    let words = condition.map(|c| c.message.as_str()).unwrap_or_default();
    let p99 = status.p99.as_deref().unwrap_or("unknown");
    if status.phase == Some(BenchmarkPhase::Succeeded) {
        let ops = status.ops_per_second.unwrap_or_default();
        let from = match options.pods {
            1 => String::new(),
            pods => format!(", from {pods} pods"),
        };
        say(format_args!(
            "{phase}: {ops} requests per second, p99 {p99}{from}"
        ));
        return Ok(());
    }
    bail!("{phase}: {words}")
}

fn manifest(name: &str, run: &str, options: &Options) -> Value {
    let mut spec = json!({
        "target": {"clusterRef": {"name": options.cluster}},
        "runId": run,
    });
    match &options.profile {
        Some(profile) => spec["profile"] = json!(profile),
        None => {
            spec["workload"] = json!(options.workload);
            spec["connections"] = json!(options.connections);
            spec["clients"] = json!(options.clients);
            spec["total"] = json!(options.total);
            spec["valueSize"] = json!(options.value_size);
        }
    }
    // What is not asked for need not be known to the CRDs, which may be older.
    if options.pods > 1 {
        spec["pods"] = json!(options.pods);
    }
    json!({
        "apiVersion": DEngineBenchmark::api_version(&()),
        "kind": DEngineBenchmark::kind(&()),
        "metadata": {"name": name},
        "spec": spec,
    })
}

/// Until that run is over; says what keeps it from beginning, how it goes, and what fails
/// meanwhile.
async fn wait(access: &Access, name: &str, run: &str) -> anyhow::Result<DEngineBenchmarkStatus> {
    let (started, mut told) = (Instant::now(), Words::default());
    let end = access
        .until(name, |benchmark: &DEngineBenchmark| {
            let end = look(benchmark, run, started.elapsed());
            if end.is_none() {
                let words = told.news(worth_saying(benchmark, run));
                words
                    .iter()
                    .for_each(|words| say(format_args!("  {words}")));
            }
            end
        })
        .await?;
    let cluster = match end {
        End::Over(status) => return Ok(*status),
        End::Unseen { cluster } => cluster,
    };
    let cluster = access.api::<DEngineCluster>().get_opt(&cluster).await?;
    let status = cluster.and_then(|cluster| cluster.status);
    let said = status.map(|status| status.conditions).unwrap_or_default();
    let others = holds(&said, conditions::OPERATED_BY_ANOTHER);
    bail!("denginebenchmark/{name}: {}", unseen(others))
}

/// That the target cannot be measured yet; of the run itself only what is said of this one.
fn worth_saying<'a>(benchmark: &'a DEngineBenchmark, run: &str) -> Vec<&'a Condition> {
    let Some(status) = &benchmark.status else {
        return Vec::new();
    };
    let said = |type_: &str| condition(&status.conditions, type_);
    let target = said(conditions::TARGET_READY).filter(|target| target.status == "False");
    let is_this_run = status.run_id.as_deref() == Some(run);
    let of_run = [conditions::COMPLETE, conditions::FAILED].map(said);
    let of_run = of_run.into_iter().flatten().filter(|_| is_this_run);
    target.into_iter().chain(of_run).collect()
}

/// How the waiting ends.
#[derive(Debug, PartialEq)]
enum End {
    Over(Box<DEngineBenchmarkStatus>),
    /// No operator has looked at it: the cluster that it measures may say why.
    Unseen {
        cluster: String,
    },
}

/// What follows from a look at the benchmark, so long after it was asked for; nothing while it is
/// to be waited for.
fn look(benchmark: &DEngineBenchmark, run: &str, waited: Duration) -> Option<End> {
    let status = benchmark.status.clone().unwrap_or_default();
    let over = status.phase.is_some_and(BenchmarkPhase::is_final);
    if over && status.run_id.as_deref() == Some(run) {
        return Some(End::Over(Box::new(status)));
    }
    let seen = status.observed_generation == benchmark.metadata.generation;
    let cluster = benchmark.spec.target.cluster_ref.as_ref()?;
    let unseen = !seen && waited >= UNSEEN_MAX;
    unseen.then(|| End::Unseen {
        cluster: cluster.name.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::tests::said;

    const SOON: Duration = Duration::from_secs(1);

    /// The third edit of it, which asks for the run 7.
    fn benchmark(status: &Value) -> DEngineBenchmark {
        object(json!({
            "apiVersion": "dengine.io/v1alpha1", "kind": "DEngineBenchmark",
            "metadata": {"name": "demo-put", "generation": 3},
            "spec": {"target": {"clusterRef": {"name": "demo"}}, "workload": "put", "runId": "7"},
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn a_run_is_over_when_its_own_end_is_told() {
        let before =
            benchmark(&json!({"phase": "Succeeded", "runId": "6", "observedGeneration": 2}));
        assert_eq!(look(&before, "7", SOON), None, "of the run before");
        let over = benchmark(&json!({"phase": "Failed", "runId": "7", "observedGeneration": 3}));
        assert!(matches!(look(&over, "7", SOON), Some(End::Over(_))));
    }

    #[test]
    fn nobody_waits_for_ever_for_what_no_operator_looks_at() {
        let left = End::Unseen {
            cluster: "demo".to_owned(),
        };
        for status in [json!(null), json!({"observedGeneration": 2})] {
            let alone = benchmark(&status);
            assert_eq!(look(&alone, "7", SOON), None, "it may be seen yet");
            assert_eq!(look(&alone, "7", UNSEEN_MAX).as_ref(), Some(&left));
        }
        let waits = benchmark(&json!({"observedGeneration": 3, "phase": "Pending"}));
        assert_eq!(look(&waits, "7", 10 * UNSEEN_MAX), None, "for its target");
    }

    #[test]
    fn what_becomes_of_this_run_is_said_and_of_the_one_before_only_that_it_can_not_begin() {
        let mut benchmark = benchmark(&json!({"runId": "6"}));
        let status = benchmark.status.as_mut().unwrap();
        status.conditions = vec![
            said(conditions::TARGET_READY, "False", "demo is loaded"),
            said(conditions::COMPLETE, "False", "the image cannot be pulled"),
            said(conditions::FAILED, "False", "try 2: exceeded quota"),
        ];
        let told =
            |benchmark: &DEngineBenchmark| Words::default().news(worth_saying(benchmark, "7"));
        assert_eq!(told(&benchmark), ["demo is loaded"]);
        let status = benchmark.status.as_mut().unwrap();
        status.run_id = Some("7".to_owned());
        status.conditions[0].status = "True".to_owned();
        let of_run = ["the image cannot be pulled", "try 2: exceeded quota"];
        assert_eq!(told(&benchmark), of_run);
    }
}
