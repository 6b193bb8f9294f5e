//! History in its order, for watches.

use super::{ReadError, Reader};
use crate::layout::{Stamp, change, change_range, put_data_key, split_change_key};
use crate::scan::live;
use crate::store::{Cursor, Scope};
use crate::{KeyRange, KeyValue, Store, StoreError};
use bytes::Bytes;
use dengine_planted::planted;
use dengine_types::Revision;

/// What an event costs besides keys and values, roughly.
const EVENT_OVERHEAD_BYTES: usize = 64;

/// Which part of history to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangesQuery {
    /// The first place that is looked at. It may lie inside a revision.
    pub from: Stamp,
    /// Changes of these keys only.
    pub keys: KeyRange,
    /// With the pairs as they were before.
    pub prev_kv: bool,
    /// Without changes that set a key.
    pub no_put: bool,
    /// Without changes that delete one.
    pub no_delete: bool,
    /// How much.
    pub limits: PageLimits,
}

/// How large a part of history may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLimits {
    /// Stop before the next event, also inside a revision, once the events hold so many bytes: a page is larger than this
    /// by less than one event.
    pub bytes: usize,
    /// Stop at the end of the revision in which so many changes were looked at, of whatever keys. What nobody wants costs
    /// no memory, so a revision is not split for it.
    pub changes: usize,
}

impl PageLimits {
    /// All there is.
    pub const NONE: Self = Self {
        bytes: usize::MAX,
        changes: usize::MAX,
    };
}

/// What somebody wants to know of one change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Want {
    /// Nothing.
    Nothing,
    /// What it made.
    Event,
    /// What it made, and what was there before.
    EventWithPrev,
}

impl ChangesQuery {
    /// All changes of `keys` since `from`, that revision included.
    #[must_use]
    pub fn new(from: Revision, keys: KeyRange) -> Self {
        Self {
            from: Stamp::start_of(from),
            keys,
            prev_kv: false,
            no_put: false,
            no_delete: false,
            limits: PageLimits::NONE,
        }
    }

    fn want(&self, key: &[u8], deletes: bool) -> Want {
        let filtered = if deletes { self.no_delete } else { self.no_put };
        match (!filtered && self.keys.contains(key), self.prev_kv) {
            (false, _) => Want::Nothing,
            (true, false) => Want::Event,
            (true, true) => Want::EventWithPrev,
        }
    }
}

/// A part of history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// In the order of history.
    pub events: Vec<Event>,
    /// All changes before this place were looked at: go on from here. Inside a revision (`sub` above 0) only if it
    /// ended for its bytes, and then a change that is wanted stands there.
    pub next: Stamp,
    /// The store's revision. There is more to read if `next` is not behind it.
    pub revision: Revision,
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// Which of the changes of its revision it is, counted from 0.
    pub sub: u32,
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

impl Event {
    /// Its place in history.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        Stamp {
            revision: self.kv.mod_revision,
            sub: self.sub,
        }
    }

    /// What it adds to a page or a message, roughly.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        let pair = |kv: &KeyValue| kv.key.len() + kv.value.len();
        EVENT_OVERHEAD_BYTES + pair(&self.kv) + self.prev.as_ref().map_or(0, pair)
    }
}

impl<S: Store> Reader<S> {
    /// Reads history. It is legal to begin at a revision of the future; there is nothing to read then.
    ///
    /// # Errors
    /// [`ReadError::Compacted`] if a part of it is gone, or the storage failed.
    pub fn changes(&self, query: &ChangesQuery) -> Result<Changes, ReadError> {
        let wants = |key: &[u8], deletes| query.want(key, deletes);
        self.changes_wanted(query.from, query.limits, wants)
    }

    /// As [`Self::changes`], where `wants` says of each key, and of whether it was deleted, what of the change is wanted. Of
    /// other changes no value is read.
    ///
    /// # Errors
    /// As for [`Self::changes`].
    pub fn changes_wanted(
        &self,
        from: Stamp,
        limits: PageLimits,
        wants: impl Fn(&[u8], bool) -> Want,
    ) -> Result<Changes, ReadError> {
        let revision = self.shared.revision();
        let range = change_range(from, revision.max(from.revision));
        let log = self.shared.store.cursor(Scope::Between(range.clone()));
        let versions = self.shared.store.cursor(Scope::OneKey);
        self.check_compacted(from.revision)?;
        let mut walk = Walk {
            limits,
            wants,
            log,
            versions,
            compacted: self.shared.compact_revision(),
            newest: revision,
            buffer: Vec::new(),
            bytes: 0,
            looked_at: 0,
            events: Vec::new(),
        };
        let next = self.shared.told(walk.run(&range.start))?;
        Ok(Changes {
            events: walk.events,
            next: next.max(from),
            revision,
        })
    }
}

/// Reading a part of history.
struct Walk<W, C> {
    limits: PageLimits,
    wants: W,
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

impl<W: Fn(&[u8], bool) -> Want, C: Cursor> Walk<W, C> {
    /// Returns the place up to which it came.
    fn run(&mut self, start: &[u8]) -> Result<Stamp, StoreError> {
        self.log.seek(start)?;
        while let Some((key, record)) = self.log.record() {
            let at = split_change_key(key)?;
            if at.revision > self.newest {
                break;
            }
            let change = change(record)?;
            let want = (self.wants)(change.key, change.deletes);
            if self.stops_before(at, want) {
                let skips = at.sub > 0 && planted!(WatchSkipsInsideRevision);
                return Ok(if skips { at.next() } else { at });
            }
            if want > Want::Nothing {
                let key = Bytes::copy_from_slice(change.key);
                let event = self.event(key, at, want == Want::EventWithPrev)?;
                self.bytes += event.size_bytes();
                self.events.push(event);
            }
            self.looked_at += 1;
            self.log.next()?;
        }
        Ok(Stamp::end_of(self.newest))
    }

    /// Inside a revision only before something that is wanted, so that whoever reads for one watch knows that more
    /// follows.
    fn stops_before(&self, at: Stamp, want: Want) -> bool {
        let full = self.bytes >= self.limits.bytes && !planted!(PageNotBoundedInBytes);
        let looked = self.looked_at >= self.limits.changes;
        match at.sub {
            _ if self.looked_at == 0 => false,
            0 => full || looked,
            _ => full && want > Want::Nothing,
        }
    }

    fn event(&mut self, key: Bytes, at: Stamp, prev_kv: bool) -> Result<Event, StoreError> {
        let Stamp { revision, sub } = at;
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
        let prev = if prev_kv && prev_kept {
            self.version_before(key)?
        } else {
            None
        };
        Ok(Event {
            kind,
            sub,
            kv,
            prev,
        })
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
