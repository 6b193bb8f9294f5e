//! The newest part of history in memory, for the one who follows it.
//!
//! Who follows reads each change soon after it was made: to look it up in the store takes two
//! cursors over all of its files for each read, which is more than the change itself. So steps are
//! kept as they were written until they have been read, from when somebody asks for them.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use dengine_types::Revision;
use dengine_types::sync::atomic::{AtomicBool, Ordering};
use dengine_types::sync::{Mutex, MutexGuard};

use super::layout::{Change, Stamp, change, corrupt, is_change_key, is_data_key, split_change_key};
use super::store::{Operation, StoreError, WriteBatch};

/// What it takes at most: some tenths of a second of what a member writes under load. Who is
/// further behind reads from the store.
const RECENT_BYTES_MAX: usize = 2 << 20;
/// Of steps that are read together, unless the first is larger.
const READ_BYTES: usize = 256 << 10;

/// The last steps that changed keys, without a gap, that whoever follows has not read.
#[derive(Debug, Default)]
pub(super) struct RecentHistory {
    /// A hint, for who need not copy anything.
    is_followed: AtomicBool,
    steps: Mutex<Steps>,
}

#[derive(Debug, Default)]
struct Steps {
    are_followed: bool,
    steps: VecDeque<Arc<RecentStep>>,
    bytes: usize,
}

/// The changes of one step.
#[derive(Debug)]
pub(super) struct RecentStep {
    first: Revision,
    last: Revision,
    batch: WriteBatch,
}

/// One change, with the version that it made.
pub(super) struct RecentChange<'a> {
    pub(super) at: Stamp,
    pub(super) change: Change<'a>,
    /// Key and value of the version's record.
    pub(super) version: (&'a [u8], &'a [u8]),
}

impl RecentHistory {
    /// Keeps a copy of the step that was written with `batch`, if somebody follows and it changed
    /// keys: if revisions after `before` up to `now` are its.
    pub(super) fn push(&self, before: Revision, now: Revision, batch: &WriteBatch) {
        if now == before || !self.is_followed.load(Ordering::Relaxed) {
            return;
        }
        let let_go = if batch.copy_bytes() > RECENT_BYTES_MAX {
            // It would not stay, and those before it would end at a gap.
            self.lock().take_all()
        } else {
            let step = RecentStep {
                first: Revision(before.0 + 1),
                last: now,
                batch: batch.clone(),
            };
            self.lock().push(Arc::new(step))
        };
        // Without the lock: whoever follows waits for nobody who frees memory.
        drop(let_go);
    }

    /// Some steps, from that of revision `from` on, which may have begun before; empty if that is
    /// not kept. From now on steps are, and those before this one no longer.
    pub(super) fn read_from(&self, from: Revision) -> Vec<Arc<RecentStep>> {
        let mut steps = self.lock();
        steps.are_followed = true;
        self.is_followed.store(true, Ordering::Relaxed);
        let was_read = steps.take_before(from);
        let read = steps.read_from(from);
        drop(steps);
        drop(was_read);
        read
    }

    /// Keeps none any more.
    pub(super) fn stop_following(&self) {
        let mut steps = self.lock();
        self.is_followed.store(false, Ordering::Relaxed);
        let all = std::mem::take(&mut *steps);
        drop(steps);
        drop(all);
    }

    fn lock(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Steps {
    /// Returns those for which there is no more room.
    fn push(&mut self, step: Arc<RecentStep>) -> Vec<Arc<RecentStep>> {
        // Nobody follows any more since it was looked.
        if !self.are_followed {
            return vec![step];
        }
        self.bytes += step.bytes();
        self.steps.push_back(step);
        let mut left = self.bytes;
        let too_many = self.steps.iter().take_while(|step| {
            let is_too_much = left > RECENT_BYTES_MAX;
            left -= step.bytes();
            is_too_much
        });
        let too_many = too_many.count();
        self.take_first(too_many)
    }

    fn take_before(&mut self, from: Revision) -> Vec<Arc<RecentStep>> {
        let before = self.steps.partition_point(|step| step.last < from);
        self.take_first(before)
    }

    fn take_all(&mut self) -> Vec<Arc<RecentStep>> {
        self.take_first(self.steps.len())
    }

    fn take_first(&mut self, count: usize) -> Vec<Arc<RecentStep>> {
        let taken: Vec<_> = self.steps.drain(..count).collect();
        self.bytes -= taken.iter().map(|step| step.bytes()).sum::<usize>();
        taken
    }

    fn read_from(&self, from: Revision) -> Vec<Arc<RecentStep>> {
        if self.steps.front().is_none_or(|first| first.first > from) {
            return Vec::new();
        }
        let mut bytes = 0;
        let read = self.steps.iter().take_while(|step| {
            let has_room = bytes < READ_BYTES;
            bytes += step.bytes();
            has_room
        });
        read.cloned().collect()
    }
}

impl RecentStep {
    /// The revision of its last change.
    pub(super) fn last(&self) -> Revision {
        self.last
    }

    /// Its changes from `from` on, in their order.
    pub(super) fn changes(
        &self,
        from: Stamp,
    ) -> impl Iterator<Item = Result<RecentChange<'_>, StoreError>> {
        let mut version = None;
        let changes = self.batch.operations().filter_map(move |operation| {
            let Operation::Put { key, value } = operation else {
                return None;
            };
            if is_data_key(key) {
                version = Some((key, value));
            }
            is_change_key(key).then(|| recent_change(key, value, version.take()))
        });
        changes.filter(move |it| it.as_ref().map_or(true, |it| it.at >= from))
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + self.batch.copy_bytes()
    }
}

/// A change follows the version that it made.
fn recent_change<'a>(
    key: &[u8],
    record: &'a [u8],
    version: Option<(&'a [u8], &'a [u8])>,
) -> Result<RecentChange<'a>, StoreError> {
    Ok(RecentChange {
        at: split_change_key(key)?,
        change: change(record)?,
        version: version.ok_or_else(|| corrupt("change", key))?,
    })
}

#[cfg(test)]
mod tests {
    use dengine_types::LeaseId;

    use super::*;
    use crate::layout::{Version, put_change, put_change_key, put_data_key, put_version};

    /// The next step sets a key so many times, with values of so many bytes. The last revision.
    fn step(recent: &RecentHistory, before: u64, changes: u64, value_bytes: usize) -> u64 {
        let mut batch = WriteBatch::default();
        let now = before + changes;
        for revision in (before + 1..=now).map(Revision) {
            let value = vec![7; value_bytes];
            let version = Version::Live {
                create_revision: revision,
                version: 1,
                ttl_ms: 0,
                lease: LeaseId::NONE,
                value: &value,
            };
            let change = Change {
                key: b"key",
                deletes: false,
                replaces: None,
            };
            batch.put_with(
                |out| put_data_key(out, b"key", revision),
                |out| put_version(out, &version),
            );
            batch.put_with(
                |out| put_change_key(out, Stamp::start_of(revision)),
                |out| put_change(out, change),
            );
        }
        recent.push(Revision(before), Revision(now), &batch);
        now
    }

    /// The revisions of what is read from there on.
    fn read(recent: &RecentHistory, from: u64) -> Vec<u64> {
        let steps = recent.read_from(Revision(from));
        let from = Stamp::start_of(Revision(from));
        let changes = steps.iter().flat_map(|step| step.changes(from));
        changes.map(|it| it.unwrap().at.revision.0).collect()
    }

    #[test]
    fn steps_are_kept_from_when_somebody_asks_until_they_are_read() {
        let recent = RecentHistory::default();
        let now = step(&recent, 1, 2, 10);
        assert!(read(&recent, now).is_empty(), "nobody followed");
        let now = step(&recent, now, 2, 10);
        let now = step(&recent, now, 0, 0);
        let now = step(&recent, now, 3, 10);
        assert!(read(&recent, 3).is_empty(), "before it was asked");
        assert_eq!(read(&recent, 4), [4, 5, 6, 7, 8]);
        assert_eq!(read(&recent, 7), [7, 8], "inside a step");
        assert!(read(&recent, 5).is_empty(), "what was read is let go");
        assert!(read(&recent, 9).is_empty(), "not there yet");
        assert_eq!(recent.lock().bytes, 0);
        let now = step(&recent, now, 1, 10);
        recent.stop_following();
        assert!(recent.lock().steps.is_empty());
        let now = step(&recent, now, 1, 10);
        assert!(read(&recent, now).is_empty());
    }

    #[test]
    fn it_is_bounded_in_bytes_and_without_a_gap() {
        let recent = RecentHistory::default();
        assert!(read(&recent, 2).is_empty());
        let mut now = 1;
        for _ in 0..40 {
            now = step(&recent, now, 10, 10_000);
            assert!(recent.lock().bytes <= RECENT_BYTES_MAX);
        }
        let first = recent.lock().steps[0].first.0;
        assert!(first > 2 && first < now - 50, "{first} of {now}");
        assert!(read(&recent, first - 1).is_empty());
        let few = read(&recent, first);
        assert!((10..50).contains(&few.len()), "{few:?}");
        let in_a_row = first..first + few.len() as u64;
        assert!(few.into_iter().eq(in_a_row));
        let more_than_half = step(&recent, now, 12, 100_000);
        assert_eq!(read(&recent, now + 1).len(), 12, "one of this size fits");
        let now = more_than_half;
        let large = step(&recent, now, 1, RECENT_BYTES_MAX);
        assert!(read(&recent, now).is_empty());
        assert_eq!(recent.lock().bytes, 0);
        let small = step(&recent, large, 1, 10);
        assert!(read(&recent, large).is_empty());
        assert_eq!(read(&recent, small), [small]);
    }
}
