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
/// More would take memory where there are few keys and much room for them.
const PARTS_MAX: usize = 1 << 12;
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
            usage.capacity_bytes += part.bytes_max as u64;
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
    /// What it may take.
    pub capacity_bytes: u64,
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
mod tests;
