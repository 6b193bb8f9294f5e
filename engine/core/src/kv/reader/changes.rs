//! History in its order, for watches.

use super::{ReadError, Reader};
use crate::kv::layout::{Stamp, change, change_range, put_data_key, split_change_key};
use crate::kv::scan::live;
use crate::kv::store::{Cursor, Scope};
use crate::kv::{KeyRange, KeyValue, Store, StoreError};
use crate::types::Revision;
use bytes::Bytes;

/// What a pair of an event costs besides its key and value, roughly.
const EVENT_OVERHEAD_BYTES: usize = 32;

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
    /// All changes up to this revision were looked at: go on from the one behind it, or from where this
    /// began, if that is still in the future.
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
        let revision = self.shared.revision();
        let first = Stamp {
            revision: query.from,
            sub: 0,
        };
        let range = change_range(first, revision.max(query.from));
        let log = self.shared.store.cursor(Scope::Between(range.clone()));
        let versions = self.shared.store.cursor(Scope::OneKey);
        self.check_compacted(query.from)?;
        let mut walk = Walk {
            query,
            log,
            versions,
            compacted: self.shared.compact_revision(),
            newest: revision,
            buffer: Vec::new(),
            bytes: 0,
            looked_at: 0,
            events: Vec::new(),
        };
        let complete_to = walk.run(&range.start)?;
        Ok(Changes {
            events: walk.events,
            complete_to,
            revision,
        })
    }
}

/// Reading a part of history.
struct Walk<'q, C> {
    query: &'q ChangesQuery,
    /// Stands on the next change.
    log: C,
    versions: C,
    /// Versions that only older revisions see may be gone.
    compacted: Revision,
    newest: Revision,
    buffer: Vec<u8>,
    bytes: usize,
    looked_at: usize,
    events: Vec<Event>,
}

impl<C: Cursor> Walk<'_, C> {
    /// Returns the revision up to which it came.
    fn run(&mut self, start: &[u8]) -> Result<Revision, StoreError> {
        let mut complete_to = Revision(0);
        self.log.seek(start)?;
        while let Some((key, record)) = self.log.record() {
            let stamp = split_change_key(key)?;
            if stamp.revision > self.newest {
                break;
            }
            if stamp.sub == 0 && self.is_full() {
                return Ok(complete_to);
            }
            let user_key = change(record)?.key;
            if self.query.keys.contains(user_key) {
                let key = Bytes::copy_from_slice(user_key);
                let event = self.event(key, stamp.revision)?;
                self.bytes += size_bytes(&event);
                self.events.push(event);
            }
            self.looked_at += 1;
            complete_to = stamp.revision;
            self.log.next()?;
        }
        Ok(self.newest)
    }

    fn is_full(&self) -> bool {
        self.looked_at > 0
            && (self.bytes >= self.query.max_bytes || self.looked_at >= self.query.max_changes)
    }

    fn event(&mut self, key: Bytes, revision: Revision) -> Result<Event, StoreError> {
        self.buffer.clear();
        put_data_key(&mut self.buffer, &key, revision);
        self.versions.seek(&self.buffer)?;
        let record = self.versions.record();
        let (found, record) = record
            .filter(|(found, _)| *found == self.buffer)
            .ok_or_else(|| lost(&key, revision))?;
        let put = live(found, record)?.map(|found| found.to_key_value(key.clone(), true));
        let kind = match put {
            Some(_) => EventKind::Put,
            None => EventKind::Delete,
        };
        let kv = put.unwrap_or_else(|| deleted(key.clone(), revision));
        // The version before is seen by the revision before, and by none that is older.
        let prev_kept = revision > self.compacted;
        let prev = if self.query.prev_kv && prev_kept {
            self.version_before(key)?
        } else {
            None
        };
        Ok(Event { kind, kv, prev })
    }

    /// The version behind the one on which `versions` stands.
    fn version_before(&mut self, key: Bytes) -> Result<Option<KeyValue>, StoreError> {
        self.versions.next()?;
        let Some((found, record)) = self.versions.record() else {
            return Ok(None);
        };
        Ok(live(found, record)?.map(|found| found.to_key_value(key, true)))
    }
}

fn size_bytes(event: &Event) -> usize {
    let pair = |kv: &KeyValue| EVENT_OVERHEAD_BYTES + kv.key.len() + kv.value.len();
    pair(&event.kv) + event.prev.as_ref().map_or(0, pair)
}

fn deleted(key: Bytes, mod_revision: Revision) -> KeyValue {
    KeyValue {
        key,
        value: Bytes::new(),
        create_revision: Revision(0),
        mod_revision,
        version: 0,
        ttl_ms: 0,
    }
}

fn lost(key: &Bytes, revision: Revision) -> StoreError {
    StoreError::Corrupt(format!(
        "revision {revision} changed {}, but that version is missing",
        key[..key.len().min(64)].escape_ascii()
    ))
}
