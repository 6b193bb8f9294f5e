//! How much keeps a member busy: as much as it applies in the time in which an entry is committed,
//! and in a millisecond more, or a quarter of that time. With less, the applier would wait for the
//! disk and for the peers; what is beyond waits for the applier, and everything behind it with it,
//! reads too.
//!
//! Entries are weighed, for one of a MiB, or one that visits a thousand records, keeps disk and
//! applier busy for as long as a thousand small ones ([`load`]).
//!
//! Both are measured. Of the times to commit the shortest of the last seconds counts, and of the
//! rates the highest, so that a member which was held up does not take this for its pace. The rate
//! is that of an applier while it has something to do: with little under way it waits, and if that
//! counted, ever less would be under way. But where it waits for a disk, however much is under way,
//! what it could do is of no use. So no more is under way than half as much again as was lately,
//! which by Little's law is what was applied in all in the time that a commit took on average.
//!
//! Where a disk or a network takes longer the more is under way, this would still grow without end.
//! So it is also measured, every ten seconds, how long a commit takes with little under way, and
//! what is under way is never more than is applied in three times as long (as BBR bounds what is in
//! flight by the least round-trip time: Cardwell et al., 2016).

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::Duration;

use dengine_types::{Index, Moment};

/// What may wait for the applier, in time, at least.
const AHEAD: Duration = Duration::from_millis(1);
/// Of the time that a commit takes with little under way, so much may be under way, besides
/// [`AHEAD`].
const UNLOADED_TIMES: u32 = 3;
/// How often it is measured how long that is.
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// Over how long a rate is measured, at least.
const SLOT: Duration = Duration::from_millis(50);
/// An applier that had something to do for less than this of a slot is taken to have had so much.
const BUSY_MIN: Duration = Duration::from_millis(5);
/// What was measured counts for one to two of these.
const PERIOD: Duration = Duration::from_secs(1);

/// What a record that an entry visits costs besides its bytes, in bytes that cost as much.
const RECORD_BYTES: u64 = 1 << 10;

/// What entries ask of a member that visit so many records, one at least for each entry, and hold
/// so many bytes together, in bytes.
pub(super) fn load(records: usize, bytes: u64) -> u64 {
    let records = u64::try_from(records).unwrap_or(u64::MAX);
    records.saturating_mul(RECORD_BYTES).saturating_add(bytes)
}

#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Up to which entry was proposed when; those that are not committed.
    proposed: VecDeque<(Index, Moment)>,
    /// What each entry asks for that was proposed; those that are not applied.
    unapplied: VecDeque<(Index, u64)>,
    unapplied_load: u64,
    /// From being proposed to being committed, and on this member's own disk.
    to_commit: Recent<Duration>,
    /// The same with little under way, or on average since that was measured, if that is less.
    unloaded: Option<Duration>,
    probe: Option<Probe>,
    probed: Option<Moment>,
    slot_since: Moment,
    slot_load: u64,
    /// Load a second, while the applier had something to do; reversed, for the lowest counts.
    while_busy: Recent<Reverse<u64>>,
    /// The same in all.
    in_all: Recent<Reverse<u64>>,
    period_since: Moment,
    waits: Waits,
    commits: Commits,
}

/// How long commits take on average, in the last slot in which there were any.
#[derive(Debug, Default)]
struct Commits {
    total: Duration,
    count: u32,
    mean: Duration,
}

impl Commits {
    fn note(&mut self, took: Duration) {
        self.total += took;
        self.count += 1;
    }

    fn end_slot(&mut self) -> Option<Duration> {
        let mean = self.total.checked_div(self.count)?;
        *self = Self {
            mean,
            ..Self::default()
        };
        Some(mean)
    }
}

/// For how long, in a slot, the applier had nothing to apply.
#[derive(Debug, Default)]
struct Waits {
    committed: Index,
    since: Option<Moment>,
    total: Duration,
}

impl Waits {
    fn committed(&mut self, index: Index, now: Moment) {
        if index > self.committed {
            self.committed = index;
            let waited = self.since.take().map(|since| now.since(since));
            self.total += waited.unwrap_or_default();
        }
    }

    fn applied(&mut self, index: Index, now: Moment) {
        if index >= self.committed && self.since.is_none() {
            self.since = Some(now);
        }
    }

    fn end_slot(&mut self, now: Moment) -> Duration {
        if let Some(since) = &mut self.since {
            self.total += now.since(std::mem::replace(since, now));
        }
        std::mem::take(&mut self.total)
    }
}

/// While little is under way, so that it is measured how long a commit takes then.
#[derive(Clone, Copy, Debug)]
enum Probe {
    /// What was proposed before has to be committed first, up to this entry.
    Draining(Index),
    /// The first that was proposed since is measured.
    Measuring(Moment),
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
    /// Entries from this one on are in the log of this leader, which ask for so much each.
    pub(super) fn proposed(&mut self, first: Index, loads: &[u64], now: Moment) {
        let last = Index(first.0 + loads.len() as u64 - 1);
        self.proposed.push_back((last, now));
        // Each of its own: what is applied makes room at once, not only with the last of those that
        // came together.
        self.unapplied
            .extend((first.0..).map(Index).zip(loads.iter().copied()));
        self.unapplied_load += loads.iter().sum::<u64>();
    }

    /// It leads no more: what it proposed may never be committed.
    pub(super) fn lost_lead(&mut self) {
        self.proposed.clear();
        self.unapplied.clear();
        self.unapplied_load = 0;
        self.probe = None;
    }

    /// Those up to this one may be applied: they are committed, and on this member's own disk,
    /// which may take longer than the others'.
    pub(super) fn committed(&mut self, index: Index, now: Moment) {
        self.waits.committed(index, now);
        while let Some((_, since)) = self.proposed.front().filter(|it| it.0 <= index) {
            let took = now.since(*since);
            self.to_commit.note(took);
            self.commits.note(took);
            if let Some(Probe::Measuring(drained)) = self.probe
                && drained <= *since
            {
                self.probe = None;
                self.unloaded = Some(took);
            }
            self.proposed.pop_front();
        }
        if let Some(Probe::Draining(last)) = self.probe
            && last <= index
        {
            self.probe = Some(Probe::Measuring(now));
        }
    }

    /// Those up to this one are applied, which were so much.
    pub(super) fn applied(&mut self, index: Index, load: u64, now: Moment) {
        while let Some((_, load)) = self.unapplied.front().filter(|it| it.0 <= index) {
            self.unapplied_load -= load;
            self.unapplied.pop_front();
        }
        self.slot_load += load;
        self.waits.applied(index, now);
        let took = now.since(self.slot_since);
        if took < SLOT {
            return;
        }
        let busy = took.saturating_sub(self.waits.end_slot(now)).max(BUSY_MIN);
        self.while_busy
            .note(Reverse(per_second(self.slot_load, busy)));
        self.in_all.note(Reverse(per_second(self.slot_load, took)));
        if let Some(mean) = self.commits.end_slot() {
            self.unloaded = self.unloaded.map(|unloaded| unloaded.min(mean));
        }
        (self.slot_since, self.slot_load) = (now, 0);
        if now.since(self.period_since) >= PERIOD {
            self.period_since = now;
            self.while_busy.begin_period();
            self.in_all.begin_period();
            self.to_commit.begin_period();
        }
    }

    /// How many entries this leader proposed that are not applied, and what they ask for.
    pub(super) fn unapplied(&self) -> (usize, u64) {
        (self.unapplied.len(), self.unapplied_load)
    }

    /// What the last of them asks for.
    pub(super) fn newest(&self) -> u64 {
        self.unapplied.back().map_or(0, |(_, load)| *load)
    }

    /// So much; nothing while it is measured how long a commit takes with little under way. Only
    /// called while there is a bound.
    pub(super) fn load(&mut self, now: Moment) -> u64 {
        if self.probed.is_none_or(|at| now.since(at) >= PROBE_EVERY) {
            self.probed = Some(now);
            let last = self.proposed.back().map_or(Index(0), |it| it.0);
            self.probe = Some(Probe::Draining(last));
        }
        if self.probe.is_some() {
            return 0;
        }
        let shortest = self.to_commit.lowest().unwrap_or_default();
        let most = self.unloaded.unwrap_or(shortest) * UNLOADED_TIMES + AHEAD;
        let of = |rates: &Recent<Reverse<u64>>, commit: Duration| {
            let time = (commit + AHEAD.max(commit / 4)).min(most);
            let rate = rates.lowest().map_or(0, |rate| rate.0);
            u128::from(rate) * time.as_micros()
        };
        let keeps_busy = of(&self.while_busy, shortest);
        let lately = of(&self.in_all, self.commits.mean.max(shortest));
        let load = keeps_busy.min(lately + lately / 2).div_ceil(1_000_000);
        u64::try_from(load).unwrap_or(u64::MAX)
    }
}

fn per_second(load: u64, took: Duration) -> u64 {
    let nanos = took.as_nanos().max(1);
    u64::try_from(u128::from(load) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milli: u64) -> Moment {
        Moment(milli * 1_000_000)
    }

    /// A tenth of a millisecond: less than anything takes here.
    fn at_step(step: u64) -> Moment {
        Moment(step * 100_000)
    }

    /// A member that applies at most `rate` a step, and commits each entry after `to_commit` steps,
    /// while thousands wait: how much is under way in the end, and how many were applied, a hundred
    /// steps. Each entry has a load of 1 here.
    fn settles_at(rate: u64, to_commit: u64, least: u64) -> (u64, u64) {
        const STEPS: u64 = 100_000;
        let (mut pace, mut last, mut applied) = (Pace::default(), 0, 0);
        let mut proposed = VecDeque::new();
        for step in 0..STEPS {
            let under_way = last - applied;
            let room = pace
                .load(at_step(step))
                .max(least)
                .saturating_sub(under_way);
            if room > 0 {
                pace.proposed(Index(last + 1), &vec![1; room as usize], at_step(step));
                last += room;
                proposed.push_back((last, step));
            }
            let committed = proposed.iter().rfind(|it| it.1 + to_commit <= step);
            let committed = committed.map_or(applied, |it| it.0);
            pace.committed(Index(committed), at_step(step));
            proposed.retain(|it| it.0 > committed || it.0 > applied);
            let more = rate.min(committed.saturating_sub(applied));
            applied += more;
            pace.applied(Index(applied), more, at_step(step));
        }
        let under_way = pace.load(at_step(STEPS - 1)).max(least);
        (under_way, applied * 100 / STEPS)
    }

    /// The same with a disk that takes ten steps for what it is given at once, and one more for
    /// each `disk` entries. Also how many were applied, a hundred steps.
    fn settles_with_a_disk_at(rate: u64, disk: u64, seconds: u64) -> (u64, u64) {
        let (mut pace, mut last, mut applied) = (Pace::default(), 0, 0);
        let (mut committed, mut begun, mut done) = (0, 0, 0);
        for step in 0..seconds * 10_000 {
            if committed < begun && done <= step {
                committed = begun;
                pace.committed(Index(committed), at_step(step));
            }
            let more = rate.min(committed - applied);
            applied += more;
            pace.applied(Index(applied), more, at_step(step));
            let load = pace.load(at_step(step)).max(64);
            let room = load.saturating_sub(last - applied);
            if room > 0 {
                pace.proposed(Index(last + 1), &vec![1; room as usize], at_step(step));
                last += room;
            }
            if committed == begun && begun < last {
                done = step + 10 + (last - begun).div_ceil(disk);
                begun = last;
            }
        }
        (last - applied, applied / (seconds * 100))
    }

    #[test]
    fn the_applier_never_waits_and_little_waits_for_it() {
        // At 20 entries a step, 3 ms are 600 entries.
        for (rate, to_commit) in [(20, 30), (100, 10), (100, 200), (5, 200), (20, 600)] {
            let (load, applied) = settles_at(rate, to_commit, 16);
            let ideal = rate * (to_commit + (to_commit / 4).max(10));
            assert!(
                (ideal * 9 / 10..=ideal * 11 / 10).contains(&load),
                "{load} for {rate} a step and {to_commit} steps"
            );
            assert!(applied >= rate * 85, "{applied} of {rate}00");
        }
    }

    /// A commit took longer because of what was under way, and because it did more was under way:
    /// within a minute as much as the disk takes in seconds.
    #[test]
    fn behind_a_disk_that_is_slower_than_the_applier_little_waits() {
        for (rate, disk) in [(30, 10), (11, 10), (100, 2)] {
            let (under_way, throughput) = settles_with_a_disk_at(rate, disk, 90);
            assert!(under_way <= disk * 250, "{under_way} of {disk} a step");
            assert!(throughput >= disk * 45, "{throughput} of {disk}00");
        }
    }

    #[test]
    fn what_was_long_ago_does_not_count_and_a_lost_lead_is_not_measured() {
        let mut pace = Pace::default();
        assert_eq!(pace.load(at(0)), 0, "it is measured first");
        pace.committed(Index(0), at(0));
        pace.proposed(Index(1), &[0], at(0));
        pace.committed(Index(1), at(3));
        pace.applied(Index(1), 1_000, at(50));
        assert_eq!(pace.load(at(50)), 80, "20,000 a second, for 3 ms and 1");
        pace.proposed(Index(2), &[7], at(60));
        assert_eq!(pace.unapplied(), (1, 7));
        pace.lost_lead();
        assert_eq!(pace.unapplied(), (0, 0));
        pace.committed(Index(2), at(60));
        pace.applied(Index(2), 0, at(1_050));
        assert_eq!(pace.load(at(1_050)), 80);
        pace.applied(Index(2), 0, at(2_100));
        pace.applied(Index(2), 0, at(3_200));
        assert_eq!(pace.load(at(3_200)), 0);
        pace.proposed(Index(3), &[0], at(9_999));
        assert_eq!(pace.load(at(10_000)), 0, "it is measured again");
        pace.lost_lead();
        pace.applied(Index(3), 1_000, at(10_050));
        assert_ne!(
            pace.load(at(10_050)),
            0,
            "what it waited for may never be committed"
        );
    }

    #[test]
    fn an_entry_is_under_way_until_it_is_applied() {
        let mut pace = Pace::default();
        pace.proposed(Index(3), &[60, 40], at(0));
        pace.proposed(Index(5), &[20], at(1));
        for (applied, left) in [(2, (3, 120)), (3, (2, 60)), (4, (1, 20)), (5, (0, 0))] {
            pace.applied(Index(applied), 0, at(2));
            assert_eq!(pace.unapplied(), left, "{applied}");
        }
    }

    #[test]
    fn an_entry_of_a_mib_is_as_much_as_a_thousand_without_bytes() {
        assert_eq!(load(1_025, 0), load(1, 1 << 20));
    }
}
