//! How much of the log is kept, and what becomes of snapshots.

use bytes::Bytes;
use dengine_planted::planted;
use dengine_types::{Index, MemberId};

use super::Replica;
use crate::consensus::{LogRead, Role};
use crate::output::{LogJob, Output};

impl<L: LogRead> Replica<L> {
    /// Drops what is not needed any more of the log, now that the state machine is on disk up to
    /// `flushed`.
    pub(super) fn on_flushed(&mut self, flushed: Index) {
        self.flushed = self.flushed.max(flushed);
        self.withdraw_old_snapshot();
        self.truncate();
    }

    pub(super) fn truncate(&mut self) {
        let upto = self.truncatable();
        if upto.next() > self.consensus.first_index() {
            // First here: consensus must not read what the log is about to drop.
            self.consensus.truncate(upto);
            self.outputs.push(Output::Log(LogJob::TruncatePrefix(upto)));
        }
    }

    /// What is on disk of the state machine need not be in the log: so there may be space, and
    /// none has to be found. That goes at once, for there may be no room to flush more. So does a
    /// snapshot that no follower has fetched.
    pub(super) fn on_log_full(&mut self) {
        self.log_is_full = true;
        self.consensus.withdraw_snapshot();
        self.truncate();
        self.outputs.push(Output::Flush);
    }

    /// The state may need the log's space to be flushed in, or merged. Flushed is only what drops a
    /// segment.
    pub(super) fn on_low_on_space(&mut self, is_low: bool) {
        self.is_low_on_space = is_low;
        if !is_low {
            return;
        }
        self.truncate();
        let current = self.log.current_first();
        if self.consensus.first_index() < current && self.flushed.next() < current {
            self.outputs.push(Output::Flush);
        }
    }

    /// A snapshot that no follower fetched must not keep the log from being truncated forever.
    fn withdraw_old_snapshot(&mut self) {
        let longest = self.log.keep_from(self.config.log_keep_bytes_for_followers);
        let old = |snapshot: Index| snapshot.next() < longest;
        if self.consensus.snapshot_index().is_some_and(old) {
            self.consensus.withdraw_snapshot();
        }
    }

    /// What is flushed, but for what consensus has yet to be told that it is applied (the flusher's
    /// word may come first), the newest part of the log, a longer part while a member that answers
    /// is behind, and what follows a snapshot that is on its way. On a nearly full disk only what
    /// somebody needs is kept; on a full one nothing for others whose space can be had: a snapshot
    /// does for them.
    fn truncatable(&self) -> Index {
        let keep_from = |bytes, saves_space: bool| match saves_space {
            true => self.log.current_first(),
            false => self.log.keep_from(bytes),
        };
        let is_full = self.log_is_full;
        let mut keep = keep_from(self.config.log_keep_bytes, is_full || self.is_low_on_space);
        if self.consensus.state().role == Role::Leader {
            let progress = self.consensus.progress();
            let behind = progress.iter().filter(|p| p.recently_active);
            let needed = behind.map(|p| p.matched.next()).min();
            let longest = keep_from(self.config.log_keep_bytes_for_followers, is_full);
            keep = keep.min(needed.unwrap_or(keep).max(longest));
        }
        if let Some(snapshot) = self.consensus.snapshot_index() {
            keep = keep.min(snapshot.next());
        }
        let done = match planted!(TruncatedPastApplied) {
            true => self.flushed,
            false => self.flushed.min(self.applied),
        };
        done.min(Index(keep.0.saturating_sub(1)))
    }

    pub(super) fn on_snapshot_staged(&mut self, from: MemberId, message: &Bytes) {
        let staged = self.consensus.snapshot_staged(from, message);
        self.note_refusal(staged);
        if !self.consensus.has_ended() {
            self.outputs.push(Output::DiscardStaged);
        }
    }
}

#[cfg(test)]
mod tests {
    use dengine_kv::store::MemoryStore;
    use dengine_kv::{CommandVersion, StateMachine};
    use dengine_log::conformance::small_options;
    use dengine_log::memory::MemoryDisk;
    use dengine_log::{Batch, Log, LogReader, Position};
    use dengine_types::{Entry, EntryKind, HardState, Moment, Revision, Term};

    use super::*;
    use crate::consensus::ConsensusConfig;
    use crate::input::{AppendId, Input, SnapshotMeta};
    use crate::replica::{AppliedRange, ReplicaConfig};

    /// A member whose log of 100 entries takes about 50,000 bytes, all of them applied.
    fn member(keep_bytes: u64, keep_bytes_for_followers: u64) -> Replica<LogReader<MemoryDisk>> {
        member_with(keep_bytes, keep_bytes_for_followers, 100)
    }

    /// The same, and only the first `applied` of the entries are applied.
    fn member_with(
        keep_bytes: u64,
        keep_bytes_for_followers: u64,
        applied: usize,
    ) -> Replica<LogReader<MemoryDisk>> {
        let entries = (1..=100).map(|index| Entry {
            index: Index(index),
            term: Term(1),
            kind: EntryKind::Command,
            context: Bytes::from(vec![1; 430]),
            data: Bytes::new(),
        });
        let entries: Vec<_> = entries.collect();
        let (mut log, _) = Log::open(MemoryDisk::new(), small_options()).unwrap();
        for entry in &entries {
            let commit = HardState {
                term: Term(1),
                vote: MemberId(0),
                commit: Index(100),
            };
            log.append(&Batch {
                hard_state: (entry.index == Index(100)).then_some(commit),
                entries: vec![entry.clone()],
            })
            .unwrap();
        }
        let mut machine = StateMachine::open(MemoryStore::default()).unwrap();
        machine.apply(&entries[..applied]).unwrap();
        let config = ReplicaConfig {
            member_id: MemberId(1),
            boot_nonce: 1,
            election_timeout: std::time::Duration::from_secs(1),
            max_waiting_reads: 1,
            log_keep_bytes: keep_bytes,
            log_keep_bytes_for_followers: keep_bytes_for_followers,
            shared_entries_min: 1,
            slow_disk: None,
        };
        let consensus = ConsensusConfig::new(MemberId(1), 1);
        Replica::new(config, consensus, log.hard_state(), log.reader(), &machine).unwrap()
    }

    /// Up to which entry the log is truncated once everything is flushed, with a snapshot on offer.
    fn truncated(
        keep_bytes: u64,
        keep_bytes_for_followers: u64,
        snapshot: Option<u64>,
    ) -> Option<u64> {
        let mut member = member(keep_bytes, keep_bytes_for_followers);
        member.handle(Input::SnapshotMade(snapshot.map(meta)), Moment(0));
        member.handle(Input::Flushed(Index(100)), Moment(0));
        truncation(&follows(&mut member))
    }

    fn meta(index: u64) -> SnapshotMeta {
        SnapshotMeta {
            last: Position {
                index: Index(index),
                term: Term(1),
            },
            voters: vec![MemberId(1)],
            learners: Vec::new(),
        }
    }

    /// From entry 61 on.
    fn applied_to(index: u64) -> AppliedRange {
        let entries = usize::try_from(index - 60).unwrap();
        AppliedRange {
            index: Index(index),
            at: Moment(0),
            revision: Revision(1),
            entries,
            records: entries,
            bytes: 0,
            changes: Vec::new(),
            commands_needed: CommandVersion::OLDEST,
            leases: Vec::new(),
            membership: None,
        }
    }

    fn follows(member: &mut Replica<LogReader<MemoryDisk>>) -> Vec<Output> {
        member.outputs(Moment(0), &|_| false)
    }

    fn truncation(outputs: &[Output]) -> Option<u64> {
        outputs.iter().find_map(|output| match output {
            Output::Log(LogJob::TruncatePrefix(upto)) => Some(upto.0),
            _ => None,
        })
    }

    /// The flusher reads how far the state machine is while the applier is at work: what it says of
    /// that may come first.
    #[test]
    fn what_consensus_does_not_know_to_be_applied_is_kept() {
        let mut member = member_with(0, 0, 60);
        member.handle(Input::Flushed(Index(90)), Moment(0));
        assert_eq!(truncation(&follows(&mut member)), Some(60));
        member.handle(Input::Applied(applied_to(95)), Moment(0));
        member.handle(Input::Flushed(Index(90)), Moment(0));
        assert_eq!(truncation(&follows(&mut member)), Some(90));
    }

    #[test]
    fn the_newest_part_of_the_log_is_kept() {
        assert_eq!(truncated(0, 0, None), Some(99));
        assert!((1..100).contains(&truncated(20_000, 20_000, None).unwrap()));
        assert_eq!(truncated(1 << 20, 1 << 20, None), None);
    }

    /// The next flush was that of the next so many bytes applied, and none is applied that the log
    /// can't take.
    #[test]
    fn a_full_log_is_flushed_for_and_keeps_nothing_for_others() {
        let mut member = member_with(1 << 20, 1 << 20, 60);
        drop(follows(&mut member));
        member.handle(Input::Applied(applied_to(92)), Moment(0));
        member.handle(Input::Flushed(Index(80)), Moment(0));
        assert_eq!(truncation(&follows(&mut member)), None);
        member.handle(Input::LogFull, Moment(0));
        let outputs = follows(&mut member);
        assert!(outputs.iter().any(|it| matches!(it, Output::Flush)));
        assert_eq!(
            truncation(&outputs),
            Some(80),
            "there may be no room to flush"
        );
        member.handle(Input::Flushed(Index(90)), Moment(0));
        assert_eq!(truncation(&follows(&mut member)), Some(90));
        member.handle(Input::Persisted(AppendId(0)), Moment(0));
        member.handle(Input::Flushed(Index(92)), Moment(0));
        assert_eq!(truncation(&follows(&mut member)), None);
    }

    /// The flusher's word came first, and was not asked for again.
    #[test]
    fn a_full_log_drops_what_was_flushed_once_it_is_known_to_be_applied() {
        let mut member = member_with(1 << 20, 1 << 20, 60);
        member.handle(Input::LogFull, Moment(0));
        member.handle(Input::Flushed(Index(90)), Moment(0));
        assert_eq!(truncation(&follows(&mut member)), Some(60));
        member.handle(Input::Applied(applied_to(95)), Moment(0));
        assert_eq!(truncation(&follows(&mut member)), Some(90));
    }

    #[test]
    fn a_state_that_was_just_opened_is_flushed() {
        let mut member = member_with(1 << 20, 1 << 20, 60);
        member.handle(Input::LogFull, Moment(0));
        assert_eq!(truncation(&follows(&mut member)), Some(60));
    }

    /// A member had 64 MiB free of 1 GiB, and a log of 320 MiB of which most was flushed. What it
    /// kept in memory had no room.
    #[test]
    fn on_a_nearly_full_disk_only_what_somebody_needs_is_kept() {
        let mut member = member_with(1 << 20, 1 << 20, 80);
        let current = member.log.current_first().0;
        assert!(90 < current);
        let low = |member: &mut Replica<_>, is_low| {
            drop(follows(member));
            member.handle(Input::LowOnSpace(is_low), Moment(0));
            let outputs = follows(member);
            let flushes = outputs.iter().any(|it| matches!(it, Output::Flush));
            (truncation(&outputs), flushes)
        };
        assert_eq!(low(&mut member, false), (None, false));
        let (upto, flushes) = low(&mut member, true);
        assert!(flushes, "more may go");
        assert_eq!(upto, Some(80));
        member.handle(Input::Applied(applied_to(100)), Moment(0));
        member.handle(Input::Flushed(Index(100)), Moment(0));
        assert_eq!(truncation(&follows(&mut member)), Some(current - 1));
        assert_eq!(low(&mut member, true), (None, false), "no more can go");
    }

    /// Their space is not to be had, and a member a few entries behind would need a snapshot.
    #[test]
    fn a_full_log_keeps_the_entries_of_the_segment_that_is_written() {
        let mut member = member(0, 0);
        let first = member.log.current_first();
        assert!(Index(90) < first && first < Index(100));
        member.handle(Input::LogFull, Moment(0));
        let upto = truncation(&follows(&mut member));
        assert_eq!(upto, Some(first.0 - 1));
    }

    #[test]
    fn a_full_log_keeps_nothing_for_a_snapshot_that_nobody_came_for() {
        let mut member = member_with(0, 1 << 20, 80);
        member.handle(Input::SnapshotMade(Some(meta(10))), Moment(0));
        member.handle(Input::Flushed(Index(80)), Moment(0));
        assert_eq!(truncation(&follows(&mut member)), Some(10));
        member.handle(Input::LogFull, Moment(0));
        assert_eq!(truncation(&follows(&mut member)), Some(80));
    }

    #[test]
    fn what_follows_a_snapshot_is_kept_but_not_for_ever() {
        assert_eq!(truncated(0, 1 << 20, Some(60)), Some(60));
        // No follower fetched it, and the log has grown past its bound.
        assert_eq!(truncated(0, 10_000, Some(60)), Some(99));
    }
}
