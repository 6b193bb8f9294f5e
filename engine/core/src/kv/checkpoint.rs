//! Pictures of the state, taken beside `apply`.

use super::machine::Flusher;
use super::store::StoreError;
use crate::snapshot::Checkpoint;

impl<S> Flusher<S> {
    /// Writes the state, as it is behind some entry applied during or before the call, into `place`.
    ///
    /// # Errors
    /// If the store fails.
    pub fn checkpoint<P: ?Sized>(&self, place: &P) -> Result<(), StoreError>
    where
        S: Checkpoint<P>,
    {
        self.shared.told(self.shared.store.checkpoint(place))
    }
}
