//! Logs and metrics of the operator itself: their set-up, and every name in one place.

use std::time::Duration;

use clap::ValueEnum;
use futures::{Stream, StreamExt};
use kube::runtime::{controller, watcher};
use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;

/// Value of the label `controller`: clusters.
pub const CLUSTER: &str = "cluster";
/// Value of the label `controller`: benchmarks.
pub const BENCHMARK: &str = "benchmark";

const RECONCILE_SECONDS: &str = "dengine_operator_reconcile_seconds";
const RECONCILE_ERRORS: &str = "dengine_operator_reconcile_errors_total";
const WATCH_ERRORS: &str = "dengine_operator_watch_errors_total";
const LEADER: &str = "dengine_operator_leader";
const RECONCILE_SECONDS_BUCKETS: &[f64] =
    &[0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// How log lines look.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LogFormat {
    /// For machines.
    Json,
    /// For people.
    Text,
}

/// Sends log lines to standard error.
///
/// # Errors
/// If the filter is none, or logging was set up before.
pub fn log(format: LogFormat, filter: &str) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter)?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let installed = match format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Text => builder.try_init(),
    };
    installed.map_err(|error| anyhow::anyhow!(error))
}

/// Starts to collect metrics; the handle renders them.
///
/// # Errors
/// If metrics were set up before.
pub fn metrics() -> Result<PrometheusHandle, BuildError> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(
            Matcher::Full(RECONCILE_SECONDS.to_owned()),
            RECONCILE_SECONDS_BUCKETS,
        )?
        .install_recorder()?;
    describe_histogram!(RECONCILE_SECONDS, "Time that one reconciliation took.");
    describe_counter!(
        RECONCILE_ERRORS,
        "Reconciliations that the Kubernetes API ended early."
    );
    describe_counter!(WATCH_ERRORS, "Watches that broke and were started again.");
    describe_gauge!(LEADER, "1 while this process holds the lease, else 0.");
    Ok(handle)
}

/// Notes whether this process holds the lease.
pub fn leads(leads: bool) {
    gauge!(LEADER).set(if leads { 1.0 } else { 0.0 });
}

/// Notes a reconciliation.
pub fn reconciled(controller: &'static str, took: Duration) {
    histogram!(RECONCILE_SECONDS, "controller" => controller).record(took.as_secs_f64());
}

/// Logs and counts a reconciliation that ended early. That an object is gone when something of its own
/// changes is how deletion looks.
pub fn reconcile_failed<E>(controller: &'static str, error: &controller::Error<E, watcher::Error>)
where
    E: std::error::Error + 'static,
{
    if let controller::Error::ObjectNotFound(object) = error {
        tracing::debug!(%object, "gone");
        return;
    }
    counter!(RECONCILE_ERRORS, "controller" => controller).increment(1);
    tracing::warn!(controller, %error, "a reconciliation ended early");
}

/// Logs and counts the errors of a watch; the stream goes on.
pub fn watched<T>(
    stream: impl Stream<Item = watcher::Result<T>> + Send,
) -> impl Stream<Item = watcher::Result<T>> + Send {
    stream.inspect(|item| {
        if let Err(error) = item {
            counter!(WATCH_ERRORS).increment(1);
            tracing::warn!(%error, of = std::any::type_name::<T>(), "a watch broke and is started again");
        }
    })
}
