//! A store without what it would have to wait for.

use std::sync::Arc;

use bytes::Bytes;

use super::machine::SharedState;
use super::store::{Scope, Store, StoreError, WriteBatch};

/// The store of a state machine as far as it is at hand: its methods for that, in place of those
/// that may wait.
pub(super) struct AtHand<S>(pub(super) Arc<SharedState<S>>);

impl<S: Store> Store for AtHand<S> {
    type Cursor<'a> = S::Cursor<'a>;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.0.store.get_at_hand(key)
    }

    fn cursor(&self, scope: Scope) -> Self::Cursor<'_> {
        self.0.store.cursor_at_hand(scope)
    }

    fn write(&self, batch: &WriteBatch) -> Result<(), StoreError> {
        self.0.store.write_at_hand(batch)
    }

    fn flush(&self) -> Result<(), StoreError> {
        Err(StoreError::NotAtHand)
    }

    fn approximate_bytes(&self) -> u64 {
        self.0.store.approximate_bytes()
    }
}
