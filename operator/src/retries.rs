//! When a failed attempt is retried: after a pause that doubles with each failure in a row. It only
//! delays attempts: a restarted operator retries at once.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

const PAUSE_MIN: Duration = Duration::from_secs(3);
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// Attempts that are remembered; beyond it, all are retried at once.
const KEPT_MAX: usize = 4096;

#[derive(Debug, Default)]
pub struct Retries {
    failed: Mutex<HashMap<String, Failed>>,
}

#[derive(Debug)]
struct Failed {
    message: String,
    pause: Duration,
    next: Instant,
}

impl Retries {
    /// The last failure, if it is too early to retry.
    pub(crate) fn not_yet(&self, attempt: &str) -> Option<String> {
        self.not_yet_at(attempt, Instant::now())
    }

    /// Records a failure. Returns whether its message differs from the last one.
    pub(crate) fn failed(&self, attempt: &str, message: &str) -> bool {
        self.failed_at(attempt, message, Instant::now())
    }

    /// Records a success: the next failure counts as the first.
    pub(crate) fn succeeded(&self, attempt: &str) {
        self.lock().remove(attempt);
    }

    fn not_yet_at(&self, attempt: &str, now: Instant) -> Option<String> {
        let failed = self.lock();
        let last = failed.get(attempt).filter(|last| now < last.next)?;
        Some(last.message.clone())
    }

    fn failed_at(&self, attempt: &str, message: &str, now: Instant) -> bool {
        let mut failed = self.lock();
        let before = failed.get(attempt);
        let is_news = before.is_none_or(|last| last.message != message);
        let before = before.map(|last| last.pause);
        let pause = before.map_or(PAUSE_MIN, |pause| (pause * 2).min(PAUSE_MAX));
        if failed.len() >= KEPT_MAX {
            failed.clear();
        }
        let last = Failed {
            message: message.to_owned(),
            pause,
            next: now + pause,
        };
        failed.insert(attempt.to_owned(), last);
        is_news
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Failed>> {
        self.failed.lock().expect("nobody panics with the lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_five_minutes_and_a_success_ends_them() {
        let (retries, mut now) = (Retries::default(), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..9 {
            assert_eq!(retries.not_yet_at("a", now), None);
            let is_news = retries.failed_at("a", "no", now);
            assert_eq!(is_news, pauses.is_empty(), "said once");
            let mut pause = 0;
            while retries.not_yet_at("a", now).as_deref() == Some("no") {
                (now, pause) = (now + Duration::from_secs(1), pause + 1);
            }
            pauses.push(pause);
        }
        assert_eq!(pauses, [3, 6, 12, 24, 48, 96, 192, 300, 300]);
        assert_eq!(retries.not_yet_at("b", now), None, "another attempt");
        retries.succeeded("a");
        assert!(retries.failed_at("a", "no", now));
        assert!(
            retries
                .not_yet_at("a", now + Duration::from_secs(3))
                .is_none()
        );
    }
}
