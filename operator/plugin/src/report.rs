//! `kubectl dengine report`: the result of a run, as the Job posted it.

use anyhow::Context as _;
use clap::Args;
use dengine_crds::DEngineBenchmark;

use crate::access::Access;
use crate::say;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Name of the benchmark.
    name: String,
    /// The run; the newest if not given.
    #[arg(long)]
    run: Option<String>,
}

pub(crate) async fn run(access: &Access, options: &Options) -> anyhow::Result<()> {
    let benchmark = access.api::<DEngineBenchmark>().get(&options.name).await?;
    let status = benchmark.status.unwrap_or_default();
    let run = options.run.clone().or(status.run_id);
    let run = run.context("this benchmark has not run yet")?;
    let kept: Vec<&str> = status.runs.keys().map(String::as_str).collect();
    let result = status.runs.get(&run).with_context(|| {
        let kept = kept.join(", ");
        format!("there is no result of run {run:?}; those that are kept: {kept}")
    })?;
    say(serde_json::to_string_pretty(result)?);
    Ok(())
}
