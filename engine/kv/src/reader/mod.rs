//! Reads, concurrent with the application of entries.
//!
//! Every read is made at one revision, by default the newest that is published. Versions at or below a
//! published revision never change, so a read needs no lock and sees whole batches only. They may be
//! collected once the revision is compacted. The compact revision is published before anything is
//! collected, and a cursor shows the store as it was when it was made: so a read makes its cursors, then
//! asks whether its revision is compacted, and if not, no cursor lacks a version that it needs.
//!
//! Whatever a method here reads goes through `Shared::told`, so that the member hears of damage as well as the caller.

mod batch;
mod changes;
mod expiring;
mod hash;
mod survey;

pub use changes::{Changes, ChangesQuery, Event, EventKind, PageLimits, Want};
pub use expiring::{ExpiringKey, SessionInfo};
pub use hash::LogicalHash;
pub use survey::Survey;

use super::machine::Shared;
use super::scan::{Found, Scan, Seen, find};
use super::store::{Scope, Store, StoreError};
use super::{KeyRange, KeyValue};
use bytes::Bytes;
use dengine_planted::planted;
use dengine_types::{Index, Revision};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Reads the store of a state machine. Clones are cheap.
#[derive(Debug)]
pub struct Reader<S> {
    shared: Arc<Shared<S>>,
    /// Long reads end when it says so.
    stop: Arc<AtomicBool>,
}

impl<S> Clone for Reader<S> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            stop: Arc::clone(&self.stop),
        }
    }
}

/// Records between two looks at whether to go on: well under a millisecond.
const RECORDS_PER_LOOK: u64 = 1024;

/// What to read of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeQuery {
    /// Which keys.
    pub keys: KeyRange,
    /// Return at most so many pairs.
    pub limit: usize,
    /// Return no further pairs once they hold so many bytes; one pair is always returned.
    pub max_bytes: usize,
    /// Leave out the values.
    pub keys_only: bool,
    /// Count the keys instead, all of them, and leave out the pairs.
    pub count_only: bool,
    /// The state after this revision; `None`: the newest.
    pub revision: Option<Revision>,
}

impl RangeQuery {
    /// All newest pairs of the range.
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

/// What was read of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeResult {
    /// The store's revision when it was read, whichever revision was asked for.
    pub revision: Revision,
    /// The pairs, in the order of their keys.
    pub kvs: Vec<KeyValue>,
    /// Whether a bound left out pairs.
    pub more: bool,
    /// How many keys the range holds. `None` if there are more than were returned: to count them all would cost as much
    /// as to read them, so it is done only for [`RangeQuery::count_only`].
    pub count: Option<u64>,
}

/// Why a read has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The revision has not happened yet, as far as this member knows.
    #[error("revision {requested} lies in the future: the store is at revision {current}")]
    Future {
        /// What was asked for.
        requested: Revision,
        /// The store's revision.
        current: Revision,
    },
    /// The history below the compact revision is gone.
    #[error("revision {requested} is compacted: history begins at revision {compacted}")]
    Compacted {
        /// What was asked for.
        requested: Revision,
        /// The first revision that can be read.
        compacted: Revision,
    },
    /// Nobody waits for it any more, or it took too long.
    #[error("the read was given up after {records} records; ask for a smaller range")]
    Stopped {
        /// How many were read by then.
        records: u64,
    },
    /// The storage failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Reads of single keys; see [`Reader::gets`]. Holds the store open, and its old versions: drop it soon.
pub struct Gets<'r, S: Store> {
    reader: &'r Reader<S>,
    cursor: S::Cursor<'r>,
    /// The newest revision, as of when the cursor was made or before.
    current: Revision,
    buffer: Vec<u8>,
}

impl<S: Store> Gets<'_, S> {
    /// As [`Reader::get`].
    ///
    /// # Errors
    /// If the revision cannot be read, or the storage fails.
    pub fn get(
        &mut self,
        key: &Bytes,
        revision: Option<Revision>,
    ) -> Result<(Revision, Option<KeyValue>), ReadError> {
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
                // What was the newest revision grew old meanwhile, which takes a write and a compaction.
                Err(_) => *self = self.reader.gets(),
            }
        }
        let at = revision.unwrap_or(self.current);
        let found = find(&mut self.cursor, &mut self.buffer, key, at);
        let found = self.reader.shared.told(found)?;
        let found = found.map(|found| found.to_key_value(key.clone(), true));
        Ok((self.current, found))
    }
}

impl<S> Reader<S> {
    pub(super) fn new(shared: Arc<Shared<S>>) -> Self {
        Self {
            shared,
            stop: Arc::default(),
        }
    }

    /// The same, but that its long reads ([`Reader::range`], [`Reader::logical_hash`]) end with [`ReadError::Stopped`] soon
    /// after `stop` becomes true.
    #[must_use]
    pub fn stopped_by(self, stop: Arc<AtomicBool>) -> Self {
        Self { stop, ..self }
    }

    /// Asked before each record: whether to go on.
    fn goes_on(&self, records: u64) -> bool {
        !records.is_multiple_of(RECORDS_PER_LOOK) || !self.stop.load(Ordering::Relaxed)
    }

    /// The newest revision that can be read.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.shared.revision()
    }

    /// The first revision that can be read and watched; 0: all of history.
    #[must_use]
    pub fn compact_revision(&self) -> Revision {
        self.shared.compact_revision()
    }

    /// How many bytes this process has written to the store. What is kept of the past takes no more than was written since,
    /// and what was live then.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.shared.written_bytes()
    }

    /// How many sessions are open.
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
    /// Reads one key as of `revision`, or the newest. Returns the store's revision with it.
    ///
    /// # Errors
    /// If the revision cannot be read, or the storage fails.
    pub fn get(
        &self,
        key: &Bytes,
        revision: Option<Revision>,
    ) -> Result<(Revision, Option<KeyValue>), ReadError> {
        self.gets().get(key, revision)
    }

    /// Reads single keys, all from the store as it is now: cheaper than to look at it anew for each.
    #[must_use]
    pub fn gets(&self) -> Gets<'_, S> {
        let current = self.shared.revision();
        Gets {
            reader: self,
            cursor: self.shared.store.cursor(Scope::OneKey),
            current,
            buffer: Vec::new(),
        }
    }

    /// Reads a range of keys, in order. Looks at the keys that it returns and at one more, or at all of them to count
    /// them; and at deleted ones between these that are not collected yet.
    ///
    /// # Errors
    /// If the revision cannot be read, the read was stopped, or the storage fails.
    pub fn range(&self, query: &RangeQuery) -> Result<RangeResult, ReadError> {
        let (scan, revision, at) = self.begin(query.revision, || {
            Scan::new(&self.shared.store, &query.keys)
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
        self.shared.told(run)?;
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

    /// Roughly what the state occupies.
    #[must_use]
    pub fn approximate_bytes(&self) -> u64 {
        self.shared.store.approximate_bytes()
    }

    /// What to read from, the store's revision, and the one to read at.
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
                // The newest revision grew old while we looked, which takes a write and a compaction.
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

/// The answer to a range while it is gathered.
#[derive(Default)]
struct Page {
    kvs: Vec<KeyValue>,
    bytes: usize,
    count: u64,
    /// A pair was left out, and so are all behind it.
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
