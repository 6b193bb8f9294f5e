//! The step from one state to the next: the changes of a run of entries, gathered into one batch.
//!
//! Nothing is visible until the batch is written. Later entries of the run see earlier ones through
//! the step: `keys.rs` for keys, `session.rs` for sessions, `lease.rs` for leases. The commands are
//! in `single.rs`, `batch.rs`, `lease.rs` and here.

mod batch;
mod keys;
mod lease;
mod returned;
mod session;
mod single;
mod undo;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use dengine_planted::planted;
use dengine_types::{Entry, EntryKind, Index, LeaseId, Revision, SessionId};

use super::key_cache::KeyCache;
use super::layout::{
    FORMAT_KEY, FORMAT_VERSION, Lease, MEMBERSHIP_KEY, MachineState, STATE_KEY, Stamp,
    encode_format, encode_state,
};
use super::session::Session;
use super::store::{Store, StoreError, WriteBatch};
use super::visits::{VisitBounds, Visits};
use super::{
    Command, CommandVersion, LoggedRequest, Membership, MembershipChange, MembershipRefusal,
    Outcome, RANGE_DELETE_BYTES_MAX, Refusal, Request,
};
use keys::Changed;
use returned::Returned;
use undo::Undo;

/// A step that is being gathered.
pub(super) struct Transition<'a, S: Store> {
    store: &'a S,
    /// The state before the step, once it is read.
    before: Option<S::Cursor<'a>>,
    /// The cached part of that state.
    cache: &'a KeyCache,
    /// The current state of every key that the step changed.
    keys: BTreeMap<Bytes, Changed>,
    /// The current state of every session that the step used; `None`: ended.
    sessions: BTreeMap<SessionId, Option<Session>>,
    /// The current state of every lease that the step used; `None`: there is none.
    leases: BTreeMap<LeaseId, Option<Lease>>,
    /// The replies that the step stores for sessions.
    replies: BTreeMap<(SessionId, u64), Bytes>,
    /// The last change of the current command.
    stamp: Option<Stamp>,
    /// The newest version of a command that may be read.
    reads_max: CommandVersion,
    /// The version of the current command. Its meaning may depend on it, and on nothing else that
    /// members need not have in common.
    version: CommandVersion,
    /// How many of the records that it names the command has visited.
    records: usize,
    /// What the ranges of the command have visited.
    visits: Visits,
    visit_bounds: VisitBounds,
    /// The previous pairs that it has gathered for its answer.
    returned: Returned,
    /// How to undo its changes, while that may be needed.
    undo: Option<Undo>,
    /// The revision before the step: all of history up to it is in the store.
    began_at: Revision,
    state: MachineState,
    membership: Arc<Membership>,
    batch: WriteBatch,
    buffer: Vec<u8>,
}

/// A complete step.
pub(super) struct Finished {
    keys: BTreeMap<Bytes, Changed>,
    pub(super) batch: WriteBatch,
    pub(super) state: MachineState,
    pub(super) membership: Arc<Membership>,
}

impl Finished {
    /// Has the cache of keys be in the state after the step, which is written and not published.
    pub(super) fn teach(&self, cache: &KeyCache) {
        for (key, now) in &self.keys {
            cache.learn(key, now.newest());
        }
    }
}

impl<'a, S: Store> Transition<'a, S> {
    /// Begins a step that is gathered in `batch`, which is empty.
    pub(super) fn new(
        store: &'a S,
        cache: &'a KeyCache,
        batch: WriteBatch,
        state: MachineState,
        membership: Arc<Membership>,
        reads_max: CommandVersion,
    ) -> Self {
        Self {
            store,
            before: None,
            cache,
            keys: BTreeMap::new(),
            sessions: BTreeMap::new(),
            leases: BTreeMap::new(),
            replies: BTreeMap::new(),
            stamp: None,
            reads_max,
            version: reads_max,
            records: 1,
            visits: Visits::UNBOUNDED,
            visit_bounds: VisitBounds::ALL,
            returned: Returned::NONE,
            undo: None,
            began_at: state.revision,
            state,
            membership,
            batch,
            buffer: Vec::new(),
        }
    }

    /// Sets the limits of visits of one command.
    pub(super) fn bound_visits(&mut self, bounds: VisitBounds) {
        self.visit_bounds = bounds;
    }

    /// Adds the effects of one entry; `None` if it has to begin a step, because it may read history
    /// that this one has not written yet.
    pub(super) fn apply(&mut self, entry: &Entry) -> Result<Option<Outcome>, StoreError> {
        self.visits = Visits::UNBOUNDED;
        self.records = 1;
        let outcome = match entry.kind {
            EntryKind::Membership => self.change_membership(&entry.data)?,
            EntryKind::Command if entry.data.is_empty() => Outcome::Empty,
            EntryKind::Command if planted!(OlderCommandSkipped) && self.is_older(entry) => {
                Outcome::Empty
            }
            EntryKind::Command => {
                match Request::decode_up_to(self.reads_max, entry.data.clone())? {
                    Ok(logged) if self.is_too_late_for(&logged.request.command) => return Ok(None),
                    Ok(logged) => self.request(entry.index, logged)?,
                    Err(reason) => Outcome::Rejected(reason),
                }
            }
        };
        self.state.applied_index = entry.index;
        self.state.applied_term = entry.term;
        Ok(Some(outcome))
    }

    fn is_too_late_for(&self, command: &Command) -> bool {
        self.state.revision > self.began_at && command.reads_past()
    }

    /// For [`dengine_planted::Bug::OlderCommandSkipped`] only: whether the previous program wrote
    /// the entry.
    fn is_older(&self, entry: &Entry) -> bool {
        let is_newest = self.reads_max == CommandVersion::CURRENT;
        // What version 3 can say is still written as that.
        let version = CommandVersion::V3.number();
        is_newest && entry.data.first().is_some_and(|it| *it < version)
    }

    /// How many records the last entry visited of those that [`Command::records`] counts; at least
    /// one.
    pub(super) fn records(&self) -> usize {
        self.records
    }

    /// How many keys the ranges of the last entry visited.
    pub(super) fn visited(&self) -> usize {
        self.visits.visited()
    }

    /// The size of the gathered keys and values.
    pub(super) fn batch_bytes(&self) -> usize {
        self.batch.size_bytes()
    }

    /// Completes the step and closes its cursor on the store.
    pub(super) fn finish(mut self) -> Finished {
        self.write_sessions();
        self.batch.put(STATE_KEY, &encode_state(&self.state));
        Finished {
            keys: self.keys,
            batch: self.batch,
            state: self.state,
            membership: self.membership,
        }
    }

    fn request(&mut self, index: Index, logged: LoggedRequest) -> Result<Outcome, StoreError> {
        self.version = logged.version;
        if self.version >= CommandVersion::V4 {
            self.raise_format();
        }
        let Request { session, command } = logged.request;
        match session {
            Some(_) if !command.may_be_stamped() => Ok(Outcome::Refused(Refusal::NotForSessions)),
            Some(stamp) => self.within_session(index, stamp, command),
            None => self.command(index, command),
        }
    }

    /// From now on the store may hold what only newer programs read: leases, pairs that have one,
    /// answers to their commands. None that reads less can apply the command either.
    fn raise_format(&mut self) {
        if self.state.format < FORMAT_VERSION {
            self.state.format = FORMAT_VERSION;
            self.batch.put(FORMAT_KEY, &encode_format(FORMAT_VERSION));
        }
    }

    fn command(&mut self, index: Index, command: Command) -> Result<Outcome, StoreError> {
        self.stamp = None;
        self.visits = match self.version >= CommandVersion::V3 {
            true => Visits::within(self.visit_bounds)
                .with_single_keys(self.version >= CommandVersion::V4),
            false => Visits::UNBOUNDED,
        };
        self.returned = Returned::NONE;
        let outcome = self.outcome(index, command)?;
        Ok(match self.returned.left_out() {
            true => outcome.without_pairs(),
            false => outcome,
        })
    }

    fn outcome(&mut self, index: Index, command: Command) -> Result<Outcome, StoreError> {
        match command {
            Command::Put(put) => {
                if let Err(refusal) = self.check_put(&put.key, put.lease)? {
                    return Ok(Outcome::Refused(refusal));
                }
                let value = match put.ignore_value {
                    true => self.value_to_keep(&put.key)?,
                    false => Some(put.value),
                };
                let Some(value) = value else {
                    return Ok(Outcome::Refused(Refusal::KeyNotFound));
                };
                let prev = self.put(put.key, value, put.ttl_ms, put.lease, put.prev_kv)?;
                let revision = self.state.revision;
                Ok(Outcome::Put { revision, prev })
            }
            Command::Delete { keys, prev_kv } => {
                let mut room = RANGE_DELETE_BYTES_MAX;
                let doomed = match self.doomed(&keys, prev_kv, &mut room)? {
                    Ok(doomed) => doomed,
                    Err(refusal) => return Ok(Outcome::Refused(refusal)),
                };
                let (deleted, prev) = self.delete(doomed, prev_kv);
                Ok(Outcome::Delete {
                    revision: self.state.revision,
                    deleted,
                    prev,
                })
            }
            Command::CompareAndSwap {
                key,
                expected,
                value,
                ttl_ms,
            } => self.compare_and_swap(key, &expected, value, ttl_ms),
            Command::Batch(batch) => self.batch(&batch),
            Command::Compact { revision } => Ok(self.compact(revision)),
            Command::OpenSession { ttl_ms } => Ok(self.open_session(index, ttl_ms)),
            Command::KeepAlive { session } => self.keep_alive(index, session),
            Command::CloseSession { session } => self.close_session(session, None),
            Command::ExpireSession { session, last_used } => {
                self.close_session(session, Some(last_used))
            }
            Command::ExpireKeys { keys } => {
                self.records = keys.len().max(1);
                self.expire_keys(&keys)
            }
            Command::GrantLease { lease, ttl_ms } => self.grant_lease(index, lease, ttl_ms),
            Command::RevokeLease { lease } => self.revoke_lease(index, lease),
            Command::ExpireLease { lease, seen } => self.expire_lease(index, lease, seen),
            Command::CheckpointLeases { leases } => {
                self.records = leases.len().max(1);
                self.checkpoint_leases(index, leases)
            }
        }
    }

    /// Compacts history. The [`Collector`](super::Collector) removes its bytes.
    fn compact(&mut self, requested: Revision) -> Outcome {
        let (current, compacted) = (self.state.revision, self.state.compact_revision);
        if requested <= compacted {
            return Outcome::Refused(Refusal::Compacted {
                requested,
                compacted,
            });
        }
        if requested > current {
            return Outcome::Refused(Refusal::Future { requested, current });
        }
        self.state.compact_revision = requested;
        Outcome::Compact { revision: current }
    }

    /// Has the empty store begin at a revision. What was before it belongs to another cluster, so
    /// that it can't be read here.
    fn begin_at(&mut self, first: Revision) {
        if first == MachineState::EMPTY.first_revision {
            return;
        }
        self.raise_format();
        self.state.first_revision = first;
        self.state.revision = first;
        self.state.compact_revision = first;
    }

    fn change_membership(&mut self, data: &[u8]) -> Result<Outcome, StoreError> {
        let change = MembershipChange::decode(data)?;
        let begins_at = match &change {
            Ok(MembershipChange::Bootstrap { first_revision, .. }) => Some(*first_revision),
            _ => None,
        };
        let changed = change.map_err(MembershipRefusal::from).and_then(|change| {
            let mut changed = Membership::clone(&self.membership);
            changed.apply(change).map(|()| changed)
        });
        Ok(Outcome::Membership(changed.map(|changed| {
            if let Some(first) = begins_at {
                self.begin_at(first);
            }
            self.batch.put(MEMBERSHIP_KEY, &changed.encode());
            self.membership = Arc::new(changed);
            Arc::clone(&self.membership)
        })))
    }
}
