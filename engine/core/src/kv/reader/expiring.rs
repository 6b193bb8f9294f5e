//! What may expire, for the leader, who has a clock.

use super::{ReadError, Reader};
use crate::kv::Store;
use crate::types::{Index, Revision, SessionId};
use bytes::Bytes;

/// A key that may be expired some time after its last change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiringKey {
    /// The key.
    pub key: Bytes,
    /// What last changed it.
    pub mod_revision: Revision,
    /// How long after that it may be expired.
    pub ttl_ms: u64,
}

/// A session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// Its name.
    pub id: SessionId,
    /// How long it may be unused.
    pub ttl_ms: u64,
    /// The last entry that used it.
    pub last_used: Index,
    /// The client has the answers to all commands up to here.
    pub acknowledged: u64,
    /// How many answers are kept for it.
    pub replies: u64,
    /// Their size.
    pub reply_bytes: u64,
}

impl<S: Store> Reader<S> {
    /// The keys with a time to live, in the order of their last change and then of their names: at most
    /// `limit` behind `after`, which is the last one that was returned before. Whoever goes on from
    /// where it stopped sees every such key that was put in the meantime.
    ///
    /// # Errors
    /// If the storage fails.
    pub fn expiring_keys(
        &self,
        after: Option<&ExpiringKey>,
        limit: usize,
    ) -> Result<Vec<ExpiringKey>, ReadError> {
        let _ = (after, limit);
        Ok(Vec::new())
    }

    /// The open sessions in the order of their ids: at most `limit` behind `after`.
    ///
    /// # Errors
    /// If the storage fails.
    pub fn sessions(&self, after: SessionId, limit: usize) -> Result<Vec<SessionInfo>, ReadError> {
        let _ = (after, limit);
        Ok(Vec::new())
    }
}
