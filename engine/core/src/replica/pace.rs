//! How much keeps a member busy: as much as it applies in the time in which an entry is committed, and in two
//! milliseconds more, or half of that time. With less, the applier would wait for the disk and for the peers; what is beyond waits for
//! the applier, and everything behind it with it. From where little is under way, each commit has half as much more.
//!
//! Entries are weighed, for one of a MiB keeps disk and applier busy for as long as a thousand small ones ([`load`]).
//!
//! Both times are measured. Of those to commit the shortest of the last seconds counts, and of the rates the highest, so that a
//! member which was held up does not take this for its pace.

use crate::types::{Index, Moment};
use std::collections::VecDeque;
use std::time::Duration;

/// What may wait for the applier, in time, at least.
const AHEAD: Duration = Duration::from_millis(2);
/// Over how long a rate is measured, at least.
const SLOT: Duration = Duration::from_millis(50);
/// What was measured counts for one to two of these.
const PERIOD: Duration = Duration::from_secs(1);

/// What an entry costs besides its bytes, in bytes that cost as much.
const ENTRY_BYTES: u64 = 1 << 10;

/// What so many entries, which hold so many bytes together, ask of a member, in bytes.
pub(super) fn load(entries: usize, bytes: u64) -> u64 {
    let entries = u64::try_from(entries).unwrap_or(u64::MAX);
    entries.saturating_mul(ENTRY_BYTES).saturating_add(bytes)
}

#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Up to which entry was proposed when; those that are not committed.
    proposed: VecDeque<(Index, Moment)>,
    /// Up to which entry how many bytes were proposed; those that are not applied.
    unapplied: VecDeque<(Index, u64)>,
    unapplied_bytes: u64,
    /// From being proposed to being committed.
    to_commit: Recent<Duration>,
    slot_since: Moment,
    slot_load: u64,
    /// Load a second; reversed, for the lowest counts.
    applied: Recent<std::cmp::Reverse<u64>>,
    period_since: Moment,
}

/// The lowest of the present period and of the one before.
#[derive(Debug, Default)]
struct Recent<T> {
    present: Option<T>,
    before: Option<T>,
}

impl<T: Ord + Copy> Recent<T> {
    fn note(&mut self, value: T) {
        self.present = Some(self.present.map_or(value, |lowest| lowest.min(value)));
    }

    fn lowest(&self) -> Option<T> {
        self.present.into_iter().chain(self.before).min()
    }

    fn begin_period(&mut self) {
        self.before = self.present.take();
    }
}

impl Pace {
    /// Entries up to this one are in the log of this leader; so many bytes are new.
    pub(super) fn proposed(&mut self, last: Index, bytes: u64, now: Moment) {
        self.proposed.push_back((last, now));
        self.unapplied.push_back((last, bytes));
        self.unapplied_bytes += bytes;
    }

    /// It leads no more: what it proposed may never be committed.
    pub(super) fn lost_lead(&mut self) {
        self.proposed.clear();
        self.unapplied.clear();
        self.unapplied_bytes = 0;
    }

    /// Those up to this one are committed.
    pub(super) fn committed(&mut self, index: Index, now: Moment) {
        while let Some((_, since)) = self.proposed.front().filter(|it| it.0 <= index) {
            self.to_commit.note(now.since(*since));
            self.proposed.pop_front();
        }
    }

    /// Those up to this one are applied, which were so much.
    pub(super) fn applied(&mut self, index: Index, load: u64, now: Moment) {
        while let Some((_, bytes)) = self.unapplied.front().filter(|it| it.0 <= index) {
            self.unapplied_bytes -= bytes;
            self.unapplied.pop_front();
        }
        self.slot_load += load;
        let took = now.since(self.slot_since);
        if took < SLOT {
            return;
        }
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let rate = u128::from(self.slot_load) * 1_000_000_000 / u128::from(nanos.max(1));
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        self.applied.note(std::cmp::Reverse(rate));
        (self.slot_since, self.slot_load) = (now, 0);
        if now.since(self.period_since) >= PERIOD {
            self.period_since = now;
            self.applied.begin_period();
            self.to_commit.begin_period();
        }
    }

    /// Of what this leader proposed, how many bytes are not applied.
    pub(super) fn unapplied_bytes(&self) -> u64 {
        self.unapplied_bytes
    }

    /// So much.
    pub(super) fn load(&self) -> u64 {
        let rate = self.applied.lowest().map_or(0, |rate| rate.0);
        let to_commit = self.to_commit.lowest().unwrap_or_default();
        let time = to_commit + AHEAD.max(to_commit / 2);
        let load = (u128::from(rate) * time.as_micros()).div_ceil(1_000_000);
        u64::try_from(load).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milli: u64) -> Moment {
        Moment(milli * 1_000_000)
    }

    /// A member that applies at most `rate` a millisecond, and commits each entry after `to_commit` milliseconds, while
    /// thousands wait: how much is under way in the end. Each entry has a load of 1 here.
    fn settles_at(rate: u64, to_commit: u64, least: u64) -> u64 {
        let (mut pace, mut last, mut applied) = (Pace::default(), 0, 0);
        let mut proposed = VecDeque::new();
        for milli in 0..20_000 {
            let under_way = last - applied;
            let room = pace.load().max(least).saturating_sub(under_way);
            if room > 0 {
                last += room;
                pace.proposed(Index(last), 0, at(milli));
                proposed.push_back((last, milli));
            }
            let committed = proposed.iter().rfind(|it| it.1 + to_commit <= milli);
            let committed = committed.map_or(applied, |it| it.0);
            pace.committed(Index(committed), at(milli));
            proposed.retain(|it| it.0 > committed || it.0 > applied);
            let more = rate.min(committed.saturating_sub(applied));
            applied += more;
            pace.applied(Index(applied), more, at(milli));
        }
        pace.load().max(least)
    }

    #[test]
    fn the_applier_never_waits_and_little_waits_for_it() {
        // At 20 entries a millisecond, 3 ms are 60 entries, and 2 more are 40.
        for (rate, to_commit) in [(20, 3), (100, 1), (100, 20), (5, 20), (20, 60), (20, 200)] {
            let load = settles_at(rate, to_commit, 16);
            let ideal = rate * (to_commit + (to_commit / 2).max(2));
            assert!(
                (ideal * 8 / 10..=ideal * 14 / 10).contains(&load),
                "{load} for {rate} a millisecond and {to_commit} ms"
            );
        }
    }

    #[test]
    fn what_was_long_ago_does_not_count_and_a_lost_lead_is_not_measured() {
        let mut pace = Pace::default();
        pace.proposed(Index(1), 0, at(0));
        pace.committed(Index(1), at(3));
        pace.applied(Index(1), 1_000, at(50));
        assert_eq!(pace.load(), 100, "20,000 a second, for 3 ms and 2");
        pace.proposed(Index(2), 7, at(60));
        assert_eq!(pace.unapplied_bytes(), 7);
        pace.lost_lead();
        assert_eq!(pace.unapplied_bytes(), 0);
        pace.committed(Index(2), at(60));
        pace.applied(Index(2), 0, at(1_050));
        assert_eq!(pace.load(), 100);
        pace.applied(Index(2), 0, at(2_100));
        pace.applied(Index(2), 0, at(3_200));
        assert_eq!(pace.load(), 0);
    }

    #[test]
    fn bytes_are_under_way_until_their_entries_are_applied() {
        let mut pace = Pace::default();
        pace.proposed(Index(4), 100, at(0));
        pace.proposed(Index(6), 20, at(1));
        for (applied, left) in [(3, 120), (4, 20), (5, 20), (6, 0)] {
            pace.applied(Index(applied), 0, at(2));
            assert_eq!(pace.unapplied_bytes(), left, "{applied}");
        }
    }

    #[test]
    fn an_entry_of_a_mib_is_as_much_as_a_thousand_without_bytes() {
        assert_eq!(load(1_025, 0), load(1, 1 << 20));
    }
}
