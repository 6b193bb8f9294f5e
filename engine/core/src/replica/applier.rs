//! Applies committed entries and answers those who proposed them.

use super::env::Env;
use super::input::ApplyJob;
use super::pending::Pending;
use crate::consensus::{ConfigChange, ConfigChangeKind};
use crate::kv::{Applied, Membership, MembershipChange, Outcome, StateMachine, Store, StoreError};
use crate::types::{Entry, EntryKind, Index, Revision};
use std::sync::Arc;

/// Entries applied as one batch. Larger ones save little and make the first caller wait for the last.
const BATCH_ENTRIES_MAX: usize = 1024;

/// What was applied at once, for the replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedRange {
    /// The last entry.
    pub index: Index,
    /// The store's revision after it.
    pub revision: Revision,
    /// How many entries.
    pub entries: usize,
    /// How many bytes of the log they hold.
    pub bytes: u64,
    /// The membership changes among them that were accepted, in order.
    pub changes: Vec<ConfigChange>,
    /// The members after them, if they changed.
    pub membership: Option<Arc<Membership>>,
}

/// A state machine, and the callers that wait for it.
pub struct Applier<S, E: Env> {
    machine: StateMachine<S>,
    pending: Pending<E::Write>,
}

impl<S: Store, E: Env> Applier<S, E> {
    /// Takes over a state machine.
    pub fn new(machine: StateMachine<S>) -> Self {
        Self {
            machine,
            pending: Pending::default(),
        }
    }

    /// The state machine.
    pub fn machine(&self) -> &StateMachine<S> {
        &self.machine
    }

    /// Takes in jobs from `jobs` until there are enough for one batch, and does them. `None` if they
    /// held nothing to apply.
    ///
    /// # Errors
    /// The store failed; the member must end.
    pub fn work(
        &mut self,
        jobs: impl IntoIterator<Item = ApplyJob<E>>,
    ) -> Result<Option<AppliedRange>, StoreError> {
        let mut entries = Vec::new();
        for job in jobs {
            match job {
                ApplyJob::Expect(expected) => {
                    expected.into_iter().for_each(|e| self.pending.expect(e));
                }
                ApplyJob::Entries(more) => entries.extend(more),
                ApplyJob::Prune => self.pending.prune(),
            }
            if entries.len() >= BATCH_ENTRIES_MAX {
                break;
            }
        }
        match entries.last() {
            Some(last) => self.apply(last.index, &entries).map(Some),
            None => Ok(None),
        }
    }

    fn apply(&mut self, index: Index, entries: &[Entry]) -> Result<AppliedRange, StoreError> {
        let applied = self.machine.apply(entries)?;
        let changes = accepted_changes(entries, &applied);
        let range = AppliedRange {
            index,
            revision: self.machine.revision(),
            entries: applied.len(),
            bytes: entries.iter().map(|entry| entry.data.len() as u64).sum(),
            membership: (!changes.is_empty()).then(|| self.machine.membership()),
            changes,
        };
        for applied in applied {
            self.pending.applied(applied);
        }
        Ok(range)
    }
}

fn accepted_changes(entries: &[Entry], applied: &[Applied]) -> Vec<ConfigChange> {
    let skipped = entries.len() - applied.len();
    entries[skipped..]
        .iter()
        .zip(applied)
        .filter(|(entry, _)| entry.kind == EntryKind::Membership)
        .filter(|(_, applied)| matches!(applied.outcome, Outcome::Membership(Ok(_))))
        .map(|(entry, _)| {
            let change = MembershipChange::decode(&entry.data)
                .expect("the state machine has just accepted it")
                .expect("the state machine has just accepted it");
            config_change(&change)
        })
        .collect()
}

/// What a membership change means to consensus.
pub(super) fn config_change(change: &MembershipChange) -> ConfigChange {
    let (kind, member) = match change {
        MembershipChange::Bootstrap { member, .. } => (ConfigChangeKind::AddVoter, member.id),
        MembershipChange::AddLearner(member) => (ConfigChangeKind::AddLearner, member.id),
        MembershipChange::Promote(id) => (ConfigChangeKind::AddVoter, *id),
        MembershipChange::Remove(id) => (ConfigChangeKind::Remove, *id),
    };
    ConfigChange { kind, member }
}
