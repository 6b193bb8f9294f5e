//! One number for all that a store means, by which members are held against each other.

use super::{ReadError, Reader};
use crate::kv::Store;
use crate::types::{Index, Revision};

/// A hash of what the store means, not of its bytes: what is only waiting to be collected does not count.
/// Members that applied the same entries have equal ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogicalHash {
    /// The last applied entry. Hashes of different indexes are not comparable.
    pub applied_index: Index,
    /// The store's revision there.
    pub revision: Revision,
    /// The first revision of history.
    pub compact_revision: Revision,
    /// The hash.
    pub hash: u64,
}

impl<S: Store> Reader<S> {
    /// Reads everything once. Entries may be applied meanwhile; they do not show.
    ///
    /// # Errors
    /// If the storage fails or is damaged.
    pub fn logical_hash(&self) -> Result<LogicalHash, ReadError> {
        Err(ReadError::Store(crate::kv::StoreError::Failed {
            doing: "hashing",
            reason: "not built yet".to_owned(),
        }))
    }
}
