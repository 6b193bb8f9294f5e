//! The storage that the state machine needs: an ordered map of bytes with atomic batches.
//!
//! Implementations of [`Store`] run [`conformance::Suite`]. Nothing here interprets the bytes,
//! except that the versions of one key share a prefix (see [`Scope::OneKey`]).

mod batch;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
#[cfg(any(test, feature = "testing"))]
pub mod memory;

pub use batch::{Operation, WriteBatch};
#[cfg(any(test, feature = "testing"))]
pub use memory::MemoryStore;

use std::ops::Range;

use bytes::Bytes;
use dengine_types::ClusterId;

/// An ordered map of bytes with atomic batches.
pub trait Store: Send + Sync + 'static {
    /// What [`Self::cursor`] returns.
    type Cursor<'a>: Cursor
    where
        Self: 'a;

    /// The value under exactly this key.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError>;

    /// An iterator over the records as they are now. It does not see later writes, and sees a batch
    /// as a whole or not at all. It costs memory while it lives: drop it soon.
    fn cursor(&self, scope: Scope) -> Self::Cursor<'_>;

    /// Like [`Self::cursor`], for who may leave what it reads: it fails where it would take long to
    /// step over deleted records.
    fn cursor_of_few_deleted(&self, scope: Scope) -> Self::Cursor<'_> {
        self.cursor(scope)
    }

    /// Like [`Self::cursor`], for who reads its scope through: where that is much, it takes no
    /// place in memory from what is read more often.
    fn cursor_of_one_pass(&self, scope: Scope) -> Self::Cursor<'_> {
        self.cursor(scope)
    }

    /// Applies a batch: after a crash, and to every reader, either all of it is visible or nothing,
    /// and never a batch without those written before it. Not durable until [`Self::flush`]
    /// returns.
    ///
    /// # Errors
    ///
    /// If the storage fails; then nothing of the batch may ever become visible.
    fn write(&self, batch: &WriteBatch) -> Result<(), StoreError>;

    /// Like [`Self::write`], for writes that can wait for space: where that waits, this fails with
    /// [`StoreError::NoSpace`], and nothing of the batch takes effect.
    fn write_if_room(&self, batch: &WriteBatch) -> Result<(), StoreError> {
        self.write(batch)
    }

    /// Like [`Self::get`], without waiting for a disk.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotAtHand`] if that takes waiting.
    fn get_at_hand(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.get(key)
    }

    /// Like [`Self::cursor`], which fails as [`Self::get_at_hand`] does.
    fn cursor_at_hand(&self, scope: Scope) -> Self::Cursor<'_> {
        self.cursor(scope)
    }

    /// Like [`Self::write`], without waiting for a disk, for room or for other writes.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotAtHand`] if that takes waiting; then nothing of the batch takes effect.
    fn write_at_hand(&self, batch: &WriteBatch) -> Result<(), StoreError> {
        self.write(batch)
    }

    /// Returns once everything written before the call is durable. Writes may go on meanwhile.
    ///
    /// # Errors
    ///
    /// If the storage fails; what was written since the last flush may then be lost, unless it
    /// failed for lack of space.
    fn flush(&self) -> Result<(), StoreError>;

    /// Reclaims the space of deleted records, if that is worth it and `free_bytes` suffice for it.
    /// Reads and writes go on meanwhile, and it may take long.
    ///
    /// # Errors
    ///
    /// If the space did not suffice after all, or the storage fails.
    fn reclaim(&self, _free_bytes: u64) -> Result<Reclaimed, StoreError> {
        Ok(Reclaimed::Nothing)
    }

    /// The maximum space that a flush takes; 0 if the store is not on a disk.
    fn unflushed_bytes(&self) -> u64 {
        0
    }

    /// The approximate size of the records.
    fn approximate_bytes(&self) -> u64;
}

/// The result of [`Store::reclaim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaimed {
    /// Deleted records take little, or there is no room to reclaim them.
    Nothing,
    /// It could not begin yet: try again a few seconds later.
    NotYet,
    /// Their space was reclaimed.
    GivenBack,
}

/// The records that a cursor will be used for. Outside of the scope its results are unspecified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// After each seek only records with the [`version_prefix`](crate::layout::version_prefix) of
    /// the sought key: the versions of one key. Lets the storage skip everything that a filter by
    /// that prefix can exclude.
    OneKey,
    /// Records in this range of bytes.
    Between(Range<Vec<u8>>),
}

/// A position among the records of a [`Store`]. A new cursor has none: seek first.
pub trait Cursor {
    /// Moves to the first record of the scope at or after `key`.
    fn seek(&mut self, key: &[u8]) -> Result<(), StoreError>;

    /// Moves to the next record of the scope. The cursor must be on a record.
    fn next(&mut self) -> Result<(), StoreError>;

    /// Key and value of the current record; `None` after the last.
    fn record(&self) -> Option<(&[u8], &[u8])>;

    /// How many deleted records it had to step over so far, if the storage knows.
    fn stepped_over(&self) -> usize {
        0
    }
}

/// The errors of the storage. All of them end the member, because it cannot go on without its
/// storage and must not guess, except for [`Self::NoSpace`] of a flush, [`Self::NotAtHand`], and
/// for errors of a reader other than damage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The storage below reported an error.
    #[error("storage failed while {doing}: {reason}")]
    Failed {
        /// The operation.
        doing: &'static str,
        /// The reported reason.
        reason: String,
    },
    /// There is no space. Nothing is lost, and the operation may be tried again.
    #[error("storage found no space while {doing}: {reason}")]
    NoSpace {
        /// The operation.
        doing: &'static str,
        /// The reported reason.
        reason: String,
    },
    /// It would have been waited for. Nothing has changed.
    #[error("storage has to be waited for")]
    NotAtHand,
    /// Data is not what was written.
    #[error(
        "storage is damaged: {0}; remove this member from the cluster and add it again with an \
         empty data directory"
    )]
    Corrupt(String),
    #[error(
        "{what} has format {found}, but this program knows only formats up to {supported}: start \
         the newer version that wrote it"
    )]
    NewerFormat {
        /// What is too new.
        what: &'static str,
        found: u32,
        /// The newest format that this program reads.
        supported: u32,
    },
    /// It is the state of another cluster.
    #[error(
        "it is of cluster {found}, and this member is of cluster {cluster}: the data directory was \
         exchanged or copied. Put back what belongs there; if that is lost, move the whole data \
         directory away, remove this member from the cluster and let it join again with an empty \
         one"
    )]
    OfAnotherCluster {
        /// The cluster whose state it is.
        found: ClusterId,
        /// The cluster whose state was asked for.
        cluster: ClusterId,
    },
    /// It contains records of something else.
    #[error("storage was not written by this program: {0}")]
    Foreign(String),
}
