//! The script: one member's log and state machine, what it was promised, and what must be found of
//! it.

use bytes::Bytes;
use dengine_kv::store::MemoryStore;
use dengine_kv::{Command, CommandVersion, Expected, KeyRange, Request, StateMachine};
use dengine_log::conformance::small_options;
use dengine_log::memory::MemoryDisk;
use dengine_log::{Batch, Log, LogError, Position};
use dengine_testkit::Random;
use dengine_types::{Entry, EntryKind, HardState, Index, MemberId, Revision, Term};

use super::Crash;
use super::disk::CutDisk;
use super::store::ForgetfulStore;

const STEPS: u64 = 60;

/// What a log holds.
#[derive(Clone, Debug, Default, PartialEq)]
struct Content {
    hard_state: HardState,
    base: Position,
    /// From `base` on, also those that were truncated since.
    entries: Vec<Entry>,
}

impl Content {
    fn last(&self) -> Position {
        self.entries.last().map_or(self.base, |entry| Position {
            index: entry.index,
            term: entry.term,
        })
    }
}

/// A member's storage while it is used.
pub(crate) struct Life {
    disk: CutDisk,
    store: ForgetfulStore,
    log: Option<Log<CutDisk>>,
    machine: StateMachine<ForgetfulStore>,
    /// The first is durable, the last is what was asked for last.
    versions: Vec<Content>,
    /// Entries that are committed forever, from the first.
    committed: Vec<Entry>,
    /// Applied up to here when it was last flushed.
    flushed: Index,
    /// The log was allowed to forget up to here.
    dropped: Index,
    /// It promises before it syncs, which is wrong.
    hasty: bool,
}

impl Life {
    /// Opens an empty member.
    pub(crate) fn begin(disk: CutDisk) -> Self {
        let store = ForgetfulStore::default();
        let machine = StateMachine::open(store.clone()).unwrap();
        machine.flush().unwrap();
        let log = Log::open(disk.clone(), small_options()).ok();
        Self {
            disk,
            store,
            log: log.map(|(log, _)| log),
            machine,
            versions: vec![Content::default()],
            committed: Vec::new(),
            flushed: Index(0),
            dropped: Index(0),
            hasty: false,
        }
    }

    /// The same for a member that does not keep its promises.
    pub(crate) fn begin_hasty(disk: CutDisk) -> Self {
        Self {
            hasty: true,
            ..Self::begin(disk)
        }
    }

    /// Lives until the end of the script, or of the disk.
    pub(crate) fn live(&mut self) {
        if let Some(log) = self.log.take() {
            let mut living = Living { life: self, log };
            if let Err(error) = living.script() {
                assert!(
                    !error.is_usable(),
                    "only the dead disk ends the script: {error}"
                );
            }
        }
    }

    /// Whether the log has forgotten anything.
    pub(crate) fn segments_dropped(&self) -> bool {
        self.dropped > Index(0)
    }

    fn now(&self) -> &Content {
        self.versions.last().expect("there is always one")
    }

    /// Ends, opens what is left, and checks it.
    pub(crate) fn crash_and_open(self, crash: Crash) {
        let disk = self.disk.memory.clone();
        if let Crash::Power { percent, seed } = crash {
            let mut random = Random::new(seed);
            disk.power_loss(|| random.chance(percent));
        }
        // RocksDB without its own log forgets what it did not flush in both cases; it may have
        // flushed more than it was asked to.
        let kept = match crash {
            Crash::Process => 0,
            Crash::Power { seed, .. } => (seed % 7) as usize,
        };
        let (mut log, content) = self.open_log(&disk, crash);
        let machine = self.open_machine(kept, &log, crash);
        self.replay(machine, &log);
        // It is a log that can be used.
        let next = entry(
            content.last().index.next(),
            content.last().term.max(Term(1)),
            0,
        );
        let entries = vec![next];
        log.append(&Batch {
            hard_state: None,
            entries,
        })
        .unwrap();
        log.sync().unwrap();
        let last = log.reader().last();
        drop(log);
        let (log, _) = Log::open(disk, small_options()).unwrap();
        assert_eq!(log.reader().last(), last, "{crash:?}");
    }

    /// The log must be one of those that it may be.
    fn open_log(&self, disk: &MemoryDisk, crash: Crash) -> (Log<MemoryDisk>, Content) {
        let (log, recovered) = Log::open(disk.clone(), small_options())
            .unwrap_or_else(|error| panic!("{crash:?}: the log does not open: {error}"));
        let reader = log.reader();
        let (first, end) = (recovered.first_index, recovered.last_index.next());
        let found = reader.entries(first, end, u64::MAX).unwrap();
        let fits = |version: &&Content| {
            let begins = version.base.index.next().max(first);
            let kept = version.entries.iter().filter(|entry| entry.index >= begins);
            version.hard_state == recovered.hard_state
                && version.last().index == recovered.last_index
                && version.base.index < first
                && first <= self.dropped.max(version.base.index).next()
                && kept.eq(found.iter())
        };
        let version = self.versions.iter().find(fits).unwrap_or_else(|| {
            panic!(
                "{crash:?}: found {recovered:?}; promised {:?}, at best {:?}",
                (self.versions[0].hard_state, self.versions[0].last()),
                (self.now().hard_state, self.now().last()),
            )
        });
        (log, version.clone())
    }

    /// The state machine must be at a batch's end, and the log reach on from there.
    fn open_machine(
        &self,
        kept: usize,
        log: &Log<MemoryDisk>,
        crash: Crash,
    ) -> StateMachine<ForgetfulStore> {
        let machine = StateMachine::open(self.store.crash(kept)).unwrap();
        let (applied, _) = machine.applied();
        let reader = log.reader();
        assert!(
            applied >= self.flushed,
            "{crash:?}: flushed entries are gone"
        );
        assert!(
            applied >= reader.base().index,
            "{crash:?}: entries after {applied} are gone"
        );
        assert!(
            applied <= reader.last_index(),
            "{crash:?}: applied before it was durable"
        );
        machine
    }

    /// What was committed is applied again, and makes the same state as ever.
    fn replay(&self, mut machine: StateMachine<ForgetfulStore>, log: &Log<MemoryDisk>) {
        let end = Index(self.committed.len() as u64).next();
        let from = machine.applied().0.next();
        let entries = log.reader().entries(from, end, u64::MAX).unwrap();
        machine.apply(&entries).unwrap();
        let mut reference = StateMachine::open(MemoryStore::default()).unwrap();
        reference.apply(&self.committed).unwrap();
        assert_eq!(
            machine.reader().logical_hash().unwrap(),
            reference.reader().logical_hash().unwrap(),
            "replayed from {from}"
        );
    }
}

/// The same as long as the disk does what it is asked.
struct Living<'a> {
    life: &'a mut Life,
    log: Log<CutDisk>,
}

impl Living<'_> {
    fn script(&mut self) -> Result<(), LogError> {
        for step in 1..=STEPS {
            if step % 9 == 1 {
                self.vote()?;
            }
            self.append(step, 1 + step % 3)?;
            if step % 6 == 0 {
                self.replace_suffix(step)?;
            }
            if step % 4 != 0 {
                self.sync()?;
                self.commit();
            }
            if step % 5 == 0 {
                self.life.flushed = self.life.machine.flush().unwrap();
            }
            if step % 7 == 0 {
                self.life.dropped = self.life.flushed;
                self.log.truncate_prefix(self.life.flushed)?;
                self.settled();
            }
            if step % 3 == 0 {
                self.log.prepare()?;
            }
            if step == STEPS / 2 {
                self.reset()?;
            }
        }
        self.sync()
    }

    /// A new term begins with a vote, which is durable before anybody hears of it.
    fn vote(&mut self) -> Result<(), LogError> {
        let mut next = self.life.now().clone();
        next.hard_state.term.0 += 1;
        next.hard_state.vote = MemberId(next.hard_state.term.0 % 3 + 1);
        let hard_state = Some(next.hard_state);
        self.life.versions.push(next);
        self.log.append(&Batch {
            hard_state,
            entries: Vec::new(),
        })?;
        self.sync()
    }

    fn append(&mut self, step: u64, count: u64) -> Result<(), LogError> {
        let first = self.life.now().last().index.next();
        let term = self.life.now().hard_state.term;
        let entries = (first.0..first.0 + count).map(|index| entry(Index(index), term, step));
        self.write(entries.collect())
    }

    /// What a new leader does with entries that were never committed.
    fn replace_suffix(&mut self, step: u64) -> Result<(), LogError> {
        let last = self.life.now().last().index;
        let first = last.max(Index(self.life.committed.len() as u64).next());
        if first > last {
            return Ok(());
        }
        let term = self.life.now().hard_state.term;
        self.write(vec![entry(first, term, step + 1000)])
    }

    /// Entries with the commit index that is known.
    fn write(&mut self, entries: Vec<Entry>) -> Result<(), LogError> {
        let mut next = self.life.now().clone();
        let kept = entries[0].index.0 - next.base.index.0 - 1;
        next.entries.truncate(kept as usize);
        next.entries.extend(entries.iter().cloned());
        next.hard_state.commit = Index(self.life.committed.len() as u64);
        let hard_state = Some(next.hard_state);
        self.life.versions.push(next);
        self.log.append(&Batch {
            hard_state,
            entries,
        })
    }

    fn sync(&mut self) -> Result<(), LogError> {
        if !self.life.hasty {
            self.log.sync()?;
        }
        self.settled();
        Ok(())
    }

    /// Everything that was asked for is durable.
    fn settled(&mut self) {
        let settled = self.life.versions.len() - 1;
        self.life.versions.drain(..settled);
    }

    /// All durable entries but the last become committed, and are applied.
    fn commit(&mut self) {
        let life = &mut *self.life;
        let content = life.now();
        let from = life.committed.len() as u64 - content.base.index.0;
        let upto = content.entries.len().saturating_sub(1).max(from as usize);
        let new = content.entries[from as usize..upto].to_vec();
        life.machine.apply(&new).unwrap();
        life.committed.extend(new);
    }

    /// As if a snapshot came of all that is committed: the log begins again behind it.
    fn reset(&mut self) -> Result<(), LogError> {
        self.life.flushed = self.life.machine.flush().unwrap();
        let (index, term) = self.life.machine.applied();
        let base = Position { index, term };
        let hard_state = HardState {
            commit: index,
            ..self.life.now().hard_state
        };
        self.life.versions.push(Content {
            hard_state,
            base,
            entries: Vec::new(),
        });
        self.log.reset(base, hard_state)?;
        self.sync()?;
        self.life.dropped = index;
        self.log.truncate_prefix(index)
    }
}

/// A command that depends on the state before it, so that losing or repeating one shows.
fn entry(index: Index, term: Term, salt: u64) -> Entry {
    let key = Bytes::from(format!("key{}", index.0 % 5));
    let value = Bytes::from(format!(
        "{salt} {}",
        "x".repeat((index.0 * 37 % 200) as usize)
    ));
    let command = match index.0 % 4 {
        0 => Command::Delete {
            keys: KeyRange::One(key),
            prev_kv: false,
        },
        1 => Command::CompareAndSwap {
            key,
            expected: Expected::ModRevision(Revision(index.0 % 3)),
            value,
            ttl_ms: 0,
        },
        _ => Command::put(key, value),
    };
    Entry {
        index,
        term,
        kind: EntryKind::Command,
        context: Bytes::new(),
        data: Request::from(command).encode(CommandVersion::CURRENT),
    }
}
