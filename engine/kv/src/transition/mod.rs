//! The step from one state to the next: what a run of entries changes, gathered into one batch.
//!
//! Nothing here is visible until the batch is written. Later entries of the run see earlier ones
//! through what the step remembers: `keys.rs` for keys, `session.rs` for sessions. What a command does is
//! in `single.rs`, `batch.rs` and here.

mod batch;
mod keys;
mod returned;
mod session;
mod single;
mod undo;

use super::layout::{MEMBERSHIP_KEY, STATE_KEY, Stamp, State, encode_state};
use super::recent::{Recent, RecentKeys};
use super::session::Session;
use super::store::{Store, StoreError, WriteBatch};
use super::visits::{VisitBounds, Visits};
use super::{
    Command, CommandVersion, LoggedRequest, Membership, MembershipChange, MembershipRefusal,
    Outcome, RANGE_DELETE_BYTES_MAX, Refusal, Request,
};
use bytes::Bytes;
use dengine_planted::planted;
use dengine_types::{Entry, EntryKind, Index, Revision, SessionId};
use keys::Changed;
use returned::Returned;
use std::collections::BTreeMap;
use std::sync::Arc;
use undo::Undo;

/// The step while it is being gathered.
pub(super) struct Transition<'a, S: Store> {
    store: &'a S,
    /// The state before the step, once somebody looks at it.
    before: Option<S::Cursor<'a>>,
    /// The same, as far as it is known without looking.
    recent: &'a mut RecentKeys,
    /// Every key that the step changed, as it now is.
    keys: BTreeMap<Bytes, Changed>,
    /// Every session that the step used, as it now is; `None`: ended.
    sessions: BTreeMap<SessionId, Option<Session>>,
    /// The answers that the step keeps for sessions.
    replies: BTreeMap<(SessionId, u64), Bytes>,
    /// The last change of the command that is being applied.
    stamp: Option<Stamp>,
    /// The newest version of a command that may be read.
    reads_max: CommandVersion,
    /// In which the command that is being applied was written. What it means may depend on it, and on nothing else
    /// that members need not have in common.
    version: CommandVersion,
    /// How many records the command has visited, of those that it named.
    records: usize,
    /// What the ranges of that command have visited.
    visits: Visits,
    visit_bounds: VisitBounds,
    /// What it has gathered for its answer.
    returned: Returned,
    /// How to take back its changes, while that may be needed.
    undo: Option<Undo>,
    state: State,
    membership: Arc<Membership>,
    batch: WriteBatch,
    buffer: Vec<u8>,
}

/// The step when it is complete.
pub(super) struct Finished {
    pub(super) batch: WriteBatch,
    pub(super) state: State,
    pub(super) membership: Arc<Membership>,
}

impl<'a, S: Store> Transition<'a, S> {
    /// Begins a step that is gathered in `batch`, which is empty.
    pub(super) fn new(
        store: &'a S,
        recent: &'a mut RecentKeys,
        batch: WriteBatch,
        state: State,
        membership: Arc<Membership>,
        reads_max: CommandVersion,
    ) -> Self {
        Self {
            store,
            before: None,
            recent,
            keys: BTreeMap::new(),
            sessions: BTreeMap::new(),
            replies: BTreeMap::new(),
            stamp: None,
            reads_max,
            version: reads_max,
            records: 1,
            visits: Visits::UNBOUNDED,
            visit_bounds: VisitBounds::ALL,
            returned: Returned::NONE,
            undo: None,
            state,
            membership,
            batch,
            buffer: Vec::new(),
        }
    }

    /// What one command may visit.
    pub(super) fn bound_visits(&mut self, bounds: VisitBounds) {
        self.visit_bounds = bounds;
    }

    /// Adds the effects of one entry.
    pub(super) fn apply(&mut self, entry: &Entry) -> Result<Outcome, StoreError> {
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
                    Ok(logged) => self.request(entry.index, logged)?,
                    Err(reason) => Outcome::Rejected(reason),
                }
            }
        };
        self.state.applied_index = entry.index;
        self.state.applied_term = entry.term;
        Ok(outcome)
    }

    /// Only for [`dengine_planted::Bug::OlderCommandSkipped`]: the present program, and what the one before has written.
    fn is_older(&self, entry: &Entry) -> bool {
        let newest = CommandVersion::CURRENT;
        self.reads_max == newest && entry.data.first().is_some_and(|it| *it < newest.number())
    }

    /// How many records the last entry visited, of those that [`Command::records`] counts; one at least.
    pub(super) fn records(&self) -> usize {
        self.records
    }

    /// How many keys the ranges of the last entry visited.
    pub(super) fn visited(&self) -> usize {
        self.visits.visited()
    }

    /// How much is gathered, in bytes of keys and values.
    pub(super) fn batch_bytes(&self) -> usize {
        self.batch.size_bytes()
    }

    /// Closes the step; it is no longer looking at the store then. From now on the recent keys are as the step
    /// leaves them: if it can't be written, the member must end.
    pub(super) fn finish(mut self) -> Finished {
        self.write_sessions();
        for (key, now) in &self.keys {
            self.recent.learn(key, Recent::of(now.live()));
        }
        self.batch.put(STATE_KEY, &encode_state(&self.state));
        Finished {
            batch: self.batch,
            state: self.state,
            membership: self.membership,
        }
    }

    fn request(&mut self, index: Index, logged: LoggedRequest) -> Result<Outcome, StoreError> {
        self.version = logged.version;
        let Request { session, command } = logged.request;
        match session {
            Some(_) if !command.may_be_stamped() => Ok(Outcome::Refused(Refusal::NotForSessions)),
            Some(stamp) => self.within_session(index, stamp, command),
            None => self.command(index, command),
        }
    }

    fn command(&mut self, index: Index, command: Command) -> Result<Outcome, StoreError> {
        self.stamp = None;
        self.visits = match self.version >= CommandVersion::V3 {
            true => Visits::within(self.visit_bounds),
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
            Command::Put {
                key,
                value,
                prev_kv,
                ttl_ms,
            } => {
                let prev = self.put(key, value, ttl_ms, prev_kv)?;
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
            Command::Batch(batch) => self.batch(batch),
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
        }
    }

    /// Gives up history. Its bytes are left to the [`Collector`](super::Collector).
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

    fn change_membership(&mut self, data: &[u8]) -> Result<Outcome, StoreError> {
        let changed = MembershipChange::decode(data)?
            .map_err(MembershipRefusal::from)
            .and_then(|change| {
                let mut changed = Membership::clone(&self.membership);
                changed.apply(change).map(|()| changed)
            });
        Ok(Outcome::Membership(changed.map(|changed| {
            self.batch.put(MEMBERSHIP_KEY, &changed.encode());
            self.membership = Arc::new(changed);
            Arc::clone(&self.membership)
        })))
    }
}
