//! A store that forgets what was not flushed, as RocksDB does without its own log.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use dengine_kv::store::memory::MemoryCursor;
use dengine_kv::store::{MemoryStore, Scope, Store, StoreError, WriteBatch};

/// Clones are the same store.
#[derive(Clone, Debug, Default)]
pub(crate) struct ForgetfulStore {
    current: MemoryStore,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    durable: MemoryStore,
    /// Written since, in order.
    unflushed: Vec<WriteBatch>,
}

impl ForgetfulStore {
    /// What is there after a crash: everything flushed, and the first `kept` batches written since,
    /// for memory may be flushed at any time.
    pub(crate) fn crash(&self, kept: usize) -> Self {
        let state = self.state.lock().unwrap();
        let survivor = copy(&state.durable);
        for batch in state.unflushed.iter().take(kept) {
            survivor.write(batch).unwrap();
        }
        Self {
            current: copy(&survivor),
            state: Arc::new(Mutex::new(State {
                durable: survivor,
                unflushed: Vec::new(),
            })),
        }
    }
}

fn copy(store: &MemoryStore) -> MemoryStore {
    let copy = MemoryStore::default();
    let mut batch = WriteBatch::default();
    for (key, value) in store.dump() {
        batch.put(&key, &value);
    }
    copy.write(&batch).unwrap();
    copy
}

impl Store for ForgetfulStore {
    type Cursor<'a> = MemoryCursor;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.current.get(key)
    }

    fn cursor(&self, scope: Scope) -> MemoryCursor {
        self.current.cursor(scope)
    }

    fn write(&self, batch: &WriteBatch) -> Result<(), StoreError> {
        self.state.lock().unwrap().unflushed.push(batch.clone());
        self.current.write(batch)
    }

    fn flush(&self) -> Result<(), StoreError> {
        let mut state = self.state.lock().unwrap();
        for batch in std::mem::take(&mut state.unflushed) {
            state.durable.write(&batch)?;
        }
        Ok(())
    }

    fn approximate_bytes(&self) -> u64 {
        self.current.approximate_bytes()
    }
}
