//! The worker that applies committed entries and answers those who proposed them.

use super::callers::Committed;
use super::flusher::FlushTrigger;
use super::inbox::ToReplica;
use super::own_entry::tell_if_removed;
use super::waiters::Awaited;
use super::worker::{Next, Work, Worker};
use super::{clock, metrics};
use crate::error::Fatal;
use crate::storage::RocksStore;
use dengine_kv::{Membership, StoreError};
use dengine_log::entry_bytes;
use dengine_raft::replica::{AppliedRange, Applier};
use dengine_raft::{ApplyJob, Input, Token};
use dengine_types::{MemberId, Revision};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;

/// So much at once is applied by who finds it committed, while nothing else is.
const LITTLE_ENTRIES: usize = 4;
const LITTLE_BYTES: usize = 64 << 10;

/// What it is given: entries, and who waits for some of them.
pub(super) struct Apply {
    pub(super) job: ApplyJob,
    pub(super) callers: Vec<(Token, Option<Awaited>)>,
}

pub(super) struct ApplyWorker {
    pub(super) own: MemberId,
    pub(super) applier: Applier<RocksStore>,
    pub(super) callers: Committed,
    pub(super) replica: Worker<ToReplica>,
    pub(super) membership: watch::Sender<Arc<Membership>>,
    /// Wakes watchers, and readers that wait for a revision.
    pub(super) revision: watch::Sender<Revision>,
    pub(super) flush: FlushTrigger,
}

impl Work<Apply> for ApplyWorker {
    const NAME: &'static str = "dengine-apply";
    /// The store may have its writers wait.
    const ORDER: u8 = 2;
    const TURNS: usize = 1;

    fn is_little(apply: &Apply) -> bool {
        let entries = &apply.job.entries;
        let bytes = entries.iter().map(entry_bytes).sum::<usize>();
        entries.len() <= LITTLE_ENTRIES && bytes <= LITTLE_BYTES
    }

    fn work(&mut self, jobs: &mut dyn Iterator<Item = Apply>) -> Next {
        self.apply(jobs).unwrap_or_else(|error| {
            let failed = ToReplica::Failed(Fatal::State(error));
            // If the replica is gone too, somebody reported before us.
            let _ = self.replica.send(failed);
            Next::End
        })
    }

    /// Flushes, so that the next start has little to replay.
    fn finish(&mut self) {
        if let Err(error) = self.applier.machine().flush() {
            tracing::warn!(%error, "the state machine was not flushed; the next start replays more \
                of the log");
        }
    }
}

impl ApplyWorker {
    fn apply(&mut self, jobs: &mut dyn Iterator<Item = Apply>) -> Result<Next, StoreError> {
        let start = Instant::now();
        let queued = jobs.map(|Apply { job, callers }| {
            self.callers.add(callers);
            job
        });
        let Some(done) = self.applier.work(queued, clock::now)? else {
            return Ok(Next::Wait {
                until: None,
                deep: false,
            });
        };
        self.callers.answer(done.answers);
        let applied = done.range;
        ::metrics::histogram!(metrics::APPLY_SECONDS).record(start.elapsed().as_secs_f64());
        ::metrics::counter!(metrics::APPLIED_ENTRIES_TOTAL).increment(applied.entries as u64);
        self.report(applied);
        Ok(Next::GoOn)
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
        // If the replica is gone, nobody needs to know.
        let _ = match members_changed {
            true => self.replica.send(told),
            false => self.replica.send_quietly(told),
        };
    }
}
