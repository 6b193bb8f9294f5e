//! Removes the versions that compaction made obsolete: concurrently with `apply`, a little at a
//! time.
//!
//! Every change is listed in the order of history, with the version of its key that it made
//! obsolete. So the list itself is the work to do: for each change up to the compact revision, the
//! version before it is removed, and then its place in the list. Both are removed in one batch, and
//! garbage never outlives its place in the list; so a crash at any point loses nothing but time,
//! and no progress has to be stored.
//!
//! The list keeps the changes of the compact revision itself, because a watch may begin there; and
//! a tombstone as long as its place in the list.

use std::sync::Arc;

use dengine_types::Revision;

use super::layout::{
    Change, Stamp, change, change_range, put_change_key, put_data_key, split_change_key,
};
use super::machine::SharedState;
use super::store::{Cursor, Scope, Store, StoreError, WriteBatch};

/// Removes obsolete versions. One is enough for a store; more do no harm.
#[derive(Debug)]
pub struct Collector<S> {
    shared: Arc<SharedState<S>>,
    /// Everything before it is collected.
    next: Stamp,
    /// The compact revision up to which everything is collected.
    done_to: Revision,
    /// The compact revision of the current pass. The store may be compacted further meanwhile.
    working_to: Option<Revision>,
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
        Self {
            shared,
            next: Stamp {
                revision: Revision(0),
                sub: 0,
            },
            done_to: Revision(0),
            working_to: None,
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
            batch: WriteBatch::default(),
        };
        let before = self.next;
        let done = compacted <= self.done_to || self.sweep(&shared, &mut sweep, changes_max)?;
        let batch = sweep.batch;
        if !batch.is_empty() {
            let written = shared.store.write_if_room(&batch);
            written.inspect_err(|_| self.next = before)?;
        }
        if done {
            self.finish(compacted);
        }
        Ok(Collected {
            removed: batch.len() as u64,
            done,
        })
    }

    fn finish(&mut self, compacted: Revision) {
        self.working_to = None;
        self.done_to = compacted;
        // The changes of that revision stay listed until the next compaction.
        self.next = Stamp {
            revision: compacted,
            sub: 0,
        };
    }

    /// Returns whether it has reached the compact revision.
    fn sweep(
        &mut self,
        shared: &SharedState<S>,
        sweep: &mut Sweep,
        changes_max: usize,
    ) -> Result<bool, StoreError> {
        let range = change_range(self.next, sweep.compacted);
        let mut changes = shared.store.cursor(Scope::Between(range.clone()));
        changes.seek(&range.start)?;
        for _ in 0..changes_max {
            let Some((key, record)) = changes.record() else {
                return Ok(true);
            };
            let stamp = split_change_key(key)?;
            sweep.change(stamp, change(record)?);
            self.next = Stamp {
                sub: stamp.sub.saturating_add(1),
                ..stamp
            };
            changes.next()?;
        }
        Ok(changes.record().is_none())
    }
}

struct Sweep {
    compacted: Revision,
    batch: WriteBatch,
}

impl Sweep {
    /// Removes the version that a change made obsolete, and its place in the list, unless it is
    /// still needed.
    fn change(&mut self, stamp: Stamp, change: Change<'_>) {
        // Only the version before: older ones were removed with the changes that replaced them.
        if let Some(obsolete) = change.replaces {
            self.batch
                .delete_with(|out| put_data_key(out, change.key, obsolete));
        }
        if stamp.revision == self.compacted {
            return;
        }
        if change.deletes {
            self.batch
                .delete_with(|out| put_data_key(out, change.key, stamp.revision));
        }
        self.batch.delete_with(|out| put_change_key(out, stamp));
    }
}
