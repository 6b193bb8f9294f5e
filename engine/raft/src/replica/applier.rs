//! Applies committed entries, and produces the answers for their callers.

use std::collections::VecDeque;
use std::sync::Arc;

use dengine_kv::{
    Applied, CommandVersion, Membership, MembershipChange, Outcome, StateMachine, Store, StoreError,
};
use dengine_types::{Entry, EntryKind, Index, Moment, Revision};

use super::lessor::LeaseChange;
use crate::consensus::{ConfigChange, ConfigChangeKind};
use crate::input::Token;
use crate::output::{ApplyJob, Written};

/// Entries that are taken in at once. What else was committed waits in the queue.
const ENTRIES_MAX: usize = 1024;

/// What was applied at once, for the replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedRange {
    /// The last entry.
    pub index: Index,
    /// When they were applied, by the member's clock: the replica may hear of it later.
    pub at: Moment,
    /// The store's revision after it.
    pub revision: Revision,
    /// How many entries.
    pub entries: usize,
    /// How many records they visited, one at least for each entry.
    pub records: usize,
    /// How many bytes of the log they hold.
    pub bytes: u64,
    /// The membership changes among them that were accepted, in order.
    pub changes: Vec<ConfigChange>,
    /// What a member has to read to take part from then on.
    pub commands_needed: CommandVersion,
    /// What they did to leases, in order.
    pub leases: Vec<LeaseChange>,
    /// The members after them, if they changed.
    pub membership: Option<Arc<Membership>>,
}

/// What came of a part of what was to be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// For the replica ([`Input::Applied`](crate::Input::Applied)).
    pub range: AppliedRange,
    /// For those who wait, in the order of [`ApplyJob::awaited`].
    pub answers: Vec<(Token, Written)>,
}

/// A state machine, and what it is to apply.
pub struct Applier<S> {
    machine: StateMachine<S>,
    /// Taken in, and not applied.
    entries: VecDeque<Entry>,
    /// Those among them that somebody waits for.
    awaited: VecDeque<(Index, Token)>,
}

impl<S: Store> Applier<S> {
    /// Takes over a state machine.
    pub fn new(machine: StateMachine<S>) -> Self {
        Self {
            machine,
            entries: VecDeque::new(),
            awaited: VecDeque::new(),
        }
    }

    /// The state machine.
    pub fn machine(&self) -> &StateMachine<S> {
        &self.machine
    }

    /// Takes in jobs from `jobs` until there is enough to do, and does a part of it, after which
    /// the replica is to hear of that: it waits for room, and callers for their answers. `None` if
    /// there is nothing to apply. `now` reads the clock.
    ///
    /// # Errors
    /// The store failed; the member must end.
    pub fn work(
        &mut self,
        jobs: impl IntoIterator<Item = ApplyJob>,
        now: impl FnOnce() -> Moment,
    ) -> Result<Option<Done>, StoreError> {
        self.take_in(jobs);
        if !self.has_more() {
            return Ok(None);
        }
        let step = self.machine.apply_step(self.entries.make_contiguous())?;
        Ok(self.done(step, now))
    }

    /// The same without waiting for a disk. `None` also if that is not possible; then the applier
    /// [has more](Self::has_more).
    ///
    /// # Errors
    /// As there.
    pub fn work_at_hand(
        &mut self,
        jobs: impl IntoIterator<Item = ApplyJob>,
        now: impl FnOnce() -> Moment,
    ) -> Result<Option<Done>, StoreError> {
        self.take_in(jobs);
        if !self.has_more() {
            return Ok(None);
        }
        let entries = self.entries.make_contiguous();
        let step = self.machine.apply_step_at_hand(entries)?;
        Ok(step.and_then(|step| self.done(step, now)))
    }

    fn take_in(&mut self, jobs: impl IntoIterator<Item = ApplyJob>) {
        let mut jobs = jobs.into_iter();
        while self.entries.len() < ENTRIES_MAX
            && let Some(job) = jobs.next()
        {
            self.entries.extend(job.entries);
            self.awaited.extend(job.awaited);
        }
    }

    /// Whether something was taken in that is not applied.
    pub fn has_more(&self) -> bool {
        !self.entries.is_empty()
    }

    /// What came of a step of them.
    fn done(&mut self, applied: Vec<Applied>, now: impl FnOnce() -> Moment) -> Option<Done> {
        let last = self.entries.back()?.index;
        // None is left if all were applied before.
        let index = applied.last().map_or(last, |applied| applied.index);
        let entries = self.entries.make_contiguous();
        let done = entries.partition_point(|entry| entry.index <= index);
        let changes = accepted_changes(&entries[..done], &applied);
        let bytes = self.entries.drain(..done);
        let bytes = bytes.map(|entry| entry.data.len() as u64).sum();
        let range = AppliedRange {
            index,
            at: now(),
            revision: self.machine.revision(),
            entries: applied.len(),
            records: applied.iter().map(|it| it.records).sum(),
            bytes,
            commands_needed: self.machine.commands_needed(),
            leases: applied.iter().flat_map(LeaseChange::of).collect(),
            membership: (!changes.is_empty()).then(|| self.machine.membership()),
            changes,
        };
        let answers = self.answers(applied);
        Some(Done { range, answers })
    }

    fn answers(&mut self, applied: Vec<Applied>) -> Vec<(Token, Written)> {
        let mut answers = Vec::new();
        for applied in applied {
            // A caller whose entry was applied before gets no answer, and holds up no other.
            while self.awaited.front().is_some_and(|it| it.0 < applied.index) {
                self.awaited.pop_front();
            }
            if let Some(&(index, token)) = self.awaited.front()
                && index == applied.index
            {
                self.awaited.pop_front();
                let written = Written {
                    term: applied.term,
                    outcome: applied.outcome,
                    visited: applied.visited,
                };
                answers.push((token, written));
            }
        }
        answers
    }
}

/// The membership changes among `applied`, a part of `entries`, that were accepted.
fn accepted_changes(entries: &[Entry], applied: &[Applied]) -> Vec<ConfigChange> {
    let first = applied.first().map_or(Index(u64::MAX), |it| it.index);
    let before = entries.partition_point(|entry| entry.index < first);
    entries[before..]
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use dengine_kv::store::MemoryStore;
    use dengine_kv::{Command, Member, Request};
    use dengine_types::{ClusterId, MemberId, Term};

    use super::*;

    fn entry(index: u64, kind: EntryKind, data: Bytes) -> Entry {
        Entry {
            index: Index(index),
            term: Term(1),
            kind,
            context: Bytes::copy_from_slice(&index.to_be_bytes()),
            data,
        }
    }

    fn put(index: u64, value_bytes: usize) -> Entry {
        let command = Command::put(Bytes::from("k"), Bytes::from(vec![1; value_bytes]));
        let request = Request {
            session: None,
            command,
        };
        entry(
            index,
            EntryKind::Command,
            request.encode(CommandVersion::CURRENT),
        )
    }

    fn member(id: u64) -> Member {
        Member {
            id: MemberId(id),
            name: format!("m{id}"),
            peer_address: format!("m{id}:1"),
            client_address: format!("m{id}:2"),
            folder_id: format!("f{id}"),
            voter: false,
        }
    }

    #[test]
    fn what_takes_several_steps_is_answered_and_reported_as_one() {
        let bootstrap = MembershipChange::Bootstrap {
            cluster_id: ClusterId(7),
            member: member(1),
            first_revision: Revision(1),
        };
        let learner = MembershipChange::AddLearner(member(2)).encode();
        let mut entries = vec![entry(1, EntryKind::Membership, bootstrap.encode())];
        entries.extend((2..=40).map(|index| put(index, 1 << 20)));
        entries.push(entry(41, EntryKind::Membership, learner.clone()));
        // Refused: it is there already.
        entries.push(entry(42, EntryKind::Membership, learner));
        let bytes = entries.iter().map(|entry| entry.data.len() as u64).sum();
        let awaited = entries.iter().map(|it| (it.index, Token(it.index.0)));
        let awaited = awaited.collect();
        let machine = StateMachine::open(MemoryStore::default()).unwrap();
        let mut applier = Applier::new(machine);
        // What was applied before is passed over.
        applier.machine.apply(&entries[..1]).unwrap();
        let jobs = [ApplyJob { entries, awaited }];
        let Done { mut range, answers } = applier.work(jobs, || Moment(1)).unwrap().unwrap();
        let mut answered = answers;
        while let Some(done) = applier.work(None, || Moment(2)).unwrap() {
            answered.extend(done.answers);
            let more = done.range;
            range.index = more.index;
            range.at = more.at;
            range.revision = more.revision;
            range.entries += more.entries;
            range.records += more.records;
            range.bytes += more.bytes;
            range.changes.extend(more.changes);
            range.membership = more.membership.or(range.membership);
        }
        let added = |kind, id| ConfigChange {
            kind,
            member: MemberId(id),
        };
        let expected = AppliedRange {
            index: Index(42),
            at: range.at,
            revision: Revision(40),
            entries: 41,
            records: 41,
            bytes,
            changes: vec![added(ConfigChangeKind::AddLearner, 2)],
            commands_needed: CommandVersion::OLDEST,
            leases: Vec::new(),
            membership: Some(applier.machine().membership()),
        };
        assert_eq!(range, expected);
        assert_eq!(applier.machine().applied().0, Index(42));
        let tokens: Vec<_> = answered.iter().map(|(token, _)| token.0).collect();
        assert_eq!(tokens, (2..=42).collect::<Vec<_>>());
        let outcome = |place: usize| &answered[place].1.outcome;
        for (place, revision) in (2..=40).enumerate() {
            let revision = Revision(revision);
            assert!(matches!(outcome(place), Outcome::Put { revision: it, .. } if *it == revision));
        }
        assert!(matches!(outcome(39), Outcome::Membership(Ok(_))));
        assert!(matches!(outcome(40), Outcome::Membership(Err(_))));
    }
}
