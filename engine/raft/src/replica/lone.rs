//! For tests: a member that is a cluster of its own, and those who ask it.

use super::{Applier, Caller, Effect, Env, Input, LogJob, Replica, ReplicaConfig, RequestError};
use crate::consensus::{ConsensusConfig, Outbound, Role};
use bytes::Bytes;
use dengine_kv::store::MemoryStore;
use dengine_kv::{CommandVersion, Member, MembershipChange, StateMachine};
use dengine_log::conformance::small_options;
use dengine_log::memory::MemoryDisk;
use dengine_log::{Batch, Log, LogReader};
use dengine_types::{ClusterId, Entry, EntryKind, HardState, Index, MemberId, Moment, Term};

/// Callers who wait, whatever happens.
pub(super) enum Waiting {}

/// One of them.
pub(super) struct Somebody;

impl<T> Caller<T> for Somebody {
    fn is_gone(&self) -> bool {
        false
    }

    fn answer(self, _: Result<T, RequestError>) {}
}

impl Env for Waiting {
    type Write = Somebody;
    type Read = Somebody;
    type Transfer = Somebody;
}

/// A member of that id; only the first one votes.
pub(super) fn record(id: u64) -> Member {
    Member {
        id: MemberId(id),
        name: format!("m{id}"),
        peer_address: format!("m{id}:1"),
        client_address: format!("m{id}:2"),
        folder_id: format!("f{id}"),
        voter: id == 1,
    }
}

/// The only voter of a cluster, which leads it.
pub(super) struct LoneLeader {
    pub(super) replica: Replica<LogReader<MemoryDisk>, Waiting>,
    pub(super) applier: Applier<MemoryStore, Waiting>,
    log: Log<MemoryDisk>,
    pub(super) now: Moment,
    /// What is committed is not applied.
    pub(super) holds_apply: bool,
    /// What it had written to its log.
    pub(super) appended: Vec<Entry>,
    /// What it had sent to others.
    pub(super) sent: Vec<Outbound>,
}

impl LoneLeader {
    pub(super) fn new(reads_max: CommandVersion) -> Self {
        Self::of(1, [Self::formed_by(record(1))], reads_max, 1)
    }

    /// One of whose entries without bytes so many may be under way while clients share.
    pub(super) fn sharing(entries: usize) -> Self {
        let formed = Self::formed_by(record(1));
        Self::of(1, [formed], CommandVersion::CURRENT, entries)
    }

    /// One that never leads: another one votes, of whom nothing is heard.
    pub(super) fn learner() -> Self {
        let added = MembershipChange::AddLearner(record(1));
        let changes = [Self::formed_by(record(2)), added];
        Self::of(1, changes, CommandVersion::CURRENT, 1)
    }

    /// One of that id that is to join a cluster, and knows nothing of it yet.
    pub(super) fn joining(id: u64) -> Self {
        Self::of(id, [], CommandVersion::CURRENT, 1)
    }

    /// Three voters, who share as [`Self::sharing`].
    pub(super) fn three(entries: usize) -> [Self; 3] {
        let others = [2, 3].map(|id| {
            let added = MembershipChange::AddLearner(record(id));
            [added, MembershipChange::Promote(MemberId(id))]
        });
        let [[add_2, promote_2], [add_3, promote_3]] = others;
        let formed = Self::formed_by(record(1));
        let changes = [formed, add_2, promote_2, add_3, promote_3];
        [1, 2, 3].map(|id| Self::of(id, changes.clone(), CommandVersion::CURRENT, entries))
    }

    fn formed_by(member: Member) -> MembershipChange {
        MembershipChange::Bootstrap {
            cluster_id: ClusterId(1),
            member,
        }
    }

    fn of<const N: usize>(
        id: u64,
        changes: [MembershipChange; N],
        reads_max: CommandVersion,
        shared_entries_min: usize,
    ) -> Self {
        let entry = |(index, change): (u64, MembershipChange)| Entry {
            index: Index(index),
            term: Term(1),
            kind: EntryKind::Membership,
            context: Bytes::new(),
            data: change.encode(),
        };
        let entries: Vec<_> = (1..).zip(changes).map(entry).collect();
        let hard_state = HardState {
            term: Term(u64::from(N > 0)),
            vote: MemberId(0),
            commit: Index(N as u64),
        };
        let (mut log, _) = Log::open(MemoryDisk::new(), small_options()).unwrap();
        let batch = Batch {
            hard_state: Some(hard_state),
            entries: entries.clone(),
        };
        log.append(&batch).unwrap();
        let machine = StateMachine::open(MemoryStore::default()).unwrap();
        let mut machine = machine.reads_commands_up_to(reads_max);
        machine.apply(&entries).unwrap();
        let config = ReplicaConfig {
            member_id: MemberId(id),
            boot_nonce: 1,
            election_timeout: std::time::Duration::from_secs(1),
            max_waiting_reads: 1,
            log_keep_bytes: 0,
            log_keep_bytes_for_followers: 0,
            shared_entries_min,
        };
        let consensus = ConsensusConfig::new(MemberId(id), 1);
        let replica = Replica::new(config, consensus, hard_state, log.reader(), &machine).unwrap();
        let applier = Applier::new(machine);
        let now = Moment(1);
        Self {
            replica,
            applier,
            log,
            now,
            holds_apply: false,
            appended: Vec::new(),
            sent: Vec::new(),
        }
    }

    /// Ticks until it leads.
    pub(super) fn elect(&mut self) {
        while self.replica.consensus().state().role != Role::Leader {
            self.tick();
            self.settle();
        }
    }

    pub(super) fn tick(&mut self) {
        self.now.0 += 100_000_000;
        self.replica.handle(Input::Tick, self.now);
    }

    /// Does what follows, and what follows from that.
    pub(super) fn settle(&mut self) {
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

    pub(super) fn carry_out(&mut self, effect: Effect<Waiting>) {
        match effect {
            Effect::Log(LogJob::Append {
                id,
                hard_state,
                entries,
            }) => {
                self.append(hard_state, entries);
                self.replica.handle(Input::Persisted(id), self.now);
            }
            Effect::Apply(job) if !self.holds_apply => {
                let mut job = Some(job);
                while let Some(range) = self.applier.work(job.take()).unwrap() {
                    self.replica.handle(Input::Applied(range), self.now);
                }
            }
            Effect::Send(messages) => self.sent.extend(messages),
            _ => {}
        }
    }

    /// Writes to its log.
    pub(super) fn append(&mut self, hard_state: Option<HardState>, entries: Vec<Entry>) {
        self.appended.extend(entries.iter().cloned());
        let batch = Batch {
            hard_state,
            entries,
        };
        self.log.append(&batch).expect("memory can be written");
    }
}
