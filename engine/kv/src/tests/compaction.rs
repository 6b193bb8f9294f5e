//! Compaction, the collector and the logical hash: one rule at a time, by example.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use dengine_types::Revision;

use super::{
    Machine, all_collected, apply, bytes, compact, delete, everything, machine, put, run, show,
};
use crate::store::{Cursor, MemoryStore, Scope, WriteBatch};
use crate::{
    ChangesQuery, Collected, LogicalHash, Outcome, RangeQuery, ReadError, Reader, Refusal,
    StateMachine, Store, StoreError,
};

fn hash<S: Store>(machine: &StateMachine<S>) -> LogicalHash {
    machine.reader().logical_hash().expect("hash")
}

fn counts(store: &MemoryStore) -> (usize, usize) {
    let count = |space| {
        store
            .dump()
            .iter()
            .filter(|(key, _)| key[0] == space)
            .count()
    };
    (count(b'd'), count(b'c'))
}

fn at(machine: &Machine, revision: u64) -> Result<Option<Bytes>, ReadError> {
    let found = machine.reader().get(&bytes("a"), Some(Revision(revision)));
    found.map(|(_, kv)| kv.map(|kv| kv.value))
}

#[test]
fn a_compaction_sets_the_first_revision_of_history() {
    let mut machine = machine();
    run(&mut machine, [put("a", "1"), put("a", "2"), put("a", "3")]);
    let outcome = apply(&mut machine, compact(3));
    let revision = Revision(4);
    assert_eq!(outcome, Outcome::Compact { revision });
    assert_eq!(machine.reader().compact_revision(), Revision(3));
    assert_eq!(machine.revision(), Revision(4), "it takes no revision");
    assert_eq!(
        at(&machine, 3),
        Ok(Some(bytes("2"))),
        "the first one is legal"
    );
    assert_eq!(
        at(&machine, 2),
        Err(ReadError::Compacted {
            requested: Revision(2),
            compacted: Revision(3)
        })
    );
}

#[test]
fn compactions_of_the_future_and_of_the_past_are_refused() {
    let mut machine = machine();
    run(&mut machine, [put("a", "1"), put("a", "2"), compact(3)]);
    for past in [0, 1, 3] {
        let refusal = Refusal::Compacted {
            requested: Revision(past),
            compacted: Revision(3),
        };
        assert_eq!(
            apply(&mut machine, compact(past)),
            Outcome::Refused(refusal)
        );
    }
    let refusal = Refusal::Future {
        requested: Revision(4),
        current: Revision(3),
    };
    assert_eq!(apply(&mut machine, compact(4)), Outcome::Refused(refusal));
}

#[test]
fn a_compaction_survives_a_restart() {
    let store = MemoryStore::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    run(&mut machine, [put("a", "1"), put("a", "2"), compact(3)]);
    drop(machine);
    let machine = StateMachine::open(store).expect("open again");
    assert!(matches!(at(&machine, 2), Err(ReadError::Compacted { .. })));
}

#[test]
fn the_collector_removes_what_is_no_longer_readable() {
    let store = MemoryStore::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    run(&mut machine, [put("a", "1"), put("a", "2"), put("a", "3")]);
    run(&mut machine, [put("b", "1"), delete("b"), put("c", "1")]);
    assert_eq!(counts(&store), (6, 6));
    let mut collector = machine.collector().removing_together(1);
    let nothing = Collected {
        removed: 0,
        done: true,
    };
    assert_eq!(collector.step(100), Ok(nothing), "nothing is compacted");
    run(&mut machine, [compact(7)]);
    assert!(collector.step(100).expect("collect").done);
    // a at 4, c at 7, and the change at 7, where a watch may begin.
    assert_eq!(counts(&store), (2, 1));
    assert_eq!(collector.step(100), Ok(nothing));
    assert_eq!(show(&machine, "a", Some(7)), "3 2/4/3");
    assert_eq!(show(&machine, "b", Some(7)), "-");
    assert_eq!(show(&machine, "c", Some(7)), "1 7/7/1");
}

#[test]
fn a_tombstone_of_the_compact_revision_is_removed_by_the_next_one() {
    let store = MemoryStore::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    run(&mut machine, [put("a", "1"), delete("a"), compact(3)]);
    let mut collector = machine.collector().removing_together(1);
    assert!(collector.step(100).expect("collect").done);
    assert_eq!(
        counts(&store),
        (1, 1),
        "a watch from revision 3 must deliver it"
    );
    run(&mut machine, [put("b", "1"), compact(4)]);
    assert!(collector.step(100).expect("collect").done);
    assert_eq!(counts(&store), (1, 1), "only b is left");
}

#[test]
fn each_step_is_bounded_and_the_last_one_reports_it() {
    let store = MemoryStore::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    for number in 0..20 {
        run(&mut machine, [put("a", &number.to_string())]);
    }
    run(&mut machine, [compact(21)]);
    let mut collector = machine.collector().removing_together(1);
    let mut steps = 0;
    loop {
        steps += 1;
        let collected = collector.step(3).expect("collect");
        assert!(collected.removed <= 6, "a version and a change for each");
        if collected.done {
            break;
        }
    }
    assert_eq!(steps, 7);
    assert_eq!(counts(&store), (1, 1));
}

/// Each of many deletions in a row was a record more to merge and to step over.
#[test]
fn places_in_the_list_are_removed_together() {
    let store = MemoryStore::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    run(&mut machine, (2..=11).map(|it| put("a", &it.to_string())));
    run(&mut machine, [compact(9)]);
    let mut collector = machine.collector().removing_together(4);
    let mut step = || {
        let collected = collector.step(3).expect("collect");
        (collected.removed, collected.done, counts(&store))
    };
    // Versions that are obsolete, and then places: the first change replaced nothing.
    assert_eq!(step(), (2, false, (8, 10)));
    assert_eq!(step(), (3 + 6, false, (5, 4)));
    assert_eq!(step(), (2, true, (3, 4)), "the place at 8 is kept for now");
    run(&mut machine, [compact(11)]);
    assert_eq!(
        step(),
        (3, true, (1, 4)),
        "what 9 made obsolete is removed again"
    );
    run(&mut machine, [put("b", "1"), compact(12)]);
    assert_eq!(step(), (1 + 4, true, (2, 1)));
    run(&mut machine, [put("b", "2"), compact(13)]);
    assert!(step().1);
    assert_eq!(step(), (0, true, (2, 2)));
    all_collected(&store);
    assert_eq!(counts(&store), (2, 1), "another one finds what was kept");
}

#[test]
fn few_places_are_kept_however_many_there_were() {
    let store = MemoryStore::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    run(&mut machine, (0..3_000).map(|it| put("a", &it.to_string())));
    run(&mut machine, [compact(3_001)]);
    let mut collector = machine.collector();
    while !collector.step(100).expect("collect").done {}
    let (versions, places) = counts(&store);
    assert_eq!(versions, 1);
    assert!((2..=1_024).contains(&places), "{places}");
}

/// What earlier steps had left in the list went with the batch that failed.
#[test]
fn places_that_could_not_be_removed_are_removed_once_there_is_space() {
    let store = Interrupted::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    let entries = (2..=7).map(|at| super::command_entry(at - 1, put("a", &at.to_string())));
    let mut entries: Vec<_> = entries.collect();
    entries.push(super::command_entry(7, compact(7)));
    machine.apply(&entries).expect("apply");
    let mut collector = machine.collector().removing_together(4);
    let collected = collector.step(3).expect("collect");
    assert_eq!((collected.removed, counts(&store.store)), (2, (4, 6)));
    store.is_full.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        collector.step(3).expect_err("there is no space");
        assert_eq!(counts(&store.store), (4, 6));
    }
    store.is_full.store(false, Ordering::Relaxed);
    let collected = collector.step(3).expect("collect");
    assert_eq!((collected.removed, collected.done), (3 + 5, true));
    assert_eq!(counts(&store.store), (1, 1));
}

#[test]
fn a_compaction_between_steps_leaves_no_garbage() {
    let store = MemoryStore::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    run(&mut machine, ["a", "b", "c", "d"].map(|key| put(key, "1")));
    run(&mut machine, [super::delete_keys(everything()), compact(6)]);
    let mut collector = machine.collector().removing_together(1);
    for _ in 0..6 {
        assert!(!collector.step(1).expect("collect").done);
    }
    run(&mut machine, [put("z", "1"), compact(7)]);
    while !collector.step(1).expect("collect").done {}
    while !collector.step(1).expect("collect").done {}
    assert_eq!(counts(&store), (1, 1), "only z is left");
}

#[test]
fn a_new_collector_finds_the_rest() {
    let store = MemoryStore::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    run(
        &mut machine,
        ["1", "2", "3", "4", "5"].map(|it| put("a", it)),
    );
    run(&mut machine, [compact(6)]);
    let step = || {
        machine
            .collector()
            .removing_together(1)
            .step(2)
            .expect("collect")
    };
    assert!(!step().done);
    assert!(!step().done);
    all_collected(&store);
    assert_eq!(counts(&store), (1, 1));
}

#[test]
fn garbage_does_not_count_in_the_hash() {
    let mut machine = machine();
    run(&mut machine, [put("a", "1"), put("a", "2"), delete("b")]);
    run(
        &mut machine,
        [put("b", "1"), delete("b"), put("c", "1"), compact(6)],
    );
    let before = hash(&machine);
    let mut collector = machine.collector().removing_together(1);
    while !collector.step(1).expect("collect").done {
        assert_eq!(hash(&machine), before);
    }
    assert_eq!(hash(&machine), before);
}

#[test]
fn everything_else_counts_in_the_hash() {
    let base = || {
        let mut machine = machine();
        run(&mut machine, [put("a", "1"), put("b", "1")]);
        machine
    };
    let mut hashes = vec![hash(&base())];
    let open = crate::Command::OpenSession { ttl_ms: 1 };
    let commands = [
        put("a", "2"),
        put("a", "1"),
        delete("a"),
        compact(2),
        compact(3),
        open,
        super::put_for("a", "1", 1),
    ];
    for command in commands {
        let mut machine = base();
        run(&mut machine, [command]);
        hashes.push(hash(&machine));
    }
    for (at, one) in hashes.iter().enumerate() {
        assert!(!hashes[at + 1..].iter().any(|other| other.hash == one.hash));
    }
    assert_eq!(hash(&base()), hash(&base()));
}

/// A read at the compact revision returns it.
#[test]
fn a_value_older_than_the_compacted_revision_counts_in_the_hash() {
    let [one, other] = ["1", "2"].map(|value| {
        let mut machine = machine();
        run(&mut machine, [put("a", value), put("b", "1"), compact(2)]);
        hash(&machine)
    });
    assert_ne!(one.hash, other.hash);
}

/// A store that runs a hook at the creation of a cursor.
#[derive(Clone, Default)]
struct Interrupted {
    store: MemoryStore,
    /// What happens next, once.
    then: Arc<Mutex<Option<Interruption>>>,
    /// Writes that can wait for space fail.
    is_full: Arc<AtomicBool>,
}

type Interruption = Box<dyn FnOnce() + Send>;

impl Interrupted {
    fn before_the_next_cursor(&self, then: impl FnOnce() + Send + 'static) {
        *self.then.lock().expect("no panic") = Some(Box::new(then));
    }
}

impl Store for Interrupted {
    type Cursor<'a> = <MemoryStore as Store>::Cursor<'a>;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.store.get(key)
    }

    fn cursor(&self, scope: Scope) -> Self::Cursor<'_> {
        let then = self.then.lock().expect("no panic").take();
        if let Some(then) = then {
            then();
        }
        self.store.cursor(scope)
    }

    fn write(&self, batch: &WriteBatch) -> Result<(), StoreError> {
        self.store.write(batch)
    }

    fn write_if_room(&self, batch: &WriteBatch) -> Result<(), StoreError> {
        if self.is_full.load(Ordering::Relaxed) {
            return Err(StoreError::NoSpace {
                doing: "writing a batch",
                reason: "full".to_owned(),
            });
        }
        self.write(batch)
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.store.flush()
    }

    fn approximate_bytes(&self) -> u64 {
        self.store.approximate_bytes()
    }
}

/// It was skipped, and stayed permanently.
#[test]
fn garbage_that_could_not_be_removed_is_removed_once_there_is_space() {
    let store = Interrupted::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    let entries = [
        super::command_entry(1, put("a", "1")),
        super::command_entry(2, put("a", "2")),
        super::command_entry(3, compact(3)),
    ];
    machine.apply(&entries).expect("apply");
    let mut collector = machine.collector().removing_together(1);
    store.is_full.store(true, Ordering::Relaxed);
    let failed = collector.step(100).expect_err("there is no space");
    assert!(matches!(failed, StoreError::NoSpace { .. }));
    store.is_full.store(false, Ordering::Relaxed);
    let collected = collector.step(100).expect("collect");
    assert_eq!((collected.removed > 0, collected.done), (true, true));
}

/// `a` was 1 and is 2; when a read creates its cursor, it becomes 3, and all history before that is
/// compacted.
fn interrupted() -> Reader<Interrupted> {
    let store = Interrupted::default();
    let mut machine = StateMachine::open_with_key_cache(store.clone(), 0).expect("open");
    let entry = |index, command| super::command_entry(index, command);
    let entries = [entry(1, put("a", "1")), entry(2, put("a", "2"))];
    machine.apply(&entries).expect("apply");
    let reader = machine.reader();
    store.before_the_next_cursor(move || {
        let entries = [entry(3, put("a", "3")), entry(4, compact(4))];
        machine.apply(&entries).expect("apply");
        assert!(machine.collector().step(100).expect("collect").done);
    });
    reader
}

#[test]
fn a_read_that_began_before_a_compaction_does_not_miss_versions() {
    let key = bytes("a");
    let reader = interrupted();
    let past = reader.get(&key, Some(Revision(3)));
    assert!(matches!(past, Err(ReadError::Compacted { .. })), "{past:?}");
    let reader = interrupted();
    let past = RangeQuery {
        revision: Some(Revision(3)),
        ..RangeQuery::new(everything())
    };
    let past = reader.range(&past);
    assert!(matches!(past, Err(ReadError::Compacted { .. })), "{past:?}");
    let reader = interrupted();
    let query = ChangesQuery::new(Revision(2), everything());
    let past = reader.changes(&query);
    assert!(matches!(past, Err(ReadError::Compacted { .. })), "{past:?}");
}

#[test]
fn a_read_of_the_newest_revision_survives_a_compaction() {
    let reader = interrupted();
    let (revision, found) = reader.get(&bytes("a"), None).expect("get");
    assert_eq!(revision, Revision(4));
    assert_eq!(found.expect("it is there").value, "3");
    let reader = interrupted();
    let all = reader.range(&RangeQuery::new(everything()));
    assert_eq!(all.expect("range").kvs[0].value, "3");
}

#[test]
fn an_open_cursor_sees_what_is_collected_meanwhile() {
    let store = MemoryStore::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    run(&mut machine, [put("a", "1"), put("a", "2")]);
    let before = store.dump();
    let mut cursor = store.cursor(Scope::Between(Vec::new()..vec![0xff]));
    run(&mut machine, [compact(3)]);
    all_collected(&store);
    cursor.seek(&[]).expect("seek");
    for (key, value) in before {
        assert_eq!(cursor.record(), Some((&key[..], &value[..])));
        cursor.next().expect("next");
    }
}
