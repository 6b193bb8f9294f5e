//! The current state of recently changed keys, without their values: most changes are of such keys,
//! and need no read of the store.
//!
//! There are two generations of a bounded size. New knowledge goes into the young one; when that is
//! full it becomes the old one, and the old one is dropped. So a key stays as long as it is used
//! once in a generation.

use std::collections::HashMap;

use bytes::Bytes;
use dengine_types::Revision;

use super::KeyValue;

/// The maximum size of one generation, in bytes.
const GENERATION_BYTES: usize = 8 << 20;
/// The approximate cost of a key besides its own bytes: its record and its part of the table.
const OVERHEAD_BYTES: usize = 96;

/// The current state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recent {
    /// It exists; see [`KeyValue`].
    Live {
        create_revision: Revision,
        mod_revision: Revision,
        version: u64,
        ttl_ms: u64,
    },
    Absent,
}

impl Recent {
    /// The state of a key that has this pair, or does not exist.
    pub(super) fn of(kv: Option<&KeyValue>) -> Self {
        kv.map_or(Self::Absent, |kv| Self::Live {
            create_revision: kv.create_revision,
            mod_revision: kv.mod_revision,
            version: kv.version,
            ttl_ms: kv.ttl_ms,
        })
    }

    /// The pair without its value; `None` if the key does not exist.
    pub(super) fn to_key_value(self, key: Bytes) -> Option<KeyValue> {
        match self {
            Self::Absent => None,
            Self::Live {
                create_revision,
                mod_revision,
                version,
                ttl_ms,
            } => Some(KeyValue {
                key,
                value: Bytes::new(),
                create_revision,
                mod_revision,
                version,
                ttl_ms,
            }),
        }
    }
}

/// A cache of current keys. Every change of a key must be recorded with [`Self::learn`], or the
/// cache becomes wrong.
#[derive(Debug, Default)]
pub(super) struct RecentKeys {
    young: HashMap<Box<[u8]>, Recent>,
    young_bytes: usize,
    old: HashMap<Box<[u8]>, Recent>,
}

impl RecentKeys {
    /// The current state of a key, if it is cached.
    pub(super) fn get(&mut self, key: &[u8]) -> Option<Recent> {
        if let Some(known) = self.young.get(key) {
            return Some(*known);
        }
        let (key, known) = self.old.remove_entry(key)?;
        self.keep(key, known);
        Some(known)
    }

    /// Records the current state of a key.
    pub(super) fn learn(&mut self, key: &[u8], now: Recent) {
        match self.young.get_mut(key) {
            Some(known) => *known = now,
            None => {
                self.old.remove(key);
                self.keep(key.into(), now);
            }
        }
    }

    fn keep(&mut self, key: Box<[u8]>, known: Recent) {
        self.young_bytes += key.len() + OVERHEAD_BYTES;
        self.young.insert(key, known);
        if self.young_bytes > GENERATION_BYTES {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(revision: u64) -> Recent {
        Recent::Live {
            create_revision: Revision(revision),
            mod_revision: Revision(revision),
            version: 1,
            ttl_ms: 0,
        }
    }

    #[test]
    fn the_latest_state_is_known_in_either_generation() {
        let mut keys = RecentKeys::default();
        keys.learn(b"a", live(2));
        keys.old = std::mem::take(&mut keys.young);
        keys.learn(b"a", Recent::Absent);
        assert_eq!(keys.get(b"a"), Some(Recent::Absent));
        assert!(keys.old.is_empty(), "the old state is gone");
        keys.old = std::mem::take(&mut keys.young);
        assert_eq!(keys.get(b"a"), Some(Recent::Absent));
        assert!(
            keys.young.contains_key(&b"a"[..]),
            "it was used, so it stays"
        );
    }

    #[test]
    fn memory_has_a_bound_and_used_keys_stay() {
        let mut keys = RecentKeys::default();
        let per_generation = (GENERATION_BYTES / (8 + OVERHEAD_BYTES)) as u64;
        for number in 0..5 * per_generation {
            keys.learn(&number.to_be_bytes(), live(number));
            if number % 1000 == 0 {
                assert_eq!(keys.get(&0_u64.to_be_bytes()), Some(live(0)));
            }
        }
        let held = (keys.young.len() + keys.old.len()) as u64;
        assert!(held <= 2 * per_generation + 2, "{held}");
        assert_eq!(keys.get(&1_u64.to_be_bytes()), None);
    }
}
