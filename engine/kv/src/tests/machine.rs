//! The semantics, one rule at a time, by example.

use bytes::Bytes;
use dengine_types::{EntryKind, Index, Revision, Term};

use super::{
    Machine, between, bytes, command_entry, delete, delete_keys, entry, machine, put, run, show,
};
use crate::layout::{FORMAT_KEY, FORMAT_VERSION};
use crate::store::{MemoryStore, WriteBatch};
use crate::{
    CommandVersion, KeyRange, Outcome, RangeQuery, ReadError, StateMachine, Store, StoreError,
};

fn keys(machine: &Machine, query: &RangeQuery) -> (Vec<String>, bool, Option<u64>) {
    let result = machine.reader().range(query).expect("readable range");
    let keys = result
        .kvs
        .iter()
        .map(|kv| kv.key.escape_ascii().to_string());
    (keys.collect(), result.more, result.count)
}

#[test]
fn an_empty_store_is_at_revision_1() {
    let machine = machine();
    assert_eq!(machine.revision(), Revision(1));
    assert_eq!(machine.applied(), (Index(0), Term(0)));
    assert_eq!(show(&machine, "a", None), "-");
    assert_eq!(show(&machine, "a", Some(1)), "-");
}

#[test]
fn versions_count_up_and_start_over_after_a_delete() {
    let mut machine = machine();
    run(&mut machine, [put("a", "1"), put("a", "2")]);
    assert_eq!(show(&machine, "a", None), "2 2/3/2");
    run(&mut machine, [delete("a")]);
    assert_eq!(show(&machine, "a", None), "-");
    run(&mut machine, [put("a", "3")]);
    assert_eq!(show(&machine, "a", None), "3 5/5/1");
}

#[test]
fn the_past_stays_readable() {
    let mut machine = machine();
    run(
        &mut machine,
        [put("a", "1"), put("a", "2"), delete("a"), put("a", "3")],
    );
    let seen: Vec<_> = (1..=5).map(|at| show(&machine, "a", Some(at))).collect();
    assert_eq!(seen, ["-", "1 2/2/1", "2 2/3/2", "-", "3 5/5/1"]);
}

#[test]
fn a_delete_of_nothing_takes_no_revision() {
    let mut machine = machine();
    run(&mut machine, [put("a", "1")]);
    let nothing = Outcome::Delete {
        revision: Revision(2),
        deleted: 0,
        prev: Vec::new(),
    };
    assert_eq!(run(&mut machine, [delete("b")]), nothing);
    assert_eq!(run(&mut machine, [delete_keys(between("b", "z"))]), nothing);
    assert_eq!(run(&mut machine, [delete_keys(between("z", "a"))]), nothing);
    assert_eq!(machine.revision(), Revision(2));
}

#[test]
fn a_range_delete_takes_one_revision() {
    let mut machine = machine();
    run(
        &mut machine,
        [put("a", "1"), put("b", "2"), put("c", "3"), delete("b")],
    );
    let outcome = run(&mut machine, [delete_keys(KeyRange::From(bytes("a")))]);
    let Outcome::Delete {
        revision,
        deleted,
        prev,
    } = outcome
    else {
        panic!("{outcome:?}");
    };
    assert_eq!((revision, deleted), (Revision(6), 2));
    let values: Vec<_> = prev.iter().map(|kv| kv.value.clone()).collect();
    assert_eq!(values, [bytes("1"), bytes("3")]);
    assert_eq!(show(&machine, "c", None), "-");
    assert_eq!(show(&machine, "c", Some(5)), "3 4/4/1");
}

#[test]
fn a_batch_sees_what_it_did_itself() {
    let mut machine = machine();
    run(&mut machine, [put("b", "0")]);
    let entries: Vec<_> = [
        put("a", "1"),
        put("a", "2"),
        delete_keys(between("a", "c")),
        put("a", "3"),
        delete("b"),
    ]
    .into_iter()
    .zip(2..)
    .map(|(command, index)| command_entry(index, command))
    .collect();
    let applied = machine.apply(&entries).expect("apply");
    assert!(matches!(
        &applied[1].outcome,
        Outcome::Put { prev: Some(prev), .. } if prev.value == "1"
    ));
    assert!(matches!(
        &applied[2].outcome,
        Outcome::Delete { deleted: 2, prev, .. } if prev[0].value == "2" && prev[1].value == "0"
    ));
    assert!(matches!(
        &applied[4].outcome,
        Outcome::Delete { deleted: 0, .. }
    ));
    assert_eq!(show(&machine, "a", None), "3 6/6/1");
    assert_eq!(show(&machine, "a", Some(4)), "2 3/4/2");
}

#[test]
fn compacted_and_future_revisions_are_refused() {
    let mut machine = machine();
    run(&mut machine, [put("a", "1")]);
    let refused = machine.reader().get(&bytes("a"), Some(Revision(3)));
    assert_eq!(
        refused,
        Err(ReadError::Future {
            requested: Revision(3),
            current: Revision(2)
        })
    );
}

#[test]
fn a_limit_applies_to_the_pairs_and_not_to_the_count() {
    let mut machine = machine();
    run(
        &mut machine,
        ["a", "b", "c", "d", "e"].map(|key| put(key, "12345678")),
    );
    let all = RangeQuery::new(between("b", "e"));
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        keys(&machine, &all),
        (names(&["b", "c", "d"]), false, Some(3))
    );
    let limited = RangeQuery {
        limit: 2,
        ..all.clone()
    };
    assert_eq!(keys(&machine, &limited), (names(&["b", "c"]), true, None));
    let small = RangeQuery {
        max_bytes: 1,
        ..all.clone()
    };
    assert_eq!(keys(&machine, &small), (names(&["b"]), true, None));
    let count = RangeQuery {
        count_only: true,
        ..all.clone()
    };
    assert_eq!(keys(&machine, &count), (names(&[]), false, Some(3)));
    let past = RangeQuery {
        revision: Some(Revision(3)),
        ..all
    };
    assert_eq!(keys(&machine, &past), (names(&["b"]), false, Some(1)));
}

/// A pair takes about the length of its key and value.
#[test]
fn a_byte_limit_ends_before_the_pair_that_exceeds_it() {
    let mut machine = machine();
    let value = "v".repeat(100);
    let long = ["a", "b", "c", "d", "e"].map(|key| key.repeat(100));
    run(&mut machine, long.iter().map(|key| put(key, &value)));
    let found = |max_bytes, keys_only| {
        let query = RangeQuery {
            max_bytes,
            keys_only,
            ..RangeQuery::new(KeyRange::From(Bytes::new()))
        };
        let (keys, more, _) = keys(&machine, &query);
        (keys.len(), more)
    };
    assert_eq!(found(650, false), (3, true));
    assert_eq!(found(350, true), (3, true));
    // The first is returned whatever its size, and counts.
    assert_eq!(found(1, false), (1, true));
    assert_eq!(found(250, false), (1, true));
    assert_eq!(found(1_100, false), (5, false));
    assert_eq!(found(600, true), (5, false));
}

#[test]
fn a_range_skips_long_histories() {
    let mut machine = machine();
    for number in 0..100 {
        run(&mut machine, [put("a", &number.to_string()), put("b", "x")]);
    }
    run(&mut machine, [put("c", "x")]);
    let all = RangeQuery::new(KeyRange::From(bytes("a")));
    assert_eq!(keys(&machine, &all).2, Some(3));
    let past = RangeQuery {
        revision: Some(Revision(20)),
        ..all
    };
    let result = machine.reader().range(&past).expect("range");
    let values: Vec<_> = result.kvs.iter().map(|kv| kv.value.clone()).collect();
    assert_eq!(values, [bytes("9"), bytes("x")]);
    assert_eq!(result.count, Some(2));
}

#[test]
fn applied_entries_are_skipped() {
    let mut machine = machine();
    let entries = [
        command_entry(1, put("a", "1")),
        command_entry(2, put("a", "2")),
    ];
    machine.apply(&entries[..1]).expect("apply");
    let applied = machine.apply(&entries).expect("apply again");
    assert_eq!(applied.len(), 1);
    assert_eq!(applied[0].index, Index(2));
    assert_eq!(machine.apply(&entries).expect("and again"), []);
    assert_eq!(show(&machine, "a", None), "2 2/3/2");
}

#[test]
#[should_panic(expected = "without gaps")]
fn a_gap_is_a_broken_invariant() {
    let _ = machine().apply(&[command_entry(2, put("a", "1"))]);
}

#[test]
fn an_entry_without_a_command_is_rejected_and_the_next_one_applied() {
    let mut machine = machine();
    let entries = [
        entry(1, EntryKind::Command, Bytes::new()),
        entry(2, EntryKind::Command, bytes("\u{2}garbage")),
        entry(3, EntryKind::Membership, bytes("\u{1}garbage")),
        command_entry(4, put("a", "1")),
    ];
    let applied = machine.apply(&entries).expect("apply");
    assert_eq!(applied[0].outcome, Outcome::Empty);
    assert!(matches!(applied[1].outcome, Outcome::Rejected(_)));
    assert!(matches!(applied[2].outcome, Outcome::Membership(Err(_))));
    assert_eq!(show(&machine, "a", None), "1 2/2/1");
    assert_eq!(machine.applied(), (Index(4), Term(1)));
}

#[test]
fn a_command_of_a_newer_program_stops_the_member_and_changes_nothing() {
    let newer = CommandVersion::CURRENT.number() + 1;
    let store = MemoryStore::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    let before = store.dump();
    let entries = [
        command_entry(1, put("a", "1")),
        entry(2, EntryKind::Command, Bytes::from(vec![newer, 1, 2, 3])),
    ];
    let error = machine.apply(&entries).expect_err("must stop");
    assert!(matches!(error, StoreError::NewerFormat { found, .. } if found == u32::from(newer)));
    assert_eq!(store.dump(), before);
    assert_eq!(machine.applied(), (Index(0), Term(0)));
}

#[test]
fn a_store_of_a_newer_program_is_refused() {
    let store = MemoryStore::default();
    let mut batch = WriteBatch::default();
    batch.put(FORMAT_KEY, &(FORMAT_VERSION + 1).to_be_bytes());
    store.write(&batch).expect("write");
    let error = StateMachine::open(store.clone()).expect_err("too new");
    assert!(error.to_string().contains("start the newer version"));
    assert_eq!(store.dump().len(), 1, "nothing was written");
}

#[test]
fn a_store_of_a_prerelease_is_refused() {
    let store = MemoryStore::default();
    let mut batch = WriteBatch::default();
    batch.put(FORMAT_KEY, &1_u32.to_be_bytes());
    store.write(&batch).expect("write");
    let error = StateMachine::open(store.clone()).expect_err("too old");
    assert!(matches!(error, StoreError::Foreign(_)));
}

#[test]
fn a_store_of_another_program_is_refused() {
    let store = MemoryStore::default();
    let mut batch = WriteBatch::default();
    batch.put(b"hello", b"world");
    store.write(&batch).expect("write");
    let error = StateMachine::open(store.clone()).expect_err("not ours");
    assert!(matches!(error, StoreError::Foreign(_)));
    assert_eq!(store.dump().len(), 1, "nothing was written");
}

#[test]
fn readers_see_whole_batches_while_entries_are_applied() {
    let mut machine = machine();
    let reader = machine.reader();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..200 {
                let value = number.to_string();
                let index = machine.applied().0.0;
                let batch = [
                    command_entry(index + 1, put("a", &value)),
                    command_entry(index + 2, put("z", &value)),
                ];
                machine.apply(&batch).expect("apply");
            }
        });
        loop {
            let all = reader
                .range(&RangeQuery::new(KeyRange::From(bytes("a"))))
                .expect("range");
            let values: Vec<_> = all.kvs.iter().map(|kv| &kv.value).collect();
            assert!(values.windows(2).all(|pair| pair[0] == pair[1]));
            assert!(all.kvs.iter().all(|kv| kv.mod_revision <= all.revision));
            if values.first().is_some_and(|value| **value == "199") {
                break;
            }
        }
    });
}

#[test]
fn flush_returns_the_index_it_covers() {
    let mut machine = machine();
    run(&mut machine, [put("a", "1"), put("b", "2")]);
    assert_eq!(machine.flush().expect("flush"), Index(2));
}
