//! One member: its consensus, and a log, a disk and a state machine that do only what the script says.

use crate::consensus::log_view::entry_bytes;
use crate::consensus::{
    AppendId, ConfigChange, ConfigChangeKind, Consensus, ConsensusConfig, LogRead, LogReadError,
    Restored,
};
use crate::types::{Entry, EntryKind, HardState, Index, MemberId, Moment, Term};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

/// A persisted log, shared between the disk that writes it and the consensus that reads it.
#[derive(Clone, Default)]
pub(super) struct MemoryLog(Arc<Mutex<Vec<Entry>>>);

impl MemoryLog {
    pub(super) fn snapshot(&self) -> Vec<Entry> {
        self.0.lock().unwrap().clone()
    }

    pub(super) fn write(&self, entries: &[Entry]) {
        let mut log = self.0.lock().unwrap();
        if let Some(first) = entries.first() {
            assert!(first.index.0 <= log.len() as u64 + 1, "a gap in the log");
            log.truncate(usize::try_from(first.index.0 - 1).unwrap());
            log.extend_from_slice(entries);
        }
    }
}

impl LogRead for MemoryLog {
    fn first_index(&self) -> Index {
        Index(1)
    }

    fn last_index(&self) -> Index {
        Index(self.0.lock().unwrap().len() as u64)
    }

    fn term(&self, index: Index) -> Result<Option<Term>, LogReadError> {
        let log = self.0.lock().unwrap();
        let entry = index.0.checked_sub(1).and_then(|i| log.get(i as usize));
        Ok(entry.map(|entry| entry.term))
    }

    fn keep_from(&self, _bytes: u64) -> Index {
        Index(1)
    }

    fn entries(&self, from: Index, to: Index, max_bytes: u64) -> Result<Vec<Entry>, LogReadError> {
        let log = self.0.lock().unwrap();
        let mut bytes = 0;
        let entries = log[from.0 as usize - 1..to.0 as usize - 1].iter();
        let fits = entries.enumerate().take_while(|(i, entry)| {
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
        let whole = MemoryLog(Arc::new(Mutex::new(self.log.snapshot())));
        for write in &self.writes {
            whole.write(&write.entries);
        }
        whole.snapshot()
    }
}

/// A durable state machine that knows the membership and nothing else.
#[derive(Default)]
pub(super) struct Machine {
    pub(super) applied: Index,
    pub(super) voters: Vec<MemberId>,
    pub(super) learners: Vec<MemberId>,
    pub(super) waiting: VecDeque<Entry>,
    pub(super) held: bool,
}

impl Machine {
    pub(super) fn apply(&mut self, entry: &Entry) -> Option<ConfigChange> {
        assert_eq!(entry.index, self.applied.next(), "applied in order, once");
        self.applied = entry.index;
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

pub(super) struct Member {
    pub(super) consensus: Consensus<MemoryLog>,
    pub(super) disk: Disk,
    pub(super) machine: Machine,
    /// What was proposed here, by where it went into the log: its text and its context.
    pub(super) proposals: BTreeMap<Index, (String, Bytes)>,
    pub(super) boots: u64,
    pub(super) clock: Moment,
}

impl Member {
    pub(super) fn start(
        config: &ConsensusConfig,
        mut disk: Disk,
        machine: Machine,
        boots: u64,
    ) -> Self {
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
        Self {
            consensus: Consensus::new(config, restored, disk.log.clone()).unwrap(),
            disk,
            machine,
            proposals: BTreeMap::new(),
            boots,
            clock: Moment(0),
        }
    }

    /// Starts again with what was on disk.
    pub(super) fn restart(self, config: &ConsensusConfig) -> Self {
        let mut machine = self.machine;
        machine.waiting.clear();
        Self::start(config, self.disk, machine, self.boots + 1)
    }
}
