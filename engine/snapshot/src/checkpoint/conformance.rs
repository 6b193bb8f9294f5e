//! The conformance suite of a [`Checkpoint`]. A new kind of store runs [`test_all`] in its tests.
//!
//! This is test code that ships as a library; it panics where the store is wrong.

use std::borrow::Borrow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use dengine_kv::StateMachine;
use dengine_kv::store::{Cursor, Scope, Store, WriteBatch};
use dengine_log::Position;
use dengine_types::{Entry, EntryKind, Index, Term};

use super::{Checkpoint, describe};

/// Batches are written until this many checkpoints were made meanwhile.
const CHECKPOINTS: usize = 5;
/// Keys of a batch; all have the batch's number as their value.
const KEYS: u64 = 50;

/// Runs every check, each with an empty store; `place` makes a new place each time.
///
/// # Panics
///
/// If the store fails a check.
pub fn test_all<S, P, Q>(store: impl Fn() -> S, place: impl Fn() -> Q)
where
    S: Checkpoint<P>,
    P: ?Sized,
    Q: Borrow<P>,
{
    holds_what_was_written_and_nothing_later(&store(), place().borrow());
    holds_a_state_between_two_batches(&store(), &place);
    describes_its_last_entry(store(), place().borrow());
    assert!(
        S::open_checkpoint(place().borrow()).is_err(),
        "an empty place"
    );
}

fn holds_what_was_written_and_nothing_later<S: Checkpoint<P>, P: ?Sized>(store: &S, place: &P) {
    write(store, 1);
    store.checkpoint(place).expect("checkpoint");
    write(store, 2);
    assert_eq!(number(&S::open_checkpoint(place).expect("open")), Some(1));
    assert_eq!(number(&S::open_checkpoint(place).expect("again")), Some(1));
    assert_eq!(number(store), Some(2));
}

fn holds_a_state_between_two_batches<S, P, Q>(store: &S, place: impl Fn() -> Q)
where
    S: Checkpoint<P>,
    P: ?Sized,
    Q: Borrow<P>,
{
    let (done, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for batch in 1.. {
                write(store, batch);
                written.store(batch, Ordering::SeqCst);
                if done.load(Ordering::SeqCst) {
                    return;
                }
            }
        });
        for _ in 0..CHECKPOINTS {
            let place = place();
            let before = written.load(Ordering::SeqCst);
            store.checkpoint(place.borrow()).expect("checkpoint");
            let after = written.load(Ordering::SeqCst);
            let found = number(&S::open_checkpoint(place.borrow()).expect("open")).unwrap_or(0);
            // The writer may have been between its write and the update of the counter.
            assert!(
                (before..=after + 1).contains(&found),
                "{before} to {after}, not {found}"
            );
        }
        done.store(true, Ordering::SeqCst);
    });
}

fn describes_its_last_entry<S: Checkpoint<P>, P: ?Sized>(store: S, place: &P) {
    let mut machine = StateMachine::open(store).expect("open");
    let entries: Vec<_> = (1..=7).map(entry).collect();
    machine.apply(&entries).expect("apply");
    machine
        .flusher()
        .with_store(|store| store.checkpoint(place))
        .expect("checkpoint");
    machine.apply(&[entry(8)]).expect("apply");
    let (last, membership) = describe::<S, P>(place).expect("describe");
    let expected = Position {
        index: Index(7),
        term: Term(3),
    };
    assert_eq!((last, membership), (expected, machine.membership()));
}

/// The entry with which a leader begins its term.
fn entry(index: u64) -> Entry {
    Entry {
        index: Index(index),
        term: Term(3),
        kind: EntryKind::Command,
        context: Bytes::new(),
        data: Bytes::new(),
    }
}

fn write(store: &impl Store, number: u64) {
    let mut batch = WriteBatch::default();
    for key in 0..KEYS {
        batch.put(&key.to_be_bytes(), &number.to_be_bytes());
    }
    store.write(&batch).expect("write");
}

/// The number of the last batch, which all keys have.
fn number(store: &impl Store) -> Option<u64> {
    let mut cursor = store.cursor(Scope::Between(Vec::new()..vec![0xff; 16]));
    cursor.seek(&[]).expect("seek");
    let mut numbers = Vec::new();
    while let Some((_, value)) = cursor.record() {
        numbers.push(u64::from_be_bytes(value.try_into().expect("a number")));
        cursor.next().expect("next");
    }
    assert!(
        numbers.is_empty() || numbers.len() as u64 == KEYS,
        "part of a batch"
    );
    assert!(
        numbers.iter().all(|number| *number == numbers[0]),
        "{numbers:?}"
    );
    numbers.first().copied()
}
