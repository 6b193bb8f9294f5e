//! A store in memory, for tests and the simulator. Its content does not survive the process.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use dengine_types::sync::RwLock;

use super::{Cursor, Operation, Scope, Store, StoreError, WriteBatch};
use crate::layout::version_prefix;

type Records = BTreeMap<Bytes, Bytes>;

/// A [`Store`] in memory. Clones share the records, so one can be "closed" and opened again.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    /// Cursors keep their `Arc`; a write while one lives copies the map.
    records: Arc<RwLock<Arc<Records>>>,
}

impl MemoryStore {
    /// All records, in order.
    #[must_use]
    pub fn dump(&self) -> Vec<(Bytes, Bytes)> {
        self.snapshot()
            .iter()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    fn snapshot(&self) -> Arc<Records> {
        Arc::clone(&self.records.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Store for MemoryStore {
    type Cursor<'a> = MemoryCursor;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        Ok(self.snapshot().get(key).cloned())
    }

    fn cursor(&self, scope: Scope) -> MemoryCursor {
        MemoryCursor {
            records: self.snapshot(),
            upper: match &scope {
                Scope::OneKey => None,
                Scope::Between(range) => Some(range.end.clone()),
            },
            scope,
            current: None,
        }
    }

    fn write(&self, batch: &WriteBatch) -> Result<(), StoreError> {
        let mut guard = self.records.write().unwrap_or_else(PoisonError::into_inner);
        let records = Arc::make_mut(&mut guard);
        for operation in batch.operations() {
            match operation {
                Operation::Put { key, value } => {
                    records.insert(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
                }
                Operation::Delete { key } => {
                    records.remove(key);
                }
                Operation::DeleteChanges { from, to } => {
                    let deleted =
                        records.range::<[u8], _>((Bound::Included(from), Bound::Excluded(to)));
                    let deleted: Vec<_> = deleted.map(|(key, _)| key.clone()).collect();
                    deleted.iter().for_each(|key| drop(records.remove(key)));
                }
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn approximate_bytes(&self) -> u64 {
        self.snapshot()
            .iter()
            .map(|(key, value)| (key.len() + value.len()) as u64)
            .sum()
    }
}

/// The [`Cursor`] of a [`MemoryStore`].
#[derive(Debug)]
pub struct MemoryCursor {
    records: Arc<Records>,
    scope: Scope,
    /// First key outside of the scope; `None` if there is none.
    upper: Option<Vec<u8>>,
    current: Option<(Bytes, Bytes)>,
}

impl MemoryCursor {
    fn go(&mut self, from: Bound<&[u8]>) {
        self.current = self
            .records
            .range::<[u8], _>((from, Bound::Unbounded))
            .next()
            .filter(|(key, _)| self.upper.as_ref().is_none_or(|upper| key[..] < upper[..]))
            .map(|(key, value)| (key.clone(), value.clone()));
    }
}

impl Cursor for MemoryCursor {
    fn seek(&mut self, key: &[u8]) -> Result<(), StoreError> {
        let lower = match &self.scope {
            Scope::OneKey => {
                // The terminator's last byte is 0, so the prefix with 1 in its place is the first
                // byte string after all versions of the key.
                self.upper = version_prefix(key).map(|prefix| {
                    let mut upper = prefix.to_vec();
                    *upper.last_mut().expect("prefixes are never empty") += 1;
                    upper
                });
                key
            }
            Scope::Between(range) => key.max(&range.start[..]),
        };
        let lower = lower.to_vec();
        self.go(Bound::Included(&lower));
        Ok(())
    }

    fn next(&mut self) -> Result<(), StoreError> {
        if let Some((key, _)) = self.current.take() {
            self.go(Bound::Excluded(&key));
        }
        Ok(())
    }

    fn record(&self) -> Option<(&[u8], &[u8])> {
        self.current
            .as_ref()
            .map(|(key, value)| (&key[..], &value[..]))
    }
}
