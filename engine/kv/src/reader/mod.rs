//! Reads, concurrent with the application of entries.
//!
//! Every read is made at one revision, by default the newest that is published. Versions at or
//! below a published revision never change, so a read needs no lock and sees whole batches only.
//! They may be collected once the revision is compacted. The compact revision is published before
//! anything is collected, and a cursor shows the store at the time of its creation: so a read
//! creates its cursors, then checks whether its revision is compacted, and if not, no cursor lacks
//! a version that it needs.
//!
//! Every result of the store goes through `SharedState::reported`, so that damage reaches the
//! member as well as the caller.

mod batch;
mod changes;
mod counts;
mod expiring;
mod hash;
mod leases;
mod survey;

pub use changes::{Changes, ChangesQuery, Event, EventKind, PageLimits, Want};
pub(crate) use counts::KnownCounts;
pub use expiring::{ExpiringKey, SessionInfo};
pub use hash::{LogicalHash, RevisionHash};
pub use leases::LeaseInfo;
pub use survey::Survey;

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use dengine_planted::planted;
use dengine_types::{Index, Revision};

use super::key_cache::KeyCacheUsage;
use super::machine::{SharedState, read_state};
use super::scan::{Found, Scan, Seen, find};
use super::store::{Scope, Store, StoreError};
use super::{KeyRange, KeyValue};

/// Reads the store of a state machine. Clones are cheap.
#[derive(Debug)]
pub struct Reader<S> {
    shared: Arc<SharedState<S>>,
    /// Looks after long reads.
    attendant: Option<Arc<dyn Attendant>>,
}

impl<S> Clone for Reader<S> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            attendant: self.attendant.clone(),
        }
    }
}

/// Records between two looks at a long read: well under a millisecond.
const RECORDS_PER_LOOK: u64 = 1024;

/// Looks after a long read, on the thread that reads, every now and then.
pub trait Attendant: Debug + Send + Sync {
    /// Whether it is to go on.
    fn goes_on(&self) -> bool;
}

/// Ends reads once it is true.
impl Attendant for AtomicBool {
    fn goes_on(&self) -> bool {
        !self.load(Ordering::Relaxed)
    }
}

/// A read of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeQuery {
    pub keys: KeyRange,
    /// The maximum number of pairs.
    pub limit: usize,
    /// The maximum bytes of pairs; one pair is always returned.
    pub max_bytes: usize,
    pub keys_only: bool,
    /// Count all keys instead, and return no pairs.
    pub count_only: bool,
    /// Read at this revision; `None` for the newest.
    pub revision: Option<Revision>,
}

impl RangeQuery {
    /// All pairs of the range at the newest revision.
    #[must_use]
    pub fn new(keys: KeyRange) -> Self {
        Self {
            keys,
            limit: usize::MAX,
            max_bytes: usize::MAX,
            keys_only: false,
            count_only: false,
            revision: None,
        }
    }
}

/// The result of a range read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeResult {
    /// The store's revision at the read, whatever revision was requested.
    pub revision: Revision,
    /// The pairs, in the order of their keys.
    pub kvs: Vec<KeyValue>,
    /// Whether pairs were left out because of a limit.
    pub more: bool,
    /// How many keys the range has. `None` if there are more than were returned: counting them may
    /// cost as much as reading them, so it is done only for [`RangeQuery::count_only`].
    pub count: Option<u64>,
}

/// Why a read failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The revision is in the future, as far as this member knows.
    #[error("revision {requested} is in the future: the store is at revision {current}")]
    Future {
        requested: Revision,
        current: Revision,
    },
    #[error("revision {requested} is compacted: history begins at revision {compacted}")]
    Compacted {
        requested: Revision,
        /// The first revision that can be read.
        compacted: Revision,
    },
    /// Its caller is gone, or it took too long.
    #[error("the read was stopped after {records} records; ask for a smaller range")]
    Stopped {
        /// How many were read before.
        records: u64,
    },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Reads of single keys; see [`Reader::gets`]. It keeps the store open, and its old versions: drop
/// it soon.
pub struct Gets<'r, S: Store> {
    reader: &'r Reader<S>,
    /// Opened for the first key that the cache does not have.
    cursor: Option<S::Cursor<'r>>,
    /// The newest revision at the beginning, or when it began again.
    current: Revision,
    buffer: Vec<u8>,
}

impl<S: Store> Gets<'_, S> {
    /// Like [`Reader::get`].
    pub fn get(
        &mut self,
        key: &Bytes,
        revision: Option<Revision>,
    ) -> Result<(Revision, Option<KeyValue>), ReadError> {
        let shared = &self.reader.shared;
        if revision.is_none()
            && let Some(found) = shared.keys.get_at(key, self.current, true)
        {
            return Ok((self.current, found));
        }
        self.cursor
            .get_or_insert_with(|| shared.store.cursor(Scope::OneKey));
        loop {
            let at = revision.unwrap_or(self.current);
            if at > self.current {
                return Err(ReadError::Future {
                    requested: at,
                    current: self.current,
                });
            }
            match self.reader.check_compacted(at) {
                Ok(()) => break,
                Err(error) if revision.is_some() => return Err(error),
                // The newest revision was compacted meanwhile, which takes a write and a
                // compaction: try again.
                Err(_) => {
                    self.current = shared.revision();
                    self.cursor = Some(shared.store.cursor(Scope::OneKey));
                }
            }
        }
        let at = revision.unwrap_or(self.current);
        let cursor = self.cursor.as_mut().expect("it is open");
        let found = shared.reported(find(cursor, &mut self.buffer, key, at))?;
        let found = found.map(|found| found.to_key_value(key.clone(), true));
        if let (Some(found), None) = (&found, revision) {
            shared.keys.offer(found, at);
        }
        Ok((self.current, found))
    }
}

impl<S> Reader<S> {
    pub(super) fn new(shared: Arc<SharedState<S>>) -> Self {
        Self {
            shared,
            attendant: None,
        }
    }

    /// A reader whose long reads ([`Reader::range`], [`Reader::logical_hash`]) are looked after so,
    /// and end with [`ReadError::Stopped`] soon after they are not to go on.
    #[must_use]
    pub fn attended_by(self, attendant: Arc<impl Attendant + 'static>) -> Self {
        Self {
            attendant: Some(attendant),
            ..self
        }
    }

    /// Whether to go on; called before each record.
    fn goes_on(&self, records: u64) -> bool {
        let attendant = self.attendant.as_ref();
        !records.is_multiple_of(RECORDS_PER_LOOK) || attendant.is_none_or(|it| it.goes_on())
    }

    /// The newest revision that can be read.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.shared.revision()
    }

    /// The first revision that can be read and watched; 0 for all of history.
    #[must_use]
    pub fn compact_revision(&self) -> Revision {
        self.shared.compact_revision()
    }

    /// How many bytes this process has written to the store. History takes at most what was written
    /// since its beginning, and what was live then.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.shared.written_bytes()
    }

    #[must_use]
    pub fn open_sessions(&self) -> u64 {
        self.shared.sessions()
    }

    /// The last entry whose effects can be read.
    #[must_use]
    pub fn applied_index(&self) -> Index {
        self.shared.applied_index()
    }
}

impl<S: Store> Reader<S> {
    /// Reads one key at `revision`, or at the newest. Returns the store's revision with it.
    pub fn get(
        &self,
        key: &Bytes,
        revision: Option<Revision>,
    ) -> Result<(Revision, Option<KeyValue>), ReadError> {
        self.gets().get(key, revision)
    }

    /// Reads single keys with one cursor, which is cheaper than one for each.
    #[must_use]
    pub fn gets(&self) -> Gets<'_, S> {
        let current = self.shared.revision();
        Gets {
            reader: self,
            cursor: None,
            current,
            buffer: Vec::new(),
        }
    }

    /// Reads a range of keys, in order. It visits the returned keys and one more, and deleted keys
    /// in between that are not collected yet. To count them it visits all, unless it knows how many
    /// there were a short while before, or of how many they are the rest.
    pub fn range(&self, query: &RangeQuery) -> Result<RangeResult, ReadError> {
        match &query.keys {
            KeyRange::Between { .. } | KeyRange::From(_) if query.count_only => self.count(query),
            _ => self.visit(query),
        }
    }

    fn visit(&self, query: &RangeQuery) -> Result<RangeResult, ReadError> {
        let (scan, revision, at) = self.begin(query.revision, || {
            Scan::at(&self.shared.store, &query.keys, query.revision)
        })?;
        let mut page = Page::default();
        let mut records = 0;
        let mut stopped = false;
        let run = scan.run(at, |seen| {
            if !self.goes_on(records) {
                stopped = true;
                return Ok(ControlFlow::Break(()));
            }
            records += 1;
            match seen {
                Seen::Live(found) => page.take(query, found),
                Seen::Deleted { .. } | Seen::Later => Ok(ControlFlow::Continue(())),
            }
        });
        self.shared.reported(run)?;
        if stopped {
            return Err(ReadError::Stopped { records });
        }
        Ok(RangeResult {
            revision,
            count: (!page.more).then_some(page.count),
            kvs: page.kvs,
            more: page.more,
        })
    }

    /// The revision that the store had when it was empty: what the first entry says, and 1 before
    /// that is applied. Read from the store each time, for it is hardly ever asked for.
    ///
    /// # Errors
    ///
    /// If the store fails or is damaged.
    pub fn first_revision(&self) -> Result<Revision, StoreError> {
        let state = self.shared.reported(read_state(&self.shared.store))?;
        Ok(state.first_revision)
    }

    #[must_use]
    pub fn approximate_bytes(&self) -> u64 {
        self.shared.store.approximate_bytes()
    }

    /// What the cache of keys that were changed or read lately takes and spares, since the state
    /// was opened.
    #[must_use]
    pub fn key_cache_usage(&self) -> KeyCacheUsage {
        self.shared.keys.usage()
    }

    /// The cursors to read from, the store's revision, and the revision to read at.
    fn begin<T>(
        &self,
        requested: Option<Revision>,
        open: impl Fn() -> T,
    ) -> Result<(T, Revision, Revision), ReadError> {
        loop {
            let current = self.shared.revision();
            let at = requested.unwrap_or(current);
            if at > current {
                return Err(ReadError::Future {
                    requested: at,
                    current,
                });
            }
            let too_early = planted!(CompactedAskedTooEarly).then(|| self.check_compacted(at));
            let opened = open();
            match too_early.unwrap_or_else(|| self.check_compacted(at)) {
                Ok(()) => return Ok((opened, current, at)),
                Err(error) if requested.is_some() => return Err(error),
                // The newest revision was compacted during the read, which takes a write and a
                // compaction: try again.
                Err(_) => {}
            }
        }
    }

    fn check_compacted(&self, requested: Revision) -> Result<(), ReadError> {
        let compacted = self.shared.compact_revision();
        if requested < compacted {
            return Err(ReadError::Compacted {
                requested,
                compacted,
            });
        }
        Ok(())
    }
}

/// The result of a range while it is gathered.
#[derive(Default)]
struct Page {
    kvs: Vec<KeyValue>,
    bytes: usize,
    count: u64,
    /// A pair was left out, and so are all after it.
    more: bool,
}

impl Page {
    fn take(
        &mut self,
        query: &RangeQuery,
        found: &Found<'_>,
    ) -> Result<ControlFlow<()>, StoreError> {
        if !query.count_only {
            self.bytes = self.bytes.saturating_add(found.size_bytes(query.keys_only));
            let fits = self.kvs.is_empty() || self.bytes <= query.max_bytes;
            if !fits || self.kvs.len() >= query.limit {
                self.more = true;
                return Ok(ControlFlow::Break(()));
            }
            let kv = found.to_key_value(found.key()?, !query.keys_only);
            self.kvs.push(kv);
        }
        self.count += 1;
        Ok(ControlFlow::Continue(()))
    }
}
