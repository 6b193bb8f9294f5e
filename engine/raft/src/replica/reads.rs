//! Reads that wait: for a quorum's word, then for the state machine.

use super::env::Caller;
use super::{Env, Replica, RequestError};
use crate::consensus::{Event, LogRead, ReadToken, Refusal};
use dengine_planted::planted;
use dengine_types::Index;
use std::collections::{BTreeMap, HashMap};

pub(super) struct Reads<C> {
    /// Asked of consensus.
    asked: HashMap<ReadToken, C>,
    /// Those for which the lease will do, until the clock is read once more.
    lease: Vec<C>,
    /// Confirmed, and ahead of the state machine.
    confirmed: BTreeMap<Index, Vec<C>>,
}

impl<C> Default for Reads<C> {
    fn default() -> Self {
        Self {
            asked: HashMap::new(),
            lease: Vec::new(),
            confirmed: BTreeMap::new(),
        }
    }
}

impl<L: LogRead, E: Env> Replica<L, E> {
    pub(super) fn on_read(&mut self, caller: E::Read) {
        if self.is_removed() {
            return caller.answer(Err(RequestError::Removed));
        }
        let token = self.read_token(caller);
        self.step(Event::Read(token));
    }

    pub(super) fn on_lease_read(&mut self, caller: E::Read) {
        if self.is_removed() {
            return caller.answer(Err(RequestError::Removed));
        }
        self.reads.lease.push(caller);
    }

    /// Asks consensus for the reads that the lease may answer. The clock was observed after the last of
    /// them came in: the lease must hold at a moment within each of them.
    pub(super) fn ask_lease_reads(&mut self) {
        for caller in std::mem::take(&mut self.reads.lease) {
            let token = self.read_token(caller);
            self.step(Event::LeaseRead(token));
        }
    }

    /// Before the effects of this round are carried out: see [`LeaseView`](super::LeaseView).
    pub(super) fn publish_lease(&self) {
        let until = self.consensus.lease_until();
        let committed = self.consensus.commit_index();
        self.lease.publish(until, self.applied, committed);
    }

    fn read_token(&mut self, caller: E::Read) -> ReadToken {
        let token = ReadToken(self.token());
        self.reads.asked.insert(token, caller);
        token
    }

    pub(super) fn on_reads_confirmed(
        &mut self,
        tokens: &[ReadToken],
        index: Index,
        by_lease: bool,
    ) {
        self.counts.reads_confirmed += tokens.len() as u64;
        if by_lease {
            self.counts.lease_reads += tokens.len() as u64;
        } else {
            self.counts.read_rounds += 1;
        }
        let reads = &mut self.reads;
        let callers = tokens.iter().filter_map(|token| reads.asked.remove(token));
        if index <= self.applied || planted!(ReadBeforeApply) {
            callers.for_each(|caller| caller.answer(Ok(())));
        } else {
            let waiting = reads.confirmed.entry(index).or_default();
            waiting.extend(callers);
        }
    }

    pub(super) fn on_reads_refused(&mut self, tokens: &[ReadToken], refusal: Refusal) {
        for token in tokens {
            if let Some(caller) = self.reads.asked.remove(token) {
                let error = self.request_error(refusal);
                caller.answer(Err(error));
            }
        }
    }

    /// Nobody confirms the reads of a member that was removed, and what they are to see may never come: they would wait for as long as
    /// they may.
    pub(super) fn refuse_reads_if_removed(&mut self) {
        if !self.is_removed() {
            return;
        }
        let reads = std::mem::take(&mut self.reads);
        let asked = reads.asked.into_values().chain(reads.lease);
        let confirmed = reads.confirmed.into_values().flatten();
        for caller in asked.chain(confirmed) {
            caller.answer(Err(RequestError::Removed));
        }
    }

    /// Answers what waited for the state machine to come this far.
    pub(super) fn answer_reads(&mut self) {
        let later = self.reads.confirmed.split_off(&self.applied.next());
        let now = std::mem::replace(&mut self.reads.confirmed, later);
        for caller in now.into_values().flatten() {
            caller.answer(Ok(()));
        }
    }

    pub(super) fn prune_reads(&mut self) {
        self.reads.confirmed.retain(|_, callers| {
            callers.retain(|caller| !caller.is_gone());
            !callers.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        AppliedRange, Applier, ApplyJob, Counts, Effect, Input, LogJob, ReplicaConfig, Request,
    };
    use super::*;
    use crate::consensus::ConsensusConfig;
    use bytes::Bytes;
    use dengine_kv::store::MemoryStore;
    use dengine_kv::{Member, Membership, MembershipChange, StateMachine};
    use dengine_log::conformance::small_options;
    use dengine_log::memory::MemoryDisk;
    use dengine_log::{Batch, Log, LogReader};
    use dengine_types::{ClusterId, Entry, EntryKind, HardState, MemberId, Moment, Term};
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::time::Duration;

    struct Somebody;

    impl<T> Caller<T> for Somebody {
        fn is_gone(&self) -> bool {
            false
        }

        fn answer(self, _: Result<T, RequestError>) {}
    }

    /// The names of those who were told that they may read.
    type Told = Rc<RefCell<Vec<&'static str>>>;

    struct Reader(&'static str, Told);

    impl Caller<()> for Reader {
        fn is_gone(&self) -> bool {
            self.0 == "gone"
        }

        fn answer(self, answer: Result<(), RequestError>) {
            let told = match answer {
                Ok(()) => self.0,
                Err(RequestError::Removed) => "removed",
                Err(error) => panic!("it was refused: {error}"),
            };
            self.1.borrow_mut().push(told);
        }
    }

    enum Readers {}

    impl Env for Readers {
        type Write = Somebody;
        type Read = Reader;
        type Transfer = Somebody;
    }

    /// The only voter of a cluster, which leads it and whose disk is quick; what is committed is applied when the test wants.
    struct Leader {
        replica: Replica<LogReader<MemoryDisk>, Readers>,
        applier: Applier<MemoryStore, Readers>,
        log: Log<MemoryDisk>,
        now: Moment,
        to_apply: Vec<ApplyJob<Readers>>,
        told: Told,
    }

    impl Leader {
        fn new() -> Self {
            let member = Member {
                id: MemberId(1),
                name: "m1".to_owned(),
                peer_address: "m1:1".to_owned(),
                client_address: "m1:2".to_owned(),
                folder_id: "f1".to_owned(),
                voter: true,
            };
            let bootstrap = MembershipChange::Bootstrap {
                cluster_id: ClusterId(1),
                member,
            };
            let first = Entry {
                index: Index(1),
                term: Term(1),
                kind: EntryKind::Membership,
                context: Bytes::new(),
                data: bootstrap.encode(),
            };
            let hard_state = HardState {
                term: Term(1),
                vote: MemberId(0),
                commit: Index(1),
            };
            let (mut log, _) = Log::open(MemoryDisk::new(), small_options()).unwrap();
            let batch = Batch {
                hard_state: Some(hard_state),
                entries: vec![first.clone()],
            };
            log.append(&batch).unwrap();
            let mut machine = StateMachine::open(MemoryStore::default()).unwrap();
            machine.apply(&[first]).unwrap();
            let config = ReplicaConfig {
                member_id: MemberId(1),
                boot_nonce: 1,
                election_timeout: Duration::from_secs(1),
                max_waiting_reads: 10,
                log_keep_bytes: 0,
                log_keep_bytes_for_followers: 0,
                shared_entries_min: 1,
            };
            let consensus = ConsensusConfig::new(MemberId(1), 1);
            let reader = log.reader();
            let mut leader = Self {
                replica: Replica::new(config, consensus, hard_state, reader, &machine).unwrap(),
                applier: Applier::new(machine),
                log,
                now: Moment(1),
                to_apply: Vec::new(),
                told: Told::default(),
            };
            leader.settle();
            leader.apply();
            leader
        }

        fn settle(&mut self) {
            loop {
                let effects = self.replica.effects(self.now);
                if effects.is_empty() {
                    return;
                }
                for effect in effects {
                    self.carry_out(effect);
                }
            }
        }

        fn carry_out(&mut self, effect: Effect<Readers>) {
            match effect {
                Effect::Log(LogJob::Append {
                    id,
                    hard_state,
                    entries,
                }) => {
                    let batch = Batch {
                        hard_state,
                        entries,
                    };
                    self.log.append(&batch).unwrap();
                    self.replica.handle(Input::Persisted(id), self.now);
                }
                Effect::Apply(job) => self.to_apply.push(job),
                _ => {}
            }
        }

        fn apply(&mut self) {
            let jobs = std::mem::take(&mut self.to_apply);
            let applied = self.applier.work(jobs).unwrap();
            let applied = applied.expect("something was committed");
            assert!(!self.applier.has_more(), "it is little");
            self.replica.handle(Input::Applied(applied), self.now);
            self.settle();
        }

        /// It is committed at once.
        fn write(&mut self) {
            let caller = Somebody;
            self.ask(Request::settle(caller));
        }

        fn read(&mut self, name: &'static str) {
            let caller = Reader(name, Rc::clone(&self.told));
            self.ask(Request::Read { caller });
        }

        fn lease_read(&mut self, name: &'static str) {
            let caller = Reader(name, Rc::clone(&self.told));
            self.ask(Request::LeaseRead { caller });
        }

        fn ask(&mut self, request: Request<Readers>) {
            self.replica.handle(Input::Request(request), self.now);
            self.settle();
        }

        /// Who was told since the last call.
        fn told(&self) -> Vec<&'static str> {
            self.told.take()
        }
    }

    #[test]
    fn a_read_waits_until_what_was_committed_before_it_is_applied() {
        let mut leader = Leader::new();
        leader.read("nothing to wait for");
        assert_eq!(leader.told(), ["nothing to wait for"]);
        leader.write();
        leader.read("behind the write");
        leader.lease_read("behind the write too");
        assert!(leader.told().is_empty());
        leader.apply();
        assert_eq!(leader.told(), ["behind the write", "behind the write too"]);
    }

    #[test]
    fn a_read_does_not_wait_for_what_was_committed_after_it() {
        let mut leader = Leader::new();
        leader.write();
        leader.read("first");
        let first = std::mem::take(&mut leader.to_apply);
        leader.write();
        leader.read("second");
        let second = std::mem::replace(&mut leader.to_apply, first);
        leader.apply();
        assert_eq!(leader.told(), ["first"]);
        leader.to_apply = second;
        leader.apply();
        assert_eq!(leader.told(), ["second"]);
    }

    #[test]
    fn readers_that_gave_up_are_forgotten_and_no_others() {
        let mut leader = Leader::new();
        leader.write();
        leader.read("gone");
        leader.read("waits");
        leader.write();
        leader.read("gone");
        leader.replica.handle(Input::Tick, leader.now);
        assert_eq!(leader.replica.reads.confirmed.len(), 1);
        leader.apply();
        assert_eq!(leader.told(), ["waits"]);
    }

    #[test]
    fn reads_are_counted_by_what_confirmed_them() {
        let mut leader = Leader::new();
        let before = leader.replica.counts();
        // The first round is also what the lease begins with.
        leader.read("round");
        leader.read("another round");
        leader.lease_read("lease");
        leader.lease_read("lease");
        leader.lease_read("lease");
        let view = leader.replica.lease();
        assert!(view.covers(|| leader.now) && view.covers(|| leader.now));
        let counts = leader.replica.counts();
        assert_eq!(
            counts,
            Counts {
                read_rounds: before.read_rounds + 2,
                reads_confirmed: before.reads_confirmed + 7,
                lease_reads: before.lease_reads + 5,
                peer_messages_refused: 0,
            }
        );
    }

    /// They waited for five seconds, and so did whoever stopped it.
    #[test]
    fn a_member_that_was_removed_refuses_its_reads_and_is_not_ready() {
        let by_its_log = |leader: &mut Leader| {
            let mut membership = Membership::clone(leader.replica.membership());
            membership.members.clear();
            let status = leader.replica.status();
            let removed = AppliedRange {
                index: status.applied_index,
                revision: status.revision,
                entries: 1,
                records: 1,
                bytes: 1,
                changes: Vec::new(),
                membership: Some(Arc::new(membership)),
            };
            Input::Applied(removed)
        };
        let mut leader = Leader::new();
        leader.write();
        leader.read("confirmed");
        let caller = |name| Reader(name, Rc::clone(&leader.told));
        let asked = Request::Read {
            caller: caller("asked"),
        };
        let by_lease = Request::LeaseRead {
            caller: caller("by lease"),
        };
        for request in [asked, by_lease] {
            leader.replica.handle(Input::Request(request), leader.now);
        }
        assert!(leader.told().is_empty() && leader.replica.status().ready);
        let removed = by_its_log(&mut leader);
        leader.replica.handle(removed, leader.now);
        assert_eq!(leader.told(), ["removed"; 3]);
        leader.read("late");
        leader.lease_read("late");
        assert_eq!(leader.told(), ["removed"; 2]);
        let status = leader.replica.status();
        assert!(status.removed && !status.ready);
    }

    /// After a loss of acknowledged writes that was accepted, a member may still have a removal in its log that is undone.
    #[test]
    fn a_leader_does_not_take_a_peers_word_that_it_was_removed() {
        let mut leader = Leader::new();
        leader.replica.handle(Input::Removed, leader.now);
        leader.read("served");
        assert_eq!(leader.told(), ["served"]);
        assert!(leader.replica.status().ready);
    }

    #[test]
    fn it_is_ready_for_reads_unless_what_is_committed_is_not_applied_for_long() {
        let mut leader = Leader::new();
        let ready = |leader: &Leader| {
            let status = leader.replica.status();
            assert_eq!(status.ready, !status.stalled);
            status.ready
        };
        assert!(ready(&leader));
        leader.write();
        assert!(ready(&leader));
        leader.now = leader.now.after(Duration::from_secs(5));
        leader.settle();
        assert!(!ready(&leader));
        leader.apply();
        leader.replica.handle(Input::Tick, leader.now);
        assert!(ready(&leader));
    }
}
