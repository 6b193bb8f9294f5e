//! So many lines a second of one kind and no more, where somebody else decides how often there is something to say.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Lines in one second: more would say nothing new.
const LINES_A_SECOND_MAX: u32 = 5;

/// Lines of one kind.
#[derive(Default)]
pub(crate) struct Lines(Mutex<Second>);

/// The present one.
#[derive(Default)]
struct Second {
    since: Option<Instant>,
    written: u32,
    /// What had no line since the last one that had.
    silent: u64,
}

impl Lines {
    /// Whether there may be one more line now, and how many had none before it.
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
    fn when_everything_is_worth_a_line_the_log_stays_readable() {
        let (mut lines, now) = (Second::default(), Instant::now());
        let written = (0..100).filter_map(|_| lines.next(now)).count();
        assert_eq!(written, LINES_A_SECOND_MAX as usize);
        assert_eq!(lines.next(now + Duration::from_secs(1)), Some(95));
        assert_eq!(lines.next(now + Duration::from_secs(1)), Some(0));
    }
}
