//! Several operations as one, after comparisons: what etcd calls a transaction.

use crate::KeyRange;
use bytes::Bytes;
use dengine_types::Revision;
use std::collections::BTreeSet;
use std::ops::Bound;

/// If all of `compares` hold, does `then`, otherwise `otherwise`, in order, in at most one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// All of them have to hold; none: they do.
    pub compares: Vec<Compare>,
    /// What to do if they hold.
    pub then: Vec<BatchOperation>,
    /// What to do if they do not.
    pub otherwise: Vec<BatchOperation>,
}

/// A question about keys as they are before the batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    /// Holds if it holds for every key of the range that exists. If none does, numbers compare as 0, and
    /// a comparison of values never holds.
    pub keys: KeyRange,
    /// How what the key has has to relate to `target`.
    pub relation: Relation,
    /// Which part of the key, and what it is held against.
    pub target: CompareTarget,
}

/// How two things relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// They are the same.
    Equal,
    /// They differ.
    NotEqual,
    /// The key's is the greater one.
    Greater,
    /// The key's is the lesser one.
    Less,
}

/// What a key is compared by, and with what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompareTarget {
    /// How often it was changed; 0: it does not exist.
    Version(u64),
    /// What created it; 0: it does not exist.
    CreateRevision(Revision),
    /// What last changed it; 0: it does not exist.
    ModRevision(Revision),
    /// Its value, byte by byte.
    Value(Bytes),
}

/// One operation of a batch. It sees what those before it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchOperation {
    /// As [`Command::Put`](super::Command::Put).
    Put {
        /// The key.
        key: Bytes,
        /// Its new value.
        value: Bytes,
        /// Answer with the pair as it was before.
        prev_kv: bool,
        /// 0: never expires.
        ttl_ms: u64,
    },
    /// As [`Command::Delete`](super::Command::Delete).
    Delete {
        /// Which.
        keys: KeyRange,
        /// Answer with the pairs that were deleted.
        prev_kv: bool,
    },
    /// Reads a range, as the newest revision has it. All reads of a batch together return at most
    /// [`BATCH_READ_BYTES_MAX`](crate::BATCH_READ_BYTES_MAX) of pairs, and say when there is more.
    Get {
        /// Which.
        keys: KeyRange,
        /// Return at most so many pairs; 0: no such bound.
        limit: u64,
        /// Leave out the values.
        keys_only: bool,
        /// Leave out the pairs.
        count_only: bool,
    },
}

impl Batch {
    /// A key that one list of operations would change twice: put twice, or put and deleted. The order of
    /// such changes within one revision would mean nothing, so the batch is refused, as in etcd, whichever
    /// of the lists would be done. Deleting twice is harmless.
    #[must_use]
    pub fn duplicate_key(&self) -> Option<&Bytes> {
        duplicate_key(&self.then).or_else(|| duplicate_key(&self.otherwise))
    }

    /// Whether neither list changes anything, whatever the comparisons come to.
    #[must_use]
    pub fn reads_only(&self) -> bool {
        let mut operations = self.then.iter().chain(&self.otherwise);
        operations.all(|operation| matches!(operation, BatchOperation::Get { .. }))
    }

    /// All that it compares, reads and deletes.
    pub(super) fn keys(&self) -> impl Iterator<Item = &KeyRange> {
        let operations = self.then.iter().chain(&self.otherwise);
        let of_operations = operations.filter_map(|operation| match operation {
            BatchOperation::Get { keys, .. } | BatchOperation::Delete { keys, .. } => Some(keys),
            BatchOperation::Put { .. } => None,
        });
        self.compares.iter().map(|it| &it.keys).chain(of_operations)
    }

    /// Whether either list sets a key, so that it takes space.
    #[must_use]
    pub fn puts(&self) -> bool {
        let mut operations = self.then.iter().chain(&self.otherwise);
        operations.any(|operation| matches!(operation, BatchOperation::Put { .. }))
    }
}

fn duplicate_key(operations: &[BatchOperation]) -> Option<&Bytes> {
    let mut puts = BTreeSet::new();
    for operation in operations {
        if let BatchOperation::Put { key, .. } = operation
            && !puts.insert(key)
        {
            return Some(key);
        }
    }
    operations.iter().find_map(|operation| match operation {
        BatchOperation::Delete { keys, .. } => {
            // Only the first key at or behind the start can be the first one inside.
            let from = (Bound::Included(keys.start()), Bound::Unbounded);
            let first = puts.range::<Bytes, _>(from).next().copied();
            first.filter(|key| keys.contains(key))
        }
        BatchOperation::Put { .. } | BatchOperation::Get { .. } => None,
    })
}
