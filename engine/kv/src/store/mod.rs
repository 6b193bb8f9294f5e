//! The storage that the state machine needs: an ordered map of bytes with atomic batches.
//!
//! Whoever implements [`Store`] runs [`conformance::Suite`] against it. Nothing here knows what the
//! bytes mean, except that the versions of one key share a prefix (see [`Scope::OneKey`]).

mod batch;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
#[cfg(any(test, feature = "testing"))]
pub mod memory;

pub use batch::{Operation, WriteBatch};
#[cfg(any(test, feature = "testing"))]
pub use memory::MemoryStore;

use bytes::Bytes;
use std::ops::Range;

/// An ordered map of bytes with atomic batches.
pub trait Store: Send + Sync + 'static {
    /// What [`Self::cursor`] returns.
    type Cursor<'a>: Cursor
    where
        Self: 'a;

    /// The value under exactly this key.
    ///
    /// # Errors
    /// If the storage fails or is damaged.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError>;

    /// A way through the records as they are now. Later writes do not show in it, and a batch shows
    /// in it whole or not at all. It costs memory while it lives: drop it soon.
    fn cursor(&self, scope: Scope) -> Self::Cursor<'_>;

    /// Applies a batch: after a crash, and to every reader, either all of it is there or nothing, and
    /// never a batch without those written before it. Not durable until [`Self::flush`] returns.
    ///
    /// # Errors
    /// If the storage fails; then nothing of the batch may ever become visible.
    fn write(&self, batch: &WriteBatch) -> Result<(), StoreError>;

    /// The same for what can wait until there is space: where [`Self::write`] waits for some, this fails ([`StoreError::NoSpace`]), and
    /// nothing of the batch takes effect.
    ///
    /// # Errors
    /// As [`Self::write`].
    fn write_if_room(&self, batch: &WriteBatch) -> Result<(), StoreError> {
        self.write(batch)
    }

    /// Returns once everything written before the call is durable. Writes may go on meanwhile.
    ///
    /// # Errors
    /// If the storage fails; what was written since the last flush may then be lost, unless that is for want of space.
    fn flush(&self) -> Result<(), StoreError>;

    /// Gives back what deleted records take, if that is worth it and there is room for it in what is free. Reads and writes go on
    /// meanwhile, and it may take long.
    ///
    /// # Errors
    /// If there was no room after all, or the storage fails.
    fn reclaim(&self, _free_bytes: u64) -> Result<Reclaimed, StoreError> {
        Ok(Reclaimed::Nothing)
    }

    /// How much space a flush takes at most; none if it is not on a disk.
    fn unflushed_bytes(&self) -> u64 {
        0
    }

    /// Roughly what the records occupy.
    fn approximate_bytes(&self) -> u64;
}

/// What [`Store::reclaim`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaimed {
    /// Deleted records take little, or there is no room to do something about it.
    Nothing,
    /// It could not begin yet: ask again a few seconds later.
    NotYet,
    /// What they took is given back.
    GivenBack,
}

/// Which records a cursor will be asked for. Leaving the scope finds nothing or anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// After each seek only records that agree with the sought key in
    /// [`version_prefix`](crate::layout::version_prefix): the versions of one key. Lets the storage
    /// skip whatever a filter by that prefix can rule out.
    OneKey,
    /// Records in this range of bytes.
    Between(Range<Vec<u8>>),
}

/// A position among the records of a [`Store`]. New cursors stand nowhere: seek first.
pub trait Cursor {
    /// Moves to the first record of the scope at or behind `key`.
    ///
    /// # Errors
    /// If the storage fails or is damaged.
    fn seek(&mut self, key: &[u8]) -> Result<(), StoreError>;

    /// Moves to the next record of the scope. Only for a cursor that stands on a record.
    ///
    /// # Errors
    /// If the storage fails or is damaged.
    fn next(&mut self) -> Result<(), StoreError>;

    /// Key and value of the record it stands on; `None` behind the last.
    fn record(&self) -> Option<(&[u8], &[u8])>;

    /// How many records that were deleted it had to step over so far, if the storage knows.
    fn stepped_over(&self) -> usize {
        0
    }
}

/// Why the storage could not do what was asked. All of these end the member, but for [`Self::NoSpace`] of a flush, and what is no damage for a
/// reader: it cannot go on without its storage, and must not guess.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The storage below reported an error.
    #[error("storage failed while {doing}: {reason}")]
    Failed {
        /// What was asked of it.
        doing: &'static str,
        /// What it said.
        reason: String,
    },
    /// There is no space for it. Nothing is lost, and it may be tried again.
    #[error("storage found no space while {doing}: {reason}")]
    NoSpace {
        /// What was asked of it.
        doing: &'static str,
        /// What it said.
        reason: String,
    },
    /// Bytes that we wrote read differently.
    #[error(
        "storage is damaged: {0}; remove this member from the cluster and add it again with an empty folder"
    )]
    Corrupt(String),
    /// Written by a later version of the program.
    #[error(
        "{what} has format {found}, but this program knows only formats up to {supported}: start the newer version that wrote it"
    )]
    NewerFormat {
        /// The thing that is too new.
        what: &'static str,
        /// Its format.
        found: u32,
        /// The highest format this program knows.
        supported: u32,
    },
    /// Holds records, but not ours.
    #[error("storage was not written by this program: {0}")]
    Foreign(String),
}
