//! How many records reads and commands visit: as few as they need, and never more than a limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dengine_types::{EntryKind, Revision};

use super::counting::Counting;
use super::{between, bytes, command_entry, compact, delete_keys, entry, everything, put};
use crate::{
    Batch, BatchAnswer, BatchOperation, Command, CommandVersion, Compare, CompareTarget, KeyRange,
    Outcome, Put, RANGE_DELETE_BYTES_MAX, RANGE_VISIT_BYTES_MAX, RANGE_VISIT_KEYS_MAX, RangeQuery,
    ReadError, Refusal, Relation, Request, StateMachine,
};

type Machine = StateMachine<Counting>;

/// A machine with the keys 0 to `keys` - 1, of eight digits.
fn filled(keys: usize) -> (Counting, Machine) {
    let store = Counting::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    let puts = (1..).zip(0..keys);
    let puts = puts.map(|(index, key)| command_entry(index, put(&format!("{key:08}"), "v")));
    machine.apply(&puts.collect::<Vec<_>>()).expect("apply");
    (store, machine)
}

fn apply(machine: &mut Machine, command: Command) -> Outcome {
    let index = machine.applied().0.next().0;
    let applied = machine.apply(&[command_entry(index, command)]);
    applied.expect("apply").remove(0).outcome
}

fn get(keys: KeyRange, limit: u64, count_only: bool) -> BatchOperation {
    BatchOperation::Get {
        keys,
        limit,
        keys_only: false,
        count_only,
    }
}

fn then(then: Vec<BatchOperation>) -> Command {
    Command::Batch(Batch {
        then,
        ..Batch::default()
    })
}

/// A comparison that holds for every existing key.
fn exist(keys: KeyRange) -> Compare {
    Compare {
        keys,
        relation: Relation::Greater,
        target: CompareTarget::ModRevision(Revision(0)),
    }
}

fn too_large_refusal() -> Refusal {
    Refusal::RangesTooLarge {
        keys_max: RANGE_VISIT_KEYS_MAX as u64,
        bytes_max: RANGE_VISIT_BYTES_MAX as u64,
    }
}

fn too_large() -> Outcome {
    Outcome::Refused(too_large_refusal())
}

#[test]
fn a_page_costs_its_keys_and_paging_is_linear() {
    const KEYS: usize = 2_000;
    let (store, machine) = filled(KEYS);
    let mut query = RangeQuery {
        limit: 1,
        ..RangeQuery::new(everything())
    };
    let (moves, page) = store.moves_of(|| machine.reader().range(&query).expect("range"));
    assert_eq!((page.kvs.len(), page.more, page.count), (1, true, None));
    assert!(moves <= 3, "{moves} moves for one key");

    query.limit = 10;
    let mut seen = 0;
    let (moves, ()) = store.moves_of(|| {
        loop {
            let page = machine.reader().range(&query).expect("range");
            seen += page.kvs.len();
            if !page.more {
                break;
            }
            let mut next = page.kvs.last().expect("a page of none").key.to_vec();
            next.push(0);
            query.keys = KeyRange::From(next.into());
        }
    });
    assert_eq!(seen, KEYS);
    assert!(moves <= 2 * KEYS as u64, "{moves} moves for {KEYS} keys");
}

#[test]
fn a_byte_limit_ends_a_page_like_a_limit() {
    let (store, machine) = filled(2_000);
    let query = RangeQuery {
        max_bytes: 100,
        ..RangeQuery::new(everything())
    };
    let (moves, page) = store.moves_of(|| machine.reader().range(&query).expect("range"));
    assert!(page.more && page.count.is_none());
    assert!(moves <= page.kvs.len() as u64 + 2, "{moves} moves");
    let count = RangeQuery {
        count_only: true,
        limit: 1,
        ..RangeQuery::new(everything())
    };
    let counted = machine.reader().range(&count).expect("range");
    assert_eq!((counted.more, counted.count), (false, Some(2_000)));
}

#[test]
fn a_stopped_read_of_deleted_keys_ends() {
    let (_, mut machine) = filled(5_000);
    apply(&mut machine, delete_keys(everything()));
    let stop = Arc::new(AtomicBool::new(false));
    let reader = machine.reader().attended_by(Arc::clone(&stop));
    let all = RangeQuery::new(everything());
    assert_eq!(reader.range(&all).expect("range").count, Some(0));
    stop.store(true, Ordering::Relaxed);
    let stopped = |error| matches!(error, ReadError::Stopped { records } if records < 5_000);
    assert!(reader.range(&all).is_err_and(stopped));
}

#[test]
fn a_read_in_a_batch_costs_what_it_returns() {
    let (store, mut machine) = filled(2_000);
    let read = then(vec![get(everything(), 3, false)]);
    let (moves, answer) = store.moves_of(|| apply(&mut machine, read));
    let Outcome::Batch { answers, .. } = answer else {
        panic!("{answer:?}");
    };
    let BatchAnswer::Get { kvs, more, count } = &answers[0] else {
        panic!("{answers:?}");
    };
    assert_eq!((kvs.len(), *more, *count), (3, true, 0));
    assert!(moves <= 5, "{moves} moves");
}

/// Found by adversarial review: 3,584 bytes kept every member's applier busy for 44 seconds.
#[test]
fn no_batch_visits_more_than_the_limit() {
    let (store, mut machine) = filled(RANGE_VISIT_KEYS_MAX + 1);
    let bound = RANGE_VISIT_KEYS_MAX as u64 + 300;
    let revision = machine.revision();
    let hostile = Command::Batch(Batch {
        compares: vec![exist(everything()); 128],
        then: vec![get(everything(), 0, true); 128],
        otherwise: Vec::new(),
    });
    let (moves, refused) = store.moves_of(|| apply(&mut machine, hostile));
    assert_eq!(refused, too_large());
    assert!(moves <= bound, "{moves} moves");

    let hostile = Batch {
        compares: vec![exist(everything()); 128],
        ..Batch::default()
    };
    let (moves, refused) = store.moves_of(|| machine.reader().batch(&hostile).expect("read"));
    assert_eq!(refused, Some(too_large()));
    assert!(moves <= bound, "{moves} moves of a reader");

    // A refused read that follows a put undoes the put.
    let put = BatchOperation::Put(Put {
        ttl_ms: 9,
        ..Put::new(bytes("new"), bytes("v"))
    });
    let (moves, refused) = store.moves_of(|| {
        let operations = vec![put, get(everything(), 0, true), get(everything(), 0, true)];
        apply(&mut machine, then(operations))
    });
    assert_eq!(refused, too_large());
    assert!(moves <= bound, "{moves} moves");
    assert_eq!(machine.revision(), revision, "nothing was changed");
    let new = machine.reader().get(&bytes("new"), None).expect("get").1;
    assert_eq!(new, None);
    let expiring = machine.reader().expiring_keys(None, 1).expect("read");
    assert_eq!(expiring, []);
    assert_eq!(apply(&mut machine, delete_keys(everything())), too_large());
}

#[test]
fn a_delete_of_a_range_ends_where_it_is_refused() {
    let (store, mut machine) = filled(0);
    let value = "v".repeat(64 << 10);
    let fits = RANGE_DELETE_BYTES_MAX / value.len();
    for key in 0..3 * fits {
        apply(&mut machine, put(&format!("{key:08}"), &value));
    }
    let delete = Command::Delete {
        keys: everything(),
        prev_kv: true,
    };
    let (moves, refused) = store.moves_of(|| apply(&mut machine, delete));
    let refusal = Refusal::DeletesTooMuch {
        bytes_max: RANGE_DELETE_BYTES_MAX as u64,
    };
    assert_eq!(refused, Outcome::Refused(refusal));
    assert!(moves <= fits as u64 + 2, "{moves} moves");
}

#[test]
fn the_limit_is_exact_and_counts_deleted_keys_in_history() {
    let (_, mut machine) = filled(RANGE_VISIT_KEYS_MAX);
    let count = |machine: &mut Machine| apply(machine, then(vec![get(everything(), 0, true)]));
    assert!(matches!(count(&mut machine), Outcome::Batch { .. }));
    apply(&mut machine, put("one more", "v"));
    assert_eq!(count(&mut machine), too_large());
    // A read with a limit, and a single key, are within it.
    let small = then(vec![
        get(everything(), 1, false),
        get(KeyRange::One(bytes("00000000")), 0, false),
    ]);
    assert!(matches!(apply(&mut machine, small), Outcome::Batch { .. }));

    let half = || between("00000000", "00065536");
    let delete = Command::Delete {
        keys: half(),
        prev_kv: false,
    };
    let deleted = apply(&mut machine, delete);
    assert!(matches!(
        deleted,
        Outcome::Delete {
            deleted: 65_536,
            ..
        }
    ));
    assert_eq!(count(&mut machine), too_large(), "history holds them");
    let revision = machine.revision();
    apply(&mut machine, Command::Compact { revision });
    assert!(matches!(count(&mut machine), Outcome::Batch { .. }));
}

#[test]
fn version_2_has_no_limit_and_counts_all_keys() {
    let (_, mut machine) = filled(RANGE_VISIT_KEYS_MAX + 1);
    let read = then(vec![get(everything(), 1, false)]);
    let data = Request::from(read).encode(CommandVersion::OLDEST);
    let index = machine.applied().0.next().0;
    let applied = machine.apply(&[entry(index, EntryKind::Command, data)]);
    let applied = applied.expect("apply").remove(0);
    assert_eq!(applied.visited, RANGE_VISIT_KEYS_MAX + 1);
    let outcome = applied.outcome;
    let Outcome::Batch { answers, .. } = outcome else {
        panic!("{outcome:?}");
    };
    let all = RANGE_VISIT_KEYS_MAX as u64 + 1;
    assert!(matches!(&answers[0], BatchAnswer::Get { count, more: true, .. } if *count == all));
}

#[test]
fn the_visits_of_ranges_are_reported_to_the_applier() {
    let (_, mut machine) = filled(2_000);
    let mut visited = |command: Command| {
        let index = machine.applied().0.next().0;
        let applied = machine.apply(&[command_entry(index, command)]);
        applied.expect("apply").remove(0).visited
    };
    assert_eq!(visited(delete_keys(between("00000100", "00000400"))), 300);
    assert_eq!(visited(put("00000100", "v")), 0, "it has no ranges");
    visited(put("large", &"v".repeat(300 << 10)));
    let large = then(vec![get(between("large", "larger"), 0, false)]);
    assert_eq!(visited(large), 300, "in KiB");
}

#[test]
fn values_count_too() {
    let store = Counting::default();
    let mut machine = StateMachine::open(store).expect("open");
    let value = "v".repeat(1 << 20);
    let fits = RANGE_VISIT_BYTES_MAX / (value.len() + 40);
    for key in 0..fits {
        apply(&mut machine, put(&format!("{key:08}"), &value));
    }
    let count = || then(vec![get(everything(), 0, true)]);
    assert!(matches!(
        apply(&mut machine, count()),
        Outcome::Batch { .. }
    ));
    apply(&mut machine, put("one more", &value));
    assert_eq!(apply(&mut machine, count()), too_large());
}

/// The keys that a command steps over without a limit, because members differ in them.
#[test]
fn compacted_keys_are_surveyed_until_they_are_collected() {
    const KEYS: usize = 100;
    let (store, mut machine) = filled(KEYS);
    let ranges = [
        between("00000000", "00000050"),
        between("00000050", "00000090"),
    ];
    let survey = |machine: &Machine, most| machine.reader().survey(&ranges, most);
    let gone = |machine: &Machine, most| survey(machine, most).expect("look").gone;
    let deleted = apply(&mut machine, delete_keys(between("00000010", "00000060")));
    assert!(matches!(deleted, Outcome::Delete { .. }));
    let all = survey(&machine, KEYS).expect("look");
    assert_eq!((all.gone, all.keys), (0, 90), "history holds them");
    apply(&mut machine, put("later", "v"));
    let revision = machine.revision().0;
    apply(&mut machine, compact(revision));
    assert_eq!(gone(&machine, KEYS), 50);
    let (moves, found) = store.moves_of(|| gone(&machine, 5));
    assert!(found > 5 && moves < 30, "{found} found, {moves} moves");
    let mut collector = machine.collector();
    while !collector.step(10).expect("collect").done {}
    let all = survey(&machine, KEYS).expect("look");
    assert_eq!((all.gone, all.keys), (0, 40));
}

/// Commands of version 2 have no limit of their own.
#[test]
fn a_survey_finds_what_exceeds_the_limit_of_a_command() {
    let (store, machine) = filled(RANGE_VISIT_KEYS_MAX + 1_000);
    let survey = |ranges: &[KeyRange]| machine.reader().survey(ranges, 0).expect("look");
    let half = [everything(), everything()];
    let (moves, all) = store.moves_of(|| survey(&half));
    assert_eq!(all.check(), Err(too_large_refusal()));
    assert!(
        moves <= 2 * (RANGE_VISIT_KEYS_MAX as u64 + 10),
        "{moves} moves"
    );
    let some = between("00000000", &format!("{:08}", RANGE_VISIT_KEYS_MAX));
    assert_eq!(survey(&[some]).check(), Ok(()));
}

/// A hundred ranges of a transaction were surveyed one after the other, each as far as one command
/// may visit, and every other write waited for that.
#[test]
fn a_survey_of_many_ranges_ends_where_no_command_goes_on() {
    let (store, machine) = filled(RANGE_VISIT_KEYS_MAX);
    let survey = |ranges: &[KeyRange]| machine.reader().survey(ranges, 0).expect("look");
    let both = [everything(), everything()];
    assert_eq!(survey(&both).check_either(), Ok(()));
    let many = vec![everything(); 100];
    let (moves, found) = store.moves_of(|| survey(&many));
    assert_eq!(found.check_either(), Err(too_large_refusal()));
    assert!(
        moves <= 3 * (RANGE_VISIT_KEYS_MAX as u64 + 10),
        "{moves} moves"
    );
}

#[test]
fn commands_without_ranges_visit_none() {
    for command in [put("a", "1"), super::delete("a"), compact(1)] {
        assert!(!command.visits_ranges(), "{command:?}");
    }
    assert!(delete_keys(between("a", "c")).visits_ranges());
}
