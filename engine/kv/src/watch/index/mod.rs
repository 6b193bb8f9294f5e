//! The watches that want a key: found without asking each.

mod intervals;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::ControlFlow;

use bytes::Bytes;

use self::intervals::Intervals;
use crate::KeyRange;

/// Items with key ranges, found by any key in their range: single keys in a hash map, ranges in an
/// interval tree. A search costs one look-up, one descent of the tree, and the matches.
#[derive(Debug)]
pub struct KeyIndex<T> {
    /// Never iterated, because its order is not deterministic.
    single: HashMap<Bytes, Vec<T>>,
    ranges: Intervals<T>,
}

impl<T> Default for KeyIndex<T> {
    fn default() -> Self {
        Self {
            single: HashMap::new(),
            ranges: Intervals::default(),
        }
    }
}

impl<T: Ord + Copy> KeyIndex<T> {
    pub fn insert(&mut self, keys: &KeyRange, item: T) {
        match keys {
            KeyRange::One(key) => put(self.single.entry(key.clone()).or_default(), item),
            range => self.ranges.insert(range, item),
        }
    }

    /// Removes an item that was added with the same keys; does nothing if it was not.
    pub fn remove(&mut self, keys: &KeyRange, item: T) {
        match keys {
            KeyRange::One(key) => {
                if let Some(items) = self.single.get_mut(key) {
                    take(items, &item);
                    if items.is_empty() {
                        self.single.remove(key);
                    }
                }
            }
            range => self.ranges.remove(range, item),
        }
    }

    /// Visits every item whose keys contain `key`, until `visit` breaks.
    pub fn visit(
        &self,
        key: &[u8],
        mut visit: impl FnMut(T) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let single = self.single.get(key);
        single
            .into_iter()
            .flatten()
            .copied()
            .try_for_each(&mut visit)?;
        self.ranges.visit(key, &mut visit)
    }

    /// Whether there is an item whose keys contain `key`.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.visit(key, |_| ControlFlow::Break(())).is_break()
    }
}

/// Inserts into a sorted list.
fn put<T: Ord>(items: &mut Vec<T>, item: T) {
    let at = items.partition_point(|other| *other < item);
    items.insert(at, item);
}

/// Removes one item from a sorted list.
fn take<T: Ord>(items: &mut Vec<T>, item: &T) {
    if let Ok(at) = items.binary_search(item) {
        items.remove(at);
    }
}
