//! Keys and sessions that may expire, for the leader, which has a clock.

use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};

use bytes::Bytes;
use dengine_types::{Index, Revision, SessionId};

use super::{ReadError, Reader};
use crate::layout::{
    expiring_range, put_expiring_key, session_key, session_range, split_expiring_key,
    split_session_key, ttl,
};
use crate::session::Session;
use crate::store::{Cursor, Scope};
use crate::{Store, StoreError};

/// A key with a time to live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiringKey {
    pub key: Bytes,
    /// The revision that last changed it.
    pub mod_revision: Revision,
    /// How long after that it expires.
    pub ttl_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    pub id: SessionId,
    /// How long it may be unused.
    pub ttl_ms: u64,
    /// The last entry that used it.
    pub last_used: Index,
    /// The client has the answers to all commands up to here.
    pub acknowledged: u64,
    /// How many replies are stored for it.
    pub replies: u64,
    pub reply_bytes: u64,
}

impl SessionInfo {
    /// Decodes the record of a session in the store.
    pub fn decode(id: SessionId, record: &[u8]) -> Result<Self, StoreError> {
        let session = Session::decode(id, record)?;
        Ok(Self {
            id,
            ttl_ms: session.ttl_ms,
            last_used: session.last_used,
            acknowledged: session.acknowledged,
            replies: session.replies.len() as u64,
            reply_bytes: session.reply_bytes(),
        })
    }
}

impl<S: Store> Reader<S> {
    /// The keys with a time to live, in the order of their last change and then of their names: at
    /// most `limit` after `after`, the last one that was returned before. Continuing from there
    /// returns every such key that was put in the meantime.
    pub fn expiring_keys(
        &self,
        after: Option<&ExpiringKey>,
        limit: usize,
    ) -> Result<Vec<ExpiringKey>, ReadError> {
        let mut range = expiring_range();
        if let Some(last) = after {
            range.start.clear();
            put_expiring_key(&mut range.start, last.mod_revision, &last.key);
            // The first bytes after that record.
            range.start.push(0);
        }
        self.records(range, limit, read_expiring)
    }

    /// The keys with a time to live whose last change is in these revisions, in the same order: at
    /// most `limit`, and of the first revision only those after the key `after`.
    pub fn expiring_keys_of(
        &self,
        revisions: RangeInclusive<Revision>,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<ExpiringKey>, ReadError> {
        let mut range = Vec::new()..Vec::new();
        put_expiring_key(&mut range.start, *revisions.start(), after.unwrap_or(&[]));
        if after.is_some() {
            // The first bytes after that record.
            range.start.push(0);
        }
        let end = Revision(revisions.end().0.saturating_add(1));
        put_expiring_key(&mut range.end, end, &[]);
        self.records(range, limit, read_expiring)
    }

    /// Whether this revision was the last to change the key, and set a time to live.
    pub fn may_expire(&self, key: &[u8], mod_revision: Revision) -> Result<bool, ReadError> {
        let mut record = Vec::new();
        put_expiring_key(&mut record, mod_revision, key);
        let found = self.shared.reported(self.shared.store.get(&record))?;
        Ok(found.is_some())
    }

    /// The open sessions in the order of their ids: at most `limit` after `after`.
    pub fn sessions(&self, after: SessionId, limit: usize) -> Result<Vec<SessionInfo>, ReadError> {
        self.records(session_range(after), limit, |key, record| {
            SessionInfo::decode(split_session_key(key)?, record)
        })
    }

    /// The ids of the open sessions.
    pub fn session_ids(&self) -> Result<BTreeSet<SessionId>, ReadError> {
        let ids = self.records(session_range(SessionId(0)), usize::MAX, |key, _| {
            split_session_key(key)
        });
        Ok(ids?.into_iter().collect())
    }

    /// One session, if it is open.
    pub fn session(&self, id: SessionId) -> Result<Option<SessionInfo>, ReadError> {
        let record = self
            .shared
            .reported(self.shared.store.get(&session_key(id)))?;
        let info = record.map(|record| SessionInfo::decode(id, &record));
        Ok(self.shared.reported(info.transpose())?)
    }

    pub(super) fn records<T>(
        &self,
        range: Range<Vec<u8>>,
        limit: usize,
        read: impl Fn(&[u8], &[u8]) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, ReadError> {
        let cursor = self.shared.store.cursor(Scope::Between(range.clone()));
        let found = walk(cursor, &range.start, limit, read);
        Ok(self.shared.reported(found)?)
    }
}

fn walk<T>(
    mut cursor: impl Cursor,
    start: &[u8],
    limit: usize,
    read: impl Fn(&[u8], &[u8]) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    cursor.seek(start)?;
    let mut found = Vec::new();
    while found.len() < limit
        && let Some((key, record)) = cursor.record()
    {
        found.push(read(key, record)?);
        cursor.next()?;
    }
    Ok(found)
}

fn read_expiring(key: &[u8], record: &[u8]) -> Result<ExpiringKey, StoreError> {
    let (mod_revision, key) = split_expiring_key(key)?;
    Ok(ExpiringKey {
        key: Bytes::copy_from_slice(key),
        mod_revision,
        ttl_ms: ttl(record)?,
    })
}
