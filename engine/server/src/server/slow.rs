//! Log lines for requests that took long: which call, how it ended and how long it took. Never what
//! it was about: keys and values are the users'.

use std::time::Duration;

use tonic::Code;

use super::gate::code_name;
use crate::telemetry::lines::Lines;

/// Logs slow requests.
pub(super) struct SlowLog {
    threshold: Option<Duration>,
    lines: Lines,
}

impl SlowLog {
    /// Logs what takes `threshold` or longer.
    pub(super) fn new(threshold: Option<Duration>) -> Self {
        Self {
            threshold,
            lines: Lines::default(),
        }
    }

    /// Notes a request that ended.
    pub(super) fn answered(&self, method: &'static str, code: Code, took: Duration) {
        if self.threshold.is_none_or(|threshold| took < threshold) {
            return;
        }
        if let Some(unlogged) = self.lines.next() {
            let took_ms = took.as_millis() as u64;
            let code = code_name(code);
            tracing::warn!(method, code, took_ms, unlogged, "slow request");
        }
    }
}
