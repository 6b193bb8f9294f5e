//! The log lines of a member, its metrics for Prometheus, and traces of its writes ([`traces`]).
//!
//! Recording needs only the names in [`metrics`] and [`crate::node::metrics`]; a program that wants
//! to see the numbers calls [`install_metrics`]. An embedding program brings its own subscriber and
//! recorder, or none.

pub(crate) mod lines;
pub mod metrics;
pub(crate) mod table;
pub(crate) mod traces;

use std::io::IsTerminal as _;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

pub use metrics_exporter_prometheus::PrometheusHandle;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder};
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry};

use crate::config::LogFormat;

/// Bounds of the latency histograms in seconds: from a read served from memory to the longest
/// request.
const SECONDS_BUCKETS: [f64; 17] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0,
];
/// Bounds of the histograms of entries in one batch: powers of two.
const ENTRIES_BUCKETS: [f64; 13] = [
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0,
];

/// Why log lines or metrics can't be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// There is no such level.
    #[error("log_level {level:?} is not understood: {reason}")]
    Level {
        /// As configured.
        level: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The process has a subscriber already.
    #[error("log lines are set up already")]
    LinesInstalled,
    /// The process has a recorder already.
    #[error("metrics are set up already: {0}")]
    MetricsInstalled(#[from] BuildError),
}

/// Lines that wait to be written; beyond them lines are lost.
const LINES_WAITING_MAX: usize = 4096;

/// Counts lines that were lost: of the process, as its log lines are.
static LINES_LOST: OnceLock<ErrorCounter> = OnceLock::new();

/// So long a program that ends waits for whoever reads what it writes.
const LAST_LINES_PATIENCE: Duration = Duration::from_millis(1_500);

/// Until it is dropped, lines are written. Then those that wait still are, for a second and a half
/// at most.
#[must_use]
pub struct LogLines(Option<WorkerGuard>);

impl Drop for LogLines {
    fn drop(&mut self) {
        // Where lines are not taken it says so on standard output, which may be the same pipe.
        let guard = self.0.take();
        last_words(move || drop(guard));
    }
}

/// Writes what a program has to say at its end, and waits for a second and a half at most: where
/// nobody reads it, the program ends all the same.
pub fn last_words(write: impl FnOnce() + Send + 'static) {
    let (end, ended) = mpsc::channel::<()>();
    let write = Arc::new(Mutex::new(Some(write)));
    let take =
        |write: &Mutex<Option<_>>| write.lock().unwrap_or_else(PoisonError::into_inner).take();
    let there = Arc::clone(&write);
    let written = thread::Builder::new().spawn(move || {
        if let Some(write) = take(&there) {
            write();
        }
        drop(end);
    });
    match written {
        Ok(_) => drop(ended.recv_timeout(LAST_LINES_PATIENCE)),
        // There is no thread left for it.
        Err(_) => take(&write).map_or((), |write| write()),
    }
}

/// Sends log lines of at least `level` to standard error, for the whole process.
///
/// A thread writes them: where standard error takes nothing, as with a container runtime that
/// hangs, whoever has something to say goes on, with a lock held perhaps.
///
/// # Errors
/// The level is not understood, or the process has a subscriber already.
pub fn install_log_lines(format: LogFormat, level: &str) -> Result<LogLines, TelemetryError> {
    let filter = filter(level)?;
    let (writer, written) = NonBlockingBuilder::default()
        .buffered_lines_limit(LINES_WAITING_MAX)
        .lossy(true)
        .thread_name("dengine-lines")
        .finish(std::io::stderr());
    let lost = writer.error_counter();
    // Colours are for people: in a file they stand between a field and its value.
    let unset = std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty());
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(unset && std::io::stderr().is_terminal());
    let lines = match format {
        LogFormat::Text => lines.with_target(false).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let subscriber = Registry::default().with(lines.with_filter(filter));
    tracing::subscriber::set_global_default(subscriber)
        .map_err(|_| TelemetryError::LinesInstalled)?;
    // Nobody else has set one up.
    let _ = LINES_LOST.set(lost);
    Ok(LogLines(Some(written)))
}

/// How many lines were lost, if [`install_log_lines`] was called.
pub(crate) fn lines_lost() -> Option<usize> {
    LINES_LOST.get().map(ErrorCounter::dropped_lines)
}

/// Selects log lines of at least `level`. Of those of HTTP/2, which a client can cause at will,
/// only errors unless `level` names them.
///
/// # Errors
/// The level is not understood.
pub(crate) fn filter(level: &str) -> Result<EnvFilter, TelemetryError> {
    let directives = format!("h2=error,{level}");
    EnvFilter::try_new(directives).map_err(|error| TelemetryError::Level {
        level: level.to_owned(),
        reason: error.to_string(),
    })
}

/// Collects the metrics of the whole process; the handle renders them.
///
/// # Errors
/// The process has a recorder already.
pub fn install_metrics() -> Result<PrometheusHandle, TelemetryError> {
    let suffix = |suffix: &str| Matcher::Suffix(suffix.to_owned());
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(suffix("_seconds"), &SECONDS_BUCKETS)?
        .set_buckets_for_metric(suffix("_entries"), &ENTRIES_BUCKETS)?
        .install_recorder()?;
    for metric in [crate::node::metrics::TABLE, metrics::TABLE].concat() {
        metric.describe();
    }
    Ok(handle)
}
