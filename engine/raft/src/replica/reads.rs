//! Reads that wait: for a quorum's word, then for the state machine.

use std::collections::BTreeMap;

use dengine_planted::planted;
use dengine_types::Index;

use super::{Replica, RequestError};
use crate::consensus::LogRead;
use crate::input::{Confirm, Token};
use crate::output::Output;

/// Those that consensus was not asked for yet, or has confirmed.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// Those for which the lease will do, until the clock is read once more.
    lease: Vec<Token>,
    /// Confirmed, and ahead of the state machine.
    confirmed: BTreeMap<Index, Vec<Token>>,
}

impl Reads {
    /// Whether some are ahead of the state machine.
    pub(super) fn await_applied(&self) -> bool {
        !self.confirmed.is_empty()
    }

    /// Forgets those whose callers are gone.
    pub(super) fn prune(&mut self, is_gone: &dyn Fn(Token) -> bool) {
        self.confirmed.retain(|_, tokens| {
            tokens.retain(|token| !is_gone(*token));
            !tokens.is_empty()
        });
    }
}

impl<L: LogRead> Replica<L> {
    pub(super) fn on_read(&mut self, token: Token, confirm: Confirm) {
        if self.is_removed() {
            return self.refuse(vec![token], RequestError::Removed);
        }
        match confirm {
            Confirm::Lease => self.reads.lease.push(token),
            Confirm::Quorum => {
                if let Err(refusal) = self.consensus.read(token) {
                    self.refused.push((vec![token], refusal));
                }
            }
        }
    }

    /// Asks consensus for the reads that the lease may answer. The clock was observed after the
    /// last of them came in: the lease must hold at a moment within each of them.
    pub(super) fn ask_lease_reads(&mut self) {
        let mut covered = (Vec::new(), Index(0));
        for token in std::mem::take(&mut self.reads.lease) {
            match self.consensus.lease_read(token) {
                Ok(Some(index)) => {
                    covered.0.push(token);
                    covered.1 = index;
                }
                Ok(None) => {}
                Err(refusal) => self.refused.push((vec![token], refusal)),
            }
        }
        let (tokens, index) = covered;
        if !tokens.is_empty() {
            self.counts.reads_confirmed += tokens.len() as u64;
            self.counts.lease_reads += tokens.len() as u64;
            self.on_reads_confirmed(tokens, index);
        }
    }

    /// Before the outputs of this round are carried out: see [`LeaseView`](super::LeaseView).
    pub(super) fn publish_lease(&self) {
        let until = self.consensus.lease_until();
        let committed = self.consensus.commit_index();
        self.lease.publish(until, self.applied, committed);
    }

    /// A round has confirmed these.
    pub(super) fn on_round_confirmed(&mut self, tokens: Vec<Token>, index: Index) {
        self.counts.reads_confirmed += tokens.len() as u64;
        self.counts.read_rounds += 1;
        self.on_reads_confirmed(tokens, index);
    }

    fn on_reads_confirmed(&mut self, tokens: Vec<Token>, index: Index) {
        if index <= self.applied || planted!(ReadBeforeApply) {
            self.may_read(tokens, index);
        } else {
            let waiting = self.reads.confirmed.entry(index).or_default();
            waiting.extend(tokens);
        }
    }

    /// The reads of a member that was removed are not confirmed, and what they are to see may never
    /// come: they would wait for as long as they may.
    pub(super) fn refuse_reads_if_removed(&mut self) {
        if !self.is_removed() {
            return;
        }
        let mut tokens = self.consensus.give_up_reads();
        let reads = std::mem::take(&mut self.reads);
        tokens.extend(reads.lease);
        tokens.extend(reads.confirmed.into_values().flatten());
        self.refuse(tokens, RequestError::Removed);
        self.refuse_lease_questions();
    }

    /// Answers what waited for the state machine to come this far.
    pub(super) fn answer_reads(&mut self) {
        let later = self.reads.confirmed.split_off(&self.applied.next());
        let now = std::mem::replace(&mut self.reads.confirmed, later);
        for (index, tokens) in now {
            self.may_read(tokens, index);
        }
    }

    /// What these wait for is applied.
    fn may_read(&mut self, mut tokens: Vec<Token>, index: Index) {
        self.answer_leases(&mut tokens);
        if !tokens.is_empty() {
            self.outputs.push(Output::MayRead { tokens, index });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use dengine_kv::store::MemoryStore;
    use dengine_kv::{CommandVersion, Member, Membership, StateMachine};
    use dengine_log::conformance::small_options;
    use dengine_log::memory::MemoryDisk;
    use dengine_log::{Batch, Log, LogReader};
    use dengine_types::{ClusterId, MemberId, Moment, Revision};

    use super::super::{AppliedRange, Applier, Counts, ReplicaConfig, first_batch};
    use super::*;
    use crate::consensus::ConsensusConfig;
    use crate::input::{Input, Write};
    use crate::output::{ApplyJob, LogJob};

    /// The only voter of a cluster, which leads it and whose disk is quick; what is committed is
    /// applied when the test wants.
    struct Leader {
        replica: Replica<LogReader<MemoryDisk>>,
        applier: Applier<MemoryStore>,
        log: Log<MemoryDisk>,
        now: Moment,
        to_apply: Vec<ApplyJob>,
        readers: BTreeMap<Token, &'static str>,
        /// The names of those who were told that they may read.
        told: Vec<&'static str>,
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
            let first = first_batch(ClusterId(1), member, Revision(1));
            let hard_state = first.hard_state.expect("its term begins");
            let (mut log, _) = Log::open(MemoryDisk::new(), small_options()).unwrap();
            log.append(&first).unwrap();
            let mut machine = StateMachine::open(MemoryStore::default()).unwrap();
            machine.apply(&first.entries).unwrap();
            let config = ReplicaConfig {
                member_id: MemberId(1),
                boot_nonce: 1,
                election_timeout: Duration::from_secs(1),
                max_waiting_reads: 10,
                log_keep_bytes: 0,
                log_keep_bytes_for_followers: 0,
                shared_entries_min: 1,
                slow_disk: None,
            };
            let consensus = ConsensusConfig::new(MemberId(1), 1);
            let reader = log.reader();
            let mut leader = Self {
                replica: Replica::new(config, consensus, hard_state, reader, &machine).unwrap(),
                applier: Applier::new(machine),
                log,
                now: Moment(1),
                to_apply: Vec::new(),
                readers: BTreeMap::new(),
                told: Vec::new(),
            };
            leader.settle();
            leader.apply();
            leader
        }

        fn settle(&mut self) {
            loop {
                let is_gone = |token| self.readers.get(&token) == Some(&"gone");
                let outputs = self.replica.outputs(self.now, &is_gone);
                if outputs.is_empty() {
                    return;
                }
                for output in outputs {
                    self.carry_out(output);
                }
            }
        }

        fn carry_out(&mut self, output: Output) {
            match output {
                Output::Log(LogJob::Append {
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
                Output::Apply(job) => self.to_apply.push(job),
                Output::MayRead { tokens, .. } => {
                    let readers = tokens.iter().filter_map(|it| self.readers.remove(it));
                    self.told.extend(readers);
                }
                Output::Refused { tokens, error } => {
                    assert_eq!(error, RequestError::Removed, "nothing else refuses it");
                    let readers = tokens.iter().filter_map(|it| self.readers.remove(it));
                    self.told.extend(readers.map(|_| "removed"));
                }
                _ => {}
            }
        }

        fn apply(&mut self) {
            let jobs = std::mem::take(&mut self.to_apply);
            let applied = self.applier.work(jobs, || self.now).unwrap();
            let applied = applied.expect("something was committed").range;
            assert!(!self.applier.has_more(), "it is little");
            self.replica.handle(Input::Applied(applied), self.now);
            self.settle();
        }

        /// It is committed at once.
        fn write(&mut self) {
            let token = self.replica.name();
            let write = Write::settle();
            self.replica.handle(Input::Write { token, write }, self.now);
            self.settle();
        }

        fn read(&mut self, name: &'static str) {
            self.ask(name, Confirm::Quorum);
            self.settle();
        }

        fn lease_read(&mut self, name: &'static str) {
            self.ask(name, Confirm::Lease);
            self.settle();
        }

        fn ask(&mut self, name: &'static str, confirm: Confirm) {
            let token = self.replica.name();
            self.readers.insert(token, name);
            self.replica
                .handle(Input::Read { token, confirm }, self.now);
        }

        /// Who was told since the last call.
        fn told(&mut self) -> Vec<&'static str> {
            std::mem::take(&mut self.told)
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
        leader.settle();
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
                writes_passed_on: 0,
                read_rounds: before.read_rounds + 2,
                reads_confirmed: before.reads_confirmed + 7,
                lease_reads: before.lease_reads + 5,
                peer_messages_refused: 0,
            }
        );
    }

    /// They waited for five seconds, and so did the caller that stopped it.
    #[test]
    fn a_member_that_was_removed_refuses_its_reads_and_is_not_ready() {
        let by_its_log = |leader: &mut Leader| {
            let mut membership = Membership::clone(leader.replica.membership());
            membership.members.clear();
            let status = leader.replica.status();
            let removed = AppliedRange {
                index: status.applied_index,
                at: Moment(0),
                revision: status.revision,
                entries: 1,
                records: 1,
                bytes: 1,
                changes: Vec::new(),
                commands_needed: CommandVersion::OLDEST,
                leases: Vec::new(),
                membership: Some(Arc::new(membership)),
            };
            Input::Applied(removed)
        };
        let mut leader = Leader::new();
        leader.write();
        leader.read("confirmed");
        leader.ask("asked", Confirm::Quorum);
        leader.ask("by lease", Confirm::Lease);
        assert!(leader.told().is_empty() && leader.replica.status().ready);
        let removed = by_its_log(&mut leader);
        leader.replica.handle(removed, leader.now);
        leader.settle();
        assert_eq!(leader.told(), ["removed"; 3]);
        leader.read("late");
        leader.lease_read("late");
        assert_eq!(leader.told(), ["removed"; 2]);
        let status = leader.replica.status();
        assert!(status.removed && !status.ready);
    }

    /// After a loss of acknowledged writes that was accepted, a member may still have a removal in
    /// its log that is undone.
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
