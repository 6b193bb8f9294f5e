//! Undoes the gathered effects of a command that has to be refused late.

use bytes::Bytes;
use dengine_types::Revision;

use super::{Changed, Transition};
use crate::store::Store;

/// The step at the beginning of the command, as far as the command has changed it.
pub(super) struct Undo {
    revision: Revision,
    /// Length and size of the batch.
    batch: (usize, usize),
    /// The previous state of the keys that the command has changed, in the order of the changes.
    keys: Vec<(Bytes, Option<Changed>)>,
}

impl<S: Store> Transition<'_, S> {
    /// Records changes from now on, until [`Self::undo`] or the end of the command.
    pub(super) fn begin_undo(&mut self) {
        self.undo = Some(Undo {
            revision: self.state.revision,
            batch: (self.batch.len(), self.batch.size_bytes()),
            keys: Vec::new(),
        });
    }

    /// Sets the state of a key in the step.
    pub(super) fn change(&mut self, key: Bytes, now: Changed) {
        let Some(undo) = &mut self.undo else {
            self.keys.insert(key, now);
            return;
        };
        let before = self.keys.insert(key.clone(), now);
        undo.keys.push((key, before));
    }

    /// Restores the step to its state at [`Self::begin_undo`].
    pub(super) fn undo(&mut self) {
        let Some(undo) = self.undo.take() else {
            return;
        };
        for (key, before) in undo.keys.into_iter().rev() {
            match before {
                Some(before) => self.keys.insert(key, before),
                None => self.keys.remove(&key),
            };
        }
        self.state.revision = undo.revision;
        self.stamp = None;
        let (operations, bytes) = undo.batch;
        self.batch.truncate(operations, bytes);
    }
}
