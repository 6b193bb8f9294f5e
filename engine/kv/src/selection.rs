//! Which pairs of a range are returned, and in which order: a pure function of the pairs, for reads
//! of batches and of single ranges alike.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use bytes::Bytes;
use dengine_types::Revision;

use super::KeyValue;

/// The approximate cost of a pair in an answer besides its key and value.
pub(super) const PAIR_OVERHEAD_BYTES: usize = 32;

/// Which pairs of a range are returned, and in which order. By default all, ordered by key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    pub order: SortOrder,
    pub by: SortBy,
    /// Pairs whose key was last changed by one of these revisions.
    pub mod_revisions: RevisionBounds,
    /// Pairs whose key was created by one of these revisions.
    pub create_revisions: RevisionBounds,
}

/// In which order pairs are returned. Pairs that are equal in what they are sorted by are in the
/// order of their keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SortOrder {
    /// Ascending. With a limit, and without bounds of revisions, only the first pairs in the order
    /// of their keys are sorted, one more than the limit.
    #[default]
    None,
    Ascending,
    Descending,
}

/// What pairs are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SortBy {
    #[default]
    Key,
    Version,
    CreateRevision,
    ModRevision,
    Value,
}

/// A range of revisions, both ends included; `None`: without an end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RevisionBounds {
    pub min: Option<Revision>,
    pub max: Option<Revision>,
}

impl RevisionBounds {
    fn contain(self, revision: Revision) -> bool {
        let is_early = self.min.is_some_and(|min| revision < min);
        let is_late = self.max.is_some_and(|max| revision > max);
        !is_early && !is_late
    }
}

impl Selection {
    /// Whether the values have to be known, although they are not to be returned.
    #[must_use]
    pub fn needs_values(&self) -> bool {
        self.by == SortBy::Value
    }

    /// Whether pairs behind the first ones may be among those that are returned.
    fn takes_all(&self) -> bool {
        let any = RevisionBounds::default();
        self.order != SortOrder::None || self.mod_revisions != any || self.create_revisions != any
    }

    fn has(&self, kv: &KeyValue) -> bool {
        let mod_fits = self.mod_revisions.contain(kv.mod_revision);
        mod_fits && self.create_revisions.contain(kv.create_revision)
    }

    /// Whether pairs are returned in the order in which they are read.
    fn keeps_order(&self) -> bool {
        self.by == SortBy::Key && self.order != SortOrder::Descending
    }

    fn place(&self, kv: &KeyValue) -> Place {
        let sorted_by = match self.by {
            _ if self.keeps_order() => Sorted::ByKey,
            SortBy::Key => Sorted::Bytes(kv.key.clone()),
            SortBy::Version => Sorted::Number(kv.version),
            SortBy::CreateRevision => Sorted::Number(kv.create_revision.0),
            SortBy::ModRevision => Sorted::Number(kv.mod_revision.0),
            SortBy::Value => Sorted::Bytes(kv.value.clone()),
        };
        match self.order {
            SortOrder::None | SortOrder::Ascending => Place::Ascending(sorted_by, kv.key.clone()),
            SortOrder::Descending => Place::Descending(Reverse(sorted_by), kv.key.clone()),
        }
    }
}

/// Where a pair stands among those of one read.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Ascending(Sorted, Bytes),
    Descending(Reverse<Sorted>, Bytes),
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Sorted {
    /// By what stands behind it.
    ByKey,
    Number(u64),
    Bytes(Bytes),
}

/// Pairs in the order in which they are returned.
enum Kept {
    AsRead(Vec<KeyValue>),
    Sorted(BTreeMap<Place, KeyValue>),
}

impl Kept {
    fn len(&self) -> usize {
        match self {
            Self::AsRead(kvs) => kvs.len(),
            Self::Sorted(kvs) => kvs.len(),
        }
    }

    fn pop_last(&mut self) -> Option<KeyValue> {
        match self {
            Self::AsRead(kvs) => kvs.pop(),
            Self::Sorted(kvs) => kvs.pop_last().map(|(_, last)| last),
        }
    }
}

/// The pairs that a read has selected so far: those that it would return if there were no more.
pub struct Selected {
    selection: Selection,
    /// 0 for no limit.
    limit: u64,
    offered: u64,
    kvs: Kept,
    /// Pairs were left out because of the limit.
    more: bool,
    bytes: usize,
}

impl Selected {
    /// Selects at most `limit` pairs; 0 for no limit.
    #[must_use]
    pub fn new(selection: Selection, limit: u64) -> Self {
        Self {
            selection,
            limit,
            offered: 0,
            kvs: match selection.keeps_order() {
                true => Kept::AsRead(Vec::new()),
                false => Kept::Sorted(BTreeMap::new()),
            },
            more: false,
            bytes: 0,
        }
    }

    /// Whether pairs behind those that were offered may be returned, or show that there are more.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.limit == 0 || self.offered <= self.limit || self.selection.takes_all()
    }

    /// Offers the next pair of the range, in the order of the keys.
    pub fn offer(&mut self, kv: KeyValue) {
        if !self.is_open() {
            return;
        }
        self.offered += 1;
        if !self.selection.has(&kv) {
            return;
        }
        self.bytes += size_bytes(&kv);
        match &mut self.kvs {
            Kept::AsRead(kvs) => kvs.push(kv),
            Kept::Sorted(kvs) => {
                kvs.insert(self.selection.place(&kv), kv);
            }
        }
        if self.limit > 0 && self.kvs.len() as u64 > self.limit {
            let last = self.kvs.pop_last().expect("it has more than the limit");
            self.bytes -= size_bytes(&last);
            self.more = true;
        }
    }

    /// The size of the pairs: keys and values, and 32 bytes for each.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.bytes
    }

    /// How many pairs it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kvs.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pairs in their order, and whether some were left out because of the limit.
    #[must_use]
    pub fn finish(self) -> (Vec<KeyValue>, bool) {
        let kvs = match self.kvs {
            Kept::AsRead(kvs) => kvs,
            Kept::Sorted(kvs) => kvs.into_values().collect(),
        };
        (kvs, self.more)
    }
}

fn size_bytes(kv: &KeyValue) -> usize {
    PAIR_OVERHEAD_BYTES + kv.key.len() + kv.value.len()
}

#[cfg(test)]
mod tests {
    use dengine_types::LeaseId;

    use super::*;

    /// Key, created, changed, version.
    fn pairs() -> Vec<KeyValue> {
        let pairs = [
            ("a", 2, 9, 3),
            ("b", 3, 3, 1),
            ("c", 4, 7, 2),
            ("d", 5, 8, 2),
        ];
        let pair = |(key, created, changed, version): (&'static str, u64, u64, u64)| KeyValue {
            key: Bytes::from(key),
            value: Bytes::from(vec![b'z' - changed as u8; 2]),
            create_revision: Revision(created),
            mod_revision: Revision(changed),
            version,
            ttl_ms: 0,
            lease: LeaseId::NONE,
        };
        pairs.map(pair).to_vec()
    }

    fn check(selection: Selection, limit: u64, expected: &str, expect_more: bool) {
        let mut selected = Selected::new(selection, limit);
        pairs().into_iter().for_each(|kv| selected.offer(kv));
        let (bytes, pairs) = (selected.size_bytes(), selected.len());
        let (kvs, more) = selected.finish();
        assert_eq!(pairs, kvs.len());
        let keys: Vec<_> = kvs.iter().flat_map(|kv| kv.key.to_vec()).collect();
        assert_eq!(
            String::from_utf8(keys).expect("text"),
            expected,
            "{selection:?}"
        );
        assert_eq!(more, expect_more, "{selection:?}");
        assert_eq!(bytes, kvs.len() * (32 + 1 + 2));
    }

    fn sorted(order: SortOrder, by: SortBy) -> Selection {
        Selection {
            order,
            by,
            ..Selection::default()
        }
    }

    #[test]
    fn pairs_are_sorted_by_each_attribute() {
        use SortBy::{CreateRevision, Key, ModRevision, Value, Version};
        for (by, ascending, descending) in [
            (Key, "abcd", "dcba"),
            (Version, "bcda", "acdb"),
            (CreateRevision, "abcd", "dcba"),
            (ModRevision, "bcda", "adcb"),
            (Value, "adcb", "bcda"),
        ] {
            check(sorted(SortOrder::None, by), 0, ascending, false);
            check(sorted(SortOrder::Ascending, by), 0, ascending, false);
            check(sorted(SortOrder::Descending, by), 0, descending, false);
            check(sorted(SortOrder::Ascending, by), 2, &ascending[..2], true);
            check(sorted(SortOrder::Descending, by), 4, descending, false);
        }
    }

    #[test]
    fn without_an_order_the_first_pairs_are_sorted() {
        let unordered = |by| sorted(SortOrder::None, by);
        check(unordered(SortBy::Key), 2, "ab", true);
        // Of a, b and c.
        check(unordered(SortBy::ModRevision), 2, "bc", true);
        check(unordered(SortBy::Value), 1, "a", true);
    }

    #[test]
    fn bounds_of_revisions_include_their_ends() {
        let bounds = |min: Option<u64>, max: Option<u64>| RevisionBounds {
            min: min.map(Revision),
            max: max.map(Revision),
        };
        let changed = |min, max| Selection {
            mod_revisions: bounds(min, max),
            ..Selection::default()
        };
        check(changed(Some(7), None), 0, "acd", false);
        check(changed(Some(7), Some(8)), 0, "cd", false);
        check(changed(None, Some(0)), 0, "", false);
        check(changed(Some(0), None), 1, "a", true);
        // All of the range is looked at, whatever the limit.
        check(changed(Some(8), Some(8)), 1, "d", false);
        let created = Selection {
            create_revisions: bounds(Some(3), Some(4)),
            ..sorted(SortOrder::Descending, SortBy::Key)
        };
        check(created, 0, "cb", false);
        check(created, 1, "c", true);
    }
}
