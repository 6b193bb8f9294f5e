//! The state machine: applies entries of the log, in order, each exactly once.

use std::sync::Arc;

use dengine_planted::planted;
use dengine_types::sync::atomic::{AtomicU64, Ordering};
use dengine_types::{ClusterId, Entry, Index, Revision, SessionId, Term};

use super::at_hand::AtHand;
use super::damage::Damage;
use super::key_cache::{self, KeyCache};
use super::layout::{
    FORMAT_KEY, FORMAT_OLDEST, MEMBERSHIP_KEY, MachineState, STATE_KEY, check_format,
    decode_membership, decode_state, encode_format, encode_state, session_range,
};
use super::reader::KnownCounts;
use super::recent::RecentHistory;
use super::store::{Cursor, Reclaimed, Scope, Store, StoreError, WriteBatch};
use super::transition::{Finished, Transition};
use super::visits::VisitBounds;
use super::{Applied, Collector, CommandVersion, LeaseInfo, Membership, ReadError, Reader};

/// A step ends once its batch and its outcomes have this size. Ranges make effects much larger than
/// the entries that cause them, so the number of entries is no limit. Changing it is safe: members
/// need not agree on where steps end.
pub(super) const STEP_BYTES_MAX: usize = 16 << 20;
/// A step also ends after this many records: more save little. Callers get their outcomes after
/// each step, and so does the leader, which hands out as many entries as keep the applier busy and
/// no more before.
const STEP_RECORDS_MAX: usize = 32;

/// The key-value store and the membership, as of the last applied entry.
#[derive(Debug)]
pub struct StateMachine<S> {
    shared: Arc<SharedState<S>>,
    state: MachineState,
    membership: Arc<Membership>,
    visit_bounds: VisitBounds,
    /// Empty between two steps; kept for its memory.
    batch: WriteBatch,
    /// The newest version of a command that is read.
    commands_read_max: CommandVersion,
}

/// What readers and flushers share with the applier.
#[derive(Debug)]
pub(super) struct SharedState<S> {
    pub(super) store: S,
    pub(super) keys: KeyCache,
    pub(super) counts: KnownCounts,
    pub(super) recent: RecentHistory,
    /// Revision up to which every change is in the store. It is raised after the batch is written,
    /// so a reader at this revision sees whole batches.
    revision: AtomicU64,
    compact_revision: AtomicU64,
    /// Index up to which every entry is in the store; raised like `revision`.
    applied_index: AtomicU64,
    /// Size of all batches so far.
    written_bytes: AtomicU64,
    /// How many sessions are open.
    sessions: AtomicU64,
    damage: Damage,
}

impl<S: Store> StateMachine<S> {
    /// Opens the state in `store`, or initializes an empty store. The newest state of keys that
    /// changed lately is kept in at most about 16 MiB of memory.
    ///
    /// # Errors
    ///
    /// If the store fails, is damaged, holds something else, or was written by a newer program. It
    /// is unchanged then.
    pub fn open(store: S) -> Result<Self, StoreError> {
        Self::open_with_key_cache(store, key_cache::BYTES_DEFAULT)
    }

    /// The same with so many bytes of memory in place of 16 MiB. All keys of a state for which that
    /// is enough, and which is no larger than 32 MiB, are read into it.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn open_with_key_cache(store: S, key_cache_bytes: usize) -> Result<Self, StoreError> {
        let format = match store.get(FORMAT_KEY)? {
            Some(format) => check_format(&format)?,
            None => begin(&store)?,
        };
        if planted!(SessionsLostOnRestart) {
            forget_sessions(&store)?;
        }
        let state = read_state(&store)?;
        if state.format != format {
            return Err(StoreError::Corrupt(format!(
                "the state record is of format {}, and the store of format {format}",
                state.format
            )));
        }
        let membership = match store.get(MEMBERSHIP_KEY)? {
            Some(record) => decode_membership(&record)?,
            None => Membership::default(),
        };
        let shared = SharedState {
            keys: KeyCache::of(&store, state.revision, key_cache_bytes),
            counts: KnownCounts::default(),
            recent: RecentHistory::default(),
            store,
            revision: AtomicU64::new(state.revision.0),
            compact_revision: AtomicU64::new(state.compact_revision.0),
            applied_index: AtomicU64::new(state.applied_index.0),
            written_bytes: AtomicU64::new(0),
            sessions: AtomicU64::new(state.sessions),
            damage: Damage::default(),
        };
        Ok(Self {
            shared: Arc::new(shared),
            state,
            membership: Arc::new(membership),
            visit_bounds: VisitBounds::ALL,
            batch: WriteBatch::default(),
            commands_read_max: CommandVersion::CURRENT,
        })
    }

    /// The same, if it is that of this cluster, or of none yet.
    ///
    /// # Errors
    ///
    /// [`StoreError::OfAnotherCluster`]: what it holds would be taken for what this cluster wrote.
    pub fn of_cluster(self, cluster: ClusterId) -> Result<Self, StoreError> {
        let found = self.membership.cluster_id;
        match found.0 == 0 || found == cluster {
            true => Ok(self),
            false => Err(StoreError::OfAnotherCluster { found, cluster }),
        }
    }

    /// Reads commands only up to `version`, like an older program, so that the simulator can run
    /// members of several versions in one cluster.
    #[must_use]
    pub fn reads_commands_up_to(mut self, version: CommandVersion) -> Self {
        self.commands_read_max = version;
        self
    }

    /// The newest version of a command that is read.
    #[must_use]
    pub fn commands_read_max(&self) -> CommandVersion {
        self.commands_read_max
    }

    /// The last applied entry; index 0 before the first.
    #[must_use]
    pub fn applied(&self) -> (Index, Term) {
        (self.state.applied_index, self.state.applied_term)
    }

    #[must_use]
    pub fn revision(&self) -> Revision {
        self.state.revision
    }

    /// The membership at the last applied entry.
    #[must_use]
    pub fn membership(&self) -> Arc<Membership> {
        Arc::clone(&self.membership)
    }

    /// Which commands a member has to read that takes part: one that reads less can neither open
    /// this state nor have come to it.
    #[must_use]
    pub fn commands_needed(&self) -> CommandVersion {
        match self.state.format {
            FORMAT_OLDEST => CommandVersion::OLDEST,
            _ => CommandVersion::V4,
        }
    }

    /// All leases as of the last applied entry.
    ///
    /// # Errors
    ///
    /// If the store fails or is damaged.
    pub fn leases(&self) -> Result<Vec<LeaseInfo>, StoreError> {
        let leases = self.reader().leases(None, usize::MAX);
        leases.map_err(|error| match error {
            ReadError::Store(error) => error,
            other => unreachable!("it reads what is now, to the end: {other}"),
        })
    }

    /// Applies entries that follow the last applied one, in as few steps as [`Self::apply_step`]
    /// needs. Entries that were applied before are skipped; the result has one item for each of the
    /// others.
    ///
    /// # Errors
    ///
    /// As [`Self::apply_step`]; steps before the one that failed are applied.
    ///
    /// # Panics
    ///
    /// If an entry is missing in between: the log is broken.
    pub fn apply(&mut self, entries: &[Entry]) -> Result<Vec<Applied>, StoreError> {
        let mut applied = self.apply_step(entries)?;
        loop {
            let more = self.apply_step(entries)?;
            if more.is_empty() {
                return Ok(applied);
            }
            applied.extend(more);
        }
    }

    /// Applies entries that follow the last applied one, in a single batch: as many as it takes to
    /// visit 64 records or to reach about 16 MiB of effects and outcomes, at least one, and none
    /// behind a change that may read the past. Entries
    /// that were applied before are skipped; the result has one item for each that was applied now,
    /// and so is empty once all of them are.
    ///
    /// # Errors
    ///
    /// If the store fails or is damaged, or if a newer program wrote an entry. Nothing is applied
    /// then, and the member must stop.
    ///
    /// # Panics
    ///
    /// If an entry is missing in between: the log is broken.
    pub fn apply_step(&mut self, entries: &[Entry]) -> Result<Vec<Applied>, StoreError> {
        let batch = std::mem::take(&mut self.batch);
        let store = &self.shared.store;
        let Some((applied, finished)) = self.step(store, batch, entries)? else {
            return Ok(Vec::new());
        };
        self.write(finished, S::write)?;
        Ok(applied)
    }

    /// The same without waiting for a disk. `None` if that can't be: nothing is applied then,
    /// and [`Self::apply_step`] does it.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn apply_step_at_hand(
        &mut self,
        entries: &[Entry],
    ) -> Result<Option<Vec<Applied>>, StoreError> {
        let batch = std::mem::take(&mut self.batch);
        let at_hand = AtHand(Arc::clone(&self.shared));
        let step = self.step(&at_hand, batch, entries);
        let written = step.and_then(|step| {
            let Some((applied, finished)) = step else {
                return Ok(Vec::new());
            };
            self.write(finished, S::write_at_hand)?;
            Ok(applied)
        });
        match written {
            Err(StoreError::NotAtHand) => Ok(None),
            written => written.map(Some),
        }
    }

    /// What the next step does to `store` and what comes of its entries; `None` if all were applied
    /// before.
    fn step<T: Store>(
        &self,
        store: &T,
        batch: WriteBatch,
        entries: &[Entry],
    ) -> Result<Option<(Vec<Applied>, Finished)>, StoreError> {
        let new = entries.partition_point(|entry| entry.index <= self.state.applied_index);
        let entries = &entries[new..];
        if entries.is_empty() {
            return Ok(None);
        }
        let mut step = Transition::new(
            store,
            &self.shared.keys,
            batch,
            self.state,
            Arc::clone(&self.membership),
            self.commands_read_max,
        );
        step.bound_visits(self.visit_bounds);
        // Each entry visits at least one record.
        let mut applied = Vec::with_capacity(entries.len().min(STEP_RECORDS_MAX));
        let mut expected = self.state.applied_index;
        let (mut answer_bytes, mut records) = (0, 0);
        for entry in entries {
            expected = expected.next();
            assert_eq!(entry.index, expected, "entries are applied without gaps");
            let Some(outcome) = step.apply(entry)? else {
                break;
            };
            answer_bytes += outcome.pairs_bytes();
            records += step.records();
            applied.push(Applied {
                index: entry.index,
                term: entry.term,
                context: entry.context.clone(),
                outcome,
                records: step.records(),
                visited: step.visited(),
            });
            if records >= STEP_RECORDS_MAX || answer_bytes + step.batch_bytes() >= STEP_BYTES_MAX {
                break;
            }
        }
        Ok(Some((applied, step.finish())))
    }

    /// Writes a step and publishes its state.
    fn write(
        &mut self,
        finished: Finished,
        write: impl FnOnce(&S, &WriteBatch) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        if planted!(AppliedIndexApartFromData) {
            let mut apart = WriteBatch::default();
            apart.put(STATE_KEY, &encode_state(&finished.state));
            self.shared.store.write(&apart)?;
        }
        if planted!(PublishedBeforeWritten) {
            self.shared.publish(&finished.state);
        }
        write(&self.shared.store, &finished.batch)?;
        finished.teach(&self.shared.keys);
        let bytes = finished.batch.size_bytes() as u64;
        self.shared
            .written_bytes
            .fetch_add(bytes, Ordering::Relaxed);
        let (before, now) = (self.state.revision, finished.state.revision);
        self.shared.recent.push(before, now, &finished.batch);
        self.state = finished.state;
        self.membership = finished.membership;
        self.batch = finished.batch;
        self.batch.clear();
        self.shared.publish(&self.state);
        Ok(())
    }

    /// Sets other limits than those that all members of a cluster must have.
    #[cfg(test)]
    pub(super) fn bound_visits(&mut self, bounds: VisitBounds) {
        self.visit_bounds = bounds;
    }

    /// Sets a callback for damage ([`StoreError::Corrupt`]) that a reader or a flusher finds. It is
    /// called each time, on the thread that found it, in addition to the error for the caller: the
    /// member must stop. The applier and the collector return damage themselves.
    pub fn on_damage(&self, report: impl Fn(StoreError) + Send + Sync + 'static) {
        self.shared.damage.set(report);
    }

    /// A reader for use concurrently with `apply`, on any thread.
    #[must_use]
    pub fn reader(&self) -> Reader<S> {
        Reader::new(Arc::clone(&self.shared))
    }

    /// A garbage collector for use concurrently with `apply`, on any thread.
    #[must_use]
    pub fn collector(&self) -> Collector<S> {
        Collector::new(Arc::clone(&self.shared))
    }

    /// A flusher for use concurrently with `apply`, on any thread.
    #[must_use]
    pub fn flusher(&self) -> Flusher<S> {
        Flusher {
            shared: Arc::clone(&self.shared),
        }
    }

    /// See [`Flusher::flush`].
    pub fn flush(&self) -> Result<Index, StoreError> {
        self.flusher().flush()
    }
}

/// Makes applied entries durable, so that the log may drop them.
#[derive(Debug)]
pub struct Flusher<S> {
    pub(super) shared: Arc<SharedState<S>>,
}

impl<S> Clone for Flusher<S> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S: Store> Flusher<S> {
    /// Makes everything durable that was applied before the call. Returns the index up to which the
    /// log is no longer needed for it.
    pub fn flush(&self) -> Result<Index, StoreError> {
        // Read first: what is applied during the flush may not be part of it.
        let applied = self.shared.applied_index();
        self.shared.reported(self.shared.store.flush())?;
        Ok(match planted!(FlushedReadAfterwards) {
            true => self.shared.applied_index(),
            false => applied,
        })
    }

    /// Runs `ask` on the store itself, concurrently with `apply`, for example to make a checkpoint
    /// of the state after some entry applied during or before the call.
    ///
    /// # Errors
    ///
    /// Those of `ask`; damage is reported to the member too.
    pub fn with_store<T>(
        &self,
        ask: impl FnOnce(&S) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.shared.reported(ask(&self.shared.store))
    }

    /// See [`Store::reclaim`].
    pub fn reclaim(&self, free_bytes: u64) -> Result<Reclaimed, StoreError> {
        self.shared.store.reclaim(free_bytes)
    }

    /// The maximum space that a flush takes.
    #[must_use]
    pub fn unflushed_bytes(&self) -> u64 {
        self.shared.store.unflushed_bytes()
    }
}

impl<S> SharedState<S> {
    pub(super) fn revision(&self) -> Revision {
        Revision(self.revision.load(Ordering::Acquire))
    }

    pub(super) fn compact_revision(&self) -> Revision {
        Revision(self.compact_revision.load(Ordering::Acquire))
    }

    pub(super) fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn applied_index(&self) -> Index {
        Index(self.applied_index.load(Ordering::Acquire))
    }

    /// Passes a result on, and reports damage.
    pub(super) fn reported<T>(&self, read: Result<T, StoreError>) -> Result<T, StoreError> {
        read.inspect_err(|error| self.damage.check(error))
    }

    pub(super) fn sessions(&self) -> u64 {
        self.sessions.load(Ordering::Relaxed)
    }

    fn publish(&self, state: &MachineState) {
        self.sessions.store(state.sessions, Ordering::Relaxed);
        // Release ordering: a reader of one of these sees what was written before it, and a reader
        // of a later one sees the earlier ones.
        let order = match planted!(PublishedUnordered) {
            true => Ordering::Relaxed,
            false => Ordering::Release,
        };
        self.compact_revision.store(state.compact_revision.0, order);
        self.revision.store(state.revision.0, order);
        self.applied_index.store(state.applied_index.0, order);
    }
}

/// The state as of the last batch that was written.
pub(super) fn read_state<S: Store>(store: &S) -> Result<MachineState, StoreError> {
    let record = store
        .get(STATE_KEY)?
        .ok_or_else(|| StoreError::Corrupt("the state record is missing".to_owned()))?;
    decode_state(&record)
}

/// Initializes an empty store. Returns its format.
fn begin<S: Store>(store: &S) -> Result<u32, StoreError> {
    let mut cursor = store.cursor(Scope::Between(Vec::new()..vec![0xff; 16]));
    cursor.seek(&[])?;
    if let Some((key, _)) = cursor.record() {
        return Err(StoreError::Foreign(format!(
            "it has no format record, but holds the key {}",
            key[..key.len().min(64)].escape_ascii()
        )));
    }
    drop(cursor);
    let mut batch = WriteBatch::default();
    let format = MachineState::EMPTY.format;
    batch.put(FORMAT_KEY, &encode_format(format));
    batch.put(STATE_KEY, &encode_state(&MachineState::EMPTY));
    store.write(&batch)?;
    Ok(format)
}

/// Only for [`dengine_planted::Bug::SessionsLostOnRestart`].
fn forget_sessions<S: Store>(store: &S) -> Result<(), StoreError> {
    let range = session_range(SessionId(0));
    let mut batch = WriteBatch::default();
    let mut cursor = store.cursor(Scope::Between(range.clone()));
    cursor.seek(&range.start)?;
    while let Some((key, _)) = cursor.record() {
        batch.delete(key);
        cursor.next()?;
    }
    drop(cursor);
    store.write(&batch)
}
