//! History in its order, for watches.

use super::{ReadError, Reader};
use crate::kv::{KeyRange, KeyValue, Store};
use crate::types::Revision;

/// Which part of history to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangesQuery {
    /// The first revision whose changes are wanted.
    pub from: Revision,
    /// Changes of these keys only.
    pub keys: KeyRange,
    /// With the pairs as they were before.
    pub prev_kv: bool,
    /// Stop behind the revision with which the events reach so many bytes.
    pub max_bytes: usize,
    /// Stop behind the revision with which so many changes were looked at, of whatever keys.
    pub max_changes: usize,
}

impl ChangesQuery {
    /// All changes of `keys` since `from`, that revision included.
    #[must_use]
    pub fn new(from: Revision, keys: KeyRange) -> Self {
        Self {
            from,
            keys,
            prev_kv: false,
            max_bytes: usize::MAX,
            max_changes: usize::MAX,
        }
    }
}

/// A part of history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// In the order of history. All of a revision or nothing of it.
    pub events: Vec<Event>,
    /// All changes up to this revision were looked at: go on from the one behind it.
    pub complete_to: Revision,
    /// The store's revision. There is more to read if it is above `complete_to`.
    pub revision: Revision,
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// The pair after it. Of a deleted key only `key` and `mod_revision` say anything.
    pub kv: KeyValue,
    /// The pair before it, if that was asked for, existed and is not compacted.
    pub prev: Option<KeyValue>,
}

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It got a value.
    Put,
    /// It is gone: deleted or expired.
    Delete,
}

impl<S: Store> Reader<S> {
    /// Reads history. It is legal to begin at a revision of the future; there is nothing to read then.
    ///
    /// # Errors
    /// [`ReadError::Compacted`] if a part of it is gone, or the storage failed.
    pub fn changes(&self, query: &ChangesQuery) -> Result<Changes, ReadError> {
        let _ = query;
        Err(ReadError::Store(crate::kv::StoreError::Failed {
            doing: "reading history",
            reason: "not built yet".to_owned(),
        }))
    }
}
