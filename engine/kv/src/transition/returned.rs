//! Pairs as they were before a command, for its answer. They may be a thousand times as large as the command, and every
//! member gathers them, also where nobody waits; so they are counted before they are copied.

use super::Transition;
use crate::scan::find;
use crate::store::{Scope, Store, StoreError};
use crate::view::{Live, View as _};
use crate::{KeyValue, PREVIOUS_BYTES_MAX};
use bytes::Bytes;

/// What the command that is being applied has gathered of them.
pub(super) struct Returned {
    room: usize,
    left_out: bool,
}

impl Returned {
    /// Nothing.
    pub(super) const NONE: Self = Self {
        room: PREVIOUS_BYTES_MAX,
        left_out: false,
    };

    /// Whether one more, of so many bytes, is gathered. The one that exceeds the bound is the last, so that the pair of a
    /// command that changes one key always is.
    fn take(&mut self, bytes: usize) -> bool {
        self.left_out |= self.room == 0;
        self.room = self.room.saturating_sub(bytes);
        !self.left_out
    }

    /// Whether the answer lacks a value.
    pub(super) fn left_out(&self) -> bool {
        self.left_out
    }
}

impl<S: Store> Transition<'_, S> {
    /// A key as it is now, which the answer is to hold if that is `wanted`. If there is no room for it, its value is left
    /// out, and with it the whole answer will be.
    pub(super) fn previous(
        &mut self,
        key: &Bytes,
        wanted: bool,
    ) -> Result<Option<KeyValue>, StoreError> {
        if !wanted {
            return self.newest(key, false);
        }
        let found;
        let live = match self.keys.get(key) {
            Some(changed) => changed.live().map(Live::Changed),
            None => {
                let before = self
                    .before
                    .get_or_insert_with(|| self.store.cursor(Scope::OneKey));
                found = find(before, &mut self.buffer, key, self.state.revision)?;
                found.as_ref().map(|it| Live::Stored(key.clone(), it))
            }
        };
        let returned = &mut self.returned;
        Ok(live.map(|it| it.to_key_value(returned.take(it.size_bytes(false)))))
    }
}
