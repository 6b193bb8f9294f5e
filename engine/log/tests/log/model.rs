//! Random use, failures and power losses, compared with a list of entries.

use dengine_log::conformance::small_options;
use dengine_log::memory::MemoryDisk;
use dengine_log::{Batch, Log, LogError, Position};
use dengine_testkit::Random;
use dengine_types::{Entry, EntryKind, HardState, Index, MemberId, Term};
use proptest::prelude::*;

/// The expected content of a log.
#[derive(Clone, Debug, Default, PartialEq)]
struct Content {
    hard_state: HardState,
    base: Position,
    /// The entries after `base`.
    entries: Vec<Entry>,
}

impl Content {
    fn last(&self) -> Position {
        self.entries.last().map_or(self.base, |entry| Position {
            index: entry.index,
            term: entry.term,
        })
    }

    fn append(&mut self, entry: &Entry) {
        let kept = entry.index.0 - self.base.index.0 - 1;
        self.entries.truncate(kept as usize);
        self.entries.push(entry.clone());
    }

    /// The content from a later entry on.
    fn cut(&mut self, first: Index) {
        let dropped = (first.0 - self.base.index.0 - 1) as usize;
        if let Some(last) = dropped.checked_sub(1) {
            let last = &self.entries[last];
            self.base = Position {
                index: last.index,
                term: last.term,
            };
            self.entries.drain(..dropped);
        }
    }
}

/// The log under test, and every content that may be found after a crash.
struct Model {
    disk: MemoryDisk,
    log: Log<MemoryDisk>,
    seed: u64,
    /// From the content that is known to be durable to the latest one. A large append may be cut
    /// between any two entries.
    versions: Vec<Content>,
    data: u8,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Append {
        entries: usize,
        bytes: usize,
        term: u64,
        commit: usize,
    },
    Overwrite {
        back: usize,
        entries: usize,
        bytes: usize,
    },
    Vote {
        member: u64,
    },
    Sync,
    Truncate {
        share: u64,
    },
    Reset {
        ahead: u64,
    },
    Prepare,
    Read {
        from: usize,
        to: usize,
        bytes: u64,
    },
    /// The process is killed.
    Reopen,
    /// The machine loses power.
    PowerLoss {
        seed: u64,
        percent: u64,
    },
    BackgroundWrite {
        seed: u64,
    },
    FailSync {
        after: u64,
    },
    FailWrite {
        after: u64,
    },
    FullDisk,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = prop_oneof![0..40_usize, 0..1500_usize];
    let entries = prop_oneof![1..4_usize, 1..12_usize];
    let step = prop_oneof![
        12 => (entries, bytes, 0..2_u64, 0..10_usize)
            .prop_map(|(entries, bytes, term, commit)| Step::Append { entries, bytes, term,
                                                                     commit }),
        3 => (1..20_usize, 1..4_usize, 0..200_usize)
            .prop_map(|(back, entries, bytes)| Step::Overwrite { back, entries, bytes }),
        2 => (1..4_u64).prop_map(|member| Step::Vote { member }),
        8 => Just(Step::Sync),
        2 => (0..100_u64).prop_map(|share| Step::Truncate { share }),
        1 => (0..9_u64).prop_map(|ahead| Step::Reset { ahead }),
        1 => Just(Step::Prepare),
        3 => (0..50_usize, 0..50_usize, 0..5000_u64)
            .prop_map(|(from, to, bytes)| Step::Read { from, to, bytes }),
        1 => Just(Step::Reopen),
        2 => (any::<u64>(), prop_oneof![Just(0_u64), Just(50), Just(90), Just(100)])
            .prop_map(|(seed, percent)| Step::PowerLoss { seed, percent }),
        2 => any::<u64>().prop_map(|seed| Step::BackgroundWrite { seed }),
        1 => (0..5_u64).prop_map(|after| Step::FailSync { after }),
        1 => (0..5_u64).prop_map(|after| Step::FailWrite { after }),
        1 => Just(Step::FullDisk),
    ];
    proptest::collection::vec(step, 1..80)
}

impl Model {
    fn new() -> Self {
        let disk = MemoryDisk::new();
        let (log, recovered) = Log::open(disk.clone(), small_options()).unwrap();
        assert!(recovered.created);
        Self {
            disk,
            log,
            seed: 1,
            versions: vec![Content::default()],
            data: 0,
        }
    }

    fn now(&self) -> &Content {
        self.versions.last().expect("there is always one")
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Append {
                entries,
                bytes,
                term,
                commit,
            } => self.extend(entries, bytes, term, commit),
            Step::Overwrite {
                back,
                entries,
                bytes,
            } => self.overwrite(back, entries, bytes),
            Step::Vote { member } => self.vote(MemberId(member)),
            Step::Sync => {
                let synced = self.log.sync();
                self.after(synced.map(|()| true));
            }
            Step::Truncate { share } => self.truncate(share),
            Step::Reset { ahead } => self.reset(ahead),
            Step::Prepare => {
                let prepared = self.log.prepare();
                self.after(prepared.map(|()| false));
            }
            Step::Read { from, to, bytes } => self.read(from, to, bytes),
            Step::Reopen => self.reopen(),
            Step::PowerLoss { seed, percent } => {
                let mut random = Random::new(seed);
                self.disk.power_loss(|| random.chance(percent));
                self.reopen();
            }
            Step::BackgroundWrite { seed } => {
                let mut random = Random::new(seed);
                self.disk.background_write(|| random.chance(50));
            }
            Step::FailSync { after } => self.disk.fail_sync_after(after),
            Step::FailWrite { after } => self.disk.fail_write_after(after),
            Step::FullDisk => self.disk.set_space_bytes(Some(0)),
        }
    }

    /// Appends behind the last entry, in this or a later term.
    fn extend(&mut self, entries: usize, bytes: usize, later: u64, commit: usize) {
        let mut hard_state = self.now().hard_state;
        hard_state.term = Term(hard_state.term.0.max(1) + later);
        if later > 0 {
            hard_state.vote = MemberId(0);
        }
        let first = self.now().last().index.next();
        let entries = self.entries(first, hard_state.term, entries, bytes);
        let last = first.0 + entries.len() as u64 - 1;
        let commit_most = last.saturating_sub(commit as u64);
        hard_state.commit = hard_state.commit.max(Index(commit_most.min(last)));
        self.append(&Batch {
            hard_state: Some(hard_state),
            entries,
        });
    }

    /// Replaces the last entries that are not committed, in the next term.
    fn overwrite(&mut self, back: usize, entries: usize, bytes: usize) {
        let Content {
            hard_state, base, ..
        } = *self.now();
        let least = base.index.max(hard_state.commit).next();
        let last = self.now().last().index;
        let first = Index((last.0 + 1).saturating_sub(back as u64)).max(least);
        let term = hard_state.term.0.max(1) + 1;
        let hard_state = HardState {
            term: Term(term),
            vote: MemberId(0),
            ..hard_state
        };
        let entries = self.entries(first, hard_state.term, entries, bytes);
        self.append(&Batch {
            hard_state: Some(hard_state),
            entries,
        });
    }

    fn vote(&mut self, member: MemberId) {
        let HardState { term, commit, .. } = self.now().hard_state;
        let vote = HardState {
            term: Term(term.0 + 1),
            vote: member,
            commit,
        };
        self.append(&Batch {
            hard_state: Some(vote),
            entries: Vec::new(),
        });
    }

    fn entries(&mut self, first: Index, term: Term, count: usize, bytes: usize) -> Vec<Entry> {
        let entry = |index| {
            self.data = self.data.wrapping_add(1);
            Entry {
                index: Index(index),
                term,
                kind: EntryKind::Command,
                context: vec![1; usize::from(self.data % 3)].into(),
                data: vec![self.data; bytes].into(),
            }
        };
        (first.0..first.0 + count as u64).map(entry).collect()
    }

    fn append(&mut self, batch: &Batch) {
        let before = self.now().clone();
        let versions = self.versions.len();
        let mut next = before.clone();
        for entry in &batch.entries {
            next.append(entry);
            if let Some(hard_state) = batch.hard_state {
                let commit = hard_state.commit.min(entry.index);
                next.hard_state = HardState {
                    commit,
                    ..hard_state
                };
            }
            self.versions.push(next.clone());
        }
        if batch.entries.is_empty() {
            next.hard_state = batch.hard_state.unwrap();
            self.versions.push(next);
        }
        match self.log.append(batch) {
            Err(LogError::NoSpace(_)) => {
                self.versions.truncate(versions);
                self.assert_is(&before);
                self.disk.set_space_bytes(None);
            }
            result => self.after(result.map(|()| false)),
        }
    }

    fn truncate(&mut self, share: u64) {
        let first = self.now().base.index.next();
        let last = self.now().last().index;
        let upto = Index(first.0 + (last.0 + 1 - first.0) * share / 100).min(last);
        let truncated = self.log.truncate_prefix(upto);
        if truncated.is_err() {
            // Any part of the truncation may have happened.
            for first in first.0..=upto.0 {
                let mut version = self.now().clone();
                version.cut(Index(first + 1));
                self.versions.push(version);
            }
        }
        self.after(truncated.map(|()| true));
        let first = self.log.reader().first_index();
        assert!(first <= upto.next());
        self.versions.last_mut().unwrap().cut(first);
        self.assert_is(&self.now().clone());
    }

    fn reset(&mut self, ahead: u64) {
        let mut next = self.now().clone();
        next.base = Position {
            // A snapshot has at least one entry.
            index: Index((next.last().index.0 + ahead).max(1)),
            term: Term(next.last().term.0.max(1)),
        };
        next.entries.clear();
        next.hard_state.commit = next.base.index;
        let (base, hard_state) = (next.base, next.hard_state);
        match self.log.reset(base, hard_state) {
            Err(LogError::NoSpace(_)) => self.disk.set_space_bytes(None),
            result => {
                self.versions.push(next);
                self.after(result.map(|()| false));
            }
        }
    }

    fn read(&self, from: usize, to: usize, bytes: u64) {
        let (entries, base) = (&self.now().entries, self.now().base.index);
        let (from, to) = (from.min(entries.len()), to.min(entries.len()));
        let index = |at: usize| Index(base.0 + 1 + at as u64);
        let read = self
            .log
            .reader()
            .entries(index(from), index(to), bytes)
            .unwrap();
        if from >= to {
            return assert_eq!(read, []);
        }
        assert!(!read.is_empty());
        assert_eq!(read, entries[from..from + read.len()]);
        let all: usize = read.iter().map(|entry| entry.data.len()).sum();
        assert!(read.len() == 1 || all as u64 <= bytes);
    }

    /// `Ok(true)` means that everything is durable now. After a failure the process restarts.
    fn after(&mut self, result: Result<bool, LogError>) {
        match result {
            Ok(true) => drop(self.versions.drain(..self.versions.len() - 1)),
            Ok(false) => {}
            Err(LogError::NoSpace(_)) => self.disk.set_space_bytes(None),
            Err(error) => {
                assert!(!error.is_usable(), "{error}");
                assert!(matches!(self.log.sync(), Err(LogError::Poisoned(_))));
                self.reopen();
            }
        }
    }

    fn reopen(&mut self) {
        // A failure that is still armed would hit the opening, which has tests of its own.
        self.disk.fail_sync_after(u64::MAX);
        self.disk.fail_write_after(u64::MAX);
        self.disk.set_space_bytes(None);
        self.seed += 1;
        let mut options = small_options();
        options.epoch_seed = self.seed;
        let (log, recovered) = Log::open(self.disk.clone(), options).unwrap();
        self.log = log;
        let found = self.content();
        let position = self.versions.iter().rposition(|version| *version == found);
        assert!(
            position.is_some(),
            "found {found:?}\nexpected one of {:#?}",
            self.versions
        );
        assert_eq!(
            (recovered.base, recovered.hard_state),
            (found.base, found.hard_state)
        );
        self.versions = vec![found];
    }

    fn content(&self) -> Content {
        let reader = self.log.reader();
        let entries = reader
            .entries(reader.first_index(), reader.last_index().next(), u64::MAX)
            .unwrap();
        let content = Content {
            hard_state: self.log.hard_state(),
            base: reader.base(),
            entries,
        };
        assert_eq!(reader.last(), content.last());
        for entry in &content.entries {
            assert_eq!(reader.term(entry.index), Some(entry.term));
        }
        content
    }

    fn assert_is(&self, content: &Content) {
        assert_eq!(&self.content(), content);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, // A failure becomes a test of its own.
        ..ProptestConfig::default()
    })]

    #[test]
    fn everything_synced_is_recovered_and_nothing_else(steps in steps()) {
        let mut model = Model::new();
        for step in steps {
            model.step(step);
        }
        model.assert_is(&model.now().clone());
        model.reopen();
    }
}
