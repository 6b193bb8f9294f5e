//! What the cache knows, and what it costs.

use super::*;
use crate::store::MemoryStore;
use crate::tests::command_entry;
use crate::tests::counting::Counting;
use crate::{Batch, Command, Compare, CompareTarget, KeyRange, Outcome, Relation, StateMachine};

const KEY: Bytes = Bytes::from_static(b"a");
/// Of a state without keys.
const NONE: Revision = Revision(1);

fn pair(revision: u64, value: &[u8]) -> KeyValue {
    KeyValue {
        key: KEY,
        value: Bytes::copy_from_slice(value),
        create_revision: Revision(revision),
        mod_revision: Revision(revision),
        version: 1,
        ttl_ms: 0,
        lease: LeaseId::NONE,
    }
}

fn live(revision: u64) -> Newest {
    Newest::of(&pair(revision, b"value"))
}

fn key(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

#[test]
fn the_latest_state_is_known() {
    let cache = KeyCache::new(4 << 10, NONE);
    cache.learn(b"a", live(2));
    assert_eq!(cache.get(&KEY, true), Some(Some(pair(2, b"value"))));
    cache.learn(b"a", Newest::Deleted(Revision(3)));
    assert_eq!(cache.get(&KEY, true), Some(None));
    assert_eq!(held(&cache).1, 1, "the old state is gone");
}

#[test]
fn readers_of_the_past_find_nothing_newer() {
    let cache = KeyCache::new(4 << 10, NONE);
    cache.learn(b"a", live(7));
    assert_eq!(cache.get_at(&KEY, Revision(6), true), None);
    let found = Some(Some(pair(7, b"value")));
    assert_eq!(cache.get_at(&KEY, Revision(7), true), found);
    cache.learn(b"a", Newest::Deleted(Revision(9)));
    assert_eq!(cache.get_at(&KEY, Revision(8), true), None);
    assert_eq!(cache.get_at(&KEY, Revision(9), true), Some(None));
}

#[test]
fn what_a_reader_found_is_known() {
    let cache = KeyCache::new(4 << 10, Revision(5));
    make_forget(&cache);
    cache.offer(&pair(3, b"value"), Revision(9));
    assert_eq!(cache.get(&KEY, true), Some(Some(pair(3, b"value"))));
    cache.learn(b"a", live(10));
    cache.offer(&pair(3, b"value"), Revision(9));
    let changed = Some(Some(pair(10, b"value")));
    assert_eq!(
        cache.get(&KEY, true),
        changed,
        "a change is later than what is read"
    );
    let long = KeyValue {
        key: key(1),
        ..pair(8, &[7; VALUE_BYTES_MAX + 1])
    };
    cache.offer(&long, Revision(9));
    assert_eq!(cache.get(&long.key, true), None);
    let known = cache.get(&long.key, false).unwrap().unwrap();
    assert_eq!(known.mod_revision, Revision(8));
}

#[test]
fn what_is_offered_costs_what_it_takes() {
    for value in [&b""[..], &[7; VALUE_BYTES_MAX], &[7; VALUE_BYTES_MAX + 1]] {
        let offered = pair(2, value);
        let cost = Newest::of(&offered).cost_bytes(&KEY);
        assert_eq!(Newest::cost_bytes_of(&offered), cost);
    }
}

/// Of which key the later state was is not known any more: it may have been this one.
#[test]
fn what_a_reader_found_is_left_if_something_later_was_forgotten() {
    let cache = KeyCache::new(300, Revision(5));
    cache.learn(b"a", live(8));
    let large = Newest::of(&pair(9, &[7; VALUE_BYTES_MAX]));
    cache.learn(b"a", large);
    cache.offer(&pair(4, b"value"), Revision(8));
    assert_eq!(cache.get(&KEY, true), None, "it was changed at revision 9");
    cache.offer(&pair(9, b"value"), Revision(9));
    assert_eq!(cache.get(&KEY, true), Some(Some(pair(9, b"value"))));
}

/// A reader of the time before the state was opened does not know what changed until then.
#[test]
fn what_a_reader_found_is_left_if_it_is_older_than_the_cache() {
    let cache = KeyCache::new(4 << 10, Revision(5));
    make_forget(&cache);
    cache.offer(&pair(3, b"value"), Revision(4));
    assert_eq!(cache.get(&KEY, true), None);
}

#[test]
fn where_there_is_no_room_what_is_read_often_is_kept_too() {
    const BYTES: usize = 4 << 20;
    let cache = KeyCache::new(BYTES, NONE);
    for number in 0..100_000 {
        cache.learn(&key(number), live(2));
    }
    let found = KeyValue {
        key: key(100_000),
        ..pair(2, b"value")
    };
    for _ in 1..OFFERS_FOR_ONE_KEPT {
        cache.offer(&found, Revision(2));
        assert_eq!(cache.get(&found.key, true), None);
    }
    cache.offer(&found, Revision(2));
    assert_eq!(cache.get(&found.key, true), Some(Some(found)));
    assert!(held(&cache).0 <= BYTES);
}

/// What one reader found in the store spares that to the next, and to batches.
#[test]
fn a_key_is_looked_for_in_the_store_once() {
    let store = Counting::default();
    let mut machine = StateMachine::open(store.clone()).unwrap();
    let puts = (0..3).map(|number| Command::put(key(number), Bytes::from_static(b"v")));
    for (index, put) in (1..).zip(puts) {
        machine.apply(&[command_entry(index, put)]).unwrap();
    }
    drop(machine);
    // It has room for one.
    let reader = StateMachine::open_with_key_cache(store.clone(), 200)
        .unwrap()
        .reader();
    let mut moves = Vec::new();
    for _ in 0..2 * OFFERS_FOR_ONE_KEPT {
        let get = || reader.get(&key(0), None).unwrap().1.unwrap();
        let (moved, found) = store.moves_of(get);
        assert_eq!(&found.value[..], b"v");
        moves.push(moved);
    }
    assert_eq!((moves[0], moves.last()), (1, Some(&0)), "{moves:?}");
    let compare = Batch {
        compares: vec![Compare {
            keys: KeyRange::One(key(0)),
            target: CompareTarget::Version(1),
            relation: Relation::Equal,
        }],
        ..Batch::default()
    };
    let (moved, outcome) = store.moves_of(|| reader.batch(&compare).unwrap().unwrap());
    assert!(matches!(
        outcome,
        Outcome::Batch {
            succeeded: true,
            ..
        }
    ));
    assert_eq!(moved, 0);
}

/// Until it does not know any more which keys there are none of.
fn make_forget(cache: &KeyCache) {
    for part in &cache.parts {
        part.lock().expect("no holder panics").knows_all_since = None;
    }
}

#[test]
fn long_values_are_not_kept() {
    let long = Newest::of(&pair(2, &[7; VALUE_BYTES_MAX + 1]));
    assert_eq!(long.pair(&KEY, true), None);
    assert_eq!(long.pair(&KEY, false), Some(Some(pair(2, b""))));
    let longest = pair(2, &[7; VALUE_BYTES_MAX]);
    let kept = Newest::of(&longest).pair(&KEY, true);
    assert_eq!(kept, Some(Some(longest)));
}

/// What the parts hold, by what they count and by what is there.
fn held(cache: &KeyCache) -> (usize, usize) {
    let (mut all, mut keys) = (0, 0);
    for part in &cache.parts {
        let part = part.lock().expect("no holder panics");
        let cost: usize = part.known.iter().map(Known::cost_bytes).sum();
        assert_eq!(part.bytes, cost);
        assert!(part.bytes <= part.bytes_max);
        assert_eq!(part.places.len(), part.known.len());
        for (place, known) in part.known.iter().enumerate() {
            assert_eq!(part.place(known.hash, &known.key), Some(place));
        }
        all += part.bytes;
        keys += part.known.len();
    }
    assert_eq!(cache.usage().bytes, all as u64);
    (all, keys)
}

#[test]
fn memory_has_a_bound_and_used_keys_stay() {
    const BYTES: usize = 4 << 20;
    let cache = KeyCache::new(BYTES, NONE);
    assert!(cache.parts.len() > 1);
    let mut forgotten = 0;
    for number in 0..100_000 {
        cache.learn(&key(number), live(number));
        if number.is_multiple_of(500) && cache.get(&key(0), true).is_none() {
            forgotten += 1;
            cache.learn(&key(0), live(number));
        }
    }
    // By chance it may be looked at twice in between.
    assert!(forgotten < 10, "{forgotten}");
    let (bytes, keys) = held(&cache);
    assert!((BYTES / 10 * 9..=BYTES).contains(&bytes), "{bytes}");
    assert!(keys < 30_000, "{keys}");
}

/// To forget the oldest would forget each just before it is asked for.
#[test]
fn of_more_keys_in_a_row_than_there_is_room_for_many_are_known() {
    let cache = KeyCache::new(1 << 20, NONE);
    for number in 0..20_000 {
        cache.learn(&key(number), live(number));
    }
    let asked = held(&cache).1 as u64 * 5 / 4;
    let mut known = 0;
    for round in 0..10 {
        for number in 0..asked {
            known += u64::from(cache.get(&key(number), true).is_some());
            cache.learn(&key(number), live(20_000 * (round + 1) + number));
        }
    }
    assert!(known > asked * 10 / 3, "{known} of {}", asked * 10);
}

#[test]
fn keys_that_grow_keep_the_bound() {
    const BYTES: usize = 1 << 20;
    let cache = KeyCache::new(BYTES, NONE);
    let grown = Newest::of(&pair(2, &[7; VALUE_BYTES_MAX]));
    for number in 0..20_000 {
        cache.learn(&key(number), Newest::Deleted(Revision(1)));
    }
    let (_, keys) = held(&cache);
    for number in (0..20_000).rev().take(keys) {
        let now = Newest::of(&pair(2, &[7; VALUE_BYTES_MAX]));
        assert_eq!(now, grown);
        cache.learn(&key(number), now);
        assert!(held(&cache).0 <= BYTES);
    }
}

/// What is known and not enough is a miss too: the store is asked.
#[test]
fn what_the_store_is_spared_is_counted() {
    let cache = KeyCache::new(4 << 10, NONE);
    cache.learn(b"a", live(7));
    assert_eq!(cache.get_at(&KEY, Revision(5), true), None);
    assert!(cache.get(&KEY, true).is_some());
    assert!(cache.get_at(&KEY, Revision(7), true).is_some());
    assert_eq!(cache.get_at(&KEY, Revision(6), true), None);
    let usage = cache.usage();
    assert_eq!((usage.hits, usage.misses), (2, 2));
    assert_eq!(usage.bytes, live(7).cost_bytes(b"a") as u64);
}

#[test]
fn a_cache_of_no_bytes_keeps_nothing() {
    let cache = KeyCache::of(&MemoryStore::default(), NONE, 0);
    assert_eq!(cache.get(&KEY, false), None);
    cache.learn(b"a", live(2));
    assert_eq!(cache.get(&KEY, false), None);
    for _ in 0..2 * OFFERS_FOR_ONE_KEPT {
        cache.offer(&pair(2, b"value"), Revision(2));
        assert_eq!(cache.get(&KEY, false), None);
    }
}

#[test]
fn that_there_is_no_such_key_is_known_until_one_is_forgotten() {
    let cache = KeyCache::new(4 << 10, Revision(5));
    assert_eq!(cache.get(&KEY, true), Some(None));
    assert_eq!(cache.get_at(&KEY, Revision(5), true), Some(None));
    assert_eq!(
        cache.get_at(&KEY, Revision(4), true),
        None,
        "there may have been"
    );
    let mut number = 0;
    while held(&cache).1 == number as usize {
        assert_eq!(cache.get(&KEY, true), Some(None));
        cache.learn(&key(number), live(6));
        number += 1;
    }
    assert_eq!(cache.get(&KEY, true), None);
}

#[test]
fn that_there_is_no_such_key_is_not_known_once_one_was_too_large() {
    let cache = KeyCache::new(300, NONE);
    cache.learn(b"a", live(2));
    let large = Newest::of(&pair(3, &[7; VALUE_BYTES_MAX]));
    cache.learn(b"a", large);
    assert_eq!(cache.get(&KEY, true), None);
    assert_eq!(cache.get(&key(1), true), None);
}

/// A store in which keys 0 to 9 are live, the first was put last, and key 10 was deleted.
fn store() -> (MemoryStore, Revision) {
    let store = MemoryStore::default();
    let mut machine = StateMachine::open(store.clone()).unwrap();
    let delete = Command::Delete {
        keys: KeyRange::One(key(10)),
        prev_kv: false,
    };
    let puts = (0..=10).map(|number| Command::put(key(number), Bytes::from_static(b"v")));
    let again = Command::put(key(0), Bytes::from_static(b"w"));
    let commands = puts.chain([delete, again]);
    for (index, command) in (1..).zip(commands) {
        machine.apply(&[command_entry(index, command)]).unwrap();
    }
    (store, machine.revision())
}

#[test]
fn the_keys_of_a_small_state_are_known_from_the_start() {
    let (store, now) = store();
    let cache = KeyCache::of(&store, now, 16 << 10);
    assert_eq!(held(&cache).1, 10);
    let first = cache.get(&key(0), true).unwrap().unwrap();
    assert_eq!((&first.value[..], first.version), (&b"w"[..], 2));
    for absent in [key(10), key(11)] {
        assert_eq!(cache.get_at(&absent, now, true), Some(None));
        assert_eq!(cache.get_at(&absent, Revision(now.0 - 1), true), None);
    }
}

/// What is wrong with it is said by who reads it.
#[test]
fn of_a_damaged_state_no_key_is_known_not_to_be_there() {
    let (store, now) = store();
    let cache = KeyCache::of(&store, Revision(now.0 - 1), 16 << 10);
    assert_eq!(cache.get(&key(11), true), None);
}

#[test]
fn keys_that_come_and_go_end_no_knowledge() {
    let cache = KeyCache::new(4 << 10, NONE);
    for number in 0..1_000 {
        cache.learn(&key(number), live(2 * number));
        cache.learn(&key(number), Newest::Deleted(Revision(2 * number + 1)));
        // Whether it was forgotten, or is known to be deleted.
        for known in 0..=number {
            assert_eq!(cache.get(&key(known), true), Some(None));
        }
    }
    assert!(held(&cache).1 < 100);
    assert_eq!(cache.get_at(&key(1_001), Revision(100), true), None);
}

#[test]
fn room_for_many_small_keys_is_given_back() {
    const BYTES: usize = 1 << 20;
    let cache = KeyCache::new(BYTES, NONE);
    for number in 0..10_000 {
        cache.learn(&key(number), Newest::Deleted(Revision(1)));
    }
    for number in 0..10_000 {
        cache.learn(&key(number), Newest::of(&pair(2, &[7; VALUE_BYTES_MAX])));
    }
    for part in &cache.parts {
        let part = part.lock().expect("no holder panics");
        let (keys, room) = (part.known.len(), part.known.capacity());
        assert!(
            room <= 16 + keys * 3 / 2,
            "room for {room} in place of {keys}"
        );
    }
}

#[test]
fn of_a_state_that_is_too_large_a_part_is_known() {
    let (store, now) = store();
    let cache = KeyCache::of(&store, now, 1 << 10);
    let (_, keys) = held(&cache);
    assert!((1..10).contains(&keys), "{keys}");
    assert_eq!(cache.get(&key(11), true), None);
}
