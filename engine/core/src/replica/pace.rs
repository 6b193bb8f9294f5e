//! How many entries keep a member busy: as many as it applies in the time in which one is committed, and in two
//! milliseconds more, or half of that time. With fewer, the applier would wait for the disk and for the peers; what is beyond waits for
//! the applier, and everything behind it with it. From where a few are under way, each commit has half as many more.
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

#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Up to which entry was proposed when; those that are not committed.
    proposed: VecDeque<(Index, Moment)>,
    /// From being proposed to being committed.
    to_commit: Recent<Duration>,
    slot_since: Moment,
    slot_entries: u64,
    /// Entries a second; negative, for the lowest counts.
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
    /// Entries up to this one are in the log of this leader.
    pub(super) fn proposed(&mut self, last: Index, now: Moment) {
        self.proposed.push_back((last, now));
    }

    /// It leads no more: what it proposed may never be committed.
    pub(super) fn lost_lead(&mut self) {
        self.proposed.clear();
    }

    /// Those up to this one are committed.
    pub(super) fn committed(&mut self, index: Index, now: Moment) {
        while let Some((_, since)) = self.proposed.front().filter(|it| it.0 <= index) {
            self.to_commit.note(now.since(*since));
            self.proposed.pop_front();
        }
    }

    /// So many more are applied.
    pub(super) fn applied(&mut self, entries: u64, now: Moment) {
        self.slot_entries += entries;
        let took = now.since(self.slot_since);
        if took < SLOT {
            return;
        }
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let rate = self.slot_entries.saturating_mul(1_000_000_000) / nanos.max(1);
        self.applied.note(std::cmp::Reverse(rate));
        (self.slot_since, self.slot_entries) = (now, 0);
        if now.since(self.period_since) >= PERIOD {
            self.period_since = now;
            self.applied.begin_period();
            self.to_commit.begin_period();
        }
    }

    /// So many entries.
    pub(super) fn entries(&self) -> usize {
        let rate = self.applied.lowest().map_or(0, |rate| rate.0);
        let to_commit = self.to_commit.lowest().unwrap_or_default();
        let time = to_commit + AHEAD.max(to_commit / 2);
        let entries = (u128::from(rate) * time.as_micros()).div_ceil(1_000_000);
        usize::try_from(entries).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milli: u64) -> Moment {
        Moment(milli * 1_000_000)
    }

    /// A member that applies at most `rate` entries a millisecond, and commits each after `to_commit` milliseconds, while
    /// thousands wait: how many are under way in the end.
    fn settles_at(rate: u64, to_commit: u64, least: usize) -> usize {
        let (mut pace, mut last, mut applied) = (Pace::default(), 0, 0);
        let mut proposed = VecDeque::new();
        for milli in 0..20_000 {
            let under_way = (last - applied) as usize;
            let room = pace.entries().max(least).saturating_sub(under_way) as u64;
            if room > 0 {
                last += room;
                pace.proposed(Index(last), at(milli));
                proposed.push_back((last, milli));
            }
            let committed = proposed.iter().rfind(|it| it.1 + to_commit <= milli);
            let committed = committed.map_or(applied, |it| it.0);
            pace.committed(Index(committed), at(milli));
            proposed.retain(|it| it.0 > committed || it.0 > applied);
            let more = rate.min(committed.saturating_sub(applied));
            applied += more;
            pace.applied(more, at(milli));
        }
        pace.entries().max(least)
    }

    #[test]
    fn the_applier_never_waits_and_little_waits_for_it() {
        // At 20 entries a millisecond, 3 ms are 60 entries, and 2 more are 40.
        for (rate, to_commit) in [(20, 3), (100, 1), (100, 20), (5, 20), (20, 60), (20, 200)] {
            let entries = settles_at(rate, to_commit, 16) as u64;
            let ideal = rate * (to_commit + (to_commit / 2).max(2));
            assert!(
                (ideal * 8 / 10..=ideal * 14 / 10).contains(&entries),
                "{entries} for {rate} a millisecond and {to_commit} ms"
            );
        }
    }

    #[test]
    fn what_was_long_ago_does_not_count_and_a_lost_lead_is_not_measured() {
        let mut pace = Pace::default();
        pace.proposed(Index(1), at(0));
        pace.committed(Index(1), at(3));
        pace.applied(1_000, at(50));
        assert_eq!(pace.entries(), 100, "20,000 a second, for 3 ms and 2");
        pace.proposed(Index(2), at(60));
        pace.lost_lead();
        pace.committed(Index(2), at(60));
        pace.applied(0, at(1_050));
        assert_eq!(pace.entries(), 100);
        pace.applied(0, at(2_100));
        pace.applied(0, at(3_200));
        assert_eq!(pace.entries(), 0);
    }
}
