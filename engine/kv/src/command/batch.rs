//! Several operations in one command, after comparisons: a transaction of etcd.

use bytes::Bytes;
use dengine_types::{LeaseId, Revision};

use crate::KeyRange;
use crate::command::Put;
use crate::selection::Selection;

/// Does `then` if all of `compares` hold, else `otherwise`, in order, in at most one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// All of them have to hold; an empty list holds.
    pub compares: Vec<Compare>,
    /// What to do if they hold.
    pub then: Vec<BatchOperation>,
    /// What to do if they do not.
    pub otherwise: Vec<BatchOperation>,
}

/// A comparison with keys as they are before the batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    /// The comparison has to hold for every existing key of the range. If none exists, numbers
    /// compare as 0, and a comparison of values does not hold.
    pub keys: KeyRange,
    /// How the attribute of the key has to relate to `target`.
    pub relation: Relation,
    /// The attribute of the key, and the operand.
    pub target: CompareTarget,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    Equal,
    NotEqual,
    Greater,
    Less,
}

/// The attribute of a key, and the operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompareTarget {
    /// How often the key was changed; 0 if it does not exist.
    Version(u64),
    /// The revision that created it; 0 if it does not exist.
    CreateRevision(Revision),
    /// The revision that last changed it; 0 if it does not exist.
    ModRevision(Revision),
    /// Its value, byte by byte.
    Value(Bytes),
    /// The lease that it is attached to; 0 if to none, or if it does not exist.
    Lease(LeaseId),
}

/// One operation of a batch. It sees the effects of those before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchOperation {
    /// As [`Command::Put`](super::Command::Put).
    Put(Put),
    /// As [`Command::Delete`](super::Command::Delete).
    Delete {
        keys: KeyRange,
        /// Return the deleted pairs.
        prev_kv: bool,
    },
    /// Reads a range at the newest revision. All reads of a batch together return at most
    /// [`BATCH_READ_BYTES_MAX`](crate::BATCH_READ_BYTES_MAX) of pairs, and report when there is
    /// more.
    Get {
        keys: KeyRange,
        /// The maximum number of pairs; 0 for no limit.
        limit: u64,
        keys_only: bool,
        count_only: bool,
    },
    /// Reads a range as [`RangeRead`] describes.
    Range(Box<RangeRead>),
    /// Compares, and then does one of two lists of operations. Its comparisons, as all of the whole
    /// batch, are with keys as they are before the first operation. At most
    /// [`BATCH_DEPTH_MAX`](crate::BATCH_DEPTH_MAX) batches are within each other.
    Batch(Box<Batch>),
}

/// A read of a range, whole: if all reads of the batch together return more than
/// [`BATCH_READ_BYTES_MAX`](crate::BATCH_READ_BYTES_MAX), nothing is done, and the batch is refused
/// as [`Refusal::ReadsTooMuch`](crate::Refusal::ReadsTooMuch). Its answer counts all keys of the
/// range, whatever is selected of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeRead {
    pub keys: KeyRange,
    /// The revision to read at, at most the one before the batch, and not compacted; else the batch
    /// is refused before anything is done. `None`: as the operations before it left the keys.
    pub revision: Option<Revision>,
    /// The maximum number of pairs; 0 for no limit.
    pub limit: u64,
    pub keys_only: bool,
    /// Return no pairs.
    pub count_only: bool,
    /// Which pairs, and in which order.
    pub selection: Selection,
}

impl RangeRead {
    /// All pairs of a range, as the operations before it left them.
    #[must_use]
    pub fn new(keys: KeyRange) -> Self {
        Self {
            keys,
            revision: None,
            limit: 0,
            keys_only: false,
            count_only: false,
            selection: Selection::default(),
        }
    }
}
