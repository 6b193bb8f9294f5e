//! A store that forgets what it has not flushed when its process ends, as RocksDB without its log
//! does.

use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use dengine_kv::store::memory::MemoryCursor;
use dengine_kv::store::{MemoryStore, Scope, Store, StoreError, WriteBatch};
use dengine_log::memory::MemoryDisk;
use dengine_snapshot::Checkpoint;

use super::random::Random;

impl Checkpoint<MemoryDisk> for SimStore {
    fn checkpoint(&self, place: &MemoryDisk) -> Result<(), StoreError> {
        self.live.checkpoint(place)
    }

    fn open_checkpoint(place: &MemoryDisk) -> Result<Self, StoreError> {
        Self::holding(&MemoryStore::open_checkpoint(place)?)
    }
}

/// Clones are the same store.
#[derive(Clone, Debug, Default)]
pub(super) struct SimStore {
    live: MemoryStore,
    state: Arc<Mutex<StoreState>>,
}

#[derive(Debug, Default)]
struct StoreState {
    durable: MemoryStore,
    /// Written since the last flush, in order.
    unflushed: Vec<WriteBatch>,
    failing_flush: bool,
}

impl SimStore {
    /// The store as the next process finds it. It may hold more than was flushed: whole batches,
    /// and none without those before it.
    pub(super) fn reopen(&self, random: &mut Random) -> Self {
        let state = self.lock();
        let kept = match random.below(3) {
            0 => 0,
            _ => random.below(state.unflushed.len() as u64 + 1) as usize,
        };
        let next = Self::holding(&state.durable).expect("memory takes every batch");
        for batch in &state.unflushed[..kept] {
            next.write(batch).expect("memory takes every batch");
        }
        next.flush().expect("nothing fails yet");
        next
    }

    /// A store with the same records, all of them durable.
    fn holding(records: &MemoryStore) -> Result<Self, StoreError> {
        let mut all = WriteBatch::default();
        for (key, value) in records.dump() {
            all.put(&key, &value);
        }
        let store = Self::default();
        store.write(&all)?;
        store.flush()?;
        Ok(store)
    }

    /// Lets the next flush fail; what was written since the last one stays lost.
    pub(super) fn fail_flush(&self) {
        self.lock().failing_flush = true;
    }

    fn lock(&self) -> MutexGuard<'_, StoreState> {
        self.state
            .lock()
            .expect("nothing panics while it holds this lock")
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
    use dengine_kv::store::conformance::Suite;

    use super::*;

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
}
