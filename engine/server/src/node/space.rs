//! Keeps a reserve free on the disk, so that a member never meets a full one in the middle of its
//! work: below it, the member takes no write that needs space, and hands leadership to one that has
//! some.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dengine_kv::{Command, Reader};

use crate::config::Config;
use crate::error::RequestError;
use crate::storage::RocksStore;

/// Watches the disk of a data directory.
#[derive(Debug)]
pub(super) struct Space {
    data_dir: PathBuf,
    min_free_bytes: u64,
    /// What the log takes for its next segment as soon as space is low no more. Where the reserve
    /// is no larger, writes are taken again at some point all the same.
    segment_bytes: u64,
    free_bytes: AtomicU64,
    low: AtomicBool,
}

/// What a look at the disk showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Same,
    BecameLow,
    Recovered,
}

impl Space {
    /// Keeps what the settings say free where the data directory lies; 0 keeps nothing.
    pub(super) fn of(config: &Config) -> Self {
        let data_dir = config.data_dir.clone();
        Self::new(data_dir, config.min_free_bytes, config.log.segment_bytes)
    }

    fn new(data_dir: PathBuf, min_free_bytes: u64, segment_bytes: u64) -> Self {
        Self {
            data_dir,
            min_free_bytes,
            segment_bytes,
            free_bytes: AtomicU64::new(u64::MAX),
            low: AtomicBool::new(false),
        }
    }

    /// Looks at the disk, and logs what has changed.
    pub(super) fn look_and_tell(&self) {
        match self.look() {
            Ok(Look::BecameLow) => tracing::warn!(
                free_bytes = self.free_bytes(),
                wanted_bytes = self.enough_bytes(),
                "the disk is nearly full: this member takes no write that needs space until as \
                 much is free as is wanted"
            ),
            Ok(Look::Recovered) => tracing::info!(
                free_bytes = self.free_bytes(),
                "the disk has space again: this member takes all writes"
            ),
            Ok(Look::Same) => {}
            Err(error) => tracing::debug!(%error, "the disk does not say what is free"),
        }
    }

    /// Looks at the disk.
    ///
    /// # Errors
    /// The system does not say how much is free; what was known stays.
    pub(super) fn look(&self) -> io::Result<Look> {
        Ok(self.note(self.free_bytes_now()?))
    }

    /// How much is free now; what the last look noted stays.
    ///
    /// # Errors
    /// The system does not say.
    pub(super) fn free_bytes_now(&self) -> io::Result<u64> {
        let disk = rustix::fs::statvfs(&self.data_dir)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    /// How much the disk holds, if the system says so.
    pub(super) fn capacity_bytes(&self) -> Option<u64> {
        let disk = rustix::fs::statvfs(&self.data_dir).ok()?;
        Some(disk.f_blocks.saturating_mul(disk.f_frsize))
    }

    fn note(&self, free_bytes: u64) -> Look {
        self.free_bytes.store(free_bytes, Ordering::Relaxed);
        match self.is_low() {
            false if free_bytes < self.min_free_bytes => {
                self.low.store(true, Ordering::Relaxed);
                Look::BecameLow
            }
            true if free_bytes >= self.enough_bytes() => {
                self.low.store(false, Ordering::Relaxed);
                Look::Recovered
            }
            _ => Look::Same,
        }
    }

    /// Some more than the reserve must be free again, or each write would turn it over.
    fn enough_bytes(&self) -> u64 {
        let segment = self.segment_bytes.min(self.min_free_bytes / 2);
        let some_more = (self.min_free_bytes / 4).saturating_add(segment);
        self.min_free_bytes.saturating_add(some_more)
    }

    /// What was free at the last look.
    pub(super) fn free_bytes(&self) -> u64 {
        self.free_bytes.load(Ordering::Relaxed)
    }

    /// What may still be written until the reserve is reached; `None` before the first look.
    pub(super) fn room_bytes(&self) -> Option<u64> {
        let free_bytes = self.free_bytes();
        (free_bytes != u64::MAX).then(|| free_bytes.saturating_sub(self.min_free_bytes))
    }

    /// Whether less than the reserve is free.
    pub(super) fn is_low(&self) -> bool {
        self.low.load(Ordering::Relaxed)
    }

    /// Refuses what needs space while there is too little. What frees some, in time, is always
    /// taken.
    pub(super) fn check(&self, command: &Command) -> Result<(), RequestError> {
        let needs_space = match command {
            Command::Put(_)
            | Command::CompareAndSwap { .. }
            | Command::OpenSession { .. }
            | Command::GrantLease { .. } => true,
            // Conditional deletes among them: only they delete what no other client has changed.
            Command::Batch(batch) => batch.puts(),
            Command::Delete { .. }
            | Command::Compact { .. }
            | Command::KeepAlive { .. }
            | Command::CloseSession { .. }
            | Command::ExpireSession { .. }
            | Command::ExpireKeys { .. }
            | Command::RevokeLease { .. }
            | Command::ExpireLease { .. }
            | Command::CheckpointLeases { .. } => false,
        };
        if needs_space && self.is_low() {
            return Err(RequestError::LowOnSpace {
                free_bytes: self.free_bytes(),
                wanted_bytes: self.enough_bytes(),
            });
        }
        Ok(())
    }
}

/// How large the state is. Whoever must wait for nothing asks this and not the store, which answers
/// under a lock that may be held for as long as its disk takes.
pub(super) struct StateSize {
    reader: Reader<RocksStore>,
    bytes: AtomicU64,
}

impl StateSize {
    pub(super) fn of(reader: Reader<RocksStore>) -> Self {
        let bytes = AtomicU64::new(reader.approximate_bytes());
        Self { reader, bytes }
    }

    /// Asks the store.
    pub(super) fn look(&self) {
        let bytes = self.reader.approximate_bytes();
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// At the last look.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// When its owner asks the store how large the state is. That takes the longer the more files there
/// are: two milliseconds for ten million keys, on a slow machine.
#[derive(Debug, Default)]
pub(super) struct SizeLooks {
    not_before: Option<Instant>,
}

impl SizeLooks {
    /// It is only told, and does not grow much in that time.
    const EVERY: Duration = Duration::from_secs(1);
    /// No more than one part in so many of its owner's time, unless that is too seldom.
    const PART_OF_TIME: u32 = 100;
    /// Once a look had to wait for a disk, too.
    const EVERY_MAX: Duration = Duration::from_secs(60);

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|then| now >= then)
    }

    pub(super) fn looked(&mut self, begun: Instant, took: Duration) {
        let share = took.saturating_mul(Self::PART_OF_TIME);
        let pause = share.clamp(Self::EVERY, Self::EVERY_MAX);
        self.not_before = Some(begun + pause);
    }
}

/// When a leader whose disk is nearly full, or hangs, hands over. Others may have a better one, now
/// or later; if none can lead, this one goes on.
#[derive(Debug)]
pub(super) struct HandOvers {
    leads_for: Duration,
    leads_since: Option<Instant>,
    last: Option<Instant>,
}

impl HandOvers {
    /// Longer than any hand-over takes; if no member has a good disk, they pass the lead around no
    /// faster.
    const PAUSE: Duration = Duration::from_secs(10);
    /// With heartbeats so far apart: after two of them the others have answered one, and so have
    /// said whether they are fit.
    pub(super) fn new(heartbeat: Duration) -> Self {
        Self {
            leads_for: 2 * heartbeat,
            leads_since: None,
            last: None,
        }
    }

    /// Whether to hand over now.
    pub(super) fn is_due(&mut self, unfit: bool, leads: bool, now: Instant) -> bool {
        self.leads_since = self.leads_since.filter(|_| leads).or(leads.then_some(now));
        let leads = self
            .leads_since
            .is_some_and(|since| now - since >= self.leads_for);
        let rested = self.last.is_none_or(|last| now - last >= Self::PAUSE);
        let due = unfit && leads && rested;
        if due {
            self.last = Some(now);
        }
        due
    }
}

/// When the replica is told whether space is low: at once when that changes, and again while it is,
/// for what it does then may have had no room.
#[derive(Debug, Default)]
pub(super) struct ToldLow {
    last: Option<Instant>,
}

impl ToldLow {
    const PAUSE: Duration = Duration::from_secs(5);

    pub(super) fn is_due(&mut self, low: bool, now: Instant) -> bool {
        let told = self.last;
        let due = match told {
            Some(last) => !low || now - last >= Self::PAUSE,
            None => low,
        };
        if due {
            self.last = low.then_some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use dengine_kv::{Batch, BatchOperation, KeyRange};

    use super::*;

    #[test]
    fn whoever_comes_to_lead_without_space_hands_over_and_not_all_the_time() {
        let mut hand_overs = HandOvers::new(Duration::from_millis(500));
        let begun = Instant::now();
        for (unfit, leads, second, due) in [
            (true, false, 0, false),
            // It was low before it led.
            (true, true, 1, false),
            (true, true, 2, true),
            (true, true, 3, false),
            (false, true, 40, false),
            (true, true, 41, true),
            (true, true, 50, false),
            (true, true, 51, true),
        ] {
            let now = begun + Duration::from_secs(second);
            assert_eq!(hand_overs.is_due(unfit, leads, now), due, "second {second}");
        }
    }

    /// It was asked ten times a second, and while keys were expired five hundred times, which took
    /// more of a thread than all else that this did with ten million keys.
    #[test]
    fn the_larger_the_state_the_more_seldom_it_is_asked_for_its_size() {
        let begun = Instant::now();
        let mut looks = SizeLooks::default();
        assert!(looks.is_due(begun));
        for (took_ms, due_ms) in [(0, 1_000), (10, 1_000), (50, 5_000), (30_000, 60_000)] {
            looks.looked(begun, Duration::from_millis(took_ms));
            let due = begun + Duration::from_millis(due_ms);
            assert!(!looks.is_due(due - Duration::from_millis(1)), "{took_ms}");
            assert!(looks.is_due(due), "{took_ms}");
        }
    }

    #[test]
    fn that_space_is_low_is_told_again_and_that_it_is_not_once() {
        let mut told = ToldLow::default();
        let begun = Instant::now();
        for (second, low, due) in [
            (0, false, false),
            (1, true, true),
            (2, true, false),
            (6, true, true),
            (7, false, true),
            (20, false, false),
            (21, true, true),
        ] {
            let now = begun + Duration::from_secs(second);
            assert_eq!(told.is_due(low, now), due, "second {second}");
        }
    }

    #[test]
    fn the_reserve_must_be_exceeded_before_writes_are_taken_again() {
        let space = Space::new(PathBuf::from("."), 100, 10);
        let put = Command::put("k", "v");
        let batch = |then: Vec<BatchOperation>| {
            Command::Batch(Batch {
                then,
                ..Batch::default()
            })
        };
        let puts = batch(vec![BatchOperation::put("k", "v")]);
        let delete = batch(vec![BatchOperation::Delete {
            keys: KeyRange::One("k".into()),
            prev_kv: false,
        }]);
        let compact = Command::Compact {
            revision: dengine_types::Revision(2),
        };
        for (free, look, taken) in [
            (100, Look::Same, true),
            (99, Look::BecameLow, false),
            (134, Look::Same, false),
            (135, Look::Recovered, true),
            (100, Look::Same, true),
        ] {
            assert_eq!(space.note(free), look, "{free}");
            let refusal = RequestError::LowOnSpace {
                free_bytes: free,
                wanted_bytes: 135,
            };
            let expected = if taken { Ok(()) } else { Err(refusal) };
            assert_eq!(space.check(&put), expected, "{free}");
            assert_eq!(space.check(&puts).is_ok(), taken, "{free}");
            space.check(&compact).expect("it frees space");
            space.check(&delete).expect("it frees space");
        }
    }
}
