//! The thread that applies committed entries and answers those who proposed them.

use std::sync::Arc;
use std::time::Instant;

use dengine_kv::{Membership, StoreError};
use dengine_raft::channel::{Receiver, Sender};
use dengine_raft::replica::{AppliedRange, Applier};
use dengine_raft::{ApplyJob, Input, Token};
use dengine_types::{MemberId, Revision};
use tokio::sync::watch;

use super::callers::Committed;
use super::flusher::FlushTrigger;
use super::inbox::ToReplica;
use super::own_entry::tell_if_removed;
use super::waiters::Awaited;
use super::{clock, metrics};
use crate::error::Fatal;
use crate::storage::RocksStore;

/// What the thread is given: entries, and the callers that wait for some of them.
pub(super) struct Apply {
    pub(super) job: ApplyJob,
    pub(super) callers: Vec<(Token, Option<Awaited>)>,
    /// When it was committed.
    pub(super) since: Instant,
}

pub(super) struct ApplyThread {
    pub(super) own: MemberId,
    pub(super) applier: Applier<RocksStore>,
    pub(super) callers: Committed,
    pub(super) replica: Sender<ToReplica>,
    pub(super) membership: watch::Sender<Arc<Membership>>,
    /// Wakes watchers, and readers that wait for a revision.
    pub(super) revision: watch::Sender<Revision>,
    pub(super) flush: FlushTrigger,
}

impl ApplyThread {
    /// Works until the replica thread lets go of the queue, then flushes so that the next start has
    /// little to replay.
    pub(super) fn run(mut self, jobs: &Receiver<Apply>) {
        while let Ok(job) = jobs.recv() {
            if let Err(error) = self.work(job, jobs) {
                let failed = ToReplica::Failed(Fatal::State(error));
                // If the replica is gone too, somebody reported before us.
                let _ = self.replica.send(failed);
                return;
            }
        }
        if let Err(error) = self.applier.machine().flush() {
            tracing::warn!(%error, "the state machine was not flushed; the next start replays more \
                of the log");
        }
    }

    fn work(&mut self, first: Apply, jobs: &Receiver<Apply>) -> Result<(), StoreError> {
        let mut first = Some(first);
        loop {
            let start = Instant::now();
            let queued = first.take().into_iter().chain(jobs.try_iter());
            let queued = queued.map(|it| {
                ::metrics::histogram!(metrics::APPLY_WAIT_SECONDS).record(start - it.since);
                self.callers.add(it.callers);
                it.job
            });
            let Some(done) = self.applier.work(queued, clock::now)? else {
                return Ok(());
            };
            self.callers.answer(done.answers);
            let applied = done.range;
            ::metrics::histogram!(metrics::APPLY_SECONDS).record(start.elapsed().as_secs_f64());
            ::metrics::counter!(metrics::APPLIED_ENTRIES_TOTAL).increment(applied.entries as u64);
            self.report(applied);
        }
    }

    fn report(&mut self, applied: AppliedRange) {
        if let Some(membership) = &applied.membership {
            tell_if_removed(self.own, membership);
            self.membership.send_replace(Arc::clone(membership));
        }
        let revision = self.applier.machine().revision();
        self.revision
            .send_if_modified(|known| std::mem::replace(known, revision) != revision);
        self.flush.applied(applied.bytes);
        let members_changed = applied.membership.is_some();
        let told = Input::Applied(applied).into();
        // If the replica is gone, it need not know.
        let _ = match members_changed {
            true => self.replica.send(told),
            false => self.replica.send_quietly(told),
        };
    }
}
