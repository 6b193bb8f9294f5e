//! Several operations in one command, after comparisons: a transaction of etcd.

use std::collections::BTreeSet;
use std::ops::Bound;

use bytes::Bytes;
use dengine_types::{LeaseId, Revision};

use crate::KeyRange;
use crate::command::PutLease;

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
    Put {
        key: Bytes,
        value: Bytes,
        /// Return the pair before the change.
        prev_kv: bool,
        /// 0: never expires.
        ttl_ms: u64,
        lease: PutLease,
    },
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
}

impl Batch {
    /// A key that one list of operations would change twice: put twice, or put and deleted. The
    /// order of such changes within one revision would be undefined, so the batch is refused, as in
    /// etcd, whichever list would be done. Deleting twice is harmless.
    #[must_use]
    pub fn duplicate_key(&self) -> Option<&Bytes> {
        duplicate_key(&self.then).or_else(|| duplicate_key(&self.otherwise))
    }

    /// Whether neither list changes anything, whatever the result of the comparisons.
    #[must_use]
    pub fn reads_only(&self) -> bool {
        let mut operations = self.then.iter().chain(&self.otherwise);
        operations.all(|operation| match operation {
            BatchOperation::Get { .. } => true,
            BatchOperation::Put { .. } | BatchOperation::Delete { .. } => false,
        })
    }

    /// Whether it needs [`CommandVersion::V4`](super::CommandVersion::V4).
    pub(super) fn is_about_leases(&self) -> bool {
        let mut compares = self.compares.iter();
        let mut operations = self.then.iter().chain(&self.otherwise);
        compares.any(|it| matches!(it.target, CompareTarget::Lease(_)))
            || operations.any(|operation| match operation {
                BatchOperation::Put { lease, .. } => *lease != PutLease::None,
                BatchOperation::Delete { .. } | BatchOperation::Get { .. } => false,
            })
    }

    /// The ranges that it compares, reads and deletes.
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
        operations.any(|operation| match operation {
            BatchOperation::Put { .. } => true,
            BatchOperation::Delete { .. } | BatchOperation::Get { .. } => false,
        })
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
            // Only the first key at or after the start can be in the range.
            let from = (Bound::Included(keys.start()), Bound::Unbounded);
            let first = puts.range::<Bytes, _>(from).next().copied();
            first.filter(|key| keys.contains(key))
        }
        BatchOperation::Put { .. } | BatchOperation::Get { .. } => None,
    })
}
