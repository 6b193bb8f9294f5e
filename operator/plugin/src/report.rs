//! `kubectl dengine report`: the result of a run as the Job posted it, or as a page beside that of
//! the etcd it was compared with.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use dengine_bench::compare::Named;
use dengine_bench::page;
use dengine_bench_model::results::Report;
use dengine_crds::benchmark::DEngineBenchmarkStatus;
use dengine_crds::{DEngineBenchmark, names};

use crate::access::Access;
use crate::say;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Name of the benchmark.
    name: String,
    /// The run; the newest if not given.
    #[arg(long)]
    run: Option<String>,
    /// Write one HTML page here, which needs no network; without it, the result is printed as JSON.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub(crate) async fn run(access: &Access, options: &Options) -> anyhow::Result<()> {
    let benchmark = access.api::<DEngineBenchmark>().get(&options.name).await?;
    let status = benchmark.status.unwrap_or_default();
    let run = options.run.clone().or_else(|| status.run_id.clone());
    let run = run.context("this benchmark has not run yet")?;
    let result = kept(&status, &run)?;
    let Some(file) = &options.html else {
        say(serde_json::to_string_pretty(result)?);
        return Ok(());
    };
    let label = match benchmark.spec.target.cluster_ref {
        Some(cluster) => format!("DEngine ({})", cluster.name),
        None => "etcd".to_owned(),
    };
    let title = format!("{}, run {run}", options.name);
    let html = page::render(&title, &side_by_side(&status, &run, &label, result))?;
    std::fs::write(file, html).with_context(|| format!("writing {}", file.display()))?;
    say(format_args!("{}: {title}", file.display()));
    Ok(())
}

fn kept<'a>(status: &'a DEngineBenchmarkStatus, run: &str) -> anyhow::Result<&'a Report> {
    status.runs.get(run).with_context(|| {
        let kept: Vec<&str> = status.runs.keys().map(String::as_str).collect();
        match kept[..] {
            [] => format!("there is no result of run {run:?} yet"),
            _ => format!(
                "there is no result of run {run:?}; those that are kept: {}",
                kept.join(", ")
            ),
        }
    })
}

/// The run, and that of the etcd with which it was compared.
fn side_by_side(
    status: &DEngineBenchmarkStatus,
    run: &str,
    label: &str,
    result: &Report,
) -> Vec<Named> {
    let rival = status.runs.get(&names::benchmark::rival(run));
    let named = |label: &str, report: &Report| Named {
        label: label.to_owned(),
        report: report.clone(),
    };
    std::iter::once(named(label, result))
        .chain(rival.map(|report| named("etcd", report)))
        .collect()
}
