//! Reading history, as watches do: one rule at a time, by example.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dengine_types::Revision;

use super::counting::Counting;
use super::{
    Machine, between, bytes, command_entry, compact, delete, delete_keys, everything, machine, put,
    run,
};
use crate::{
    Batch, BatchOperation, ChangesQuery, Command, Event, EventKind, KeyRange, PageLimits,
    RangeQuery, ReadError, Reader, Stamp, StateMachine, Store, Want,
};

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

/// The events since `from`, and where the read ended.
fn read(machine: &Machine, query: &ChangesQuery) -> (Vec<String>, (u64, u32)) {
    let changes = machine.reader().changes(query).expect("history");
    let events = changes.events.iter().map(show);
    let next = changes.next;
    (events.collect(), (next.revision.0, next.sub))
}

fn since(from: u64) -> ChangesQuery {
    ChangesQuery::new(Revision(from), everything())
}

fn example() -> Machine {
    let mut machine = machine();
    let batch = Command::Batch(Batch {
        then: vec![
            BatchOperation::put(bytes("b"), bytes("2")),
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
fn events_are_in_the_order_of_history() {
    let events = ["2 a=1", "3 a=2", "4 b=2", "4 -a", "5 a=3"];
    let machine = example();
    assert_eq!(
        read(&machine, &since(0)),
        (events.map(String::from).into(), (6, 0))
    );
    assert_eq!(
        read(&machine, &since(4)),
        (
            events[2..].iter().map(ToString::to_string).collect(),
            (6, 0)
        )
    );
}

#[test]
fn events_include_the_previous_pair_on_request() {
    let query = ChangesQuery {
        prev_kv: true,
        ..since(2)
    };
    let events = ["2 a=1", "3 a=2 was 1", "4 b=2", "4 -a was 2", "5 a=3"];
    assert_eq!(read(&example(), &query).0, events);
}

#[test]
fn only_changes_in_the_range_are_read() {
    let query = ChangesQuery {
        keys: between("b", "c"),
        ..since(0)
    };
    assert_eq!(read(&example(), &query), (vec!["4 b=2".to_owned()], (6, 0)));
}

fn limited(from: u64, limits: PageLimits) -> ChangesQuery {
    ChangesQuery {
        limits,
        ..since(from)
    }
}

#[test]
fn byte_limits_end_between_events_and_change_limits_between_revisions() {
    let machine = example();
    let bytes = |bytes| PageLimits {
        bytes,
        ..PageLimits::NONE
    };
    let changes = |changes| PageLimits {
        changes,
        ..PageLimits::NONE
    };
    let one = vec!["4 b=2".to_owned()];
    let both = vec!["4 b=2".to_owned(), "4 -a".to_owned()];
    for few in [0, 1, 66] {
        assert_eq!(
            read(&machine, &limited(4, bytes(few))),
            (one.clone(), (4, 1))
        );
    }
    assert_eq!(
        read(&machine, &limited(4, bytes(67))),
        (both.clone(), (5, 0))
    );
    for few in [0, 1, 2] {
        assert_eq!(
            read(&machine, &limited(4, changes(few))),
            (both.clone(), (5, 0))
        );
    }
    assert_eq!(read(&machine, &limited(4, changes(3))).1, (6, 0));
    let nothing_found = ChangesQuery {
        keys: between("x", "z"),
        ..limited(2, changes(1))
    };
    assert_eq!(read(&machine, &nothing_found), (Vec::new(), (3, 0)));
    let rest = ChangesQuery {
        from: Stamp {
            revision: Revision(4),
            sub: 1,
        },
        ..limited(4, bytes(0))
    };
    assert_eq!(read(&machine, &rest), (vec!["4 -a".to_owned()], (5, 0)));
}

#[test]
fn a_page_exceeds_its_limit_by_less_than_one_event() {
    const VALUE_BYTES: usize = 10_000;
    let mut machine = machine();
    let large = "v".repeat(VALUE_BYTES);
    run(
        &mut machine,
        (0..100).map(|key| put(&format!("k{key:02}"), &large)),
    );
    run(&mut machine, [delete_keys(between("k", "l"))]);
    let mut query = ChangesQuery {
        prev_kv: true,
        ..limited(
            102,
            PageLimits {
                bytes: 2 * VALUE_BYTES,
                changes: 1,
            },
        )
    };
    let mut keys = Vec::new();
    while query.from.revision.0 == 102 {
        let changes = machine.reader().changes(&query).expect("history");
        let bytes: usize = changes.events.iter().map(Event::size_bytes).sum();
        assert!(bytes < 3 * VALUE_BYTES + 100, "{bytes} bytes in one page");
        keys.extend(changes.events.into_iter().map(|it| it.kv.key));
        query.from = changes.next;
    }
    let expect: Vec<_> = (0..100).map(|key| format!("k{key:02}")).collect();
    assert_eq!(keys, expect);
}

#[test]
fn only_wanted_keys_and_kinds_are_read() {
    let deletes = ChangesQuery {
        no_put: true,
        ..since(0)
    };
    assert_eq!(read(&example(), &deletes).0, ["4 -a"]);
    let puts = ChangesQuery {
        no_delete: true,
        ..since(4)
    };
    assert_eq!(read(&example(), &puts).0, ["4 b=2", "5 a=3"]);
    let machine = example();
    let wants = |key: &[u8], deletes: bool| match (key, deletes) {
        (b"b", _) => Want::Event,
        (_, true) => Want::EventWithPrev,
        _ => Want::Nothing,
    };
    let from = Stamp::start_of(Revision(0));
    let found = machine
        .reader()
        .changes_wanted(from, PageLimits::NONE, wants);
    let events: Vec<_> = found.expect("history").events.iter().map(show).collect();
    assert_eq!(events, ["4 b=2", "4 -a was 2"]);
}

#[test]
fn a_revision_of_the_future_is_legal_and_empty() {
    assert_eq!(read(&example(), &since(6)), (Vec::new(), (6, 0)));
    let last = (Vec::new(), (u64::MAX, 0));
    assert_eq!(read(&example(), &since(u64::MAX)), last);
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
    // The pair that the compact revision replaced is gone; the fact that it deleted a key is not.
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
fn the_pair_before_the_compact_revision_is_hidden_even_if_stored() {
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
fn a_stopped_long_read_ends() {
    let mut machine = machine();
    run(
        &mut machine,
        (0..3_000).map(|number| put(&format!("{number:05}"), "v")),
    );
    let stop = Arc::new(AtomicBool::new(false));
    let reader = machine.reader().attended_by(Arc::clone(&stop));
    let all = RangeQuery::new(everything());
    assert_eq!(reader.range(&all).unwrap().count, Some(3_000));
    reader.logical_hash().unwrap();
    stop.store(true, Ordering::Relaxed);
    let stopped = |error| matches!(error, ReadError::Stopped { records } if records < 3_000);
    assert!(reader.range(&all).is_err_and(stopped));
    assert!(reader.logical_hash().is_err_and(stopped));
}

/// docs/operator.md computes from this how long history lasts. Keys and values are as long as those
/// of a benchmark, and many are applied in one step, as under load.
#[test]
fn a_put_writes_its_value_and_twice_its_key_and_some_thirty_bytes() {
    const PUTS: u64 = 500;
    let (key_bytes, value) = (30, "v".repeat(256));
    let mut machine = machine();
    let entry = |index| command_entry(index, put(&format!("{index:0key_bytes$}"), &value));
    let puts: Vec<_> = (1..=PUTS).map(entry).collect();
    machine.apply(&puts).expect("apply");
    let each = machine.reader().written_bytes() / PUTS;
    let besides = each - (value.len() + 2 * key_bytes) as u64;
    assert!((29..=31).contains(&besides), "{besides}");
}

/// What whoever follows finds since `from`.
fn followed<S: Store>(reader: &Reader<S>, from: u64) -> Vec<String> {
    let from = Stamp::start_of(Revision(from));
    let wants = |_: &[u8], _| Want::EventWithPrev;
    let found = reader.changes_followed(from, PageLimits::NONE, wants);
    found.expect("history").events.iter().map(show).collect()
}

fn next(machine: &mut StateMachine<Counting>, command: Command) {
    let index = machine.applied().0.next().0;
    machine.apply(&[command_entry(index, command)]).unwrap();
}

#[test]
fn who_follows_finds_what_is_new_without_a_search() {
    let store = Counting::default();
    let mut machine = StateMachine::open(store.clone()).unwrap();
    let reader = machine.reader();
    next(&mut machine, put("a", "1"));
    let (moves, found) = store.moves_of(|| followed(&reader, 2));
    assert_eq!(found, ["2 a=1"]);
    assert!(moves > 0);
    for command in [put("a", "2"), put("b", "1"), delete("a")] {
        next(&mut machine, command);
    }
    let (moves, found) = store.moves_of(|| followed(&reader, 3));
    assert_eq!(found, ["3 a=2 was 1", "4 b=1", "5 -a was 2"]);
    assert_eq!(moves, 0);
    reader.stop_following();
    let (moves, found) = store.moves_of(|| followed(&reader, 5));
    assert_eq!(found, ["5 -a was 2"]);
    assert!(moves > 0);
}

/// It is read as if it had been compacted before.
#[test]
fn what_a_recent_change_replaced_may_be_collected_meanwhile() {
    let store = Counting::default();
    let mut machine = StateMachine::open(store.clone()).unwrap();
    let reader = machine.reader();
    assert!(followed(&reader, 2).is_empty());
    next(&mut machine, put("a", "1"));
    next(&mut machine, put("a", "2"));
    store.meanwhile(move || {
        next(&mut machine, compact(3));
        assert!(machine.collector().step(100).unwrap().done);
    });
    assert_eq!(followed(&reader, 3), ["3 a=2"]);
}
