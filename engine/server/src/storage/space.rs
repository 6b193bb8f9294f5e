//! What a store does on a full disk: it waits for a while.
//!
//! Once a flush found no space, RocksDB takes no write. It keeps what it was given in memory, looks
//! at once and every five seconds whether there is space for a whole write buffer, and then goes on
//! by itself. What it refuses meanwhile has changed nothing. Often there is some soon: who asks for
//! more than there is may have all of it for a moment (a file system that sets it aside in pieces,
//! for the log's next segment), and a merge drops what it merged.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dengine_kv::StoreError;

/// How soon a write is tried again.
const RETRY: Duration = Duration::from_millis(50);
/// RocksDB looks some times meanwhile. A member that ends then starts without spare segments of its
/// log, whose space may do.
const LONGEST: Duration = Duration::from_secs(20);

/// Lives as long as the store.
#[derive(Debug, Default)]
pub(super) struct Patience {
    has_ended: AtomicBool,
}

impl Patience {
    /// Whether the member is about to stop.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Tries it until it does not fail for want of space, or that was waited for long enough.
    pub(super) fn retry(
        &self,
        mut attempt: impl FnMut() -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut since = None;
        loop {
            let result = attempt();
            let Err(error @ StoreError::NoSpace { .. }) = &result else {
                return result;
            };
            if since.is_none() {
                tracing::error!(%error, "the disk is full; what is committed is applied once there \
                    is space");
            }
            let waited = since.get_or_insert_with(Instant::now).elapsed();
            if waited >= LONGEST || self.has_ended() {
                return result;
            }
            std::thread::sleep(RETRY);
        }
    }
}

/// A store that somebody else has open.
#[derive(Clone, Debug)]
pub(crate) struct OpenStore(Weak<Patience>);

impl OpenStore {
    pub(super) fn new(patience: &Arc<Patience>) -> Self {
        Self(Arc::downgrade(patience))
    }

    pub(crate) fn is_open(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// No write waits for space any more; one that does fails.
    pub(crate) fn end_patience(&self) {
        if let Some(patience) = self.0.upgrade() {
            patience.has_ended.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no_space() -> StoreError {
        StoreError::NoSpace {
            doing: "writing a batch",
            reason: "full".to_owned(),
        }
    }

    #[test]
    fn what_finds_no_space_is_tried_until_it_does_not_or_nobody_waits() {
        let patience = Arc::new(Patience::default());
        let other = StoreError::Corrupt("a block".to_owned());
        let mut outcomes = vec![Err(other.clone()), Err(no_space()), Ok(()), Err(no_space())];
        let mut next = || outcomes.pop().expect("tried no more often");
        assert_eq!(patience.retry(&mut next), Ok(()));
        assert_eq!(patience.retry(&mut next), Err(other));
        let store = OpenStore::new(&patience);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| patience.retry(|| Err(no_space())));
            store.end_patience();
            assert_eq!(waits.join().expect("it ends"), Err(no_space()));
        });
    }
}
