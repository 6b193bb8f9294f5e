//! Reads history once for all watches that are at its newest end.
//!
//! One task follows the member's revision; each time, it reads what is new and hands it to all streams through a
//! ring of bounded length. Who falls behind the ring reads history for itself: nobody waits for anybody, and
//! no watch is ever told anything else for it.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use dengine_core::{
    kv::{ChangesQuery, KeyRange, ReadError},
    types::Revision,
    watch::Page,
};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::{error::RequestError, node::Node};

/// Pages that the ring holds for streams that are not there yet.
const RING_PAGES: usize = 32;
/// Bytes of one page. A single revision may be larger.
pub(super) const PAGE_BYTES: usize = 256 * 1024;
/// Changes of one page, of whatever keys. A single revision may have more.
pub(super) const PAGE_CHANGES: usize = 4096;

/// The member's watches, all together.
#[derive(Clone)]
pub(super) struct Hub {
    node: Node,
    pages: broadcast::Sender<Arc<Page>>,
    /// Watches that want to know what was before.
    with_prev: Arc<AtomicUsize>,
}

/// Counts a watch that wants to know what was before, as long as it lives.
pub(super) struct WantsPrev(Arc<AtomicUsize>);

impl Drop for WantsPrev {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why history could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum PageError {
    /// The member cannot.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The history is not there.
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl Hub {
    /// Begins to follow `node`, until `stop` is cancelled or the node ends.
    pub(super) fn start(node: Node, stop: CancellationToken) -> Self {
        let hub = Self {
            node,
            pages: broadcast::Sender::new(RING_PAGES),
            with_prev: Arc::default(),
        };
        let follower = hub.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = follower.follow() => {}
            }
        });
        hub
    }

    /// All pages from now on. Whoever subscribes first and reads the member's revision then, misses nothing.
    pub(super) fn subscribe(&self) -> broadcast::Receiver<Arc<Page>> {
        self.pages.subscribe()
    }

    /// A watch wants to know what was before.
    pub(super) fn wants_prev(&self) -> WantsPrev {
        self.with_prev.fetch_add(1, Ordering::Relaxed);
        WantsPrev(Arc::clone(&self.with_prev))
    }

    /// The newest revision that can be read. Whoever waits for it to change is told a little later than those
    /// whose writes made it, so a client that was answered must not find an older one here.
    pub(super) fn revision(&self) -> Revision {
        match self.node.reader() {
            Ok(reader) => reader.revision(),
            // The member is being started from a snapshot: what it showed before is true all the same.
            Err(_) => *self.node.revision_changes().borrow(),
        }
    }

    /// Reads a page of these keys' history, on a thread where it holds up nobody.
    pub(super) async fn read(
        &self,
        from: Revision,
        keys: KeyRange,
        prev_kv: bool,
    ) -> Result<Page, PageError> {
        let reader = self.node.reader()?;
        let query = ChangesQuery {
            prev_kv,
            max_bytes: PAGE_BYTES,
            max_changes: PAGE_CHANGES,
            ..ChangesQuery::new(from, keys)
        };
        let read = tokio::task::spawn_blocking(move || reader.changes(&query));
        let changes = read
            .await
            .map_err(|error| RequestError::Storage(error.to_string()))??;
        Ok(Page::new(from, prev_kv, changes))
    }

    async fn follow(self) {
        let mut revision = self.node.revision_changes();
        let mut told = *revision.borrow_and_update();
        while revision.changed().await.is_ok() {
            let newest = *revision.borrow_and_update();
            while told < newest {
                told = self.tell(told, newest).await;
            }
        }
    }

    /// Tells of a page behind `told`; returns up to which revision nothing more is to be told.
    async fn tell(&self, told: Revision, newest: Revision) -> Revision {
        if self.pages.receiver_count() == 0 {
            return newest;
        }
        let everything = KeyRange::From(Bytes::from_static(b"\0"));
        let with_prev = self.with_prev.load(Ordering::Relaxed) > 0;
        match self.read(Revision(told.0 + 1), everything, with_prev).await {
            Ok(page) => {
                let to = page.to;
                // Nobody there any more: they will read for themselves when they come.
                let _ = self.pages.send(Arc::new(page));
                to.max(told)
            }
            // The streams find out for themselves, and tell their clients.
            Err(error) => {
                tracing::warn!(%error, "history was not read for the watches");
                let _ = self.pages.send(Arc::new(beyond(newest)));
                newest
            }
        }
    }
}

/// A page that is a gap for every watch that was not told everything up to `newest`.
fn beyond(newest: Revision) -> Page {
    Page {
        from: Revision(newest.0 + 1),
        to: newest,
        with_prev: true,
        events: Arc::default(),
    }
}
