//! A store that orders no more than one must.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use dengine_kv::store::memory::{MemoryCursor, MemoryStore};
use dengine_kv::store::{Scope, Store, StoreError, WriteBatch};
use dengine_types::sync::atomic::{AtomicUsize, Ordering};

/// A store like RocksDB: a writer waits for other writers, and publishes one number when it is
/// done; a reader loads that number and does not wait. So a reader may see an old state,
/// unless something else has ordered it behind the write. [`MemoryStore`]'s lock would order
/// everything.
#[derive(Clone, Default)]
pub(super) struct OrderedStore(Arc<OrderedShared>);

struct OrderedShared {
    /// One for each batch, and the empty one. What loom does not see: only the numbers below decide
    /// what is read.
    states: Mutex<Vec<MemoryStore>>,
    newest: AtomicUsize,
    durable: AtomicUsize,
    writer: loom::sync::Mutex<()>,
}

impl Default for OrderedShared {
    fn default() -> Self {
        Self {
            states: Mutex::new(vec![MemoryStore::default()]),
            newest: AtomicUsize::new(0),
            durable: AtomicUsize::new(0),
            writer: loom::sync::Mutex::new(()),
        }
    }
}

impl OrderedStore {
    /// What a power loss would leave, at least.
    pub(super) fn durable(&self) -> MemoryStore {
        self.state(self.0.durable.load(Ordering::Acquire))
    }

    fn now(&self) -> MemoryStore {
        self.state(self.0.newest.load(Ordering::Acquire))
    }

    fn state(&self, number: usize) -> MemoryStore {
        let states = self.0.states.lock().unwrap_or_else(PoisonError::into_inner);
        states[number].clone()
    }

    /// The newest state with this batch, and its number.
    fn push(&self, batch: &WriteBatch) -> Result<usize, StoreError> {
        let mut states = self.0.states.lock().unwrap_or_else(PoisonError::into_inner);
        let next = MemoryStore::default();
        let mut before = WriteBatch::default();
        for (key, value) in states[states.len() - 1].dump() {
            before.put(&key, &value);
        }
        next.write(&before)?;
        next.write(batch)?;
        states.push(next);
        Ok(states.len() - 1)
    }
}

impl Store for OrderedStore {
    type Cursor<'a> = MemoryCursor;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.now().get(key)
    }

    fn cursor(&self, scope: Scope) -> MemoryCursor {
        self.now().cursor(scope)
    }

    fn write(&self, batch: &WriteBatch) -> Result<(), StoreError> {
        let _alone = self.0.writer.lock().expect("nobody panics with it");
        let number = self.push(batch)?;
        self.0.newest.store(number, Ordering::Release);
        Ok(())
    }

    fn flush(&self) -> Result<(), StoreError> {
        let newest = self.0.newest.load(Ordering::Acquire);
        self.0.durable.store(newest, Ordering::Release);
        Ok(())
    }

    fn approximate_bytes(&self) -> u64 {
        self.now().approximate_bytes()
    }
}
