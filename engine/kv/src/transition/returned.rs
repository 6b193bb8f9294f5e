//! Previous pairs for the answer of a command. They may be a thousand times as large as the
//! command, and every member gathers them, also those without a waiting caller; so they are counted
//! before they are copied.

use bytes::Bytes;

use super::Transition;
use crate::scan::find;
use crate::store::{Scope, Store, StoreError};
use crate::view::{Live, View as _};
use crate::{KeyValue, PREVIOUS_BYTES_MAX};

/// What the current command has gathered of them.
pub(super) struct Returned {
    room: usize,
    left_out: bool,
}

impl Returned {
    pub(super) const NONE: Self = Self {
        room: PREVIOUS_BYTES_MAX,
        left_out: false,
    };

    /// Whether one more, of this size, is gathered. The one that exceeds the limit is the last, so
    /// that the pair of a command that changes one key always is.
    fn take(&mut self, bytes: usize) -> bool {
        self.left_out |= self.room == 0;
        self.room = self.room.saturating_sub(bytes);
        !self.left_out
    }

    /// Whether a value was left out of the answer.
    pub(super) fn left_out(&self) -> bool {
        self.left_out
    }
}

impl<S: Store> Transition<'_, S> {
    /// The current pair of a key, for the answer if it is `wanted`. Beyond the limit its value is
    /// left out, and the whole answer will be trimmed.
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
