//! The worker that applies committed entries and answers those who proposed them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dengine_kv::{Membership, StoreError};
use dengine_raft::channel::Sender;
use dengine_raft::replica::{AppliedRange, Applier, Done};
use dengine_raft::{ApplyJob, Input, Token};
use dengine_types::{Index, MemberId, Revision};
use tokio::sync::watch;

use super::callers::Committed;
use super::clock;
use super::flusher::FlushTrigger;
use super::inbox::ToReplica;
use super::metrics::{self, TurnMetrics};
use super::own_entry::tell_if_removed;
use super::syncs::Syncs;
use super::waiters::Awaited;
use super::worker::{By, Next, Pace, Work};
use crate::error::Fatal;
use crate::storage::RocksStore;

/// A caller does the job that it was asked to do, which is quick, and none that comes meanwhile; or
/// leaves it to the thread, if the store does not have at hand what it takes.
pub(super) const PACE: Pace = Pace {
    few_items: 1,
    turns_max: 1,
    items_max: 1,
    busy: Duration::from_millis(20),
    slow_turn: Duration::from_millis(5),
    slow_times: 100,
    by_callers: metrics::APPLY_TURNS_BY_CALLERS_TOTAL,
};

/// What it is given: entries, and the callers that wait for some of them.
pub(super) struct Apply {
    pub(super) job: ApplyJob,
    pub(super) callers: Vec<(Token, Option<Awaited>)>,
    /// When it was handed over.
    pub(super) since: Instant,
}

/// The first entries of jobs that are not applied, and when each job was handed over.
#[derive(Default)]
pub(super) struct Waiting(VecDeque<(Index, Instant)>);

impl Waiting {
    fn add(&mut self, job: &ApplyJob, since: Instant) {
        let first = job.entries.first().map(|entry| (entry.index, since));
        self.0.extend(first);
    }

    /// How long each job waited of which a step that began at `start` applied the first entry;
    /// `applied` is the last index that it applied.
    fn begun(&mut self, applied: Index, start: Instant) -> impl Iterator<Item = Duration> {
        let begun = self.0.partition_point(|(first, _)| *first <= applied);
        let begun = self.0.drain(..begun);
        begun.map(move |(_, since)| start.saturating_duration_since(since))
    }
}

pub(super) struct ApplyWorker {
    pub(super) own: MemberId,
    pub(super) applier: Applier<RocksStore>,
    pub(super) callers: Committed,
    pub(super) replica: Sender<ToReplica>,
    pub(super) membership: watch::Sender<Arc<Membership>>,
    /// Wakes watchers, and readers that wait for a revision.
    pub(super) revision: watch::Sender<Revision>,
    pub(super) flush: FlushTrigger,
    pub(super) waiting: Waiting,
    pub(super) syncs: Syncs,
    pub(super) metrics: TurnMetrics,
}

impl ApplyWorker {
    /// Applies all that it takes in at once, as far as the caller does not have to wait.
    fn apply(&mut self, jobs: &mut dyn Iterator<Item = Apply>, by: By) -> Result<(), StoreError> {
        let mut start = Instant::now();
        let jobs = jobs.map(
            |Apply {
                 job,
                 callers,
                 since,
             }| {
                self.waiting.add(&job, since);
                self.callers.add(callers);
                job
            },
        );
        let mut done = apply_some(&mut self.applier, jobs, by)?;
        while let Some(step) = done {
            self.tell(step, start);
            start = Instant::now();
            done = apply_some(&mut self.applier, [], by)?;
        }
        Ok(())
    }

    /// Answers and reports a step that began at `start`.
    fn tell(&mut self, done: Done, start: Instant) {
        // Before anybody is answered: who then asks again is told of no earlier revision.
        self.tell_revision();
        self.callers.answer(done.answers, start, &self.syncs);
        let applied = done.range;
        for waited in self.waiting.begun(applied.index, start) {
            self.metrics.apply_wait.record(waited);
        }
        self.metrics.apply.record(start.elapsed());
        let entries = applied.entries as u64;
        self.metrics.applied_entries.increment(entries);
        self.report(applied);
    }

    fn tell_revision(&self) {
        let revision = self.applier.machine().revision();
        self.revision
            .send_if_modified(|known| std::mem::replace(known, revision) != revision);
    }

    fn report(&mut self, applied: AppliedRange) {
        if let Some(membership) = &applied.membership {
            tell_if_removed(self.own, membership);
            self.membership.send_replace(Arc::clone(membership));
        }
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

/// Applies a part of what there is to apply, as far as whoever does it may wait.
fn apply_some(
    applier: &mut Applier<RocksStore>,
    jobs: impl IntoIterator<Item = ApplyJob>,
    by: By,
) -> Result<Option<Done>, StoreError> {
    match by {
        By::Thread => applier.work(jobs, clock::now),
        By::Caller => applier.work_at_hand(jobs, clock::now),
    }
}

impl Work<Apply> for ApplyWorker {
    fn work(&mut self, jobs: &mut dyn Iterator<Item = Apply>, by: By) -> Next {
        if let Err(error) = self.apply(jobs, by) {
            let failed = ToReplica::Failed(Fatal::State(error));
            // If the replica is gone too, somebody reported before us.
            let _ = self.replica.send(failed);
            return Next::End;
        }
        if self.applier.has_more() {
            return Next::Leave;
        }
        Next::Wait {
            until: None,
            deep: false,
        }
    }

    /// So that the next start has little to replay.
    fn finish(&mut self) {
        if let Err(error) = self.applier.machine().flush() {
            tracing::warn!(%error, "the state machine was not flushed; the next start replays more \
                of the log");
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use dengine_types::{Entry, EntryKind, Term};

    use super::*;

    fn job(indexes: std::ops::RangeInclusive<u64>) -> ApplyJob {
        let entry = |index| Entry {
            index: Index(index),
            term: Term(1),
            kind: EntryKind::Command,
            context: Bytes::new(),
            data: Bytes::new(),
        };
        ApplyJob {
            entries: indexes.map(entry).collect(),
            awaited: Vec::new(),
        }
    }

    #[test]
    fn a_job_waits_until_a_step_applies_its_first_entry() {
        let since = Instant::now();
        let later = |seconds| since + Duration::from_secs(seconds);
        let mut waiting = Waiting::default();
        waiting.add(&job(1..=40), since);
        waiting.add(&job(41..=41), later(2));
        waiting.add(&job(42..=42), later(9));
        let mut begun = |applied, start| Vec::from_iter(waiting.begun(Index(applied), start));
        assert_eq!(begun(32, later(1)), [Duration::from_secs(1)]);
        // The third came after the step that took it along had begun.
        let waited = [Duration::from_secs(3), Duration::ZERO];
        assert_eq!(begun(42, later(5)), waited);
        assert!(begun(42, later(9)).is_empty());
    }
}
