//! A time that many callers note and ask for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A time in whole milliseconds since the caller's origin; zero at first.
///
/// Nothing else is ordered by it: who reads it sees some time that was noted.
#[derive(Debug, Default)]
pub struct AtomicTime(AtomicU64);

impl AtomicTime {
    /// The time that was noted last.
    #[must_use]
    pub fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }

    /// Notes a time.
    pub fn set(&self, time: Duration) {
        self.0.store(millis(time), Ordering::Relaxed);
    }

    /// Whether it is later than this, by the millisecond.
    #[must_use]
    pub fn is_after(&self, time: Duration) -> bool {
        self.0.load(Ordering::Relaxed) > millis(time)
    }

    /// Notes a time in the place of the one that was [read](Self::get); `false` if somebody else
    /// was faster.
    pub fn replace(&self, read: Duration, time: Duration) -> bool {
        let (read, time) = (millis(read), millis(time));
        self.0
            .compare_exchange(read, time, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
