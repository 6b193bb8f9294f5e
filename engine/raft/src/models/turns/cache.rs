//! Reads of a key that the state machine's cache has, or had, while the applier changes keys.

use bytes::Bytes;
use dengine_kv::store::MemoryStore;
use dengine_kv::{Command, Reader, StateMachine};
use dengine_planted::{Bug, plant};
use dengine_types::{Entry, Revision};
use shuttle::thread;

use super::long_turns;
use crate::models::{KEY, entry};

/// The cache holds two keys with short values, or one with a long one.
const CACHE_BYTES: usize = 400;
const LONG: &[u8] = &[b'v'; 240];

/// Puts at index and revision: the first entry makes revision 2.
fn put(index: u64, key: Bytes, value: &'static [u8]) -> Entry {
    let command = Command::put(key, Bytes::from_static(value));
    entry(index, command)
}

fn open(store: &MemoryStore) -> StateMachine<MemoryStore> {
    StateMachine::open_with_key_cache(store.clone(), CACHE_BYTES).expect("memory opens")
}

/// The key is put at revisions 2 and 3, and others after it.
fn read(reader: &Reader<MemoryStore>) {
    let (at, found) = reader.get(&KEY, None).expect("memory can be read");
    let found = found.map(|found| found.mod_revision);
    assert_eq!(found, Some(at.min(Revision(3))), "what {at} had not");
}

/// A reader comes with an old revision, and goes on when the key was put again, when that was
/// dropped from the cache, and when there is room for what it found.
fn reads_show_what_their_revision_had() {
    let store = MemoryStore::default();
    let mut before = open(&store);
    let first = put(1, KEY, b"v");
    before.apply(&[first]).expect("memory can be written");
    let mut machine = open(&store);
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let reader = machine.reader();
            thread::spawn(move || read(&reader))
        })
        .collect();
    for (index, key, value) in [(2, "k", &b"v"[..]), (3, "a", LONG), (4, "a", b"v")] {
        let put = put(index, Bytes::from_static(key.as_bytes()), value);
        machine.apply(&[put]).expect("memory can be written");
    }
    for reader in readers {
        reader.join().expect("it read");
    }
    read(&machine.reader());
}

#[test]
fn a_cached_read_is_that_of_its_revision() {
    long_turns(2_000, reads_show_what_their_revision_had);
}

#[test]
#[should_panic(expected = "had not")]
fn what_a_reader_found_is_kept_though_a_later_state_was_forgotten() {
    plant(Some(Bug::KeptThoughLaterForgotten));
    long_turns(2_000, reads_show_what_their_revision_had);
}

#[test]
#[should_panic(expected = "had not")]
fn a_cached_state_of_a_later_revision_is_found() {
    plant(Some(Bug::CachedPastRevision));
    long_turns(2_000, reads_show_what_their_revision_had);
}
