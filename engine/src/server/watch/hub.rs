//! Reads history once for all watches that are at its newest end.
//!
//! One task follows the member's revision; each time, it reads what is new and hands it to all streams through a
//! ring of bounded length. Who falls behind the ring reads history for itself: nobody waits for anybody, and
//! no watch is ever told anything else for it.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use dengine_core::{
    kv::{Changes, ChangesQuery, ReadError},
    types::Revision,
    watch::{Follower, Page, PageLimits},
};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::{error::RequestError, node::Node};

/// Pages that the ring holds for streams that are not there yet.
const RING_PAGES: usize = 32;
/// How large a page is.
pub(super) const PAGE_LIMITS: PageLimits = PageLimits {
    bytes: 256 * 1024,
    changes: 4096,
};

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

    /// Reads a page of history for one watch.
    pub(super) async fn read(&self, query: ChangesQuery) -> Result<Page, PageError> {
        let changes = self.changes(query.clone()).await?;
        Ok(Page::new(query.from, query.prev_kv, changes))
    }

    /// Reads history on a thread where it holds up nobody.
    async fn changes(&self, query: ChangesQuery) -> Result<Changes, PageError> {
        let reader = self.node.reader()?;
        let read = tokio::task::spawn_blocking(move || reader.changes(&query));
        let changes = read
            .await
            .map_err(|error| RequestError::Storage(error.to_string()))??;
        Ok(changes)
    }

    async fn follow(self) {
        let mut revision = self.node.revision_changes();
        let mut follower = Follower::new(*revision.borrow_and_update(), PAGE_LIMITS);
        while revision.changed().await.is_ok() {
            let newest = *revision.borrow_and_update();
            while let Some(query) = self.wanted(&mut follower, newest) {
                self.tell(&mut follower, query, newest).await;
            }
        }
    }

    fn wanted(&self, follower: &mut Follower, newest: Revision) -> Option<ChangesQuery> {
        let listeners = self.pages.receiver_count() > 0;
        let with_prev = self.with_prev.load(Ordering::Relaxed) > 0;
        follower.next(newest, listeners, with_prev)
    }

    /// Reads a page, and hands it to everybody. If there is nobody any more, they will read for themselves when
    /// they come.
    async fn tell(&self, follower: &mut Follower, query: ChangesQuery, newest: Revision) {
        let page = match self.changes(query.clone()).await {
            Ok(changes) => follower.page(&query, changes),
            // The streams find out for themselves, and tell their clients.
            Err(error) => {
                tracing::warn!(%error, "history was not read for the watches");
                Some(follower.gap(newest))
            }
        };
        if let Some(page) = page {
            let _ = self.pages.send(Arc::new(page));
        }
    }
}
