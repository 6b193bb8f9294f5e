//! The interface of a store that snapshots need.

use std::sync::Arc;

use dengine_kv::{Membership, StateMachine, Store, StoreError};
use dengine_log::Position;
use dengine_planted::planted;

#[cfg(any(test, feature = "testing"))]
pub mod conformance;

/// A store that can write a checkpoint into a place of kind `P`, and be opened there.
pub trait Checkpoint<P: ?Sized>: Store + Sized {
    /// Writes the records as files into `place`: the state after some batch, with everything that
    /// was written before the call. Concurrent writes are not included.
    ///
    /// # Errors
    ///
    /// If the store or the place fails. The content of `place` is unusable then.
    fn checkpoint(&self, place: &P) -> Result<(), StoreError>;

    /// Opens a checkpoint for reading. Nothing in it is changed, and nothing can be written to it.
    ///
    /// # Errors
    /// If there is no checkpoint, or it is damaged.
    fn open_checkpoint(place: &P) -> Result<Self, StoreError>;
}

/// The last applied entry of a checkpoint's state, and its membership.
///
/// # Errors
/// If it is damaged, of a newer format or not a state at all.
pub fn describe<S: Checkpoint<P>, P: ?Sized>(
    place: &P,
) -> Result<(Position, Arc<Membership>), StoreError> {
    let machine = StateMachine::open_with_key_cache(S::open_checkpoint(place)?, 0)?;
    let (mut index, term) = machine.applied();
    if planted!(SnapshotWithoutLastEntry) {
        index = index.next();
    }
    Ok((Position { index, term }, machine.membership()))
}
