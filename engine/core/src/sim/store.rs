//! A store that forgets what it has not flushed when its process ends, as RocksDB without its log does.

use super::random::Random;
use super::trace::Hash;
use crate::kv::store::memory::MemoryCursor;
use crate::kv::store::{MemoryStore, Operation, Scope, Store, StoreError, WriteBatch};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// Clones are the same store.
#[derive(Clone, Debug, Default)]
pub(super) struct SimStore {
    live: MemoryStore,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    durable: MemoryStore,
    /// Written since the last flush, in order.
    unflushed: Vec<WriteBatch>,
    failing_flush: bool,
    /// The sum of the hashes of all records: of equal stores equal, however they came about.
    hash: u64,
}

impl SimStore {
    /// The store as the next process finds it. It may hold more than was flushed: whole batches, and
    /// none without those before it.
    pub(super) fn reopen(&self, random: &mut Random) -> Self {
        let state = self.lock();
        let kept = match random.below(3) {
            0 => 0,
            _ => random.below(state.unflushed.len() as u64 + 1) as usize,
        };
        let next = Self::default();
        let mut all = WriteBatch::default();
        for (key, value) in state.durable.dump() {
            all.put(&key, &value);
        }
        for batch in std::iter::once(&all).chain(&state.unflushed[..kept]) {
            next.write(batch).expect("memory takes every batch");
        }
        next.flush().expect("nothing fails yet");
        next
    }

    /// Lets the next flush fail; what was written since the last one stays lost.
    pub(super) fn fail_flush(&self) {
        self.lock().failing_flush = true;
    }

    /// The same for stores with the same records.
    pub(super) fn hash(&self) -> u64 {
        self.lock().hash
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds this lock")
    }
}

fn record_hash(key: &[u8], value: &[u8]) -> u64 {
    Hash::of(&[key, value]).0
}

impl State {
    /// Brings the hash up to what `batch` makes of the records in `live`.
    fn count(&mut self, live: &MemoryStore, batch: &WriteBatch) -> Result<(), StoreError> {
        let mut last = BTreeMap::new();
        for operation in batch.operations() {
            match operation {
                Operation::Put { key, value } => last.insert(key, record_hash(key, value)),
                Operation::Delete { key } => last.insert(key, 0),
            };
        }
        for (key, new) in last {
            let old = live.get(key)?.map_or(0, |value| record_hash(key, &value));
            self.hash = self.hash.wrapping_sub(old).wrapping_add(new);
        }
        Ok(())
    }
}

impl Store for SimStore {
    type Cursor<'a> = MemoryCursor;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.live.get(key)
    }

    fn cursor(&self, scope: Scope) -> MemoryCursor {
        self.live.cursor(scope)
    }

    fn write(&self, batch: &WriteBatch) -> Result<(), StoreError> {
        let mut state = self.lock();
        state.count(&self.live, batch)?;
        self.live.write(batch)?;
        state.unflushed.push(batch.clone());
        Ok(())
    }

    fn flush(&self) -> Result<(), StoreError> {
        let mut state = self.lock();
        let state = &mut *state;
        if std::mem::take(&mut state.failing_flush) {
            return Err(StoreError::Failed {
                doing: "flushing",
                reason: "the simulator said so".to_owned(),
            });
        }
        for batch in state.unflushed.drain(..) {
            state.durable.write(&batch)?;
        }
        Ok(())
    }

    fn approximate_bytes(&self) -> u64 {
        self.live.approximate_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::store::conformance::Suite;

    #[test]
    fn it_is_a_store() {
        Suite::new(SimStore::default).test_all();
    }

    fn put(store: &SimStore, key: &[u8], value: &[u8]) {
        let mut batch = WriteBatch::default();
        batch.put(key, value);
        store.write(&batch).unwrap();
    }

    #[test]
    fn what_was_flushed_survives_and_the_rest_up_to_some_batch() {
        for seed in 0..50 {
            let store = SimStore::default();
            put(&store, b"a", b"1");
            store.flush().unwrap();
            put(&store, b"b", b"1");
            put(&store, b"c", b"1");
            let found = store.reopen(&mut Random::new(seed)).live.dump();
            let keys: Vec<_> = found.iter().map(|(key, _)| &key[..]).collect();
            assert_eq!(keys, [b"a", b"b", b"c"][..keys.len()]);
            assert!(!keys.is_empty());
        }
    }

    #[test]
    fn equal_records_have_equal_hashes_however_they_came_about() {
        let (one, other) = (SimStore::default(), SimStore::default());
        put(&one, b"a", b"1");
        put(&one, b"a", b"2");
        put(&one, b"b", b"1");
        put(&other, b"b", b"1");
        put(&other, b"a", b"2");
        assert_eq!(one.hash(), other.hash());
        put(&other, b"a", b"1");
        assert_ne!(one.hash(), other.hash());
    }
}
