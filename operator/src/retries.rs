//! When something that failed is tried again: after a pause that doubles with each failure in a row. Nothing is decided from
//! it but when: an operator that starts anew tries at once.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

const PAUSE_MIN: Duration = Duration::from_secs(3);
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// What is remembered; beyond it all is tried anew.
const KEPT_MAX: usize = 4096;

/// Attempts that failed, by what was attempted.
#[derive(Debug, Default)]
pub struct Retries {
    failed: Mutex<HashMap<String, Failed>>,
}

#[derive(Debug)]
struct Failed {
    words: String,
    pause: Duration,
    next: Instant,
}

impl Retries {
    /// What went wrong last, if it is too early to try again.
    pub(crate) fn not_yet(&self, attempt: &str) -> Option<String> {
        self.not_yet_at(attempt, Instant::now())
    }

    /// It failed. Answers whether it did not fail with these words the last time too.
    pub(crate) fn failed(&self, attempt: &str, words: &str) -> bool {
        self.failed_at(attempt, words, Instant::now())
    }

    /// It succeeded: the next failure is a first one.
    pub(crate) fn succeeded(&self, attempt: &str) {
        self.lock().remove(attempt);
    }

    fn not_yet_at(&self, attempt: &str, now: Instant) -> Option<String> {
        let failed = self.lock();
        let last = failed.get(attempt).filter(|last| now < last.next)?;
        Some(last.words.clone())
    }

    fn failed_at(&self, attempt: &str, words: &str, now: Instant) -> bool {
        let mut failed = self.lock();
        let before = failed.get(attempt);
        let is_news = before.is_none_or(|last| last.words != words);
        let before = before.map(|last| last.pause);
        let pause = before.map_or(PAUSE_MIN, |pause| (pause * 2).min(PAUSE_MAX));
        if failed.len() >= KEPT_MAX {
            failed.clear();
        }
        let last = Failed {
            words: words.to_owned(),
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
