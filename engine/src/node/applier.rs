//! The thread that applies committed entries and answers those who proposed them.

use super::flusher::FlushTrigger;
use super::input::Input;
use super::metrics;
use super::pending::{Expected, Pending};
use crate::error::Fatal;
use crate::storage::RocksStore;
use dengine_core::consensus::{ConfigChange, ConfigChangeKind};
use dengine_core::kv::{Applied, Membership, MembershipChange, Outcome, StateMachine, StoreError};
use dengine_core::types::{Entry, EntryKind, Index};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;
use tokio::sync::watch;

/// Entries applied as one batch. Larger ones save little and make the first caller wait for the last.
const BATCH_ENTRIES_MAX: usize = 1024;

pub(super) enum ApplyJob {
    /// These callers wait; sent before the entries that they wait for.
    Expect(Vec<Expected>),
    /// These are committed.
    Entries(Vec<Entry>),
    /// Forget callers that gave up.
    Prune,
}

pub(super) struct Applier {
    machine: StateMachine<RocksStore>,
    pending: Pending,
    replica: Sender<Input>,
    membership: watch::Sender<Arc<Membership>>,
    flush: FlushTrigger,
}

impl Applier {
    pub(super) fn new(
        machine: StateMachine<RocksStore>,
        replica: Sender<Input>,
        membership: watch::Sender<Arc<Membership>>,
        flush: FlushTrigger,
    ) -> Self {
        Self {
            machine,
            pending: Pending::default(),
            replica,
            membership,
            flush,
        }
    }

    /// Works until the replica thread lets go of the queue, then flushes so that the next start has
    /// little to replay.
    pub(super) fn run(mut self, jobs: &Receiver<ApplyJob>) {
        while let Ok(job) = jobs.recv() {
            if let Err(error) = self.work(job, jobs) {
                let failed = Input::Failed(Fatal::State(error.to_string()));
                // If the replica is gone too, somebody reported before us.
                let _ = self.replica.send(failed);
                return;
            }
        }
        if let Err(error) = self.machine.flush() {
            tracing::warn!(%error, "the state machine was not flushed; the next start replays more of the log");
        }
    }

    fn work(&mut self, first: ApplyJob, jobs: &Receiver<ApplyJob>) -> Result<(), StoreError> {
        let mut entries = Vec::new();
        let mut next = Some(first);
        while let Some(job) = next.take() {
            match job {
                ApplyJob::Expect(expected) => {
                    expected.into_iter().for_each(|e| self.pending.expect(e));
                }
                ApplyJob::Entries(more) => entries.extend(more),
                ApplyJob::Prune => self.pending.prune(),
            }
            if entries.len() < BATCH_ENTRIES_MAX {
                next = jobs.try_recv().ok();
            }
        }
        match entries.last() {
            Some(last) => self.apply(last.index, &entries),
            None => Ok(()),
        }
    }

    fn apply(&mut self, index: Index, entries: &[Entry]) -> Result<(), StoreError> {
        let start = Instant::now();
        let applied = self.machine.apply(entries)?;
        ::metrics::histogram!(metrics::APPLY_SECONDS).record(start.elapsed().as_secs_f64());
        ::metrics::counter!(metrics::APPLIED_ENTRIES_TOTAL).increment(applied.len() as u64);
        let changes = accepted_changes(entries, &applied);
        if !changes.is_empty() {
            self.membership.send_replace(self.machine.membership());
        }
        for applied in applied {
            self.pending.applied(applied);
        }
        let bytes = entries.iter().map(|entry| entry.data.len() as u64).sum();
        self.flush.applied(bytes);
        // If the replica is gone, nobody needs to know.
        let _ = self.replica.send(Input::Applied { index, changes });
        Ok(())
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
