//! A put, alone or within a batch.

use bytes::Bytes;

use super::{BatchOperation, Command, PutLease};

/// Sets a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Put {
    pub key: Bytes,
    pub value: Bytes,
    /// Keep the value that the key has, in place of `value`, which is empty then. Refused as
    /// [`Refusal::KeyNotFound`](crate::Refusal::KeyNotFound) if there is no such key. Within a
    /// batch, the key has to exist before the batch.
    pub ignore_value: bool,
    /// Return the pair before the change.
    pub prev_kv: bool,
    /// The key expires this many milliseconds after the put; 0 for never. Replaces the time to
    /// live of earlier puts.
    pub ttl_ms: u64,
    pub lease: PutLease,
}

impl Put {
    /// Sets a key that never expires and is attached to no lease.
    #[must_use]
    pub fn new(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self {
            key: key.into(),
            value: value.into(),
            ..Self::default()
        }
    }
}

impl Command {
    /// As [`Put::new`].
    #[must_use]
    pub fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self::Put(Put::new(key, value))
    }
}

impl BatchOperation {
    /// As [`Put::new`].
    #[must_use]
    pub fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self::Put(Put::new(key, value))
    }
}
