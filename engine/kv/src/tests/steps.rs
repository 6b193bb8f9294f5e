//! The end of a step: its effects are bounded, and its place is not visible.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use dengine_types::{Entry, Index, Revision};

use super::{command_entry, delete_keys};
use crate::machine::STEP_BYTES_MAX;
use crate::store::{MemoryStore, Scope, Store, StoreError, WriteBatch};
use crate::{Applied, Command, KeyRange, Outcome, Put, RANGE_DELETE_BYTES_MAX, StateMachine};

const KEY_BYTES: usize = 32 << 10;
/// This many keys are 2 MiB.
const KEYS_PER_DELETE: u64 = 64;
const DELETES: u64 = 10;

/// Records the size of each write.
#[derive(Clone, Default)]
struct Measured {
    store: MemoryStore,
    writes: Arc<Mutex<Vec<usize>>>,
}

impl Measured {
    fn take_writes(&self) -> Vec<usize> {
        std::mem::take(&mut self.writes.lock().expect("no panic"))
    }
}

impl Store for Measured {
    type Cursor<'a> = <MemoryStore as Store>::Cursor<'a>;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.store.get(key)
    }

    fn cursor(&self, scope: Scope) -> Self::Cursor<'_> {
        self.store.cursor(scope)
    }

    fn write(&self, batch: &WriteBatch) -> Result<(), StoreError> {
        let mut writes = self.writes.lock().expect("no panic");
        writes.push(batch.size_bytes());
        self.store.write(batch)
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.store.flush()
    }

    fn approximate_bytes(&self) -> u64 {
        self.store.approximate_bytes()
    }
}

/// A long key of the range `range`.
fn key(range: u64, number: u64) -> Bytes {
    let mut key = format!("{range:04}/{number:04}/").into_bytes();
    key.resize(KEY_BYTES, b'k');
    Bytes::from(key)
}

fn put(key: Bytes, value: usize, prev_kv: bool) -> Command {
    Command::Put(Put {
        prev_kv,
        ..Put::new(key, Bytes::from(vec![b'v'; value]))
    })
}

/// Puts that fill the ranges, then deletes that empty them.
fn entries() -> (Vec<Entry>, Vec<Entry>) {
    let keys = (0..DELETES).flat_map(|range| (0..KEYS_PER_DELETE).map(move |it| key(range, it)));
    let puts = (1..).zip(keys);
    let puts: Vec<_> = puts
        .map(|(index, key)| command_entry(index, put(key, 0, false)))
        .collect();
    let first = puts.len() as u64 + 1;
    let deletes = (0..DELETES).map(|range| {
        let mut command = delete_keys(KeyRange::Between {
            start: key(range, 0),
            end: key(range + 1, 0),
        });
        if let Command::Delete { prev_kv, .. } = &mut command {
            *prev_kv = false;
        }
        command_entry(first + range, command)
    });
    let deletes = deletes.collect();
    (puts, deletes)
}

/// Applies entries, `at_once` in one call.
fn apply(machine: &mut StateMachine<Measured>, entries: &[Entry], at_once: usize) -> Vec<Applied> {
    let parts = entries.chunks(at_once);
    let applied = parts.map(|part| machine.apply(part).expect("apply"));
    applied.flatten().collect()
}

#[test]
fn range_deletes_in_one_call_are_written_in_bounded_steps() {
    let (puts, deletes) = entries();
    let store = Measured::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    let mut found = apply(&mut machine, &puts, usize::MAX);
    store.take_writes();
    found.extend(apply(&mut machine, &deletes, usize::MAX));
    let writes = store.take_writes();
    assert!((3..DELETES as usize).contains(&writes.len()), "{writes:?}");
    // Each key is in two records of the effects of a command.
    let bound = STEP_BYTES_MAX + 2 * RANGE_DELETE_BYTES_MAX;
    assert!(writes.iter().all(|bytes| *bytes <= bound), "{writes:?}");
    let last = Index((puts.len() + deletes.len()) as u64);
    assert_eq!(machine.applied().0, last);
    assert_eq!(machine.revision(), Revision(last.0 + 1));
    let hash = machine.reader().logical_hash().expect("hash");

    let store = Measured::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    let mut one_by_one = apply(&mut machine, &puts, 7);
    one_by_one.extend(apply(&mut machine, &deletes, 1));
    assert_eq!(found, one_by_one);
    assert_eq!(machine.reader().logical_hash().expect("hash"), hash);
    let Outcome::Delete { deleted, .. } = &found[puts.len()].outcome else {
        panic!("{:?}", found[puts.len()].outcome);
    };
    assert_eq!(*deleted, KEYS_PER_DELETE);
}

#[test]
fn outcomes_count_towards_a_step_as_effects_do() {
    let store = Measured::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    let value = STEP_BYTES_MAX / 8;
    let entries: Vec<_> = (1..=8)
        .map(|index| command_entry(index, put(Bytes::from("k"), value, true)))
        .collect();
    let first = machine.apply_step(&entries).expect("apply");
    assert!((4..=5).contains(&first.len()), "{}", first.len());
    assert_eq!(machine.applied().0, Index(first.len() as u64));
    let second = machine.apply_step(&entries).expect("apply");
    assert_eq!(second[0].index, Index(first.len() as u64 + 1));
    assert_eq!(first.len() + second.len(), 8);
    assert_eq!(machine.apply_step(&entries).expect("apply"), []);
}
