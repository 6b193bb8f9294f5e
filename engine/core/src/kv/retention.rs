//! How much history to keep: says which compaction a leader should propose.
//!
//! No clock and no I/O. Every member may [`observe`](Retention::observe) all the time, so that a new leader
//! knows how old its revisions are; only the leader proposes.

use crate::types::{Moment, Revision};
use std::collections::VecDeque;
use std::time::Duration;

/// Into how many parts the duration is cut: history may become so much older than asked for.
const SAMPLES: u32 = 64;
/// History may become longer than asked for by this part, so that not every write is followed by a
/// compaction.
const SLACK: u64 = 16;

/// How much history to keep. Of two settings the one that keeps more counts; without any, all is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionSetting {
    /// The newest so many revisions.
    pub revisions: Option<u64>,
    /// What was to be seen within this time.
    pub duration: Option<Duration>,
}

/// Watches the revision grow.
#[derive(Clone, Debug)]
pub struct Retention {
    setting: RetentionSetting,
    /// Oldest first. At most [`SAMPLES`] of them lie within the duration, and one before it.
    samples: VecDeque<Sample>,
}

/// The store was at this revision at this time.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Moment,
    revision: Revision,
}

impl Retention {
    /// Keeps what `setting` says.
    #[must_use]
    pub fn new(setting: RetentionSetting) -> Self {
        Self {
            setting,
            samples: VecDeque::new(),
        }
    }

    /// Takes note of the store's revision. Call it on every tick, or less often.
    pub fn observe(&mut self, now: Moment, revision: Revision) {
        let Some(duration) = self.setting.duration else {
            return;
        };
        let wanted = self.samples.back().is_none_or(|last| {
            // A moment that went back is none of this clock.
            now > last.at && now.since(last.at) >= duration / SAMPLES
        });
        if wanted {
            let at = now;
            self.samples.push_back(Sample { at, revision });
        }
        // The newest of those that are old enough is the only one that is still of use.
        let old_enough = |sample: &Sample| now.since(sample.at) >= duration;
        while self.samples.get(1).is_some_and(old_enough) {
            self.samples.pop_front();
        }
    }

    /// The revision up to which a leader should compact now, if that is worth it: the store is at
    /// `revision`, and compacted at `compacted`.
    #[must_use]
    pub fn proposal(
        &self,
        now: Moment,
        revision: Revision,
        compacted: Revision,
    ) -> Option<Revision> {
        let by_count = self.setting.revisions.map(|kept| by_count(revision, kept));
        let by_time = self.setting.duration.map(|kept| self.by_time(now, kept));
        let target = match (by_count, by_time) {
            (Some(count), Some(time)) => count.min(time),
            (one, other) => one.or(other)?,
        };
        let step_min = self.setting.revisions.map_or(1, |kept| kept / SLACK).max(1);
        // An empty store is at revision 1: there is nothing before it to give up.
        let from = compacted.0.max(1);
        (target.0 >= from.saturating_add(step_min)).then_some(target.min(revision))
    }

    /// The revision that the store had when the duration began; 0 if nobody looked then.
    fn by_time(&self, now: Moment, kept: Duration) -> Revision {
        let mut newest_first = self.samples.iter().rev();
        let seen = newest_first.find(|sample| now.since(sample.at) >= kept);
        seen.map_or(Revision(0), |sample| sample.revision)
    }
}

/// The first of the newest `kept` revisions; of none, the one that is there now.
fn by_count(revision: Revision, kept: u64) -> Revision {
    Revision(revision.0.saturating_sub(kept.saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(revisions: Option<u64>, seconds: Option<u64>) -> Retention {
        Retention::new(RetentionSetting {
            revisions,
            duration: seconds.map(Duration::from_secs),
        })
    }

    fn at(second: u64) -> Moment {
        Moment(0).after(Duration::from_secs(second))
    }

    /// One revision a second, from revision 1 at second 0.
    fn after(mut retention: Retention, seconds: u64) -> Retention {
        for second in 0..=seconds {
            retention.observe(at(second), Revision(second + 1));
        }
        retention
    }

    fn proposal(retention: &Retention, second: u64, compacted: u64) -> Option<u64> {
        let revision = Revision(second + 1);
        let proposal = retention.proposal(at(second), revision, Revision(compacted));
        proposal.map(|revision| revision.0)
    }

    #[test]
    fn without_a_setting_all_is_kept() {
        let retention = after(setting(None, None), 10_000);
        assert_eq!(proposal(&retention, 10_000, 0), None);
    }

    #[test]
    fn so_many_revisions_are_kept() {
        let retention = setting(Some(100), None);
        assert_eq!(proposal(&retention, 99, 0), None);
        assert_eq!(proposal(&retention, 104, 0), None, "not worth it yet");
        assert_eq!(proposal(&retention, 106, 0), Some(8));
        assert_eq!(proposal(&retention, 106, 8), None);
        assert_eq!(proposal(&retention, 111, 8), None, "not worth it yet");
        assert_eq!(proposal(&retention, 112, 8), Some(14));
        assert_eq!(proposal(&setting(Some(0), None), 112, 8), Some(113));
    }

    #[test]
    fn what_was_seen_within_the_duration_is_kept() {
        let retention = after(setting(None, Some(600)), 599);
        assert_eq!(proposal(&retention, 599, 0), None);
        let retention = after(setting(None, Some(600)), 2000);
        let target = proposal(&retention, 2000, 0).expect("old enough");
        // At second 1400 the store was at revision 1401.
        assert!(target <= 1401, "{target} is too young");
        assert!(target >= 1401 - 600 / 64 - 1, "{target} is too old");
    }

    #[test]
    fn of_two_settings_the_one_that_keeps_more_counts() {
        let retention = after(setting(Some(10), Some(600)), 2000);
        assert!(proposal(&retention, 2000, 0).expect("old enough") <= 1401);
        let retention = after(setting(Some(1500), Some(600)), 2000);
        assert_eq!(proposal(&retention, 2000, 0), Some(502));
    }

    #[test]
    fn a_new_observer_keeps_what_it_did_not_see_age() {
        let mut retention = setting(None, Some(600));
        retention.observe(at(5000), Revision(5001));
        assert_eq!(proposal(&retention, 5000, 0), None);
        assert_eq!(proposal(&retention, 5600, 0), Some(5001));
    }

    #[test]
    fn samples_are_bounded_and_time_does_not_go_back() {
        let mut retention = after(setting(None, Some(600)), 100_000);
        assert!(retention.samples.len() <= SAMPLES as usize + 2);
        let before = retention.samples.len();
        retention.observe(at(5), Revision(200_000));
        assert_eq!(retention.samples.len(), before);
        retention.observe(Moment(u64::MAX), Revision(200_000));
        let _ = retention.proposal(Moment(u64::MAX), Revision(u64::MAX), Revision(u64::MAX));
    }
}
