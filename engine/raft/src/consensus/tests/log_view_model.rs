//! [`LogView`] against a plain vector: whatever was appended, replaced, synced and evicted, it
//! reads the same.

use std::collections::VecDeque;

use bytes::Bytes;
use dengine_types::{Entry, EntryKind, HardState, Index, Term};
use proptest::prelude::*;
use raft::{GetEntriesContext, Storage};

use super::member::MemoryLog;
use crate::consensus::log_view::{LogView, entry_bytes};

#[derive(Clone, Debug)]
enum Step {
    /// Appends entries after going back by so many, in a later term.
    Append { back: u64, sizes: Vec<usize> },
    /// The disk finishes its oldest write.
    Sync,
    /// Reads a range.
    Read { low: u64, high: u64, max_bytes: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let sizes = prop::collection::vec(0..200_usize, 1..6);
    let max_bytes = prop_oneof![Just(0), Just(u64::MAX), 0..1000_u64];
    prop_oneof![
        (prop_oneof![3 => Just(0), 1 => 0..8_u64], sizes)
            .prop_map(|(back, sizes)| Step::Append { back, sizes }),
        Just(Step::Sync),
        (0..40_u64, 0..40_u64, max_bytes).prop_map(|(low, high, max_bytes)| Step::Read {
            low,
            high,
            max_bytes
        }),
    ]
}

struct Model {
    view: LogView<MemoryLog>,
    disk: MemoryLog,
    writes: VecDeque<Vec<Entry>>,
    log: Vec<Entry>,
    term: u64,
}

impl Model {
    fn new(past: usize, cache_bytes: u64) -> Self {
        let disk = MemoryLog::default();
        let log: Vec<_> = (1..=past as u64).map(|index| entry(index, 1, 50)).collect();
        disk.write(&log);
        let view = LogView::new(
            disk.clone(),
            HardState::default(),
            vec![],
            vec![],
            cache_bytes,
        );
        Self {
            view,
            disk,
            writes: VecDeque::new(),
            log,
            term: 1,
        }
    }

    fn append(&mut self, back: u64, sizes: &[usize]) {
        self.term += u64::from(back > 0);
        let kept = self.log.len().saturating_sub(back as usize);
        self.log.truncate(kept);
        let entries: Vec<_> = sizes
            .iter()
            .zip(kept as u64 + 1..)
            .map(|(size, index)| entry(index, self.term, *size))
            .collect();
        self.log.extend_from_slice(&entries);
        self.view.append(&entries);
        self.writes.push_back(entries);
    }

    /// Evicts what the crate would take for persisted: what no write that is still out replaces.
    fn sync(&mut self) {
        let Some(entries) = self.writes.pop_front() else {
            return;
        };
        self.disk.write(&entries);
        let firsts = self.writes.iter().map(|write| write[0].index.0 - 1);
        let persisted = firsts.fold(entries.last().unwrap().index.0, u64::min);
        self.view.evict(persisted);
    }

    fn check_read(&self, low: u64, high: u64, max_bytes: u64) {
        let high = high.clamp(1, self.log.len() as u64 + 1);
        let low = low.clamp(1, high);
        let read = self
            .view
            .entries(low, high, max_bytes, GetEntriesContext::empty(false))
            .unwrap();
        let all = &self.log[low as usize - 1..high as usize - 1];
        let terms: Vec<_> = read
            .iter()
            .map(|e| (e.index, e.term, e.data.len()))
            .collect();
        let expected = all.iter().map(|e| (e.index.0, e.term.0, e.data.len()));
        let expected: Vec<_> = expected.take(read.len()).collect();
        assert_eq!(terms, expected);
        let bytes: u64 = all[..read.len()].iter().map(entry_bytes).sum();
        assert!(
            read.len() <= 1 || bytes <= max_bytes,
            "{bytes} of {max_bytes} bytes"
        );
        assert!(!read.is_empty() || all.is_empty());
        assert!(
            max_bytes < u64::MAX || read.len() == all.len(),
            "without a limit, all of them"
        );
    }

    fn check(&self) {
        assert_eq!(self.view.last_index().unwrap(), self.log.len() as u64);
        assert_eq!(self.view.first_index().unwrap(), 1);
        for entry in &self.log {
            assert_eq!(self.view.term(entry.index.0).unwrap(), entry.term.0);
        }
        assert_eq!(self.view.term(0).unwrap(), 0);
        assert!(self.view.term(self.log.len() as u64 + 1).is_err());
    }
}

fn entry(index: u64, term: u64, size: usize) -> Entry {
    Entry {
        index: Index(index),
        term: Term(term),
        kind: EntryKind::Command,
        context: Bytes::new(),
        data: Bytes::from(vec![0; size]),
    }
}

proptest! {
    #[test]
    fn reads_what_was_appended(
        past in 0..10_usize,
        cache_bytes in prop_oneof![Just(0), Just(u64::MAX), 0..2000_u64],
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut model = Model::new(past, cache_bytes);
        for step in steps {
            match step {
                Step::Append { back, sizes } => model.append(back, &sizes),
                Step::Sync => model.sync(),
                Step::Read { low, high, max_bytes } => model.check_read(low, high, max_bytes),
            }
            model.check();
        }
    }
}

#[test]
fn a_read_from_memory_has_as_many_bytes_as_are_asked_for() {
    let mut model = Model::new(0, u64::MAX);
    model.append(0, &[10, 10, 10]);
    let two = 2 * entry_bytes(&model.log[0]);
    let read = |max_bytes| {
        let context = GetEntriesContext::empty(false);
        model.view.entries(1, 4, max_bytes, context).unwrap().len()
    };
    assert_eq!([two - 1, two, two + 1].map(read), [1, 2, 2]);
}
