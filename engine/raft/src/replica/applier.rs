//! Applies committed entries and answers those who proposed them.

use super::env::Env;
use super::input::ApplyJob;
use super::pending::Pending;
use crate::consensus::{ConfigChange, ConfigChangeKind};
use dengine_kv::{Applied, Membership, MembershipChange, Outcome, StateMachine, Store, StoreError};
use dengine_types::{Entry, EntryKind, Index, Revision};
use std::collections::VecDeque;
use std::sync::Arc;

/// Entries that are taken in at once. What else was committed waits in the queue.
const ENTRIES_MAX: usize = 1024;

/// What was applied at once, for the replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedRange {
    /// The last entry.
    pub index: Index,
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
    /// The members after them, if they changed.
    pub membership: Option<Arc<Membership>>,
}

/// A state machine, and the callers that wait for it.
pub struct Applier<S, E: Env> {
    machine: StateMachine<S>,
    pending: Pending<E::Write>,
    /// Taken in, and not applied.
    entries: VecDeque<Entry>,
}

impl<S: Store, E: Env> Applier<S, E> {
    /// Takes over a state machine.
    pub fn new(machine: StateMachine<S>) -> Self {
        Self {
            machine,
            pending: Pending::default(),
            entries: VecDeque::new(),
        }
    }

    /// The state machine.
    pub fn machine(&self) -> &StateMachine<S> {
        &self.machine
    }

    /// Takes in jobs from `jobs` until there is enough to do, and does a part of it, after which the replica is to hear of that: it waits
    /// for room, and callers for their answers. `None` if there is nothing to apply.
    ///
    /// # Errors
    /// The store failed; the member must end.
    pub fn work(
        &mut self,
        jobs: impl IntoIterator<Item = ApplyJob<E>>,
    ) -> Result<Option<AppliedRange>, StoreError> {
        let mut jobs = jobs.into_iter();
        while self.entries.len() < ENTRIES_MAX
            && let Some(job) = jobs.next()
        {
            match job {
                ApplyJob::Expect(expected) => {
                    expected.into_iter().for_each(|e| self.pending.expect(e));
                }
                ApplyJob::Entries(more) => self.entries.extend(more),
                ApplyJob::Prune => self.pending.prune(),
            }
        }
        match self.entries.back().map(|entry| entry.index) {
            Some(last) => self.apply(last).map(Some),
            None => Ok(None),
        }
    }

    /// Whether something was taken in that is not applied.
    pub fn has_more(&self) -> bool {
        !self.entries.is_empty()
    }

    /// Applies a step of them.
    fn apply(&mut self, last: Index) -> Result<AppliedRange, StoreError> {
        let entries = self.entries.make_contiguous();
        let applied = self.machine.apply_step(entries)?;
        // None is left if all were applied before.
        let index = applied.last().map_or(last, |applied| applied.index);
        let done = entries.partition_point(|entry| entry.index <= index);
        let changes = accepted_changes(&entries[..done], &applied);
        let bytes = self.entries.drain(..done);
        let bytes = bytes.map(|entry| entry.data.len() as u64).sum();
        let range = AppliedRange {
            index,
            revision: self.machine.revision(),
            entries: applied.len(),
            records: applied.iter().map(|it| it.records).sum(),
            bytes,
            membership: (!changes.is_empty()).then(|| self.machine.membership()),
            changes,
        };
        applied.into_iter().for_each(|it| self.pending.applied(it));
        Ok(range)
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
    use super::super::pending::Expected;
    use super::super::{Caller, RequestError, Written};
    use super::*;
    use bytes::Bytes;
    use dengine_kv::store::MemoryStore;
    use dengine_kv::{Command, CommandVersion, Member, Request};
    use dengine_types::{ClusterId, MemberId, Term};
    use std::sync::mpsc::{Sender, channel};

    /// Says which answer came.
    struct Waits(Sender<Outcome>);

    impl Caller<Written> for Waits {
        fn is_gone(&self) -> bool {
            false
        }

        fn answer(self, answer: Result<Written, RequestError>) {
            self.0.send(answer.unwrap().outcome).unwrap();
        }
    }

    struct Nobody;

    impl<T> Caller<T> for Nobody {
        fn is_gone(&self) -> bool {
            true
        }

        fn answer(self, _: Result<T, RequestError>) {}
    }

    enum Callers {}

    impl Env for Callers {
        type Write = Waits;
        type Read = Nobody;
        type Transfer = Nobody;
    }

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
        let command = Command::Put {
            key: Bytes::from("k"),
            value: Bytes::from(vec![1; value_bytes]),
            prev_kv: false,
            ttl_ms: 0,
        };
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
        };
        let learner = MembershipChange::AddLearner(member(2)).encode();
        let mut entries = vec![entry(1, EntryKind::Membership, bootstrap.encode())];
        entries.extend((2..=40).map(|index| put(index, 1 << 20)));
        entries.push(entry(41, EntryKind::Membership, learner.clone()));
        // Refused: it is there already.
        entries.push(entry(42, EntryKind::Membership, learner));
        let bytes = entries.iter().map(|entry| entry.data.len() as u64).sum();
        let (answers, answered) = channel();
        let expect = entries.iter().map(|entry| Expected {
            index: entry.index,
            context: entry.context.clone(),
            caller: Waits(answers.clone()),
        });
        let expect = ApplyJob::Expect(expect.collect());
        let machine = StateMachine::open(MemoryStore::default()).unwrap();
        let mut applier: Applier<_, Callers> = Applier::new(machine);
        // What was applied before is passed over.
        applier.machine.apply(&entries[..1]).unwrap();
        let jobs = [expect, ApplyJob::Entries(entries)];
        let mut range = applier.work(jobs).unwrap().unwrap();
        while let Some(more) = applier.work(None).unwrap() {
            range.index = more.index;
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
            revision: Revision(40),
            entries: 41,
            records: 41,
            bytes,
            changes: vec![added(ConfigChangeKind::AddLearner, 2)],
            membership: Some(applier.machine().membership()),
        };
        assert_eq!(range, expected);
        assert_eq!(applier.machine().applied().0, Index(42));
        let answered: Vec<_> = answered.try_iter().collect();
        assert_eq!(answered.len(), 41);
        for (outcome, revision) in answered.iter().zip(2..=40) {
            let revision = Revision(revision);
            assert!(matches!(outcome, Outcome::Put { revision: it, .. } if *it == revision));
        }
        assert!(matches!(answered[39], Outcome::Membership(Ok(_))));
        assert!(matches!(answered[40], Outcome::Membership(Err(_))));
    }
}
