//! What the store must hold: a model of its own, simple enough to be seen to be right.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use dengine_client::KeyValue;

/// One write of the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    Put(Bytes, Bytes),
    Delete(Bytes),
    /// If the key holds this (`None`: does not exist), it shall hold that.
    Swap(Bytes, Option<Bytes>, Bytes),
    /// If the key exists, these puts (or deletes) at once, else the put of that pair.
    Batch(Bytes, Vec<(Bytes, Option<Bytes>)>, (Bytes, Bytes)),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pair {
    value: Bytes,
    create_revision: u64,
    mod_revision: u64,
    version: u64,
}

/// All pairs after some revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) revision: u64,
    pairs: BTreeMap<Bytes, Pair>,
}

impl State {
    /// What a new cluster holds.
    pub(crate) fn new() -> Self {
        Self {
            revision: 1,
            pairs: BTreeMap::new(),
        }
    }

    /// What was read in one piece.
    pub(crate) fn read(revision: u64, kvs: Vec<KeyValue>) -> Self {
        let pair = |kv: KeyValue| {
            let pair = Pair {
                value: kv.value,
                create_revision: kv.create_revision,
                mod_revision: kv.mod_revision,
                version: kv.version,
            };
            (kv.key, pair)
        };
        Self {
            revision,
            pairs: kvs.into_iter().map(pair).collect(),
        }
    }

    pub(crate) fn value(&self, key: &Bytes) -> Option<&Bytes> {
        self.pairs.get(key).map(|pair| &pair.value)
    }

    /// The state after a write.
    pub(crate) fn after(&self, write: &Write) -> Self {
        let mut next = self.clone();
        match write {
            Write::Put(key, value) => next.change(&[(key.clone(), Some(value.clone()))]),
            Write::Delete(key) => next.change(&[(key.clone(), None)]),
            Write::Swap(key, expected, value) if self.value(key) == expected.as_ref() => {
                next.change(&[(key.clone(), Some(value.clone()))]);
            }
            Write::Swap(..) => {}
            Write::Batch(key, then, _) if self.value(key).is_some() => next.change(then),
            Write::Batch(_, _, (key, value)) => next.change(&[(key.clone(), Some(value.clone()))]),
        }
        next
    }

    /// All of it at one revision; none is taken if nothing changes.
    fn change(&mut self, changes: &[(Bytes, Option<Bytes>)]) {
        let revision = self.revision + 1;
        for (key, value) in changes {
            match value {
                Some(value) => self.put(key, value, revision),
                None if self.pairs.remove(key).is_some() => self.revision = revision,
                None => {}
            }
        }
    }

    fn put(&mut self, key: &Bytes, value: &Bytes, revision: u64) {
        self.revision = revision;
        let old = self.pairs.get(key);
        let pair = Pair {
            value: value.clone(),
            create_revision: old.map_or(revision, |old| old.create_revision),
            mod_revision: revision,
            version: old.map_or(1, |old| old.version + 1),
        };
        self.pairs.insert(key.clone(), pair);
    }

    /// In what they differ, briefly.
    pub(crate) fn difference(&self, found: &Self) -> String {
        let mut told = format!(
            "revision {} expected, {} found",
            self.revision, found.revision
        );
        let keys: BTreeSet<&Bytes> = self.pairs.keys().chain(found.pairs.keys()).collect();
        for key in keys {
            let (expected, found) = (self.pairs.get(key), found.pairs.get(key));
            let brief = |pair: Option<&Pair>| {
                pair.map(|it| {
                    (
                        it.create_revision,
                        it.mod_revision,
                        it.version,
                        it.value.len(),
                    )
                })
            };
            if expected != found {
                told += &format!(
                    "; {key:?}: {:?} expected, {:?} found",
                    brief(expected),
                    brief(found)
                );
            }
        }
        told
    }
}
