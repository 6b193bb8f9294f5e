//! Log lines for requests that took long: which call, how it ended and how long it took. Never what it was about: keys
//! and values are the users'.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use tonic::Code;

use super::gate::code_name;

/// Lines in one second. When everything is slow, more would say nothing new.
const LINES_A_SECOND_MAX: u32 = 5;

/// Logs slow requests.
pub(super) struct SlowLog {
    threshold: Option<Duration>,
    lines: Mutex<Lines>,
}

/// Of the present second.
#[derive(Default)]
struct Lines {
    since: Option<Instant>,
    written: u32,
    /// Slow requests without a line, since the last one that has one.
    silent: u64,
}

impl SlowLog {
    /// Logs what takes `threshold` or longer.
    pub(super) fn new(threshold: Option<Duration>) -> Self {
        Self {
            threshold,
            lines: Mutex::default(),
        }
    }

    /// Notes a request that ended.
    pub(super) fn answered(&self, method: &'static str, code: Code, took: Duration) {
        if self.threshold.is_none_or(|threshold| took < threshold) {
            return;
        }
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(unlogged) = lines.next(Instant::now()) {
            drop(lines);
            let took_ms = took.as_millis() as u64;
            let code = code_name(code);
            tracing::warn!(method, code, took_ms, unlogged, "slow request");
        }
    }
}

impl Lines {
    /// Whether there may be one more line now, and how many requests had none before it.
    fn next(&mut self, now: Instant) -> Option<u64> {
        if self
            .since
            .is_none_or(|since| now - since >= Duration::from_secs(1))
        {
            self.since = Some(now);
            self.written = 0;
        }
        if self.written == LINES_A_SECOND_MAX {
            self.silent += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.silent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_everything_is_slow_the_log_stays_readable() {
        let (mut lines, now) = (Lines::default(), Instant::now());
        let written = (0..100).filter_map(|_| lines.next(now)).count();
        assert_eq!(written, LINES_A_SECOND_MAX as usize);
        assert_eq!(lines.next(now + Duration::from_secs(1)), Some(95));
        assert_eq!(lines.next(now + Duration::from_secs(1)), Some(0));
    }
}
