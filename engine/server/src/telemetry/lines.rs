//! A rate limit for log lines of one kind, for events that a client or a peer can cause at will.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// More lines in one second would say nothing new.
const LINES_A_SECOND_MAX: u32 = 5;

/// Limits the lines of one kind.
#[derive(Default)]
pub(crate) struct Lines(Mutex<Second>);

/// The lines of the current second.
#[derive(Default)]
struct Second {
    since: Option<Instant>,
    written: u32,
    /// Number of suppressed lines since the last one that was logged.
    suppressed: u64,
}

impl Lines {
    /// `None` if the event gets no line; else how many events before it got none.
    pub(crate) fn next(&self) -> Option<u64> {
        let mut second = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        second.next(Instant::now())
    }
}

impl Second {
    fn next(&mut self, now: Instant) -> Option<u64> {
        if self
            .since
            .is_none_or(|since| now - since >= Duration::from_secs(1))
        {
            self.since = Some(now);
            self.written = 0;
        }
        if self.written == LINES_A_SECOND_MAX {
            self.suppressed += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_everything_is_worth_a_line_the_log_stays_readable() {
        let (mut lines, now) = (Second::default(), Instant::now());
        let written = (0..100).filter_map(|_| lines.next(now)).count();
        assert_eq!(written, LINES_A_SECOND_MAX as usize);
        assert_eq!(lines.next(now + Duration::from_secs(1)), Some(95));
        assert_eq!(lines.next(now + Duration::from_secs(1)), Some(0));
    }
}
