//! `kubectl dengine bench`: makes a `DEngineBenchmark`, or runs one again, and waits for its numbers.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::bail;
use clap::Args;
use dengine_crds::benchmark::{BenchmarkPhase, DEngineBenchmarkStatus, Workload};
use dengine_crds::{DEngineBenchmark, conditions};
use kube::Resource;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::access::{Access, object};
use crate::say;

/// Who owns the fields that this program sets.
const MANAGER: &str = "kubectl-dengine";

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Name of the cluster.
    cluster: String,
    /// Several workloads with shapes of their own, such as quick or standard; `dengine-bench run --list` shows them.
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
    let benchmark: DEngineBenchmark = object(manifest(&name, &run, options))?;
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
        say(format_args!(
            "{phase}: {ops} requests per second, p99 {p99}"
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
    json!({
        "apiVersion": DEngineBenchmark::api_version(&()),
        "kind": DEngineBenchmark::kind(&()),
        "metadata": {"name": name},
        "spec": spec,
    })
}

/// Until that run is over; says what keeps it from beginning.
async fn wait(access: &Access, name: &str, run: &str) -> anyhow::Result<DEngineBenchmarkStatus> {
    let mut said = String::new();
    access
        .until(name, |benchmark: &DEngineBenchmark| {
            let status = benchmark.status.clone()?;
            let mut conditions = status.conditions.iter();
            let target = conditions.rfind(|c| c.type_ == conditions::TARGET_READY);
            if let Some(words) = target.filter(|c| c.status == "False" && c.message != said) {
                say(format_args!("  {}", words.message));
                said.clone_from(&words.message);
            }
            let over = status.phase.is_some_and(BenchmarkPhase::is_final);
            (over && status.run_id.as_deref() == Some(run)).then_some(status)
        })
        .await
}
