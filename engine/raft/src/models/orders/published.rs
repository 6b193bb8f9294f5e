//! What the applier publishes: revision, compact revision and applied index; and those who read,
//! collect and flush by them.

use dengine_kv::{Command, KeyRange, RangeQuery, ReadError, StateMachine};
use dengine_planted::{Bug, plant};
use dengine_types::{Index, Revision};
use loom::thread;

use super::store::OrderedStore;
use super::{entry, every_order, put};
use crate::models::KEY;

fn machine() -> (StateMachine<OrderedStore>, OrderedStore) {
    let store = OrderedStore::default();
    // The reads must be the store's.
    let machine = StateMachine::open_with_key_cache(store.clone(), 0);
    (machine.expect("an empty store opens"), store)
}

/// The entry at `index` puts, and so makes the revision after that number.
fn apply_put(machine: &mut StateMachine<OrderedStore>, index: u64) {
    let applied = machine.apply(&[entry(index, put(index))]);
    applied.expect("memory can be written");
}

/// A reader that was told that an entry is applied finds its revision, and at each revision the
/// state that belongs to it.
fn what_is_published_can_be_read() {
    let (mut machine, _) = machine();
    let reader = machine.reader();
    let client = thread::spawn(move || {
        let index = reader.applied_index();
        let revision = reader.revision();
        assert!(revision.0 > index.0, "an entry without its revision");
        let (at, found) = reader.get(&KEY, None).expect("memory can be read");
        assert!(at >= revision, "the revision went back");
        let found = found.map_or(Revision(1), |kv| kv.mod_revision);
        assert_eq!(found, at, "a revision without its state");
    });
    apply_put(&mut machine, 1);
    apply_put(&mut machine, 2);
    client.join().expect("it read");
}

#[test]
fn a_reader_finds_what_is_published() {
    every_order(what_is_published_can_be_read);
}

#[test]
#[should_panic(expected = "without its")]
fn publishing_without_order_is_found() {
    plant(Some(Bug::PublishedUnordered));
    every_order(what_is_published_can_be_read);
}

#[test]
#[should_panic(expected = "a revision without its state")]
fn publishing_before_writing_is_found() {
    plant(Some(Bug::PublishedBeforeWritten));
    every_order(what_is_published_can_be_read);
}

/// A read of an old revision while that is compacted and collected: it has its answer, or is told
/// that it comes too late.
fn old_revisions_are_whole_or_refused() {
    let (mut machine, _) = machine();
    apply_put(&mut machine, 1);
    apply_put(&mut machine, 2);
    let reader = machine.reader();
    let mut collector = machine.collector();
    let client = thread::spawn(move || {
        let query = RangeQuery {
            revision: Some(Revision(2)),
            ..RangeQuery::new(KeyRange::One(KEY))
        };
        match reader.range(&query) {
            Ok(found) => {
                let found = found.kvs.first().map(|kv| kv.mod_revision);
                assert_eq!(found, Some(Revision(2)), "part of the past is gone");
            }
            Err(ReadError::Compacted { .. }) => {}
            Err(error) => panic!("memory can be read: {error}"),
        }
    });
    let collecting = thread::spawn(move || {
        collector.step(16).expect("memory can be written");
    });
    let compact = Command::Compact {
        revision: Revision(3),
    };
    machine
        .apply(&[entry(3, compact)])
        .expect("memory can be written");
    collecting.join().expect("it collected");
    client.join().expect("it read");
}

#[test]
fn a_reader_of_the_past_is_answered_in_full_or_refused() {
    every_order(old_revisions_are_whole_or_refused);
}

#[test]
#[should_panic(expected = "part of the past is gone")]
fn asking_too_early_is_found() {
    plant(Some(Bug::CompactedAskedTooEarly));
    every_order(old_revisions_are_whole_or_refused);
}

/// A flush beside the applier: what the log may forget is on disk.
fn what_a_flush_says_is_durable() {
    let (mut machine, store) = machine();
    let flusher = machine.flusher();
    let flushing = thread::spawn(move || {
        let flushed: Index = flusher.flush().expect("memory can be written");
        let durable = StateMachine::open(store.durable()).expect("it opens");
        let (applied, _) = durable.applied();
        assert!(flushed <= applied, "the log would forget what is lost");
    });
    apply_put(&mut machine, 1);
    apply_put(&mut machine, 2);
    flushing.join().expect("it flushed");
}

#[test]
fn a_flush_covers_what_it_says() {
    every_order(what_a_flush_says_is_durable);
}

#[test]
#[should_panic(expected = "the log would forget what is lost")]
fn a_flush_that_says_too_much_is_found() {
    plant(Some(Bug::FlushedReadAfterwards));
    every_order(what_a_flush_says_is_durable);
}

#[test]
#[should_panic(expected = "the log would forget what is lost")]
fn a_flush_without_order_is_found() {
    plant(Some(Bug::PublishedUnordered));
    every_order(what_a_flush_says_is_durable);
}
