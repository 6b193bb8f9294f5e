//! For tests: a member that is a cluster of its own. Those who ask it wait, whatever happens.

use std::time::Duration;

use bytes::Bytes;
use dengine_kv::store::MemoryStore;
use dengine_kv::{CommandVersion, Member, MembershipChange, StateMachine};
use dengine_log::conformance::small_options;
use dengine_log::memory::MemoryDisk;
use dengine_log::{Batch, Log, LogReader};
use dengine_types::{
    ClusterId, Entry, EntryKind, HardState, Index, MemberId, Moment, Revision, Term,
};

use super::{Applier, Replica, ReplicaConfig};
use crate::consensus::{ConsensusConfig, Role};
use crate::input::{Input, Token, Write};
use crate::output::{LogJob, Outbound, Output};

/// A member of that id; only the first one votes.
pub(crate) fn record(id: u64) -> Member {
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
pub(crate) struct LoneLeader {
    pub(crate) replica: Replica<LogReader<MemoryDisk>>,
    pub(crate) applier: Applier<MemoryStore>,
    log: Log<MemoryDisk>,
    pub(crate) now: Moment,
    /// What is committed is not applied.
    pub(crate) holds_apply: bool,
    /// What it had written to its log.
    pub(crate) appended: Vec<Entry>,
    /// What it had sent to others.
    pub(crate) sent: Vec<Outbound>,
}

impl LoneLeader {
    pub(crate) fn new(reads_max: CommandVersion) -> Self {
        Self::of(1, [Self::formed_by(record(1))], reads_max, 1)
    }

    /// One of whose entries without bytes so many may be under way while clients share.
    pub(crate) fn sharing(entries: usize) -> Self {
        let formed = Self::formed_by(record(1));
        Self::of(1, [formed], CommandVersion::CURRENT, entries)
    }

    /// One that never leads: another one votes, of whom nothing is heard.
    pub(crate) fn learner() -> Self {
        let added = MembershipChange::AddLearner(record(1));
        let changes = [Self::formed_by(record(2)), added];
        Self::of(1, changes, CommandVersion::CURRENT, 1)
    }

    /// One of that id that is to join a cluster, and knows nothing of it yet.
    pub(crate) fn joining(id: u64) -> Self {
        Self::of(id, [], CommandVersion::CURRENT, 1)
    }

    /// Three voters, who share as [`Self::sharing`].
    pub(crate) fn three(entries: usize) -> [Self; 3] {
        Self::three_told_within(Duration::ZERO, entries)
    }

    /// They are told as late as that what is committed, unless somebody waits for it.
    pub(crate) fn three_told_within(news: Duration, entries: usize) -> [Self; 3] {
        let others = [2, 3].map(|id| {
            let added = MembershipChange::AddLearner(record(id));
            [added, MembershipChange::Promote(MemberId(id))]
        });
        let [[add_2, promote_2], [add_3, promote_3]] = others;
        let formed = Self::formed_by(record(1));
        let changes = [formed, add_2, promote_2, add_3, promote_3];
        [1, 2, 3].map(|id| {
            let mut consensus = ConsensusConfig::new(MemberId(id), 1);
            consensus.commit_news_delay = news;
            Self::with(consensus, changes.clone(), CommandVersion::CURRENT, entries)
        })
    }

    fn formed_by(member: Member) -> MembershipChange {
        MembershipChange::Bootstrap {
            cluster_id: ClusterId(1),
            member,
            first_revision: Revision(1),
        }
    }

    fn of<const N: usize>(
        id: u64,
        changes: [MembershipChange; N],
        reads_max: CommandVersion,
        shared_entries_min: usize,
    ) -> Self {
        let consensus = ConsensusConfig::new(MemberId(id), 1);
        Self::with(consensus, changes, reads_max, shared_entries_min)
    }

    fn with<const N: usize>(
        consensus: ConsensusConfig,
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
            member_id: consensus.id,
            boot_nonce: 1,
            election_timeout: Duration::from_secs(1),
            max_waiting_reads: 1,
            log_keep_bytes: 0,
            log_keep_bytes_for_followers: 0,
            shared_entries_min,
            slow_disk: None,
        };
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
    pub(crate) fn elect(&mut self) {
        while self.replica.consensus().state().role != Role::Leader {
            self.tick();
            self.settle();
        }
    }

    pub(crate) fn tick(&mut self) {
        self.now.0 += 100_000_000;
        self.replica.handle(Input::Tick, self.now);
    }

    /// Somebody asks for a write.
    pub(crate) fn ask(&mut self, write: Write) -> Token {
        let token = self.replica.name();
        self.replica.handle(Input::Write { token, write }, self.now);
        token
    }

    pub(crate) fn outputs(&mut self) -> Vec<Output> {
        self.replica.outputs(self.now, &|_| false)
    }

    /// Does what follows, and what follows from that.
    pub(crate) fn settle(&mut self) {
        loop {
            let outputs = self.outputs();
            if outputs.is_empty() {
                return;
            }
            for output in outputs {
                self.carry_out(output);
            }
        }
    }

    pub(crate) fn carry_out(&mut self, output: Output) {
        match output {
            Output::Log(LogJob::Append {
                id,
                hard_state,
                entries,
            }) => {
                self.append(hard_state, entries);
                self.replica.handle(Input::Persisted(id), self.now);
            }
            Output::Apply(job) if !self.holds_apply => {
                let mut job = Some(job);
                while let Some(done) = self.applier.work(job.take(), || self.now).unwrap() {
                    self.replica.handle(Input::Applied(done.range), self.now);
                }
            }
            Output::Send(messages) => self.sent.extend(messages),
            _ => {}
        }
    }

    /// Writes to its log.
    pub(crate) fn append(&mut self, hard_state: Option<HardState>, entries: Vec<Entry>) {
        self.appended.extend(entries.iter().cloned());
        let batch = Batch {
            hard_state,
            entries,
        };
        self.log.append(&batch).expect("memory can be written");
    }
}
