//! How much history to keep: decides which compaction a leader proposes.
//!
//! No clock and no I/O. Every member may [`observe`](Retention::observe) all the time, so that a
//! new leader knows how old its revisions are; only the leader proposes.

use std::collections::VecDeque;
use std::time::Duration;

use dengine_types::{Moment, Revision};

/// The number of samples within the duration: history may become older than configured by the time
/// between two of them.
const SAMPLES: u32 = 64;
/// History may become longer than configured by this part, so that not every write is followed by a
/// compaction.
const SLACK: u64 = 16;

/// How much history to keep. Of revisions and duration the one that keeps more applies, within the
/// limit of `bytes`; without either, all history is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionSetting {
    /// The number of newest revisions to keep.
    pub revisions: Option<u64>,
    /// Keep what was visible within this time.
    pub duration: Option<Duration>,
    /// Keep no more history than was written with this many bytes. It limits the size of the store
    /// at any rate of writes: these bytes, and what was live when they began.
    pub bytes: Option<u64>,
}

/// Tracks the revision over time.
#[derive(Clone, Debug)]
pub struct Retention {
    setting: RetentionSetting,
    /// Oldest first. At most [`SAMPLES`] of them are within the duration by time, as many within
    /// the limit by bytes, and one is before them.
    samples: VecDeque<Sample>,
}

impl RetentionSetting {
    /// Whether everything written since this sample may be kept.
    fn has_room(&self, since: &Sample, written_bytes: u64) -> bool {
        let kept = written_bytes.saturating_sub(since.written_bytes);
        self.bytes.is_none_or(|bytes| kept <= bytes)
    }
}

/// The revision of the store at some time.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Moment,
    revision: Revision,
    /// How much had been written by then.
    written_bytes: u64,
}

impl Retention {
    #[must_use]
    pub fn new(setting: RetentionSetting) -> Self {
        Self {
            setting,
            samples: VecDeque::new(),
        }
    }

    /// Records the store's revision, and how much had been written by then. Call it on every tick,
    /// or less often.
    pub fn observe(&mut self, now: Moment, revision: Revision, written_bytes: u64) {
        let RetentionSetting {
            duration, bytes, ..
        } = self.setting;
        let wanted = self.samples.back().is_none_or(|last| {
            let late = duration.is_some_and(|it| now.since(last.at) >= it / SAMPLES);
            let grown = written_bytes.saturating_sub(last.written_bytes);
            let much = bytes.is_some_and(|it| grown >= it / u64::from(SAMPLES));
            // A time before the last sample is not of this clock.
            now > last.at && (late || much)
        });
        if wanted {
            self.samples.push_back(Sample {
                at: now,
                revision,
                written_bytes,
            });
        }
        // Of the samples that are too old for one of the limits only the newest is still needed.
        let is_past = |sample: &Sample| {
            let old = duration.is_some_and(|it| now.since(sample.at) >= it);
            old || !self.setting.has_room(sample, written_bytes)
        };
        let past = self.samples.iter().take_while(|it| is_past(it)).count();
        self.samples.drain(..past.saturating_sub(1));
    }

    /// The revision up to which a leader should compact now, if that is worth it, where the store
    /// is at `revision`, compacted at `compacted`, and has written `written_bytes`.
    #[must_use]
    pub fn proposal(
        &self,
        now: Moment,
        revision: Revision,
        compacted: Revision,
        written_bytes: u64,
    ) -> Option<Revision> {
        let by_count = self.setting.revisions.map(|kept| by_count(revision, kept));
        let by_time = self.setting.duration.map(|kept| self.by_time(now, kept));
        let kept = match (by_count, by_time) {
            (Some(count), Some(time)) => count.min(time),
            (one, other) => one.or(other)?,
        };
        let by_bytes = self.by_bytes(written_bytes);
        let target = kept.max(by_bytes);
        let step_min = match self.setting.revisions {
            // A few revisions may be many bytes.
            Some(revisions) if kept >= by_bytes => (revisions / SLACK).max(1),
            _ => 1,
        };
        // An empty store is at revision 1: there is nothing before it to compact.
        let from = compacted.0.max(1);
        (target.0 >= from.saturating_add(step_min)).then_some(target.min(revision))
    }

    /// The first revision since which no more was written than the limit; 0 if all of it is within
    /// the limit.
    fn by_bytes(&self, written_bytes: u64) -> Revision {
        let has_room = |sample: &Sample| self.setting.has_room(sample, written_bytes);
        let first = self.samples.iter().position(has_room);
        match (first, self.samples.back()) {
            (Some(0), _) | (None, None) => Revision(0),
            (Some(first), _) => self.samples[first].revision,
            (None, Some(newest)) => newest.revision,
        }
    }

    /// The revision at the beginning of the duration; 0 if there is no sample of that time.
    fn by_time(&self, now: Moment, kept: Duration) -> Revision {
        let mut newest_first = self.samples.iter().rev();
        let seen = newest_first.find(|sample| now.since(sample.at) >= kept);
        seen.map_or(Revision(0), |sample| sample.revision)
    }
}

/// The first of the newest `kept` revisions; the current one if none is kept.
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
            bytes: None,
        })
    }

    fn at(second: u64) -> Moment {
        Moment(0).after(Duration::from_secs(second))
    }

    /// One revision a second, from revision 1 at second 0.
    fn after(mut retention: Retention, seconds: u64) -> Retention {
        for second in 0..=seconds {
            retention.observe(at(second), Revision(second + 1), 0);
        }
        retention
    }

    fn proposal(retention: &Retention, second: u64, compacted: u64) -> Option<u64> {
        let revision = Revision(second + 1);
        let proposal = retention.proposal(at(second), revision, Revision(compacted), 0);
        proposal.map(|revision| revision.0)
    }

    #[test]
    fn without_settings_all_history_is_kept() {
        let retention = after(setting(None, None), 10_000);
        assert_eq!(proposal(&retention, 10_000, 0), None);
    }

    #[test]
    fn the_configured_number_of_revisions_is_kept() {
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
    fn what_was_visible_within_the_duration_is_kept() {
        let retention = after(setting(None, Some(600)), 599);
        assert_eq!(proposal(&retention, 599, 0), None);
        let retention = after(setting(None, Some(600)), 2000);
        let target = proposal(&retention, 2000, 0).expect("old enough");
        // At second 1400 the store was at revision 1401.
        assert!(target <= 1401, "{target} is too young");
        assert!(target >= 1401 - 600 / 64 - 1, "{target} is too old");
    }

    #[test]
    fn of_two_settings_the_one_that_keeps_more_applies() {
        let retention = after(setting(Some(10), Some(600)), 2000);
        assert!(proposal(&retention, 2000, 0).expect("old enough") <= 1401);
        let retention = after(setting(Some(1500), Some(600)), 2000);
        assert_eq!(proposal(&retention, 2000, 0), Some(502));
    }

    #[test]
    fn a_new_observer_keeps_history_of_unknown_age() {
        let mut retention = setting(None, Some(600));
        retention.observe(at(5000), Revision(5001), 0);
        assert_eq!(proposal(&retention, 5000, 0), None);
        assert_eq!(proposal(&retention, 5600, 0), Some(5001));
    }

    #[test]
    fn samples_are_bounded_and_time_does_not_go_back() {
        let mut retention = after(setting(None, Some(600)), 100_000);
        assert!(retention.samples.len() <= SAMPLES as usize + 2);
        let before = retention.samples.len();
        retention.observe(at(5), Revision(200_000), 0);
        assert_eq!(retention.samples.len(), before);
        retention.observe(Moment(u64::MAX), Revision(200_000), u64::MAX);
        let end = Revision(u64::MAX);
        let _ = retention.proposal(Moment(u64::MAX), end, end, u64::MAX);
    }

    /// A rate of revisions, and their size.
    #[derive(Clone, Copy)]
    struct Load {
        revisions_per_second: u64,
        bytes: u64,
    }

    /// What a put of the README's table writes:
    /// `a_put_writes_its_value_and_twice_its_key_and_some_thirty_bytes`.
    const BENCHMARK_PUT_BYTES: u64 = 345;

    const A_MEGABYTE_A_SECOND: Load = Load {
        revisions_per_second: 1_000,
        bytes: 1_000,
    };

    /// How many revisions are kept after `seconds` of this load, when every proposal is carried
    /// out.
    fn kept_under(load: Load, setting: RetentionSetting, seconds: u64) -> u64 {
        let mut retention = Retention::new(setting);
        let mut compacted = Revision(0);
        let mut revision = Revision(1);
        for tick in 0..=seconds * 10 {
            let now = Moment(0).after(Duration::from_millis(tick * 100));
            revision = Revision(1 + tick * load.revisions_per_second / 10);
            let written = revision.0 * load.bytes;
            retention.observe(now, revision, written);
            let proposal = retention.proposal(now, revision, compacted, written);
            compacted = proposal.unwrap_or(compacted);
            assert!(retention.samples.len() <= 2 * SAMPLES as usize + 3);
        }
        revision.0 - compacted.0
    }

    #[test]
    fn within_its_bytes_history_lasts_for_the_duration_at_any_rate() {
        for revisions_per_second in [1_000, 10_000, 48_461] {
            let load = Load {
                revisions_per_second,
                bytes: BENCHMARK_PUT_BYTES,
            };
            let setting = RetentionSetting {
                revisions: Some(1_000),
                duration: Some(Duration::from_secs(300)),
                // A quarter of 20 GiB.
                bytes: Some(5 << 30),
            };
            let seconds = kept_under(load, setting, 1_000) / revisions_per_second;
            assert!((299..320).contains(&seconds), "{seconds}");
        }
    }

    /// What docs/operator.md states about the default settings on a volume of 1 GiB, also at the
    /// rate of the README's table.
    #[test]
    fn at_full_speed_the_bytes_of_a_small_volume_last_for_seconds() {
        let setting = RetentionSetting {
            revisions: Some(100_000),
            duration: Some(Duration::from_secs(300)),
            bytes: Some((1 << 30) / 4),
        };
        for (revisions_per_second, expected) in [(48_461, 15..17), (10_000, 75..78)] {
            let load = Load {
                revisions_per_second,
                bytes: BENCHMARK_PUT_BYTES,
            };
            let seconds = kept_under(load, setting, 1_000) / revisions_per_second;
            assert!(expected.contains(&seconds), "{seconds}");
        }
    }

    #[test]
    fn the_size_of_history_is_bounded() {
        let setting = RetentionSetting {
            revisions: Some(1_000_000),
            duration: Some(Duration::from_secs(300)),
            bytes: Some(50_000_000),
        };
        // 50 seconds of writes, however many revisions and seconds are configured.
        let kept = kept_under(A_MEGABYTE_A_SECOND, setting, 1_000);
        assert!((48_000..=50_000).contains(&kept), "{kept}");
        let without_time = RetentionSetting {
            duration: None,
            ..setting
        };
        let kept = kept_under(A_MEGABYTE_A_SECOND, without_time, 1_000);
        assert!((48_000..=50_000).contains(&kept), "{kept}");
        let all = RetentionSetting {
            revisions: None,
            ..without_time
        };
        assert_eq!(
            kept_under(A_MEGABYTE_A_SECOND, all, 1_000),
            1_000_001,
            "no compaction is proposed"
        );
    }
}
