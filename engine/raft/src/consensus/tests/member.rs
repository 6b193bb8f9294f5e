//! One member: its consensus, and a log, a disk and a state machine that do only what the script
//! says.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use dengine_log::Position;
use dengine_types::{Entry, EntryKind, HardState, Index, MemberId, Moment, Term};

use crate::consensus::log_view::entry_bytes;
use crate::consensus::testing::{Driver, Host};
use crate::consensus::{
    ConfigChange, ConfigChangeKind, ConsensusConfig, LogRead, LogReadError, Proposal, Refusal,
    ReplicaState, Restored, Role,
};
use crate::input::{AppendId, SnapshotMeta, Token};
use crate::output::Outbound;

/// A persisted log, shared between the disk that writes it and the consensus that reads it.
#[derive(Clone, Default)]
pub(super) struct MemoryLog(Arc<Mutex<Stored>>);

/// The entries, and what is remembered of the one before the first.
#[derive(Clone, Default)]
struct Stored {
    base: Position,
    entries: Vec<Entry>,
}

impl Stored {
    /// Where among the entries this index stands, or would stand.
    fn place(&self, index: Index) -> Option<usize> {
        let place = index.0.checked_sub(self.base.index.0 + 1)?;
        Some(usize::try_from(place).unwrap())
    }

    fn term(&self, index: Index) -> Option<Term> {
        if index == self.base.index {
            return Some(self.base.term);
        }
        let entry = self.entries.get(self.place(index)?)?;
        Some(entry.term)
    }
}

impl MemoryLog {
    pub(super) fn snapshot(&self) -> Vec<Entry> {
        self.0.lock().unwrap().entries.clone()
    }

    /// Another log with the same content.
    pub(super) fn duplicate(&self) -> Self {
        Self(Arc::new(Mutex::new(self.0.lock().unwrap().clone())))
    }

    pub(super) fn write(&self, entries: &[Entry]) {
        let mut log = self.0.lock().unwrap();
        if let Some(first) = entries.first() {
            let place = log.place(first.index).expect("behind the base");
            assert!(place <= log.entries.len(), "a gap in the log");
            log.entries.truncate(place);
            log.entries.extend_from_slice(entries);
        }
    }

    /// Forgets the entries up to `index`.
    pub(super) fn truncate_prefix(&self, index: Index) {
        let mut log = self.0.lock().unwrap();
        let term = log.term(index).expect("an entry of this log");
        let kept = log.place(index.next()).unwrap();
        log.entries.drain(..kept);
        log.base = Position { index, term };
    }

    /// Forgets everything, and goes on behind `base`.
    pub(super) fn reset(&self, base: Position) {
        *self.0.lock().unwrap() = Stored {
            base,
            entries: Vec::new(),
        };
    }
}

impl LogRead for MemoryLog {
    fn first_index(&self) -> Index {
        self.0.lock().unwrap().base.index.next()
    }

    fn last_index(&self) -> Index {
        let log = self.0.lock().unwrap();
        Index(log.base.index.0 + log.entries.len() as u64)
    }

    fn term(&self, index: Index) -> Result<Option<Term>, LogReadError> {
        Ok(self.0.lock().unwrap().term(index))
    }

    fn keep_from(&self, _bytes: u64) -> Index {
        self.first_index()
    }

    fn current_first(&self) -> Index {
        self.first_index()
    }

    fn entries(&self, from: Index, to: Index, max_bytes: u64) -> Result<Vec<Entry>, LogReadError> {
        let log = self.0.lock().unwrap();
        let range = log.place(from).unwrap()..log.place(to).unwrap();
        let mut bytes = 0;
        let fits = log.entries[range]
            .iter()
            .enumerate()
            .take_while(|(i, entry)| {
                bytes += entry_bytes(entry);
                *i == 0 || bytes <= max_bytes
            });
        Ok(fits.map(|(_, entry)| entry.clone()).collect())
    }
}

/// A write that the disk has been given and has not synced.
pub(super) struct Write {
    pub(super) id: AppendId,
    pub(super) hard_state: Option<HardState>,
    pub(super) entries: Vec<Entry>,
}

#[derive(Default)]
pub(super) struct Disk {
    pub(super) log: MemoryLog,
    pub(super) hard_state: HardState,
    pub(super) writes: VecDeque<Write>,
    pub(super) held: bool,
}

impl Disk {
    /// Syncs the oldest write that waits.
    pub(super) fn sync_one(&mut self) -> Option<AppendId> {
        let write = self.writes.pop_front()?;
        self.log.write(&write.entries);
        self.hard_state = write.hard_state.unwrap_or(self.hard_state);
        Some(write.id)
    }

    /// Names term and vote only if the write changes them.
    pub(super) fn describe(&self, write: &Write) -> String {
        let known = self.writes.iter().rev().find_map(|write| write.hard_state);
        let known = known.unwrap_or(self.hard_state);
        let mut parts = Vec::new();
        if let Some(state) = write.hard_state
            && (state.term, state.vote) != (known.term, known.vote)
        {
            parts.push(format!("term {} and vote {}", state.term, state.vote));
        }
        let entries = write.entries.iter();
        parts.extend(entries.map(|entry| format!("{}@{}", entry.index, entry.term)));
        format!("writes {}", parts.join(", "))
    }

    /// The log as the member believes it to be, synced or not.
    pub(super) fn whole_log(&self) -> Vec<Entry> {
        let whole = self.log.duplicate();
        for write in &self.writes {
            whole.write(&write.entries);
        }
        whole.snapshot()
    }
}

/// A durable state machine that knows the membership and nothing else.
#[derive(Clone, Default)]
pub(super) struct Machine {
    pub(super) applied: Index,
    pub(super) applied_term: Term,
    pub(super) voters: Vec<MemberId>,
    pub(super) learners: Vec<MemberId>,
    pub(super) waiting: VecDeque<Entry>,
    pub(super) held: bool,
}

impl Machine {
    pub(super) fn apply(&mut self, entry: &Entry) -> Option<ConfigChange> {
        assert_eq!(entry.index, self.applied.next(), "applied in order, once");
        self.applied = entry.index;
        self.applied_term = entry.term;
        let membership = entry.kind == EntryKind::Membership;
        let change = membership.then(|| parse_change(&entry.data)).flatten()?;
        let others = |ids: &[MemberId]| -> Vec<MemberId> {
            ids.iter()
                .copied()
                .filter(|id| *id != change.member)
                .collect()
        };
        let (mut voters, mut learners) = (others(&self.voters), others(&self.learners));
        match change.kind {
            ConfigChangeKind::AddVoter => voters.push(change.member),
            ConfigChangeKind::AddLearner => learners.push(change.member),
            ConfigChangeKind::Remove => {}
        }
        // A cluster without voters is refused, as the real state machine does.
        voters.first()?;
        (self.voters, self.learners) = (voters, learners);
        Some(change)
    }
}

/// A membership change as the harness writes it into an entry.
pub(super) fn parse_change(data: &[u8]) -> Option<ConfigChange> {
    let (kind, member) = std::str::from_utf8(data).ok()?.split_once(' ')?;
    Some(ConfigChange {
        kind: match kind {
            "add-learner" => ConfigChangeKind::AddLearner,
            "add-voter" | "promote" => ConfigChangeKind::AddVoter,
            "remove" => ConfigChangeKind::Remove,
            _ => return None,
        },
        member: MemberId(member.parse().ok()?),
    })
}

impl Machine {
    /// What a snapshot of it says.
    pub(super) fn meta(&self) -> SnapshotMeta {
        SnapshotMeta {
            last: Position {
                index: self.applied,
                term: self.applied_term,
            },
            voters: self.voters.clone(),
            learners: self.learners.clone(),
        }
    }
}

/// What a scripted member has besides its consensus. Lines and messages wait here until the cluster
/// takes them.
#[derive(Default)]
pub(super) struct Scripted {
    pub(super) disk: Disk,
    pub(super) machine: Machine,
    /// What was proposed here, by where it went into the log.
    proposals: BTreeMap<Index, Proposal>,
    boots: u64,
    pub(super) clock: Moment,
    /// The last snapshot that was made here.
    snapshot: Option<Machine>,
    /// One that was received.
    pub(super) staged: Option<Machine>,
    /// What happened, one line each.
    pub(super) lines: Vec<String>,
    pub(super) sent: Vec<Outbound>,
    /// Snapshots to send: whom to, the message that goes with it, and the state.
    pub(super) snapshots: Vec<(MemberId, Bytes, Machine)>,
}

impl Scripted {
    /// Takes down what became of proposals.
    pub(super) fn note_proposed(
        &mut self,
        taken: Result<Index, Refusal>,
        term: Term,
        proposals: Vec<Proposal>,
    ) {
        for (place, proposal) in (0..).zip(proposals) {
            let text = text_of(&proposal);
            match taken {
                Ok(Index(first)) => {
                    let index = Index(first + place);
                    self.lines.push(format!("takes {text} as {index}@{term}"));
                    self.proposals.insert(index, proposal);
                }
                Err(refusal) => self.lines.push(format!("refuses {text}: {refusal}")),
            }
        }
    }

    fn apply_one(&mut self, entry: &Entry) -> Option<ConfigChange> {
        let text = String::from_utf8_lossy(&entry.data);
        let index = entry.index;
        self.lines.push(match (&*text, entry.kind) {
            ("", _) => format!("applies {index}, which is empty"),
            (text, EntryKind::Command) => format!("applies {index}: {text}"),
            (text, EntryKind::Membership) => format!("applies {index}: membership, {text}"),
        });
        let change = self.machine.apply(entry);
        if let Some(proposal) = self.proposals.remove(&index) {
            let text = text_of(&proposal);
            let outcome = match proposal.context == entry.context {
                true => "done",
                false => "another entry is in its place",
            };
            self.lines.push(format!("answers {text}: {outcome}"));
        }
        change
    }
}

impl Host for Scripted {
    type Log = MemoryLog;

    fn append(&mut self, id: AppendId, hard_state: Option<HardState>, entries: Vec<Entry>) {
        let write = Write {
            id,
            hard_state,
            entries,
        };
        self.lines.push(self.disk.describe(&write));
        self.disk.writes.push_back(write);
    }

    fn synced(&mut self) -> Option<AppendId> {
        if self.disk.held {
            return None;
        }
        self.disk.sync_one()
    }

    fn apply(&mut self, entries: Vec<Entry>) {
        self.machine.waiting.extend(entries);
    }

    fn applied(&mut self) -> Option<(Index, Vec<ConfigChange>)> {
        if self.machine.held {
            return None;
        }
        let waiting = std::mem::take(&mut self.machine.waiting);
        let last = waiting.back()?.index;
        let changes = waiting.iter().filter_map(|entry| self.apply_one(entry));
        Some((last, changes.collect()))
    }

    fn send(&mut self, messages: Vec<Outbound>) {
        self.sent.extend(messages);
    }

    fn on_reads_ready(&mut self, tokens: &[Token], index: Index) {
        let names = names(tokens);
        self.lines
            .push(format!("may serve {names} once {index} is applied"));
    }

    fn on_reads_refused(&mut self, tokens: &[Token], refusal: Refusal) {
        let names = names(tokens);
        self.lines.push(format!("refuses {names}: {refusal}"));
    }

    fn on_state(&mut self, state: ReplicaState) {
        self.lines.push(describe_state(state));
    }

    fn make_snapshot(&mut self) -> Option<SnapshotMeta> {
        let machine = self.machine.clone();
        let applied = machine.applied;
        self.lines.push(format!("makes a snapshot of {applied}"));
        Some(self.snapshot.insert(machine).meta())
    }

    fn send_snapshot(&mut self, to: MemberId, message: Bytes) {
        let machine = self.snapshot.clone();
        let machine = machine.expect("a snapshot was made before one is sent");
        let applied = machine.applied;
        self.lines
            .push(format!("sends {to} a snapshot of {applied}"));
        self.snapshots.push((to, message, machine));
    }
}

fn text_of(proposal: &Proposal) -> String {
    String::from_utf8_lossy(&proposal.data).into_owned()
}

fn names(tokens: &[Token]) -> String {
    let names: Vec<_> = tokens
        .iter()
        .map(|token| format!("read {}", token.0))
        .collect();
    names.join(", ")
}

pub(super) fn describe_state(state: ReplicaState) -> String {
    let term = state.term;
    match (state.role, state.leader) {
        (Role::Leader, _) => format!("leads term {term}"),
        (Role::Follower, Some(leader)) => format!("follows {leader} in term {term}"),
        (Role::Follower, None) => format!("knows no leader in term {term}"),
        (Role::PreCandidate, _) => format!("is a pre-candidate in term {term}"),
        (Role::Candidate, _) => format!("is a candidate in term {term}"),
    }
}

pub(super) type Member = Driver<Scripted>;

pub(super) fn start(
    config: &ConsensusConfig,
    mut disk: Disk,
    machine: Machine,
    boots: u64,
) -> Member {
    let mut hard_state = disk.hard_state;
    hard_state.commit = hard_state.commit.max(machine.applied);
    disk.writes.clear();
    let restored = Restored {
        hard_state,
        applied: machine.applied,
        voters: machine.voters.clone(),
        learners: machine.learners.clone(),
    };
    let config = ConsensusConfig {
        boot_nonce: boots,
        ..config.clone()
    };
    let log = disk.log.clone();
    let host = Scripted {
        disk,
        machine,
        boots,
        ..Scripted::default()
    };
    Driver::new(config, restored, log, host).unwrap()
}

/// Starts again with what was on disk.
pub(super) fn restart(member: Member, config: &ConsensusConfig) -> Member {
    let mut machine = member.host.machine;
    machine.waiting.clear();
    start(config, member.host.disk, machine, member.host.boots + 1)
}
