//! The newest state of keys that changed lately: most changes, and most reads of single keys, ask
//! the store nothing.
//!
//! The applier learns every change here before it is published, and nobody else adds anything. So
//! what a key has here includes every published change, and a reader that finds a later revision
//! than its own asks the store.
//!
//! Keys are spread over parts with a lock each. A part has two generations of a bounded size: new
//! knowledge goes into the young one; when that is full it becomes the old one, and the old one is
//! dropped. So a key stays as long as it is changed or read once in a generation.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::PoisonError;

use bytes::Bytes;
use dengine_planted::planted;
use dengine_types::sync::{Mutex, MutexGuard};
use dengine_types::{LeaseId, Revision};

use super::KeyValue;

/// What a cache may take unless its owner says otherwise, in bytes.
pub(super) const BYTES_DEFAULT: usize = 16 << 20;
/// So small that threads seldom meet at a part, and that nobody waits for long while a generation
/// of it is dropped.
const PART_BYTES: usize = 256 << 10;
const PARTS_MAX: usize = 1 << 16;
/// The approximate cost of a key besides its own bytes and its value's: its record, its part of a
/// table that may be half empty, and what the allocator adds.
const OVERHEAD_BYTES: usize = 192;
/// Longer values are not kept; to copy one costs as much as the search for it.
const VALUE_BYTES_MAX: usize = 512;

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
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct KeyCache {
    parts: Box<[Mutex<Part>]>,
    spread: RandomState,
}

impl KeyCache {
    /// A cache of at most about so many bytes; 0 keeps nothing.
    pub(super) fn new(bytes: usize) -> Self {
        let parts = (bytes / PART_BYTES).clamp(1, PARTS_MAX);
        let part = || Part {
            generation_bytes_max: bytes / parts / 2,
            ..Part::default()
        };
        Self {
            parts: (0..parts).map(|_| Mutex::new(part())).collect(),
            spread: RandomState::new(),
        }
    }

    /// The newest pair of a key, without its value unless `with_value`, or that there is none. For
    /// the applier. `None`: ask the store.
    pub(super) fn get(&self, key: &Bytes, with_value: bool) -> Option<Option<KeyValue>> {
        self.part(key).get(key)?.pair(key, with_value)
    }

    /// The same with its value, for a reader: as of the published revision `at`.
    pub(super) fn get_at(&self, key: &Bytes, at: Revision) -> Option<Option<KeyValue>> {
        let mut part = self.part(key);
        let newest = part.get(key)?;
        let is_of_then = newest.revision() <= at || planted!(CachedPastRevision);
        is_of_then.then(|| newest.pair(key, true)).flatten()
    }

    /// Records a change, before its revision is published. Every change has to be.
    pub(super) fn learn(&self, key: &[u8], now: Newest) {
        self.part(key).learn(key, now);
    }

    fn part(&self, key: &[u8]) -> MutexGuard<'_, Part> {
        let number = self.spread.hash_one(key) % self.parts.len() as u64;
        self.parts[number as usize]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct Part {
    generation_bytes_max: usize,
    young: HashMap<Box<[u8]>, Newest>,
    /// What the young ones take.
    young_bytes: usize,
    old: HashMap<Box<[u8]>, Newest>,
}

impl Part {
    fn get(&mut self, key: &[u8]) -> Option<&Newest> {
        if let Some((key, newest)) = self.old.remove_entry(key) {
            self.insert(key, newest);
        }
        self.young.get(key)
    }

    fn learn(&mut self, key: &[u8], now: Newest) {
        let young = self.young.remove_entry(key);
        let known = match young {
            Some((key, before)) => {
                self.young_bytes -= before.cost_bytes(&key);
                Some(key)
            }
            None => self.old.remove_entry(key).map(|(key, _)| key),
        };
        self.insert(known.unwrap_or_else(|| key.into()), now);
    }

    /// Keeps what is in no generation.
    fn insert(&mut self, key: Box<[u8]>, now: Newest) {
        let bytes = now.cost_bytes(&key);
        if bytes > self.generation_bytes_max {
            return;
        }
        if self.young_bytes + bytes > self.generation_bytes_max {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        self.young_bytes += bytes;
        self.young.insert(key, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Bytes = Bytes::from_static(b"a");

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
    fn the_latest_state_is_known_in_either_generation() {
        let cache = KeyCache::new(4 << 10);
        cache.learn(b"a", live(2));
        let age = || {
            let mut part = cache.part(b"a");
            part.old = std::mem::take(&mut part.young);
            part.young_bytes = 0;
        };
        age();
        cache.learn(b"a", Newest::Deleted(Revision(3)));
        assert_eq!(cache.get(&KEY, true), Some(None));
        assert!(cache.part(b"a").old.is_empty(), "the old state is gone");
        age();
        assert_eq!(cache.get(&KEY, true), Some(None));
        let part = cache.part(b"a");
        assert!(part.young.contains_key(&b"a"[..]), "it was used: it stays");
    }

    #[test]
    fn readers_of_the_past_find_nothing_newer() {
        let cache = KeyCache::new(4 << 10);
        cache.learn(b"a", live(7));
        assert_eq!(cache.get_at(&KEY, Revision(6)), None);
        let found = Some(Some(pair(7, b"value")));
        assert_eq!(cache.get_at(&KEY, Revision(7)), found);
        cache.learn(b"a", Newest::Deleted(Revision(9)));
        assert_eq!(cache.get_at(&KEY, Revision(8)), None);
        assert_eq!(cache.get_at(&KEY, Revision(9)), Some(None));
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
        let cost = |keys: &HashMap<Box<[u8]>, Newest>| -> usize {
            keys.iter().map(|(key, now)| now.cost_bytes(key)).sum()
        };
        let (mut all, mut keys) = (0, 0);
        for part in &cache.parts {
            let part = part.lock().expect("no holder panics");
            assert_eq!(part.young_bytes, cost(&part.young));
            assert!(cost(&part.old) <= part.generation_bytes_max);
            all += part.young_bytes + cost(&part.old);
            keys += part.young.len() + part.old.len();
        }
        (all, keys)
    }

    #[test]
    fn memory_has_a_bound_and_used_keys_stay() {
        const BYTES: usize = 4 << 20;
        let cache = KeyCache::new(BYTES);
        assert!(cache.parts.len() > 1);
        for number in 0..100_000 {
            cache.learn(&key(number), live(number));
            if number.is_multiple_of(500) {
                assert!(cache.get(&key(0), true).is_some());
            }
        }
        let (bytes, keys) = held(&cache);
        assert!((BYTES / 3..=BYTES).contains(&bytes), "{bytes}");
        assert!(keys < 25_000, "{keys}");
        assert_eq!(cache.get(&key(1), true), None);
    }

    #[test]
    fn keys_that_grow_keep_the_bound() {
        const BYTES: usize = 1 << 20;
        let cache = KeyCache::new(BYTES);
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

    #[test]
    fn a_cache_of_no_bytes_keeps_nothing() {
        let cache = KeyCache::new(0);
        cache.learn(b"a", live(2));
        assert_eq!(cache.get(&KEY, false), None);
    }
}
