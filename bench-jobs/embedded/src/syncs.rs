//! How often the members of this process made their logs durable.

use anyhow::{Context as _, Result};
use dengine::node::metrics::LOG_SYNC_SECONDS;
use dengine::telemetry::{self, PrometheusHandle};

/// Counts the `fdatasync` calls of all logs, as the members' own metric does.
pub(crate) struct Syncs(PrometheusHandle);

impl Syncs {
    /// From now on.
    ///
    /// # Errors
    /// Somebody in this process counts already.
    pub(crate) fn count() -> Result<Self> {
        telemetry::install_metrics()
            .map(Self)
            .context("metrics of the members")
    }

    pub(crate) fn so_far(&self) -> u64 {
        count_in(&self.0.render())
    }
}

fn count_in(metrics: &str) -> u64 {
    let line = format!("{LOG_SYNC_SECONDS}_count ");
    let count = metrics.lines().find_map(|it| it.strip_prefix(&line));
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metric_is_found_by_its_name() {
        let text = "# TYPE dengine_log_sync_seconds histogram\ndengine_log_sync_seconds_sum \
            0.1\ndengine_log_sync_seconds_count 42\n";
        assert_eq!((count_in(text), count_in("")), (42, 0));
    }
}
