//! The stamps that make a session's writes take effect once, and when the session must be kept
//! alive.
//!
//! The cluster stores the answer to each stamped write until the client acknowledges it.
//! `acknowledged` says that every sequence up to it needs no stored answer any more: its answer
//! arrived, or its caller was told that nobody knows. A stamped write at or below it is refused by
//! the cluster, never applied.

use std::collections::BTreeSet;
use std::time::Duration;

/// Writes of one session that may be under way at once; the cluster keeps four times as many
/// answers for it.
pub const WINDOW: u64 = 64;

/// What a write of a session carries. `session_id` and `sequence` are the same on each attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// The session.
    pub session_id: u64,
    /// The write's place in it, from 1 on; never used for another write.
    pub sequence: u64,
    /// No answer up to this sequence is needed any more.
    pub acknowledged: u64,
}

/// Gives out the stamps of one session.
#[derive(Clone, Debug)]
pub struct Sequencer {
    session_id: u64,
    window: u64,
    last: u64,
    acknowledged: u64,
    /// Ended sequences above `acknowledged`; those between are under way.
    ended: BTreeSet<u64>,
}

impl Sequencer {
    /// Begins with the first write of a session. At most `window` writes, at least one, are under
    /// way at once.
    #[must_use]
    pub fn new(session_id: u64, window: u64) -> Self {
        Self {
            session_id,
            window: window.max(1),
            last: 0,
            acknowledged: 0,
            ended: BTreeSet::new(),
        }
    }

    /// The session.
    #[must_use]
    pub fn session_id(&self) -> u64 {
        self.session_id
    }

    /// No answer up to this sequence is needed any more. An attempt that is made again may carry
    /// the mark as it has become meanwhile, which helps the cluster to keep less.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// The stamp of the next write; `None` while the window is full: wait until one has ended.
    pub fn stamp(&mut self) -> Option<Stamp> {
        if self.last - self.acknowledged >= self.window {
            return None;
        }
        self.last += 1;
        Some(Stamp {
            session_id: self.session_id,
            sequence: self.last,
            acknowledged: self.acknowledged,
        })
    }

    /// A write has ended: its caller has the answer, or knows that nobody will. It is not sent
    /// again.
    ///
    /// # Panics
    /// If that sequence was not given out, or has ended already.
    pub fn end(&mut self, sequence: u64) {
        assert!(
            sequence > self.acknowledged && sequence <= self.last,
            "sequence {sequence} is not under way"
        );
        let fresh = self.ended.insert(sequence);
        assert!(fresh, "sequence {sequence} has ended already");
        while self.ended.remove(&(self.acknowledged + 1)) {
            self.acknowledged += 1;
        }
    }
}

/// How long the cluster keeps a session without hearing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Counted by the leader; a new leader begins again, so a session may live longer, never
    /// shorter.
    pub ttl: Duration,
}

/// When a session is kept alive next.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    lease: Lease,
    /// When the last answered keep-alive was sent.
    alive: Duration,
}

impl Pace {
    /// A session that was opened by a request sent at `now`.
    #[must_use]
    pub fn new(lease: Lease, now: Duration) -> Self {
        Self { lease, alive: now }
    }

    /// A keep-alive that was sent at `sent` was answered.
    pub fn kept(&mut self, sent: Duration) {
        self.alive = self.alive.max(sent);
    }

    /// Longest that one keep-alive may take, so that another still fits before the session could
    /// expire.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.lease.ttl / 3
    }

    /// How long to wait before the next one: two more fit before the session could expire.
    #[must_use]
    pub fn wait(&self, now: Duration) -> Duration {
        (self.alive + self.lease.ttl / 3).saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequences(stamps: &[Option<Stamp>]) -> Vec<(u64, u64)> {
        let pair = |stamp: &Stamp| (stamp.sequence, stamp.acknowledged);
        stamps.iter().flatten().map(pair).collect()
    }

    #[test]
    fn sequences_count_up_and_the_mark_follows_the_oldest_under_way() {
        let mut session = Sequencer::new(9, 8);
        let first = [session.stamp(), session.stamp(), session.stamp()];
        assert_eq!(sequences(&first), [(1, 0), (2, 0), (3, 0)]);
        session.end(2);
        session.end(3);
        assert_eq!(sequences(&[session.stamp()]), [(4, 0)], "1 is under way");
        session.end(1);
        assert_eq!(sequences(&[session.stamp()]), [(5, 3)]);
    }

    #[test]
    fn the_window_bounds_what_the_cluster_must_store() {
        let mut session = Sequencer::new(9, 2);
        assert!(session.stamp().is_some() && session.stamp().is_some());
        assert_eq!(session.stamp(), None);
        session.end(2);
        assert_eq!(session.stamp(), None, "the answer to 2 is still stored");
        session.end(1);
        assert_eq!(sequences(&[session.stamp()]), [(3, 2)]);
    }

    #[test]
    #[should_panic(expected = "ended already")]
    fn nothing_ends_twice() {
        let mut session = Sequencer::new(9, 4);
        session.stamp();
        session.stamp();
        session.end(2);
        session.end(2);
    }

    #[test]
    fn a_session_is_kept_alive_well_before_it_expires() {
        let ttl = Duration::from_secs(9);
        let second = Duration::from_secs(1);
        let mut pace = Pace::new(Lease { ttl }, second);
        assert_eq!(pace.wait(second), 3 * second);
        assert_eq!(pace.wait(20 * second), Duration::ZERO);
        pace.kept(3 * second);
        assert_eq!(pace.wait(3 * second), 3 * second);
        assert!(pace.patience() + pace.wait(3 * second) < ttl);
    }
}
