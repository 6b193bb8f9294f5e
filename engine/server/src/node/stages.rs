//! How long entries take from the log writer's queue to a quorum: the stage between a proposal and
//! its application, so that a slow disk, a slow peer and a slow store can be told apart.

use std::collections::VecDeque;
use std::time::Instant;

use ::metrics::Histogram;
use dengine_raft::{AppendId, LogJob, Output};
use dengine_types::{Entry, Index};

/// Batches that are remembered at most: behind a quorum that is gone, only the oldest say
/// something.
const BATCHES_MAX: usize = 1024;

/// Batches that were appended and are not known to be committed.
#[derive(Debug)]
pub(super) struct Stages {
    appended: VecDeque<Appended>,
    /// Those that the last commit was of, or the end of: for the traces of their writes.
    committed: Vec<Appended>,
    /// Records how long each took.
    seconds: Histogram,
}

/// A batch on its way to log and peers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Appended {
    first: Index,
    last: Index,
    pub(super) id: AppendId,
    /// When it was handed over.
    pub(super) at: Instant,
}

impl Stages {
    pub(super) fn new(seconds: Histogram) -> Self {
        Self {
            appended: VecDeque::new(),
            committed: Vec::new(),
            seconds,
        }
    }

    /// Takes note of what is about to be carried out.
    pub(super) fn observe(&mut self, output: &Output, now: Instant) {
        match output {
            Output::Log(LogJob::Append { id, entries, .. }) => self.append(*id, entries, now),
            Output::Apply(job) => self.commit(&job.entries, now),
            Output::Log(LogJob::TruncatePrefix(_))
            | Output::Send(_)
            | Output::MayRead { .. }
            | Output::Refused { .. }
            | Output::Lost(_)
            | Output::Forgotten(_)
            | Output::Transferred { .. }
            | Output::Lease { .. }
            | Output::HandsOver(_)
            | Output::StateChanged(_)
            | Output::PeerRefused(_)
            | Output::Flush
            | Output::MakeSnapshot
            | Output::SendSnapshot { .. }
            | Output::DiscardStaged
            | Output::Diverged(_)
            | Output::Install { .. } => {}
        }
    }

    /// The batch that an entry was in which was just observed to be committed, if it is remembered.
    pub(super) fn batch_of(&self, index: Index) -> Option<Appended> {
        let batches = self.committed.iter().chain(self.appended.front());
        batches
            .copied()
            .find(|it| (it.first..=it.last).contains(&index))
    }

    fn append(&mut self, id: AppendId, entries: &[Entry], now: Instant) {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
            return;
        };
        // Another leader's entries may take the place of some that were never committed.
        while self
            .appended
            .back()
            .is_some_and(|it| it.last >= first.index)
        {
            self.appended.pop_back();
        }
        if self.appended.len() < BATCHES_MAX {
            self.appended.push_back(Appended {
                first: first.index,
                last: last.index,
                id,
                at: now,
            });
        }
    }

    fn commit(&mut self, entries: &[Entry], now: Instant) {
        let Some(last) = entries.last() else {
            return;
        };
        self.committed.clear();
        while let Some(batch) = self.appended.front().copied()
            && batch.last <= last.index
        {
            self.appended.pop_front();
            self.seconds.record(now - batch.at);
            self.committed.push(batch);
        }
    }
}

#[cfg(test)]
mod tests {
    use dengine_types::{EntryKind, Term};

    use super::*;

    fn entries(indexes: std::ops::RangeInclusive<u64>) -> Vec<Entry> {
        let entry = |index| Entry {
            index: Index(index),
            term: Term(1),
            kind: EntryKind::Command,
            context: bytes::Bytes::new(),
            data: bytes::Bytes::new(),
        };
        indexes.map(entry).collect()
    }

    fn open(stages: &Stages) -> Vec<u64> {
        stages.appended.iter().map(|it| it.last.0).collect()
    }

    #[test]
    fn batches_are_open_until_they_are_committed_or_replaced() {
        let now = Instant::now();
        let mut stages = Stages::new(Histogram::noop());
        stages.append(AppendId(1), &entries(1..=3), now);
        stages.append(AppendId(2), &entries(4..=5), now);
        stages.append(AppendId(3), &entries(6..=9), now);
        assert_eq!(open(&stages), [3, 5, 9]);
        stages.commit(&entries(1..=4), now);
        assert_eq!(open(&stages), [5, 9], "a part of a batch is not all of it");
        stages.append(AppendId(4), &entries(6..=6), now);
        assert_eq!(open(&stages), [5, 6]);
        stages.commit(&entries(5..=6), now);
        assert!(open(&stages).is_empty());
    }

    #[test]
    fn what_is_committed_is_of_the_batch_that_it_was_appended_with() {
        let now = Instant::now();
        let mut stages = Stages::new(Histogram::noop());
        stages.append(AppendId(1), &entries(1..=3), now);
        stages.append(AppendId(2), &entries(4..=5), now);
        stages.append(AppendId(3), &entries(6..=9), now);
        stages.commit(&entries(2..=7), now);
        let batch = |index| stages.batch_of(Index(index)).map(|it| it.id.0);
        assert_eq!([batch(2), batch(4), batch(7)], [Some(1), Some(2), Some(3)]);
        assert_eq!(batch(10), None);
    }

    #[test]
    fn an_entry_of_a_batch_that_is_not_remembered_is_of_no_other() {
        let (mut stages, now) = (Stages::new(Histogram::noop()), Instant::now());
        let (forgotten, last) = (BATCHES_MAX as u64 + 1, BATCHES_MAX as u64 + 2);
        for index in 1..=forgotten {
            stages.append(AppendId(index), &entries(index..=index), now);
        }
        stages.commit(&entries(1..=1), now);
        stages.append(AppendId(last), &entries(last..=last), now);
        stages.commit(&entries(2..=last), now);
        let of = |index| stages.batch_of(Index(index)).map(|it| it.id);
        let found = [forgotten - 1, forgotten, last].map(of);
        let expected = [Some(AppendId(forgotten - 1)), None, Some(AppendId(last))];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut stages = Stages::new(Histogram::noop());
        for index in 1..=2 * BATCHES_MAX as u64 {
            stages.append(AppendId(index), &entries(index..=index), Instant::now());
        }
        assert_eq!(stages.appended.len(), BATCHES_MAX);
    }
}
