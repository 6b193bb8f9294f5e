//! The newest state of keys that were changed or read lately: most changes, and most reads of
//! single keys, ask the store nothing.
//!
//! The applier learns every change here before it is published. So what a key has here includes
//! every published change, and a reader that finds a later revision than its own asks the store.
//!
//! A reader that had to ask the store offers what it found. It is kept if nothing later of the key
//! was forgotten: what a reader found as of its revision is the newest state of a key that is not
//! here, unless one of a later revision was here and had to make room, or changed before the state
//! was opened. Changes that were not learned yet take its place once they are.
//!
//! Keys are spread over parts with a lock each. A part that is full forgets keys by second chance:
//! from a place at random on, the first that was neither read nor changed since it was last looked
//! at here. At random, for whoever reads all keys in a row would else find each just forgotten.
//!
//! Until a part forgets a key that exists it also knows which keys there are none of: of new keys
//! the store is asked nothing either.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::PoisonError;

use bytes::Bytes;
use dengine_planted::planted;
use dengine_types::sync::{Mutex, MutexGuard};
use dengine_types::{LeaseId, Revision};
use hashbrown::HashTable;

use super::KeyValue;
use super::layout::{data_range, split_data_key};
use super::scan::live;
use super::store::{Cursor as _, Scope, Store, StoreError};

/// What a cache may take unless its owner says otherwise, in bytes.
pub(super) const BYTES_DEFAULT: usize = 16 << 20;
/// So small that threads seldom meet at a part, and that to look at all of its keys takes no time.
const PART_BYTES: usize = 256 << 10;
const PARTS_MAX: usize = 1 << 16;
/// The approximate cost of a key besides its own bytes and its value's: its record, its place in a
/// table that may be half empty, room for more of both, and what the allocator adds.
const OVERHEAD_BYTES: usize = 144;
/// What is read when a state is opened, in bytes: as much as a disk reads in part of a second.
const READ_BYTES_MAX: usize = 32 << 20;
/// Longer values are not kept; to copy one costs as much as the search for it.
const VALUE_BYTES_MAX: usize = 512;
/// Where there is no room, one of so many states that readers offer a part is kept in place of
/// another: a key that is read often gets in soon, and to read very many once costs little.
const OFFERS_FOR_ONE_KEPT: u64 = 16;

/// The newest state of a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Newest {
    /// It exists; see [`KeyValue`].
    Live {
        create_revision: Revision,
        mod_revision: Revision,
        version: u64,
        ttl_ms: u64,
        lease: LeaseId,
        /// `None` if it is too long to be kept.
        value: Option<Box<[u8]>>,
    },
    /// It was deleted at this revision.
    Deleted(Revision),
}

impl Newest {
    pub(super) fn of(kv: &KeyValue) -> Self {
        Self::Live {
            create_revision: kv.create_revision,
            mod_revision: kv.mod_revision,
            version: kv.version,
            ttl_ms: kv.ttl_ms,
            lease: kv.lease,
            value: (kv.value.len() <= VALUE_BYTES_MAX).then(|| kv.value[..].into()),
        }
    }

    /// The pair, if the key exists, with its value if `with_value`; `None` if that is not kept.
    fn pair(&self, key: &Bytes, with_value: bool) -> Option<Option<KeyValue>> {
        let Self::Live {
            create_revision,
            mod_revision,
            version,
            ttl_ms,
            lease,
            value,
        } = self
        else {
            return Some(None);
        };
        let value = match with_value {
            true => Bytes::copy_from_slice(value.as_deref()?),
            false => Bytes::new(),
        };
        Some(Some(KeyValue {
            key: key.clone(),
            value,
            create_revision: *create_revision,
            mod_revision: *mod_revision,
            version: *version,
            ttl_ms: *ttl_ms,
            lease: *lease,
        }))
    }

    fn revision(&self) -> Revision {
        match self {
            Self::Live { mod_revision, .. } => *mod_revision,
            Self::Deleted(revision) => *revision,
        }
    }

    /// Approximately what it takes under `key`.
    fn cost_bytes(&self, key: &[u8]) -> usize {
        let value = match self {
            Self::Live { value, .. } => value.as_ref().map_or(0, |value| value.len()),
            Self::Deleted(_) => 0,
        };
        key.len() + value + OVERHEAD_BYTES
    }

    /// The same for what would be kept of a pair.
    fn cost_bytes_of(kv: &KeyValue) -> usize {
        let value = Some(kv.value.len()).filter(|bytes| *bytes <= VALUE_BYTES_MAX);
        kv.key.len() + value.unwrap_or_default() + OVERHEAD_BYTES
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct KeyCache {
    parts: Box<[Mutex<Part>]>,
    spread: RandomState,
}

impl KeyCache {
    /// A cache of at most about so many bytes for the state in `store`, which nobody changes
    /// meanwhile and whose revision is `at`; 0 keeps nothing. If the state is small, all keys in it
    /// are learned.
    pub(super) fn of(store: &impl Store, at: Revision, bytes: usize) -> Self {
        let cache = Self::new(bytes, at);
        // Whoever needs what can't be read now says so.
        let knows_all = bytes > 0 && cache.learn_all(store, at, bytes).unwrap_or_default();
        if !knows_all {
            for part in &cache.parts {
                let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
                part.knows_all_since = None;
            }
        }
        cache
    }

    /// For a state that has been without a key since then.
    fn new(bytes: usize, since: Revision) -> Self {
        let parts = (bytes / PART_BYTES).clamp(1, PARTS_MAX);
        let part = || Part {
            bytes_max: bytes / parts,
            knows_all_since: Some(since),
            forgotten_at: since,
            ..Part::default()
        };
        Self {
            parts: (0..parts).map(|_| Mutex::new(part())).collect(),
            spread: RandomState::new(),
        }
    }

    /// Whether these were all: there was room, and not too much to read. Not by a `Scan`, for what
    /// that steps over, older versions and deleted records, has to count too.
    fn learn_all(
        &self,
        store: &impl Store,
        at: Revision,
        bytes_max: usize,
    ) -> Result<bool, StoreError> {
        let all = data_range(&[], None);
        let mut cursor = store.cursor_of_few_deleted(Scope::Between(all.clone()));
        let (mut bytes, mut read_bytes, mut last) = (0, 0, Vec::new());
        cursor.seek(&all.start)?;
        while let Some((record_key, record)) = cursor.record() {
            read_bytes += record_key.len() + record.len();
            let (prefix, revision) = split_data_key(record_key)?;
            if revision > at {
                // The state is damaged. Who reads this key says so.
                return Ok(false);
            }
            // The newest version of a key is the first.
            if prefix != last {
                last.clear();
                last.extend_from_slice(prefix);
                if let Some(found) = live(record_key, record)? {
                    let kv = found.to_key_value(found.key()?, true);
                    let newest = Newest::of(&kv);
                    bytes += newest.cost_bytes(&kv.key);
                    self.learn(&kv.key, newest);
                }
            }
            if bytes > bytes_max || read_bytes > READ_BYTES_MAX {
                return Ok(false);
            }
            cursor.next()?;
        }
        Ok(true)
    }

    /// The newest pair of a key, without its value unless `with_value`, or that there is none. For
    /// the applier. `None`: ask the store.
    pub(super) fn get(&self, key: &Bytes, with_value: bool) -> Option<Option<KeyValue>> {
        let (hash, mut part) = self.part(key);
        part.answer(hash, key, |newest| newest.pair(key, with_value))
    }

    /// The same for a reader: as of the published revision `at`.
    pub(super) fn get_at(
        &self,
        key: &Bytes,
        at: Revision,
        with_value: bool,
    ) -> Option<Option<KeyValue>> {
        let (hash, mut part) = self.part(key);
        part.answer(hash, key, |newest| {
            let is_of_then = newest.revision() <= at || planted!(CachedPastRevision);
            is_of_then.then(|| newest.pair(key, with_value)).flatten()
        })
    }

    /// Records a change, before its revision is published. Every change has to be.
    pub(super) fn learn(&self, key: &[u8], now: Newest) {
        let (hash, mut part) = self.part(key);
        part.learn(hash, key, now);
    }

    /// What a reader found in the store at the published revision `at`, with its value.
    pub(super) fn offer(&self, kv: &KeyValue, at: Revision) {
        let (hash, mut part) = self.part(&kv.key);
        part.offer(hash, kv, at);
    }

    /// What it takes and spares, part after part.
    pub(super) fn usage(&self) -> KeyCacheUsage {
        let mut usage = KeyCacheUsage::default();
        for part in &self.parts {
            let part = part.lock().unwrap_or_else(PoisonError::into_inner);
            usage.bytes += part.bytes as u64;
            usage.hits += part.hits;
            usage.misses += part.misses;
        }
        usage
    }

    /// Where a key belongs, and its hash. Of that a part's table uses both ends: bits between them
    /// say which part.
    fn part(&self, key: &[u8]) -> (u64, MutexGuard<'_, Part>) {
        let hash = self.spread.hash_one(key);
        let share = u64::from((hash >> 20) as u32);
        let number = (share * self.parts.len() as u64) >> 32;
        let part = &self.parts[number as usize];
        (hash, part.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What the cache of keys that were changed or read lately takes, and what it spares the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyCacheUsage {
    /// Approximately what it takes now.
    pub bytes: u64,
    /// How often it had the key that a change or a read looked for.
    pub hits: u64,
    /// How often the store was asked instead.
    pub misses: u64,
}

#[derive(Debug, Default)]
struct Part {
    bytes_max: usize,
    /// Since then a key that is not here does not exist.
    knows_all_since: Option<Revision>,
    /// No state of a later revision was forgotten.
    forgotten_at: Revision,
    known: Vec<Known>,
    /// Where in `known` each key is.
    places: HashTable<u32>,
    /// What they take.
    bytes: usize,
    hits: u64,
    misses: u64,
    /// What readers offered that there was no room for.
    offers: u64,
}

#[derive(Debug)]
struct Known {
    /// Of its key: to make more room asks for it again.
    hash: u64,
    key: Box<[u8]>,
    newest: Newest,
    /// It was read or changed since it was last looked at for room.
    is_used: bool,
}

impl Known {
    fn cost_bytes(&self) -> usize {
        self.newest.cost_bytes(&self.key)
    }
}

impl Part {
    /// What `answer` makes of the newest state of a key, if it is known and enough; counted.
    fn answer<T>(
        &mut self,
        hash: u64,
        key: &[u8],
        answer: impl FnOnce(&Newest) -> Option<T>,
    ) -> Option<T> {
        let answer = match (self.place(hash, key), self.knows_all_since) {
            (Some(place), _) => {
                let known = &mut self.known[place];
                known.is_used = true;
                answer(&known.newest)
            }
            (None, Some(since)) => answer(&Newest::Deleted(since)),
            (None, None) => None,
        };
        match answer {
            Some(_) => self.hits += 1,
            None => self.misses += 1,
        }
        answer
    }

    fn learn(&mut self, hash: u64, key: &[u8], newest: Newest) {
        if let Some(place) = self.place(hash, key) {
            let known = &mut self.known[place];
            let bytes = self.bytes - known.cost_bytes() + newest.cost_bytes(key);
            if bytes <= self.bytes_max {
                self.bytes = bytes;
                known.newest = newest;
                known.is_used = true;
                return;
            }
            self.remove(place);
        }
        self.insert(Known {
            hash,
            key: key.into(),
            newest,
            is_used: false,
        });
    }

    /// Keeps what was found at a published revision, if nothing later may have been here, and there
    /// is room or it is its turn.
    fn offer(&mut self, hash: u64, kv: &KeyValue, at: Revision) {
        let was_later = self.forgotten_at > at && !planted!(KeptThoughLaterForgotten);
        if was_later || self.place(hash, &kv.key).is_some() {
            return;
        }
        let bytes = Newest::cost_bytes_of(kv);
        if self.bytes + bytes > self.bytes_max {
            self.offers += 1;
            let is_its_turn = self.offers.is_multiple_of(OFFERS_FOR_ONE_KEPT);
            if !is_its_turn || bytes > self.bytes_max {
                return;
            }
        }
        self.insert(Known {
            hash,
            key: kv.key[..].into(),
            newest: Newest::of(kv),
            is_used: false,
        });
    }

    fn place(&self, hash: u64, key: &[u8]) -> Option<usize> {
        let is_key = |place: &u32| *self.known[*place as usize].key == *key;
        self.places.find(hash, is_key).map(|place| *place as usize)
    }

    /// Forgets the first key from this place on that was not used.
    fn forget_from(&mut self, mut place: usize) {
        while std::mem::take(&mut self.known[place].is_used) {
            place = (place + 1) % self.known.len();
        }
        let forgotten = self.remove(place);
        self.no_longer_knows(&forgotten.newest);
        self.give_back();
    }

    /// Keeps what is not there, unless it is too large for this part.
    fn insert(&mut self, known: Known) {
        let (hash, bytes) = (known.hash, known.cost_bytes());
        if bytes > self.bytes_max {
            self.no_longer_knows(&known.newest);
            return;
        }
        while self.bytes + bytes > self.bytes_max {
            self.forget_from(hash as usize % self.known.len());
        }
        if self.known.len() == self.known.capacity() {
            // By itself it would make room for as many again.
            self.known.reserve_exact(8 + self.known.len() / 4);
        }
        let place = self.known.len() as u32;
        self.known.push(known);
        self.bytes += bytes;
        let hash_of = |place: &u32| self.known[*place as usize].hash;
        self.places.insert_unique(hash, place, hash_of);
    }

    /// A key that is not here may exist from now on, or may have until it was deleted.
    fn no_longer_knows(&mut self, forgotten: &Newest) {
        self.forgotten_at = self.forgotten_at.max(forgotten.revision());
        self.knows_all_since = match forgotten {
            Newest::Live { .. } => None,
            Newest::Deleted(revision) => self.knows_all_since.map(|since| since.max(*revision)),
        };
    }

    /// Gives back room that fewer keys, whose values are longer, leave.
    fn give_back(&mut self) {
        let keys = self.known.len();
        if self.known.capacity() > 16 + keys * 3 / 2 {
            self.known.shrink_to(8 + keys * 5 / 4);
        }
        if self.places.capacity() > 32 + keys * 4 {
            let hash_of = |place: &u32| self.known[*place as usize].hash;
            self.places.shrink_to(keys * 2, hash_of);
        }
    }

    fn remove(&mut self, place: usize) -> Known {
        let (removed, moved) = (place as u32, self.known.len() as u32 - 1);
        let moved_hash = self.known[moved as usize].hash;
        let known = self.known.swap_remove(place);
        self.bytes -= known.cost_bytes();
        let its = self.places.find_entry(known.hash, |it| *it == removed);
        its.expect("each has its place").remove();
        if moved != removed {
            let last = self.places.find_mut(moved_hash, |it| *it == moved);
            *last.expect("each has its place") = removed;
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;
    use crate::tests::command_entry;
    use crate::tests::counting::Counting;
    use crate::{
        Batch, Command, Compare, CompareTarget, KeyRange, Outcome, Relation, StateMachine,
    };

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

    /// A state that is known without its value is no answer to who wants that.
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
}
