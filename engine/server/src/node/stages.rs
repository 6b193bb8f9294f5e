//! How long entries take from the log writer's queue to a quorum: the stage between a proposal and
//! its application, so that a slow disk, a slow peer and a slow store can be told apart.

use std::collections::VecDeque;
use std::time::Instant;

use dengine_raft::{LogJob, Output};
use dengine_types::{Entry, Index};

use super::metrics;

/// Batches that are remembered at most: behind a quorum that is gone, only the oldest say
/// something.
const BATCHES_MAX: usize = 1024;

/// Batches that were appended and are not known to be committed.
#[derive(Debug, Default)]
pub(super) struct Stages {
    appended: VecDeque<(Index, Instant)>,
}

impl Stages {
    /// Takes note of what is about to be carried out.
    pub(super) fn observe(&mut self, output: &Output, now: Instant) {
        match output {
            Output::Log(LogJob::Append { entries, .. }) => self.append(entries, now),
            Output::Apply(job) => self.commit(&job.entries, now),
            Output::Log(LogJob::TruncatePrefix(_))
            | Output::Send(_)
            | Output::MayRead { .. }
            | Output::Refused { .. }
            | Output::Lost(_)
            | Output::Forgotten(_)
            | Output::Transferred { .. }
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

    fn append(&mut self, entries: &[Entry], now: Instant) {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
            return;
        };
        // Another leader's entries may take the place of some that were never committed.
        while self
            .appended
            .back()
            .is_some_and(|(index, _)| *index >= first.index)
        {
            self.appended.pop_back();
        }
        if self.appended.len() < BATCHES_MAX {
            self.appended.push_back((last.index, now));
        }
    }

    fn commit(&mut self, entries: &[Entry], now: Instant) {
        let Some(last) = entries.last() else {
            return;
        };
        while let Some((index, since)) = self.appended.front().copied()
            && index <= last.index
        {
            self.appended.pop_front();
            ::metrics::histogram!(metrics::COMMIT_SECONDS).record(now - since);
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
        stages.appended.iter().map(|(index, _)| index.0).collect()
    }

    #[test]
    fn batches_are_open_until_they_are_committed_or_replaced() {
        let now = Instant::now();
        let mut stages = Stages::default();
        stages.append(&entries(1..=3), now);
        stages.append(&entries(4..=5), now);
        stages.append(&entries(6..=9), now);
        assert_eq!(open(&stages), [3, 5, 9]);
        stages.commit(&entries(1..=4), now);
        assert_eq!(open(&stages), [5, 9], "a part of a batch is not all of it");
        stages.append(&entries(6..=6), now);
        assert_eq!(open(&stages), [5, 6]);
        stages.commit(&entries(5..=6), now);
        assert!(open(&stages).is_empty());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut stages = Stages::default();
        for index in 1..=2 * BATCHES_MAX as u64 {
            stages.append(&entries(index..=index), Instant::now());
        }
        assert_eq!(stages.appended.len(), BATCHES_MAX);
    }
}
