//! Removes the versions that compaction made obsolete: concurrently with `apply`, a little at a
//! time.
//!
//! Every change is listed in the order of history, with the version of its key that it made
//! obsolete. So the list itself is the work to do: for each change up to the compact revision, the
//! version before it is removed, and then its place in the list. Garbage never outlives its place:
//! both are removed in one batch, or the place later. So a crash at any point loses nothing but
//! time, and no progress has to be stored.
//!
//! The list keeps the changes of the compact revision itself, because a watch may begin there; and
//! a tombstone as long as its place in the list.
//!
//! Places are removed many at a time, by one deletion of the part of history that they are in. One
//! by one they would be as many records again, all of them in a row, and a storage that merges
//! files with many deleted records in a row would merge each file once more for them.

use std::sync::Arc;

use dengine_types::Revision;

use super::layout::{Change, Stamp, change, change_range, put_data_key, split_change_key};
use super::machine::SharedState;
use super::store::{Cursor, Scope, Store, StoreError, WriteBatch};

/// How many places are removed together: a deletion of a part of history costs every read a little
/// until it is merged, so that there are few of them; and until so many have come together, they
/// take space. Whoever collects next finds them again.
const PLACES_TOGETHER: usize = 1024;

/// Removes obsolete versions. One is enough for a store; more do no harm.
#[derive(Debug)]
pub struct Collector<S> {
    shared: Arc<SharedState<S>>,
    progress: Progress,
    /// The compact revision up to which everything is collected.
    done_to: Revision,
    /// The compact revision of the current pass. The store may be compacted further meanwhile.
    working_to: Option<Revision>,
    places_together: usize,
}

/// How far it has come in the list.
#[derive(Clone, Copy, Debug)]
struct Progress {
    /// Everything before it is collected.
    next: Stamp,
    /// Of what is collected, this place and those behind it are still in the list.
    listed: Stamp,
    /// How many of these may be removed.
    places: usize,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collected {
    /// How many records were removed.
    pub removed: u64,
    /// Nothing is left to collect until the store is compacted again.
    pub done: bool,
}

impl<S: Store> Collector<S> {
    pub(super) fn new(shared: Arc<SharedState<S>>) -> Self {
        let start = Stamp::start_of(Revision(0));
        Self {
            shared,
            progress: Progress {
                next: start,
                listed: start,
                places: 0,
            },
            done_to: Revision(0),
            working_to: None,
            places_together: PLACES_TOGETHER,
        }
    }

    /// Removes so many places together, for tests that have few.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn removing_together(self, places: usize) -> Self {
        Self {
            places_together: places,
            ..self
        }
    }

    /// Collects the next changes, at most `changes_max` of them, in one batch.
    ///
    /// # Errors
    ///
    /// If the store fails or is damaged. After [`StoreError::NoSpace`] the next step tries the same
    /// changes again.
    pub fn step(&mut self, changes_max: usize) -> Result<Collected, StoreError> {
        let shared = Arc::clone(&self.shared);
        let compacted = *self
            .working_to
            .get_or_insert_with(|| shared.compact_revision());
        let mut sweep = Sweep {
            compacted,
            progress: self.progress,
            batch: WriteBatch::default(),
            removed: 0,
        };
        let done = compacted <= self.done_to || sweep.list(&shared, changes_max)?;
        if sweep.progress.places >= self.places_together {
            sweep.remove_places();
        }
        if !sweep.batch.is_empty() {
            shared.store.write_if_room(&sweep.batch)?;
        }
        self.progress = sweep.progress;
        if done {
            self.finish(compacted);
        }
        Ok(Collected {
            removed: sweep.removed,
            done,
        })
    }

    fn finish(&mut self, compacted: Revision) {
        self.working_to = None;
        self.done_to = compacted;
        // The changes of that revision stay listed until the next compaction.
        self.progress.next = Stamp::start_of(compacted);
    }
}

/// What a step does, and how far it comes.
struct Sweep {
    compacted: Revision,
    progress: Progress,
    batch: WriteBatch,
    removed: u64,
}

impl Sweep {
    /// Collects the next changes of the list. Returns whether it has reached the compact revision.
    fn list<S: Store>(
        &mut self,
        shared: &SharedState<S>,
        changes_max: usize,
    ) -> Result<bool, StoreError> {
        let range = change_range(self.progress.next, self.compacted);
        let mut changes = shared.store.cursor(Scope::Between(range.clone()));
        changes.seek(&range.start)?;
        for _ in 0..changes_max {
            let Some((key, record)) = changes.record() else {
                return Ok(true);
            };
            let stamp = split_change_key(key)?;
            self.change(stamp, change(record)?);
            self.progress.next = Stamp {
                sub: stamp.sub.saturating_add(1),
                ..stamp
            };
            changes.next()?;
        }
        Ok(changes.record().is_none())
    }

    /// Removes the version that a change made obsolete, and its own if that is a tombstone and
    /// nobody needs it any more. Then its place in the list may be removed.
    fn change(&mut self, stamp: Stamp, change: Change<'_>) {
        // Only the version before: older ones were removed with the changes that replaced them.
        if let Some(obsolete) = change.replaces {
            self.remove_version(change.key, obsolete);
        }
        if stamp.revision == self.compacted {
            return;
        }
        if change.deletes {
            self.remove_version(change.key, stamp.revision);
        }
        self.progress.places += 1;
    }

    fn remove_version(&mut self, key: &[u8], revision: Revision) {
        self.batch
            .delete_with(|out| put_data_key(out, key, revision));
        self.removed += 1;
    }

    /// Removes all places that may be.
    fn remove_places(&mut self) {
        let first_needed = Stamp::start_of(self.compacted);
        let end = self.progress.next.min(first_needed);
        self.batch.delete_changes(self.progress.listed..end);
        self.removed += self.progress.places as u64;
        self.progress.listed = end;
        self.progress.places = 0;
    }
}
