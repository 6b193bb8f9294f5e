//! The limit of previous pairs in one answer, and that nothing else depends on it.

use dengine_types::Revision;

use super::{Machine, apply, bytes, delete, everything, machine, put, show, stamped};
use crate::layout::reply_key;
use crate::outcome::encode_kept;
use crate::store::{MemoryStore, Store as _};
use crate::visits::VisitBounds;
use crate::{
    Batch, BatchAnswer, BatchOperation, Command, KeyRange, KeyValue, Outcome, PREVIOUS_BYTES_MAX,
    Put, Refusal, StateMachine,
};

const VALUE_BYTES: usize = 1 << 20;
/// The number of pairs that are gathered: the last of them reaches the limit.
const FIT: usize = PREVIOUS_BYTES_MAX / VALUE_BYTES;

fn key(number: usize) -> String {
    format!("{number:03}")
}

/// Puts this many keys with large values.
fn fill(machine: &mut Machine, keys: usize) {
    let value = "v".repeat(VALUE_BYTES);
    for number in 0..keys {
        apply(machine, put(&key(number), &value));
    }
}

fn filled(keys: usize) -> Machine {
    let mut machine = machine();
    fill(&mut machine, keys);
    machine
}

fn batch(then: Vec<BatchOperation>) -> Command {
    Command::Batch(Batch {
        then,
        ..Batch::default()
    })
}

fn replace(number: usize) -> BatchOperation {
    BatchOperation::Put(Put {
        prev_kv: true,
        ..Put::new(bytes(&key(number)), bytes("new"))
    })
}

fn remove(number: usize) -> BatchOperation {
    BatchOperation::Delete {
        keys: KeyRange::One(bytes(&key(number))),
        prev_kv: true,
    }
}

/// The outcome, without its pairs, of a batch at this revision.
fn trimmed(revision: u64) -> Outcome {
    Outcome::Trimmed(Box::new(Outcome::Batch {
        revision: Revision(revision),
        succeeded: true,
        answers: Vec::new(),
    }))
}

/// A batch of 128 puts took 192 MiB on every member, and again when the log was replayed.
#[test]
fn previous_pairs_of_a_batch_are_bounded() {
    for operation in [replace, remove] {
        let mut whole = filled(FIT);
        let outcome = apply(&mut whole, batch((0..FIT).map(operation).collect()));
        assert!(matches!(&outcome, Outcome::Batch { answers, .. } if answers.len() == FIT));
        assert!(outcome.pairs_bytes() > PREVIOUS_BYTES_MAX);

        let mut machine = filled(FIT + 1);
        let outcome = apply(&mut machine, batch((0..=FIT).map(operation).collect()));
        assert_eq!(outcome, trimmed(FIT as u64 + 3));
        let last = show(&machine, &key(FIT), None);
        assert!(!last.starts_with('v'), "all of it was done");
    }
}

#[test]
fn each_command_has_the_full_limit() {
    let mut machine = filled(FIT + 2);
    apply(&mut machine, batch((0..=FIT).map(replace).collect()));
    let deleted = apply(&mut machine, delete(&key(FIT + 1)));
    assert!(matches!(&deleted, Outcome::Delete { prev, .. } if prev[0].value.len() == VALUE_BYTES));
}

/// Members with and without the limit must have the same bytes.
#[test]
fn stored_replies_do_not_depend_on_the_limit() {
    let store = MemoryStore::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    let opened = apply(&mut machine, Command::OpenSession { ttl_ms: 1000 });
    let Outcome::SessionOpened { session } = opened else {
        panic!("{opened:?}");
    };
    fill(&mut machine, FIT + 1);
    let before = machine.reader();
    let revision = machine.revision();
    let request = stamped(session, 1, 0, batch((0..=FIT).map(replace).collect()));
    let first = apply(&mut machine, request.clone());
    let pair = |number| -> Option<KeyValue> {
        let found = before.get(&bytes(&key(number)), Some(revision));
        found.expect("history holds it").1
    };
    let whole = Outcome::Batch {
        revision: machine.revision(),
        succeeded: true,
        answers: (0..=FIT)
            .map(|number| BatchAnswer::Put { prev: pair(number) })
            .collect(),
    };
    let kept = store.get(&reply_key(session, 1)).expect("get");
    assert_eq!(kept.expect("it is kept"), encode_kept(&whole));
    assert_eq!(apply(&mut machine, request), first, "once and again");
}

/// If they counted, a small answer would be stored without its pairs here, and whole by members
/// without the limit.
#[test]
fn pairs_of_range_deletes_do_not_count() {
    let mut machine = filled(2 * FIT);
    let all = BatchOperation::Delete {
        keys: everything(),
        prev_kv: false,
    };
    let deletes = std::iter::once(all).chain((0..2 * FIT).map(remove));
    let outcome = apply(&mut machine, batch(deletes.collect()));
    let Outcome::Batch { answers, .. } = outcome else {
        panic!("{outcome:?}");
    };
    let deleted = |deleted| BatchAnswer::Delete {
        deleted,
        prev: Vec::new(),
    };
    assert_eq!(answers[0], deleted(2 * FIT as u64));
    assert!(answers[1..].iter().all(|answer| *answer == deleted(0)));
}

#[test]
fn a_batch_that_is_refused_late_returns_the_refusal() {
    let mut machine = filled(FIT + 1);
    machine.bound_visits(VisitBounds {
        keys: 1,
        ..VisitBounds::ALL
    });
    let read = BatchOperation::Get {
        keys: everything(),
        limit: 0,
        keys_only: true,
        count_only: false,
    };
    let operations = (0..=FIT).map(replace).chain([read]);
    let refused = apply(&mut machine, batch(operations.collect()));
    assert!(matches!(
        refused,
        Outcome::Refused(Refusal::RangesTooLarge { .. })
    ));
    assert!(show(&machine, &key(FIT), None).starts_with('v'));
}

#[test]
fn ranges_whose_pairs_are_returned_are_known_beforehand_at_every_depth() {
    let range = |start: &str| KeyRange::From(bytes(start));
    let of = |start: &str, prev_kv| BatchOperation::Delete {
        keys: range(start),
        prev_kv,
    };
    let inner = Batch {
        otherwise: vec![of("b", true)],
        ..Batch::default()
    };
    let whole = batch(vec![
        of("a", true),
        of("kept to itself", false),
        remove(1),
        BatchOperation::Batch(Box::new(inner)),
    ]);
    assert_eq!(whole.returned(), [&range("a"), &range("b")]);
    let alone = |prev_kv| Command::Delete {
        keys: range("a"),
        prev_kv,
    };
    assert_eq!(alone(true).returned(), [&range("a")]);
    assert!(alone(false).returned().is_empty());
}
