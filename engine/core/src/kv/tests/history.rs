//! Reading history, as watches do: one rule at a time, by example.

use super::{Machine, between, bytes, compact, delete, everything, machine, put, run};
use crate::kv::{
    Batch, BatchOperation, ChangesQuery, Command, Event, EventKind, KeyRange, RangeQuery, ReadError,
};
use crate::types::Revision;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn show(event: &Event) -> String {
    let kv = &event.kv;
    let key = kv.key.escape_ascii();
    let prev = event.prev.as_ref();
    let prev = prev.map_or(String::new(), |it| {
        format!(" was {}", it.value.escape_ascii())
    });
    match event.kind {
        EventKind::Put => format!(
            "{} {key}={}{prev}",
            kv.mod_revision,
            kv.value.escape_ascii()
        ),
        EventKind::Delete => format!("{} -{key}{prev}", kv.mod_revision),
    }
}

/// The events since `from`, and how far they go.
fn read(machine: &Machine, query: &ChangesQuery) -> (Vec<String>, u64) {
    let changes = machine.reader().changes(query).expect("history");
    let events = changes.events.iter().map(show);
    (events.collect(), changes.complete_to.0)
}

fn since(from: u64) -> ChangesQuery {
    ChangesQuery::new(Revision(from), everything())
}

fn example() -> Machine {
    let mut machine = machine();
    let batch = Command::Batch(Batch {
        then: vec![
            BatchOperation::Put {
                key: bytes("b"),
                value: bytes("2"),
                prev_kv: false,
                ttl_ms: 0,
            },
            BatchOperation::Delete {
                keys: KeyRange::One(bytes("a")),
                prev_kv: false,
            },
        ],
        ..Batch::default()
    });
    run(
        &mut machine,
        [put("a", "1"), put("a", "2"), batch, put("a", "3")],
    );
    machine
}

#[test]
fn events_come_in_the_order_of_history() {
    let events = ["2 a=1", "3 a=2", "4 b=2", "4 -a", "5 a=3"];
    let machine = example();
    assert_eq!(
        read(&machine, &since(0)),
        (events.map(String::from).into(), 5)
    );
    assert_eq!(
        read(&machine, &since(4)),
        (events[2..].iter().map(ToString::to_string).collect(), 5)
    );
}

#[test]
fn events_carry_the_pair_before_if_that_is_asked_for() {
    let query = ChangesQuery {
        prev_kv: true,
        ..since(2)
    };
    let events = ["2 a=1", "3 a=2 was 1", "4 b=2", "4 -a was 2", "5 a=3"];
    assert_eq!(read(&example(), &query).0, events);
}

#[test]
fn only_keys_of_the_range_are_told() {
    let query = ChangesQuery {
        keys: between("b", "c"),
        ..since(0)
    };
    assert_eq!(read(&example(), &query), (vec!["4 b=2".to_owned()], 5));
}

#[test]
fn a_bound_never_splits_a_revision() {
    let machine = example();
    let bytes = |max_bytes| ChangesQuery {
        max_bytes,
        ..since(4)
    };
    let both = vec!["4 b=2".to_owned(), "4 -a".to_owned()];
    assert_eq!(read(&machine, &bytes(0)), (both.clone(), 4));
    assert_eq!(read(&machine, &bytes(1)), (both.clone(), 4));
    let changes = |max_changes| ChangesQuery {
        max_changes,
        ..since(4)
    };
    assert_eq!(read(&machine, &changes(1)), (both.clone(), 4));
    assert_eq!(read(&machine, &changes(2)), (both, 4));
    assert_eq!(read(&machine, &changes(3)).1, 5);
    let nothing_found = ChangesQuery {
        keys: between("x", "z"),
        max_changes: 1,
        ..since(2)
    };
    assert_eq!(read(&machine, &nothing_found), (Vec::new(), 2));
}

#[test]
fn a_revision_of_the_future_is_legal_and_empty() {
    assert_eq!(read(&example(), &since(6)), (Vec::new(), 5));
    assert_eq!(read(&example(), &since(u64::MAX)), (Vec::new(), 5));
}

#[test]
fn history_begins_at_the_compact_revision() {
    let mut machine = example();
    run(&mut machine, [compact(4)]);
    let mut collector = machine.collector();
    assert!(collector.step(100).expect("collect").done);
    let query = ChangesQuery {
        prev_kv: true,
        ..since(4)
    };
    // What the compact revision replaced is gone; that it deleted something is not.
    let events = ["4 b=2", "4 -a", "5 a=3"];
    assert_eq!(read(&machine, &query).0, events);
    let refused = machine.reader().changes(&since(3));
    assert_eq!(
        refused,
        Err(ReadError::Compacted {
            requested: Revision(3),
            compacted: Revision(4)
        })
    );
}

#[test]
fn the_pair_before_the_compact_revision_is_not_told_before_it_is_collected() {
    let mut machine = machine();
    run(
        &mut machine,
        [put("a", "1"), put("a", "2"), delete("a"), compact(3)],
    );
    let query = ChangesQuery {
        prev_kv: true,
        ..since(3)
    };
    assert_eq!(read(&machine, &query).0, ["3 a=2", "4 -a was 2"]);
}

#[test]
fn a_long_read_that_nobody_waits_for_ends() {
    let mut machine = machine();
    run(
        &mut machine,
        (0..3_000).map(|number| put(&format!("{number:05}"), "v")),
    );
    let stop = Arc::new(AtomicBool::new(false));
    let reader = machine.reader().stopped_by(Arc::clone(&stop));
    let all = RangeQuery::new(everything());
    assert_eq!(reader.range(&all).unwrap().count, Some(3_000));
    reader.logical_hash().unwrap();
    stop.store(true, Ordering::Relaxed);
    let stopped = |error| matches!(error, ReadError::Stopped { records } if records < 3_000);
    assert!(reader.range(&all).is_err_and(stopped));
    assert!(reader.logical_hash().is_err_and(stopped));
}
