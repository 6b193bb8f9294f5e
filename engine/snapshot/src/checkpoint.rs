//! What a snapshot asks of a store.

use dengine_kv::{Membership, StateMachine, Store, StoreError};
use dengine_log::Position;
use dengine_planted::planted;
use std::sync::Arc;

#[cfg(any(test, feature = "testing"))]
pub mod conformance;

/// A store that can write a picture of itself into a place of kind `P`, and be opened there.
pub trait Checkpoint<P: ?Sized>: Store + Sized {
    /// Writes the records, as they are at some moment of the call, as files into `place`: the state behind
    /// some batch, with everything that was written before the call. Writes may go on meanwhile and do not
    /// show.
    ///
    /// # Errors
    /// If the store or the place fails. What is in `place` then is of no use.
    fn checkpoint(&self, place: &P) -> Result<(), StoreError>;

    /// Opens a checkpoint to look into it. Nothing in it is changed, and nothing can be written to it.
    ///
    /// # Errors
    /// If there is no checkpoint, or it is damaged.
    fn open_checkpoint(place: &P) -> Result<Self, StoreError>;
}

/// What the state in a checkpoint is: its last applied entry, and the members as of then.
///
/// # Errors
/// If it is damaged, of a newer format or no state at all.
pub fn describe<S: Checkpoint<P>, P: ?Sized>(
    place: &P,
) -> Result<(Position, Arc<Membership>), StoreError> {
    let machine = StateMachine::open(S::open_checkpoint(place)?)?;
    let (mut index, term) = machine.applied();
    if planted!(SnapshotWithoutLastEntry) {
        index = index.next();
    }
    Ok((Position { index, term }, machine.membership()))
}
