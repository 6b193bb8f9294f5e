//! Whether a connection takes calls, and when one may try it again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long a connection that did not answer is passed over while others are there. Then one call
/// tries it; until a member answers there, others go on passing it over.
pub const COOL_DOWN: Duration = Duration::from_secs(1);

/// So often the pause is doubled between calls that try a connection on which nobody answers: to 4
/// s. A plain write that tries it waits in vain for all of its time.
const DOUBLINGS_MAX: u64 = 2;

/// Of one connection. One word, so that callers which come at once see and change all of it.
#[derive(Debug, Default)]
pub(super) struct Health(AtomicU64);

/// A connection that is passed over.
#[derive(Clone, Copy)]
struct Cooling {
    until: Duration,
    doublings: u64,
}

impl Health {
    /// Whether the call that asks may have it. One that tries it keeps others off for a while.
    pub(super) fn takes_call(&self, now: Duration) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        let Some(cooling) = Cooling::of(word) else {
            return true;
        };
        let tried = Cooling::begin(now, cooling.doublings + 1).word();
        now >= cooling.until
            && self
                .0
                .compare_exchange(word, tried, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// No connection was to be had, which is found out in an instant.
    pub(super) fn refused(&self, now: Duration) {
        let word = Cooling::begin(now, 0).word();
        self.0.store(word, Ordering::Relaxed);
    }

    /// A call waited in vain: whoever tries next does so after the longer pause that was begun when
    /// the last one did.
    pub(super) fn silent(&self, now: Duration) {
        let doublings =
            Cooling::of(self.0.load(Ordering::Relaxed)).map_or(0, |cooling| cooling.doublings);
        let word = Cooling::begin(now, doublings).word();
        self.0.store(word, Ordering::Relaxed);
    }

    /// A member answered.
    pub(super) fn answered(&self) {
        // Almost always it is healthy: that is not to take the word from other cores.
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}

impl Cooling {
    const DOUBLINGS_BITS: u32 = 2;

    fn begin(now: Duration, doublings: u64) -> Self {
        let doublings = doublings.min(DOUBLINGS_MAX);
        Self {
            until: now + COOL_DOWN * (1 << doublings),
            doublings,
        }
    }

    /// 0 stands for a healthy connection.
    fn of(word: u64) -> Option<Self> {
        (word != 0).then(|| Self {
            until: Duration::from_millis(word >> Self::DOUBLINGS_BITS),
            doublings: word & ((1 << Self::DOUBLINGS_BITS) - 1),
        })
    }

    /// Never 0: it is over a second.
    fn word(self) -> u64 {
        let until = u64::try_from(self.until.as_millis()).unwrap_or(u64::MAX);
        until << Self::DOUBLINGS_BITS | self.doublings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever tries a member that hangs may wait for all of its time.
    #[test]
    fn one_call_tries_who_did_not_answer_and_others_follow_once_it_does() {
        let health = Health::default();
        let mut now = Duration::from_secs(9);
        health.silent(now);
        for pause in [1, 2, 4, 4].map(Duration::from_secs) {
            assert!(!health.takes_call(now + pause - COOL_DOWN / 2), "{pause:?}");
            now += pause;
            assert!(health.takes_call(now), "{pause:?}");
            assert!(!health.takes_call(now), "somebody else tries it");
            // Also what went there before is found to have no answer.
            health.silent(now);
            health.silent(now);
        }
        health.answered();
        assert!(health.takes_call(now) && health.takes_call(now));
        health.silent(now);
        assert!(health.takes_call(now + COOL_DOWN), "all begins again");
    }

    /// A member that restarts is back in a moment, and nobody waits to find out.
    #[test]
    fn who_refuses_connections_is_tried_each_second() {
        let health = Health::default();
        let mut now = Duration::ZERO;
        for _ in 0..9 {
            health.refused(now);
            assert!(!health.takes_call(now + COOL_DOWN / 2));
            now += COOL_DOWN;
            assert!(health.takes_call(now));
        }
    }
}
