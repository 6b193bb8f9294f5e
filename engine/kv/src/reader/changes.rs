//! History in its order, for watches.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use dengine_planted::planted;
use dengine_types::{LeaseId, Revision};

use super::{ReadError, Reader};
use crate::layout::{Change, Stamp, change, change_range, put_data_key, split_change_key};
use crate::machine::SharedState;
use crate::recent::{RecentChange, RecentStep};
use crate::scan::live;
use crate::store::{Cursor, Scope};
use crate::{KeyRange, KeyValue, Store, StoreError};

/// The approximate cost of an event besides key and value.
const EVENT_OVERHEAD_BYTES: usize = 64;

/// The part of history to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangesQuery {
    /// The first place to examine. It may be inside a revision.
    pub from: Stamp,
    /// Changes of these keys only.
    pub keys: KeyRange,
    /// Return the previous pairs.
    pub prev_kv: bool,
    /// Omit changes that set a key.
    pub no_put: bool,
    /// Omit changes that delete a key.
    pub no_delete: bool,
    pub limits: PageLimits,
}

/// The limits of a part of history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLimits {
    /// Stop before the next event, also inside a revision, once the events have this many bytes: a
    /// page exceeds it by less than one event.
    pub bytes: usize,
    /// Stop at the end of the revision in which this many changes were examined, of any keys.
    /// Changes that are not wanted take no memory, so a revision is not split for them.
    pub changes: usize,
}

impl PageLimits {
    /// No limits.
    pub const NONE: Self = Self {
        bytes: usize::MAX,
        changes: usize::MAX,
    };
}

/// What to read of one change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Want {
    Nothing,
    /// The change.
    Event,
    /// The change, and the previous pair.
    EventWithPrev,
}

impl ChangesQuery {
    /// All changes of `keys` from the revision `from` on.
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

    pub(crate) fn want(&self, key: &[u8], deletes: bool) -> Want {
        let filtered = if deletes { self.no_delete } else { self.no_put };
        match (!filtered && self.keys.contains(key), self.prev_kv) {
            (false, _) => Want::Nothing,
            (true, false) => Want::Event,
            (true, true) => Want::EventWithPrev,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// In the order of history.
    pub events: Vec<Event>,
    /// All changes before this place were examined: continue from here. It is inside a revision
    /// (`sub` above 0) only if the limit of bytes was reached, and then a wanted change is there.
    pub next: Stamp,
    /// The store's revision. There is more to read if `next` is not after it.
    pub revision: Revision,
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub kind: EventKind,
    /// Its number among the changes of its revision, from 0.
    pub sub: u32,
    /// The pair after the change. For a deleted key only `key` and `mod_revision` are set.
    pub kv: KeyValue,
    /// The pair before it, if it was requested, existed and is not compacted.
    pub prev: Option<KeyValue>,
}

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    Put,
    /// Deleted or expired.
    Delete,
}

impl Event {
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        Stamp {
            revision: self.kv.mod_revision,
            sub: self.sub,
        }
    }

    /// The approximate size that it adds to a page or a message.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        let pair = |kv: &KeyValue| kv.key.len() + kv.value.len();
        EVENT_OVERHEAD_BYTES + pair(&self.kv) + self.prev.as_ref().map_or(0, pair)
    }
}

impl<S: Store> Reader<S> {
    /// Reads history. It may begin at a revision of the future, and is empty then.
    ///
    /// # Errors
    ///
    /// [`ReadError::Compacted`] if a part of it is compacted, or the storage failed.
    pub fn changes(&self, query: &ChangesQuery) -> Result<Changes, ReadError> {
        let wants = |key: &[u8], deletes| query.want(key, deletes);
        self.changes_wanted(query.from, query.limits, wants)
    }

    /// Like [`Self::changes`]; `wants` decides for each key, and whether it was deleted, what of
    /// the change is wanted. The values of other changes are not read.
    ///
    /// # Errors
    ///
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
        let versions = StoredVersions {
            cursor: self.shared.store.cursor(Scope::OneKey),
            buffer: Vec::new(),
        };
        self.check_compacted(from.revision)?;
        let mut walk = self.walk(revision, limits, wants);
        let read = walk.through_store(log, versions, &range.start);
        let next = self.shared.reported(read)?;
        Ok(walk.end(next.max(from)))
    }

    /// Like [`Self::changes_wanted`], for the one that reads on and on from where it ended: what is
    /// new is kept in memory for it from now on, until [`Self::stop_following`]. It may end sooner,
    /// as if the store were at an older revision, and lacks a previous pair that was compacted
    /// while it read.
    ///
    /// # Errors
    ///
    /// As for [`Self::changes`].
    pub fn changes_followed(
        &self,
        from: Stamp,
        limits: PageLimits,
        wants: impl Fn(&[u8], bool) -> Want,
    ) -> Result<Changes, ReadError> {
        self.check_compacted(from.revision)?;
        let revision = self.shared.revision();
        let steps = self.shared.recent.read_from(from.revision);
        let Some(last) = steps.last() else {
            return self.changes_wanted(from, limits, wants);
        };
        let mut walk = self.walk(revision.min(last.last()), limits, wants);
        let read = walk.through_recent(&steps, from, &self.shared);
        let next = self.shared.reported(read)?;
        Ok(walk.end(next.max(from)))
    }

    /// What is new is not kept in memory any more.
    pub fn stop_following(&self) {
        self.shared.recent.stop_following();
    }

    fn walk<W>(&self, newest: Revision, limits: PageLimits, wants: W) -> Walk<W> {
        Walk {
            limits,
            wants,
            compacted: self.shared.compact_revision(),
            newest,
            bytes: 0,
            looked_at: 0,
            events: Vec::new(),
        }
    }
}

/// A read of a part of history.
struct Walk<W> {
    limits: PageLimits,
    wants: W,
    /// Versions that only older revisions see may be collected.
    compacted: Revision,
    newest: Revision,
    bytes: usize,
    looked_at: usize,
    events: Vec<Event>,
}

impl<W: Fn(&[u8], bool) -> Want> Walk<W> {
    /// Both return the place up to which they have read.
    fn through_store<C: Cursor>(
        &mut self,
        mut log: C,
        mut versions: StoredVersions<C>,
        start: &[u8],
    ) -> Result<Stamp, StoreError> {
        log.seek(start)?;
        while let Some((key, record)) = log.record() {
            let at = split_change_key(key)?;
            if let ControlFlow::Break(end) = self.visit(at, change(record)?, &mut versions)? {
                return Ok(end);
            }
            log.next()?;
        }
        Ok(Stamp::end_of(self.newest))
    }

    fn through_recent<S: Store>(
        &mut self,
        steps: &[Arc<RecentStep>],
        from: Stamp,
        shared: &SharedState<S>,
    ) -> Result<Stamp, StoreError> {
        for found in steps.iter().flat_map(|step| step.changes(from)) {
            let RecentChange {
                at,
                change,
                version,
            } = found?;
            let mut versions = RecentVersion {
                version,
                replaces: change.replaces,
                shared,
            };
            if let ControlFlow::Break(end) = self.visit(at, change, &mut versions)? {
                return Ok(end);
            }
        }
        Ok(Stamp::end_of(self.newest))
    }

    /// Adds the event of a change, if it is wanted. Breaks with the place where to read on if it is
    /// not to be read any more.
    fn visit(
        &mut self,
        at: Stamp,
        change: Change<'_>,
        versions: &mut impl Versions,
    ) -> Result<ControlFlow<Stamp>, StoreError> {
        if at.revision > self.newest {
            return Ok(ControlFlow::Break(Stamp::end_of(self.newest)));
        }
        let want = (self.wants)(change.key, change.deletes);
        if self.stops_before(at, want) {
            let skips = at.sub > 0 && planted!(WatchSkipsInsideRevision);
            return Ok(ControlFlow::Break(if skips { at.next() } else { at }));
        }
        if want > Want::Nothing {
            let key = Bytes::copy_from_slice(change.key);
            let event = self.event(key, at, want == Want::EventWithPrev, versions)?;
            self.bytes += event.size_bytes();
            self.events.push(event);
        }
        self.looked_at += 1;
        Ok(ControlFlow::Continue(()))
    }

    /// Stops inside a revision only before a wanted change, so that a read for one watch shows
    /// whether more follows.
    fn stops_before(&self, at: Stamp, want: Want) -> bool {
        let full = self.bytes >= self.limits.bytes && !planted!(PageNotBoundedInBytes);
        let looked = self.looked_at >= self.limits.changes;
        match at.sub {
            _ if self.looked_at == 0 => false,
            0 => full || looked,
            _ => full && want > Want::Nothing,
        }
    }

    fn event(
        &self,
        key: Bytes,
        at: Stamp,
        prev_kv: bool,
        versions: &mut impl Versions,
    ) -> Result<Event, StoreError> {
        let Stamp { revision, sub } = at;
        let put = versions.made(&key, revision)?;
        let kind = match put {
            Some(_) => EventKind::Put,
            None => EventKind::Delete,
        };
        let kv = put.unwrap_or_else(|| deleted(key.clone(), revision));
        // The previous version is visible at the revision before, and at no later one.
        let prev_kept = revision > self.compacted;
        let prev = if prev_kv && prev_kept {
            versions.replaced(key, revision)?
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

    fn end(self, next: Stamp) -> Changes {
        Changes {
            events: self.events,
            next,
            revision: self.newest,
        }
    }
}

/// The versions of a key before and after one change.
trait Versions {
    /// The one that the change of `revision` made; `None` if it deleted the key.
    fn made(&mut self, key: &Bytes, revision: Revision) -> Result<Option<KeyValue>, StoreError>;

    /// The one before, if there was one. Called after [`Self::made`].
    fn replaced(&mut self, key: Bytes, revision: Revision) -> Result<Option<KeyValue>, StoreError>;
}

/// Of all keys, in the store.
struct StoredVersions<C> {
    cursor: C,
    buffer: Vec<u8>,
}

impl<C: Cursor> Versions for StoredVersions<C> {
    fn made(&mut self, key: &Bytes, revision: Revision) -> Result<Option<KeyValue>, StoreError> {
        self.buffer.clear();
        put_data_key(&mut self.buffer, key, revision);
        self.cursor.seek(&self.buffer)?;
        let record = self.cursor.record();
        let (found, record) = record
            .filter(|(found, _)| *found == self.buffer)
            .ok_or_else(|| lost(key, revision))?;
        Ok(live(found, record)?.map(|found| found.to_key_value(key.clone(), true)))
    }

    fn replaced(&mut self, key: Bytes, _: Revision) -> Result<Option<KeyValue>, StoreError> {
        self.cursor.next()?;
        let Some((found, record)) = self.cursor.record() else {
            return Ok(None);
        };
        Ok(live(found, record)?.map(|found| found.to_key_value(key, true)))
    }
}

/// Of one change that is kept in memory; what it replaced is in the store alone.
struct RecentVersion<'a, S> {
    version: (&'a [u8], &'a [u8]),
    replaces: Option<Revision>,
    shared: &'a SharedState<S>,
}

impl<S: Store> Versions for RecentVersion<'_, S> {
    fn made(&mut self, key: &Bytes, _: Revision) -> Result<Option<KeyValue>, StoreError> {
        let (found, record) = self.version;
        Ok(live(found, record)?.map(|found| found.to_key_value(key.clone(), true)))
    }

    fn replaced(&mut self, key: Bytes, revision: Revision) -> Result<Option<KeyValue>, StoreError> {
        let Some(replaces) = self.replaces else {
            return Ok(None);
        };
        let mut found = Vec::new();
        put_data_key(&mut found, &key, replaces);
        match self.shared.store.get(&found)? {
            Some(record) => Ok(live(&found, &record)?.map(|found| found.to_key_value(key, true))),
            // Collected: there is no cursor that would still show it.
            None if revision <= self.shared.compact_revision() => Ok(None),
            None => Err(lost(&key, replaces)),
        }
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
        lease: LeaseId::NONE,
    }
}

fn lost(key: &Bytes, revision: Revision) -> StoreError {
    StoreError::Corrupt(format!(
        "revision {revision} changed {}, but that version is missing",
        key[..key.len().min(64)].escape_ascii()
    ))
}
