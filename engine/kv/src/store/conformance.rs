//! The conformance suite of a [`Store`]: `Suite::new(make).test_all()`.

use std::ops::Range;

use dengine_types::Revision;

use super::{Cursor, MemoryStore, Operation, Scope, Store, WriteBatch};
use crate::layout::{Stamp, put_change_key, put_data_key};

/// The rules, run against stores that `make` returns.
#[derive(Debug)]
pub struct Suite<F> {
    make: F,
}

type Record = (Vec<u8>, Vec<u8>);

impl<F, S> Suite<F>
where
    F: Fn() -> S,
    S: Store,
{
    /// `make` returns a new, empty store each time.
    pub fn new(make: F) -> Self {
        Self { make }
    }

    /// Runs every rule.
    ///
    /// # Panics
    ///
    /// If the store breaks one.
    pub fn test_all(&self) {
        self.is_empty_at_first();
        self.returns_what_was_written();
        self.later_writes_of_a_batch_win();
        self.deletes_changes_between_two_places();
        self.takes_empty_batches_and_values();
        self.iterates_in_byte_order();
        self.keeps_cursors_inside_their_range();
        self.finds_versions_of_one_key_only();
        self.cursors_do_not_see_later_writes();
        self.cursors_outlive_a_flush();
        self.shows_batches_whole();
        self.takes_large_records();
        self.behaves_like_the_memory_store();
    }

    fn is_empty_at_first(&self) {
        let store = (self.make)();
        assert_eq!(store.get(b"key").expect("get"), None);
        assert_eq!(records(&store, everything()), []);
    }

    fn returns_what_was_written(&self) {
        let store = (self.make)();
        write(&store, &[put(b"b", b"2"), put(b"a", b"1")]);
        write(&store, &[put(b"a", b"3"), delete(b"b"), delete(b"absent")]);
        assert_eq!(store.get(b"a").expect("get").as_deref(), Some(&b"3"[..]));
        assert_eq!(store.get(b"b").expect("get"), None);
        store.flush().expect("flush");
        assert_eq!(store.get(b"a").expect("get").as_deref(), Some(&b"3"[..]));
        assert_eq!(records(&store, everything()), [record(b"a", b"3")]);
    }

    fn later_writes_of_a_batch_win(&self) {
        let store = (self.make)();
        write(&store, &[put(b"a", b"1"), delete(b"a"), put(b"a", b"2")]);
        write(&store, &[put(b"b", b"1"), delete(b"b")]);
        assert_eq!(records(&store, everything()), [record(b"a", b"2")]);
    }

    fn deletes_changes_between_two_places(&self) {
        let store = (self.make)();
        let neighbors = [data_key(b"", 1), b"bz".to_vec()];
        for key in &neighbors {
            write(&store, &[put(key, b"")]);
        }
        let mut changes = WriteBatch::default();
        for revision in 1..=6 {
            changes.put(&change_key(revision), b"old");
        }
        store.write(&changes).expect("write");
        store.flush().expect("flush");
        let mut cursor = store.cursor(Scope::Between(everything()));
        let mut batch = WriteBatch::default();
        batch.put(&change_key(2), b"deleted with the others");
        batch.delete_changes(stamp(2)..stamp(5));
        batch.put(&change_key(3), b"written later");
        store.write(&batch).expect("write");
        let left = [
            (1, &b"old"[..]),
            (3, b"written later"),
            (5, b"old"),
            (6, b"old"),
        ];
        let left = left.map(|(revision, value)| record(&change_key(revision), value));
        let check = || {
            let range = change_key(0)..change_key(9);
            assert_eq!(records(&store, range), left);
            assert_eq!(
                records(&store, everything()).len(),
                left.len() + neighbors.len()
            );
            for revision in [2, 4] {
                assert_eq!(store.get(&change_key(revision)).expect("get"), None);
            }
        };
        check();
        store.flush().expect("flush");
        check();
        // Whoever began before sees what was there.
        assert_eq!(drain(&mut cursor, &[]).len(), 6 + neighbors.len());
        let mut batch = WriteBatch::default();
        batch.delete_changes(stamp(0)..stamp(0));
        store.write(&batch).expect("write");
        check();
    }

    fn takes_empty_batches_and_values(&self) {
        let store = (self.make)();
        write(&store, &[]);
        write(&store, &[put(b"a", b"")]);
        assert_eq!(store.get(b"a").expect("get").as_deref(), Some(&b""[..]));
    }

    fn iterates_in_byte_order(&self) {
        let store = (self.make)();
        let mut keys: Vec<Vec<u8>> = vec![
            vec![0],
            vec![0, 0],
            vec![0, 0xff],
            vec![1],
            b"a".to_vec(),
            b"a\0".to_vec(),
            b"aa".to_vec(),
            vec![0x7f],
            vec![0x80],
            vec![0xff],
            vec![0xff, 0xff],
        ];
        // Half of them flushed, half of them not, in an order other than theirs.
        for (at, key) in keys.iter().rev().enumerate() {
            write(&store, &[put(key, b"")]);
            if at == keys.len() / 2 {
                store.flush().expect("flush");
            }
        }
        keys.sort();
        let found: Vec<_> = records(&store, everything())
            .into_iter()
            .map(|(key, _)| key)
            .collect();
        assert_eq!(found, keys);
    }

    fn keeps_cursors_inside_their_range(&self) {
        let store = (self.make)();
        for key in [b"a", b"b", b"c", b"d"] {
            write(&store, &[put(key, key)]);
        }
        let inside = [record(b"b", b"b"), record(b"c", b"c")];
        assert_eq!(records(&store, b"b".to_vec()..b"d".to_vec()), inside);
        assert_eq!(records(&store, b"aa".to_vec()..b"ca".to_vec()), inside);
        assert_eq!(records(&store, b"e".to_vec()..b"z".to_vec()), []);
        let scope = Scope::Between(b"b".to_vec()..b"d".to_vec());
        let mut of_one_pass = store.cursor_of_one_pass(scope.clone());
        let mut cursor = store.cursor(scope);
        cursor.seek(b"d").expect("seek");
        assert_eq!(cursor.record(), None);
        cursor.seek(b"bb").expect("seek back");
        assert_eq!(cursor.record(), Some((&b"c"[..], &b"c"[..])));
        assert_eq!(drain(&mut of_one_pass, b"b"), inside);
    }

    fn finds_versions_of_one_key_only(&self) {
        let store = (self.make)();
        for (at, key) in [&b"k"[..], b"k\0", b"ka", b"l"].iter().enumerate() {
            for revision in [2, 4, 6] {
                write(&store, &[put(&data_key(key, revision), &[at as u8])]);
            }
            if at == 1 {
                store.flush().expect("flush");
            }
        }
        let mut cursor = store.cursor(Scope::OneKey);
        let cases: [(&[u8], u64, Option<u64>); 7] = [
            (b"k", 7, Some(6)),
            (b"k", 5, Some(4)),
            (b"k", 1, None),
            (b"k\0", 4, Some(4)),
            (b"kb", 9, None),
            (b"l", 1, None),
            (b"l", 2, Some(2)),
        ];
        for (key, at, expected) in cases {
            let prefix = &data_key(key, 0)[..data_key(key, 0).len() - 12];
            cursor.seek(&data_key(key, at)).expect("seek");
            let found = cursor
                .record()
                .filter(|(found, _)| found.starts_with(prefix));
            let expected = expected.map(|revision| data_key(key, revision));
            assert_eq!(found.map(|(key, _)| key.to_vec()), expected);
            assert_eq!(
                cursor.record().is_some(),
                expected.is_some(),
                "the versions of another key must not show"
            );
        }
        cursor.seek(&data_key(b"k", 5)).expect("seek");
        cursor.next().expect("next");
        let key = cursor.record().map(|(key, _)| key.to_vec());
        assert_eq!(key, Some(data_key(b"k", 2)));
        cursor.next().expect("next");
        assert_eq!(cursor.record(), None);
    }

    fn cursors_do_not_see_later_writes(&self) {
        let store = (self.make)();
        write(&store, &[put(b"a", b"1"), put(b"c", b"1")]);
        let mut cursor = store.cursor(Scope::Between(everything()));
        write(&store, &[put(b"a", b"2"), put(b"b", b"2"), delete(b"c")]);
        assert_eq!(
            drain(&mut cursor, &[]),
            [record(b"a", b"1"), record(b"c", b"1")]
        );
        assert_eq!(
            records(&store, everything()),
            [record(b"a", b"2"), record(b"b", b"2")]
        );
    }

    fn cursors_outlive_a_flush(&self) {
        let store = (self.make)();
        write(&store, &[put(b"a", b"1"), put(b"b", b"1")]);
        let mut cursor = store.cursor(Scope::Between(everything()));
        cursor.seek(b"a").expect("seek");
        store.flush().expect("flush");
        write(&store, &[delete(b"b")]);
        store.flush().expect("flush");
        cursor.next().expect("next");
        assert_eq!(cursor.record(), Some((&b"b"[..], &b"1"[..])));
    }

    fn shows_batches_whole(&self) {
        const BATCHES: u32 = 500;
        let store = (self.make)();
        write(&store, &[put(b"a", &[0; 4]), put(b"z", &[0; 4])]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..=BATCHES {
                    let value = number.to_be_bytes();
                    write(&store, &[put(b"a", &value), put(b"z", &value)]);
                }
            });
            loop {
                let found = records(&store, everything());
                assert_eq!(found.len(), 2);
                assert_eq!(found[0].1, found[1].1, "half of a batch showed");
                if found[0].1 == BATCHES.to_be_bytes() {
                    break;
                }
            }
        });
    }

    fn takes_large_records(&self) {
        let store = (self.make)();
        let (key, value) = (vec![7; 64 << 10], vec![9; 4 << 20]);
        write(&store, &[put(&key, &value)]);
        store.flush().expect("flush");
        assert_eq!(store.get(&key).expect("get").as_deref(), Some(&value[..]));
        assert!(store.approximate_bytes() > 0);
    }

    /// Random writes, flushes and reads, all of which must have the same result on a
    /// [`MemoryStore`].
    fn behaves_like_the_memory_store(&self) {
        for seed in 1..=8 {
            let (store, model) = ((self.make)(), MemoryStore::default());
            let mut random = Random(seed);
            for step in 0..200 {
                match random.below(8) {
                    0 => store.flush().expect("flush"),
                    1..=3 => {
                        let batch = random.batch();
                        store.write(&batch).expect("write");
                        model.write(&batch).expect("write");
                    }
                    4 => {
                        let key = random.key();
                        let found = store.get(&key).expect("get");
                        assert_eq!(Ok(found), model.get(&key), "seed {seed}, step {step}");
                    }
                    5 => {
                        let (one, other) = (random.key(), random.key());
                        let range = one.clone().min(other.clone())..one.max(other);
                        let found = records(&store, range.clone());
                        assert_eq!(found, records(&model, range), "seed {seed}, step {step}");
                    }
                    _ => {
                        let from = random.key();
                        let found = drain(&mut store.cursor(Scope::OneKey), &from);
                        let expected = drain(&mut model.cursor(Scope::OneKey), &from);
                        assert_eq!(found, expected, "seed {seed}, step {step}");
                    }
                }
            }
        }
    }
}

/// A reproducible generator (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// One of few changes, or versions of one of few keys, some of which are prefixes of others.
    fn key(&mut self) -> Vec<u8> {
        if self.below(4) == 0 {
            return change_key(self.below(9));
        }
        let user_key = &b"k\0k\0\xff\0"[..self.below(7) as usize];
        data_key(user_key, self.below(6))
    }

    fn batch(&mut self) -> WriteBatch {
        let mut batch = WriteBatch::default();
        for _ in 0..self.below(8) {
            let key = self.key();
            match self.below(8) {
                0 => {
                    let (one, other) = (self.below(9), self.below(9));
                    batch.delete_changes(stamp(one.min(other))..stamp(one.max(other)));
                }
                1..=2 => batch.delete(&key),
                size => batch.put(&key, &self.0.to_le_bytes()[..size as usize]),
            }
        }
        batch
    }
}

fn put<'a>(key: &'a [u8], value: &'a [u8]) -> Operation<'a> {
    Operation::Put { key, value }
}

fn delete(key: &[u8]) -> Operation<'_> {
    Operation::Delete { key }
}

fn record(key: &[u8], value: &[u8]) -> Record {
    (key.to_vec(), value.to_vec())
}

fn everything() -> Range<Vec<u8>> {
    Vec::new()..vec![0xff; 16]
}

fn data_key(user_key: &[u8], revision: u64) -> Vec<u8> {
    let mut key = Vec::new();
    put_data_key(&mut key, user_key, Revision(revision));
    key
}

fn stamp(revision: u64) -> Stamp {
    Stamp::start_of(Revision(revision))
}

fn change_key(revision: u64) -> Vec<u8> {
    let mut key = Vec::new();
    put_change_key(&mut key, stamp(revision));
    key
}

fn write(store: &impl Store, operations: &[Operation<'_>]) {
    let mut batch = WriteBatch::default();
    for operation in operations {
        match operation {
            Operation::Put { key, value } => batch.put(key, value),
            Operation::Delete { key } => batch.delete(key),
            Operation::DeleteChanges { .. } => unreachable!("no test writes so"),
        }
    }
    store.write(&batch).expect("write");
}

fn records(store: &impl Store, range: Range<Vec<u8>>) -> Vec<Record> {
    let start = range.start.clone();
    drain(&mut store.cursor(Scope::Between(range)), &start)
}

fn drain(cursor: &mut impl Cursor, from: &[u8]) -> Vec<Record> {
    let mut found = Vec::new();
    cursor.seek(from).expect("seek");
    while let Some((key, value)) = cursor.record() {
        found.push(record(key, value));
        cursor.next().expect("next");
    }
    found
}
