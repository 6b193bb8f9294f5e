//! The newest state of keys that changed or were read lately: most changes, and most reads of
//! single keys, ask the store nothing.
//!
//! The applier learns every change here before it is published. So what a key has here includes
//! every published change, and a reader that finds a later revision than its own asks the store.
//! What a reader found in the store is kept unless a change was learned meanwhile, of this key or of
//! one beside it: then it may be old.
//!
//! Keys are spread over parts with a lock each. A part has two generations of a bounded size: new
//! knowledge goes into the young one; when that is full it becomes the old one, and the old one is
//! dropped. So a key stays as long as it is used once in a generation.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::PoisonError;

use bytes::Bytes;
use dengine_planted::planted;
use dengine_types::Revision;
use dengine_types::sync::{Mutex, MutexGuard};

use super::KeyValue;

/// What a cache may take unless its owner says otherwise, in bytes.
pub(super) const BYTES_DEFAULT: usize = 16 << 20;
/// So many parts that threads seldom meet at one, if each has at least [`PART_BYTES_MIN`].
const PARTS_MAX: usize = 64;
const PART_BYTES_MIN: usize = 64 << 10;
/// The approximate cost of a key besides its own bytes and its value's: its record and its part of
/// the table.
const OVERHEAD_BYTES: usize = 128;
/// Longer values are not kept; to copy one costs as much as the search for it.
const VALUE_BYTES_MAX: usize = 512;

/// The newest state of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Newest {
    /// It exists; see [`KeyValue`].
    Live {
        create_revision: Revision,
        mod_revision: Revision,
        version: u64,
        ttl_ms: u64,
        /// `None` if it is too long to be kept.
        value: Option<Bytes>,
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
            // A copy, because it must not keep the buffer that it came in.
            value: (kv.value.len() <= VALUE_BYTES_MAX).then(|| Bytes::copy_from_slice(&kv.value)),
        }
    }

    /// The pair, with its value if `with_value`; `Ok(None)` if the key does not exist.
    ///
    /// # Errors
    ///
    /// The value is wanted and not kept.
    pub(super) fn to_key_value(
        &self,
        key: &Bytes,
        with_value: bool,
    ) -> Result<Option<KeyValue>, NotKept> {
        let Self::Live {
            create_revision,
            mod_revision,
            version,
            ttl_ms,
            value,
        } = self
        else {
            return Ok(None);
        };
        let value = match with_value {
            true => value.clone().ok_or(NotKept)?,
            false => Bytes::new(),
        };
        Ok(Some(KeyValue {
            key: key.clone(),
            value,
            create_revision: *create_revision,
            mod_revision: *mod_revision,
            version: *version,
            ttl_ms: *ttl_ms,
        }))
    }

    fn revision(&self) -> Revision {
        match self {
            Self::Live { mod_revision, .. } => *mod_revision,
            Self::Deleted(revision) => *revision,
        }
    }

    fn value_bytes(&self) -> usize {
        match self {
            Self::Live { value, .. } => value.as_ref().map_or(0, Bytes::len),
            Self::Deleted(_) => 0,
        }
    }
}

/// The value is too long to be kept here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotKept;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct KeyCache {
    parts: Box<[Mutex<Part>]>,
    spread: RandomState,
}

impl KeyCache {
    /// A cache of at most about so many bytes; 0 keeps nothing.
    pub(super) fn new(bytes: usize) -> Self {
        let parts = (bytes / PART_BYTES_MIN).clamp(1, PARTS_MAX);
        let part = || Part {
            generation_bytes_max: bytes / parts / 2,
            ..Part::default()
        };
        Self {
            parts: (0..parts).map(|_| Mutex::new(part())).collect(),
            spread: RandomState::new(),
        }
    }

    /// The newest state of a key. For the applier.
    pub(super) fn get(&self, key: &[u8]) -> Option<Newest> {
        self.part(key).get(key).cloned()
    }

    /// The newest state of a key, if that is its state at the published revision `at` too.
    pub(super) fn get_at(&self, key: &[u8], at: Revision) -> Option<Newest> {
        let mut part = self.part(key);
        let newest = part.get(key)?;
        (newest.revision() <= at || planted!(CachedPastRevision)).then(|| newest.clone())
    }

    /// Records a change, before its revision is published. Every change has to be.
    pub(super) fn learn(&self, key: &[u8], now: Newest) {
        let mut part = self.part(key);
        part.changed = now.revision();
        part.keep(key, now);
    }

    /// Keeps what the store had at the published revision `at`, if that is the newest still.
    pub(super) fn fill(&self, key: &[u8], at: Revision, found: &KeyValue) {
        let mut part = self.part(key);
        if (part.changed <= at || planted!(CacheFilledWithOld)) && part.get(key).is_none() {
            part.keep(key, Newest::of(found));
        }
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
    /// The revision of the last change that was learned of any of its keys.
    changed: Revision,
    young: HashMap<Box<[u8]>, Newest>,
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

    fn keep(&mut self, key: &[u8], now: Newest) {
        self.old.remove(key);
        match self.young.get_mut(key) {
            Some(newest) => {
                self.young_bytes += now.value_bytes();
                self.young_bytes -= newest.value_bytes();
                *newest = now;
            }
            None => self.insert(key.into(), now),
        }
    }

    fn insert(&mut self, key: Box<[u8]>, now: Newest) {
        let bytes = key.len() + now.value_bytes() + OVERHEAD_BYTES;
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

    fn pair(revision: u64, value: &[u8]) -> KeyValue {
        KeyValue {
            key: Bytes::from_static(b"a"),
            value: Bytes::copy_from_slice(value),
            create_revision: Revision(revision),
            mod_revision: Revision(revision),
            version: 1,
            ttl_ms: 0,
        }
    }

    fn live(revision: u64) -> Newest {
        Newest::of(&pair(revision, b"value"))
    }

    const KEY_BYTES: usize = 8 + 5 + OVERHEAD_BYTES;

    /// Bytes for so many keys of 8 bytes with that value in each generation.
    fn room(keys: usize) -> usize {
        2 * keys * KEY_BYTES
    }

    #[test]
    fn the_latest_state_is_known_in_either_generation() {
        let cache = KeyCache::new(room(4));
        cache.learn(b"a", live(2));
        let age = || {
            let mut part = cache.part(b"a");
            part.old = std::mem::take(&mut part.young);
        };
        age();
        cache.learn(b"a", Newest::Deleted(Revision(3)));
        assert_eq!(cache.get(b"a"), Some(Newest::Deleted(Revision(3))));
        assert!(cache.part(b"a").old.is_empty(), "the old state is gone");
        age();
        assert_eq!(cache.get(b"a"), Some(Newest::Deleted(Revision(3))));
        let part = cache.part(b"a");
        assert!(part.young.contains_key(&b"a"[..]), "it was used: it stays");
    }

    #[test]
    fn readers_of_the_past_find_nothing_newer() {
        let cache = KeyCache::new(room(4));
        cache.learn(b"a", live(7));
        assert_eq!(cache.get_at(b"a", Revision(6)), None);
        assert_eq!(cache.get_at(b"a", Revision(7)), Some(live(7)));
        cache.learn(b"a", Newest::Deleted(Revision(9)));
        assert_eq!(cache.get_at(b"a", Revision(8)), None);
        let deleted = Some(Newest::Deleted(Revision(9)));
        assert_eq!(cache.get_at(b"a", Revision(9)), deleted);
    }

    #[test]
    fn what_was_read_is_kept_unless_something_changed_since() {
        let cache = KeyCache::new(room(4));
        cache.learn(b"a", Newest::Deleted(Revision(8)));
        for number in 0..8 {
            cache.learn(&[number], Newest::Deleted(Revision(8)));
        }
        cache.fill(b"a", Revision(7), &pair(5, b"value"));
        assert_eq!(cache.get(b"a"), None, "it was deleted at 8");
        cache.fill(b"a", Revision(9), &pair(9, b"value"));
        assert_eq!(cache.get(b"a"), Some(live(9)));
        cache.fill(b"a", Revision(9), &pair(5, b"value"));
        assert_eq!(cache.get(b"a"), Some(live(9)), "what is known stays");
    }

    #[test]
    fn long_values_are_not_kept() {
        let long = Newest::of(&pair(2, &[7; VALUE_BYTES_MAX + 1]));
        let key = Bytes::from_static(b"a");
        assert_eq!(long.to_key_value(&key, true), Err(NotKept));
        assert_eq!(long.to_key_value(&key, false), Ok(Some(pair(2, b""))));
        let longest = pair(2, &[7; VALUE_BYTES_MAX]);
        let kept = Newest::of(&longest).to_key_value(&key, true);
        assert_eq!(kept, Ok(Some(longest)));
    }

    #[test]
    fn memory_has_a_bound_and_used_keys_stay() {
        let cache = KeyCache::new(room(10_000));
        assert!(cache.parts.len() > 1);
        for number in 0..200_000_u64 {
            cache.learn(&number.to_be_bytes(), live(number));
            if number.is_multiple_of(1000) {
                assert_eq!(cache.get(&0_u64.to_be_bytes()), Some(live(0)));
            }
        }
        let mut held = 0;
        for part in &cache.parts {
            let part = part.lock().expect("no holder panics");
            held += part.young.len() + part.old.len();
            assert_eq!(part.young_bytes, part.young.len() * KEY_BYTES);
        }
        assert!((10_000..=20_000).contains(&held), "{held}");
        assert_eq!(cache.get(&1_u64.to_be_bytes()), None);
    }

    #[test]
    fn a_cache_of_no_bytes_keeps_nothing() {
        let cache = KeyCache::new(0);
        cache.learn(b"a", live(2));
        assert_eq!(cache.get(b"a"), None);
    }
}
