//! Takes back what a command has gathered so far, when it turns out only then that it has to be refused.

use super::{Changed, Transition};
use crate::store::Store;
use bytes::Bytes;
use dengine_types::Revision;

/// The step as it was when the command began, as far as the command has changed it.
pub(super) struct Undo {
    revision: Revision,
    /// Length and size of the batch.
    batch: (usize, usize),
    /// What the step knew of the keys that the command has changed, in the order of the changes.
    keys: Vec<(Bytes, Option<Changed>)>,
}

impl<S: Store> Transition<'_, S> {
    /// From now on until [`Self::undo`] or until the command is done, notes down what changes.
    pub(super) fn begin_undo(&mut self) {
        self.undo = Some(Undo {
            revision: self.state.revision,
            batch: (self.batch.len(), self.batch.size_bytes()),
            keys: Vec::new(),
        });
    }

    /// What the step knows of a key, from now on.
    pub(super) fn change(&mut self, key: Bytes, now: Changed) {
        let Some(undo) = &mut self.undo else {
            self.keys.insert(key, now);
            return;
        };
        let before = self.keys.insert(key.clone(), now);
        undo.keys.push((key, before));
    }

    /// Makes the step what it was at [`Self::begin_undo`].
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
