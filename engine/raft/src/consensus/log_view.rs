//! The log as the `raft` crate sees it: recent entries from memory, older ones from disk.
//!
//! The crate must be able to read an entry as soon as it was handed out to be appended, long before
//! a disk has it. So every entry that is not known to be persisted is held here; beyond those, as
//! many recent ones as the cache may hold.

use std::cell::Cell;
use std::collections::VecDeque;

use dengine_log::{Disk, LogReader};
use dengine_planted::planted;
use dengine_types::{Entry, HardState, Index, MemberId, Term};
use raft::{GetEntriesContext, RaftState, Storage as _, StorageError, eraftpb};

use super::convert::{entry_to_raft, hard_state_to_raft};

/// Reads the persisted part of the log.
pub trait LogRead: Send + 'static {
    /// The first entry that is still there; one past the end if there is none.
    fn first_index(&self) -> Index;
    /// The last entry; `Index(0)` if there never was one.
    fn last_index(&self) -> Index;
    /// The term of an entry in `[first_index - 1, last_index]`; `None` outside. The entry before
    /// the first is remembered by its term alone.
    ///
    /// # Errors
    /// The log cannot be read.
    fn term(&self, index: Index) -> Result<Option<Term>, LogReadError>;
    /// The first entry of the newest part of the log that holds at least `bytes`; the log's first
    /// one if all of it holds less.
    fn keep_from(&self, bytes: u64) -> Index;
    /// The first entry whose space can't be had by dropping entries, as that of the segment that is
    /// being written.
    fn current_first(&self) -> Index;
    /// Entries from `from` on and before `to`: as many as `max_bytes` holds, and at least one.
    /// Without a limit, which is `u64::MAX`, it must be all of them.
    ///
    /// # Errors
    /// The log cannot be read.
    fn entries(&self, from: Index, to: Index, max_bytes: u64) -> Result<Vec<Entry>, LogReadError>;
}

impl<D: Disk> LogRead for LogReader<D> {
    fn first_index(&self) -> Index {
        LogReader::first_index(self)
    }

    fn last_index(&self) -> Index {
        LogReader::last_index(self)
    }

    fn term(&self, index: Index) -> Result<Option<Term>, LogReadError> {
        Ok(LogReader::term(self, index))
    }

    fn keep_from(&self, bytes: u64) -> Index {
        LogReader::keep_from(self, bytes)
    }

    fn current_first(&self) -> Index {
        LogReader::current_first(self)
    }

    fn entries(&self, from: Index, to: Index, max_bytes: u64) -> Result<Vec<Entry>, LogReadError> {
        LogReader::entries(self, from, to, max_bytes).map_err(|e| LogReadError(e.to_string()))
    }
}

/// The log could not be read; the member must stop, for it can no longer tell what it promised.
#[derive(Debug, thiserror::Error)]
#[error("the log cannot be read: {0}")]
pub struct LogReadError(pub String);

pub(super) struct LogView<L> {
    log: L,
    /// Contiguous; reaches to the end of the log. Indexes below its front are read from `log`.
    recent: VecDeque<Entry>,
    recent_bytes: u64,
    cache_bytes: u64,
    /// The first entry that may be read. Raised before the log drops what lies below, so that no
    /// read ever meets a file that is going.
    first: u64,
    /// The term of the entry before it.
    base_term: u64,
    /// What was given at start; the crate asks for it once.
    initial: (HardState, Vec<MemberId>, Vec<MemberId>),
    /// What can be sent to a follower whose entries are gone.
    snapshot: Option<eraftpb::Snapshot>,
    /// The crate wanted a snapshot, and there was none that would do.
    snapshot_wanted: Cell<bool>,
}

impl<L: LogRead> LogView<L> {
    pub(super) fn new(
        log: L,
        hard_state: HardState,
        voters: Vec<MemberId>,
        learners: Vec<MemberId>,
        cache_bytes: u64,
    ) -> Self {
        let first = log.first_index().0.max(1);
        let base_term = log.term(Index(first - 1)).ok().flatten();
        Self {
            first,
            base_term: base_term.map_or(0, |term| term.0),
            snapshot: None,
            snapshot_wanted: Cell::new(false),
            log,
            recent: VecDeque::new(),
            recent_bytes: 0,
            cache_bytes,
            initial: (hard_state, voters, learners),
        }
    }

    fn end(&self) -> u64 {
        self.recent
            .back()
            .map_or_else(|| self.log.last_index().0, |e| e.index.0)
    }

    fn recent_start(&self) -> u64 {
        self.recent.front().map_or(u64::MAX, |e| e.index.0)
    }

    /// Takes over entries that are about to be appended, replacing any that stand in their place.
    pub(super) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        assert!(
            first.index.0 <= self.end() + 1,
            "entries {} leave a gap after {}",
            first.index,
            self.end()
        );
        if planted!(ConflictStaysInMemory)
            && self.recent.back().is_some_and(|e| e.index >= first.index)
        {
            let end = self.end();
            let new = entries.iter().filter(|e| e.index.0 > end);
            self.recent.extend(new.cloned());
            return;
        }
        while self.recent.back().is_some_and(|e| e.index >= first.index) {
            let dropped = self.recent.pop_back().expect("the back was just looked at");
            self.recent_bytes -= entry_bytes(&dropped);
        }
        self.recent_bytes += entries.iter().map(entry_bytes).sum::<u64>();
        self.recent.extend(entries.iter().cloned());
    }

    /// Forgets that there are entries up to `index`, which is applied.
    pub(super) fn truncate(&mut self, index: Index) {
        if index.0 < self.first {
            return;
        }
        self.base_term = self.term(index.0).expect("an applied entry has a term");
        self.first = index.0 + 1;
        while self.recent.front().is_some_and(|e| e.index <= index) {
            self.pop_front();
        }
    }

    /// What followers may be sent from now on.
    pub(super) fn offer_snapshot(&mut self, snapshot: Option<eraftpb::Snapshot>) {
        self.snapshot = snapshot;
        self.snapshot_wanted.set(false);
    }

    /// Whether a snapshot was asked for that is not there.
    pub(super) fn wants_snapshot(&self) -> bool {
        self.snapshot_wanted.get()
    }

    /// The last entry of the snapshot that is on offer.
    pub(super) fn snapshot_index(&self) -> Option<Index> {
        let snapshot = self.snapshot.as_ref()?;
        Some(Index(snapshot.get_metadata().index))
    }

    /// What the entries in memory take: those that are not on disk, and as many others as the cache
    /// may hold.
    pub(super) fn recent_bytes(&self) -> u64 {
        self.recent_bytes
    }

    /// Forgets cached entries up to `index`, which is persisted, as far as the cache is over its
    /// bound.
    pub(super) fn evict(&mut self, index: u64) {
        while self.recent_bytes > self.cache_bytes
            && self.recent.front().is_some_and(|e| e.index.0 <= index)
        {
            self.pop_front();
        }
    }

    fn pop_front(&mut self) {
        if let Some(dropped) = self.recent.pop_front() {
            self.recent_bytes -= entry_bytes(&dropped);
        }
    }

    /// Whether `to` could go on from this snapshot with the entries that are left.
    fn serves(&self, snapshot: &eraftpb::Snapshot, to: u64) -> bool {
        let meta = snapshot.get_metadata();
        let conf = meta.get_conf_state();
        let member = conf.voters.contains(&to) || conf.learners.contains(&to);
        member && meta.index + 1 >= self.first
    }

    /// Entries of `[low, high)`: as many as `max_bytes` holds, and at least one.
    ///
    /// # Errors
    /// The log cannot be read.
    pub(super) fn read(
        &self,
        low: u64,
        high: u64,
        max_bytes: u64,
    ) -> Result<Vec<Entry>, LogReadError> {
        let cached_from = high.min(self.recent_start()).max(low);
        let mut entries = Vec::new();
        if low < cached_from {
            entries = self
                .log
                .entries(Index(low), Index(cached_from), max_bytes)?;
        }
        let mut bytes: u64 = entries.iter().map(entry_bytes).sum();
        if low + entries.len() as u64 == cached_from {
            for entry in self.cached(cached_from, high) {
                bytes += entry_bytes(entry);
                if bytes > max_bytes && !entries.is_empty() {
                    break;
                }
                entries.push(entry.clone());
            }
        }
        Ok(entries)
    }

    fn cached(&self, low: u64, high: u64) -> impl Iterator<Item = &Entry> {
        let offset = |index: u64| {
            let offset = index.saturating_sub(self.recent_start());
            usize::try_from(offset).expect("an offset into memory")
        };
        self.recent.range(offset(low)..offset(high))
    }
}

/// What an entry counts for in memory and in messages; with what a length-prefixed one costs beside
/// its payload, rounded up.
pub(super) fn entry_bytes(entry: &Entry) -> u64 {
    const OVERHEAD_BYTES: usize = 32;
    (entry.data.len() + entry.context.len() + OVERHEAD_BYTES) as u64
}

fn unreadable(error: LogReadError) -> raft::Error {
    raft::Error::Store(StorageError::Other(Box::new(error)))
}

impl<L: LogRead> raft::Storage for LogView<L> {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let (hard_state, voters, learners) = &self.initial;
        Ok(RaftState {
            hard_state: hard_state_to_raft(*hard_state),
            conf_state: eraftpb::ConfState {
                voters: voters.iter().map(|id| id.0).collect(),
                learners: learners.iter().map(|id| id.0).collect(),
                ..eraftpb::ConfState::default()
            },
        })
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<eraftpb::Entry>> {
        if low >= high {
            return Ok(Vec::new());
        }
        if low < self.first_index()? {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        let max_bytes = max_size.into().unwrap_or(u64::MAX);
        let entries = self.read(low, high, max_bytes).map_err(unreadable)?;
        Ok(entries.iter().map(entry_to_raft).collect())
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index + 1 == self.first {
            return Ok(self.base_term);
        }
        if index < self.first {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        if index > self.end() {
            return Err(raft::Error::Store(StorageError::Unavailable));
        }
        if let Some(entry) = self.cached(index, index + 1).next() {
            return Ok(entry.term.0);
        }
        let term = self.log.term(Index(index)).map_err(unreadable)?;
        term.map(|term| term.0)
            .ok_or(raft::Error::Store(StorageError::Compacted))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.first)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.end())
    }

    fn snapshot(&self, _request_index: u64, to: u64) -> raft::Result<eraftpb::Snapshot> {
        if let Some(snapshot) = self.snapshot.as_ref().filter(|s| self.serves(s, to)) {
            return Ok(snapshot.clone());
        }
        self.snapshot_wanted.set(true);
        Err(raft::Error::Store(
            StorageError::SnapshotTemporarilyUnavailable,
        ))
    }
}
