//! A store that counts what its cursors are asked.

use std::fmt::{Debug, Formatter};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use crate::store::{Cursor, MemoryStore, Scope, Store, StoreError, WriteBatch};

/// Counts the moves of its cursors, and lets something happen before it is read next.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counting {
    store: MemoryStore,
    moves: Arc<AtomicU64>,
    meanwhile: Arc<Mutex<Option<Meanwhile>>>,
}

struct Meanwhile(Box<dyn FnOnce() + Send>);

impl Debug for Meanwhile {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meanwhile")
    }
}

#[derive(Debug)]
pub(crate) struct CountingCursor<'a> {
    cursor: <MemoryStore as Store>::Cursor<'a>,
    moves: &'a AtomicU64,
}

impl Counting {
    /// How many moves this takes, and what it returns.
    pub(crate) fn moves_of<T>(&self, work: impl FnOnce() -> T) -> (u64, T) {
        let before = self.moves.load(Ordering::Relaxed);
        let done = work();
        (self.moves.load(Ordering::Relaxed) - before, done)
    }

    /// Happens once, before a record is got or a cursor is opened.
    pub(crate) fn meanwhile(&self, happens: impl FnOnce() + Send + 'static) {
        *self.meanwhile.lock().unwrap() = Some(Meanwhile(Box::new(happens)));
    }

    fn happen(&self) {
        let meanwhile = self.meanwhile.lock().unwrap().take();
        if let Some(Meanwhile(happens)) = meanwhile {
            happens();
        }
    }
}

impl Cursor for CountingCursor<'_> {
    fn seek(&mut self, key: &[u8]) -> Result<(), StoreError> {
        self.moves.fetch_add(1, Ordering::Relaxed);
        self.cursor.seek(key)
    }

    fn next(&mut self) -> Result<(), StoreError> {
        self.moves.fetch_add(1, Ordering::Relaxed);
        self.cursor.next()
    }

    fn record(&self) -> Option<(&[u8], &[u8])> {
        self.cursor.record()
    }
}

impl Store for Counting {
    type Cursor<'a> = CountingCursor<'a>;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.happen();
        self.store.get(key)
    }

    fn cursor(&self, scope: Scope) -> Self::Cursor<'_> {
        self.happen();
        CountingCursor {
            cursor: self.store.cursor(scope),
            moves: &self.moves,
        }
    }

    fn write(&self, batch: &WriteBatch) -> Result<(), StoreError> {
        self.store.write(batch)
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.store.flush()
    }

    fn approximate_bytes(&self) -> u64 {
        self.store.approximate_bytes()
    }
}
