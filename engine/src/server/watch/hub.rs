//! Reads history, once for all watches that are at the same place.
//!
//! One task follows the member's revision; each time, it reads what is new and keeps it in a ring, from which all streams
//! take it. Who falls behind the ring reads from the past: one page at a time for the whole member, so that those who
//! are at about the same place find there what another has just read. Nobody waits for anybody's client, and no watch is
//! ever told anything else for it. All of it is bounded in bytes.

use std::sync::{Arc, MutexGuard};

use dengine_core::{
    kv::{Changes, ChangesQuery, PageLimits, ReadError, Stamp},
    types::Revision,
    watch::{Feed, KeepLimits, Mark, Page, PageCache, Part, Wanted, WatchSet, Work},
};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::{error::RequestError, node::Node};

/// How large a page is.
const PAGE_LIMITS: PageLimits = PageLimits {
    bytes: 256 * 1024,
    changes: 4096,
};
/// What the ring holds for streams that are not there yet.
const RING_LIMITS: KeepLimits = KeepLimits {
    bytes: 8 * 1024 * 1024,
    pages: 256,
};
/// Pages of the past that are kept for the next who comes by.
const PAST_LIMITS: KeepLimits = KeepLimits {
    bytes: 4 * 1024 * 1024,
    pages: 64,
};
/// Reads for single watches at once.
const ALONE_READS: usize = 4;

/// The member's watches, all together.
#[derive(Clone)]
pub(super) struct Hub {
    node: Node,
    shared: Arc<Shared>,
}

struct Shared {
    feed: Feed,
    /// Says that the ring has something new. Who listens to it has watches, or will have.
    changed: watch::Sender<()>,
    past: tokio::sync::Mutex<PageCache>,
    alone: Semaphore,
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
        let now = *node.revision_changes().borrow();
        let shared = Shared {
            feed: Feed::new(now, RING_LIMITS),
            changed: watch::Sender::new(()),
            past: tokio::sync::Mutex::new(PageCache::new(PAST_LIMITS)),
            alone: Semaphore::new(ALONE_READS),
        };
        let hub = Self {
            node,
            shared: Arc::new(shared),
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

    /// Says when there may be new [`Hub::work`]. Whoever subscribes first and reads the member's revision then, misses
    /// nothing.
    pub(super) fn subscribe(&self) -> watch::Receiver<()> {
        self.shared.changed.subscribe()
    }

    /// What all watches want to know. Never to be held while something is awaited.
    pub(super) fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.shared.feed.wanted()
    }

    /// What to do next for the watches of a stream.
    pub(super) fn work(&self, watches: &mut WatchSet) -> Option<Work> {
        self.shared.feed.work(watches)
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

    /// A page of the past with this place in it, of this mark or a later one.
    pub(super) async fn past(&self, at: Stamp, mark: Mark) -> Result<Arc<Page>, PageError> {
        let mut past = self.shared.past.lock().await;
        let compacted = self.node.reader()?.compact_revision();
        let there = at.revision >= compacted;
        if let Some(page) = past.find(at, mark).filter(|_| there) {
            return Ok(page);
        }
        let page = Arc::new(self.page(at, Part::Past).await?);
        past.push(Arc::clone(&page));
        Ok(page)
    }

    /// Reads history for one watch.
    pub(super) async fn alone(&self, query: ChangesQuery) -> Result<Changes, PageError> {
        let place = self.shared.alone.acquire().await;
        let _place = place.expect("the semaphore is never closed");
        let reader = self.node.reader()?;
        aside(move || reader.changes(&query)).await
    }

    /// Reads a page, without the values that nobody wants.
    async fn page(&self, from: Stamp, part: Part) -> Result<Page, PageError> {
        let reader = self.node.reader()?;
        let shared = Arc::clone(&self.shared);
        aside(move || {
            shared.feed.page(from, part, |want| {
                reader.changes_wanted(from, PAGE_LIMITS, |key, _| want(key))
            })
        })
        .await
    }

    async fn follow(self) {
        let mut revision = self.node.revision_changes();
        while revision.changed().await.is_ok() {
            let newest = *revision.borrow_and_update();
            while let Some(from) = self.wants(newest) {
                self.read_on(from, newest).await;
                self.shared.changed.send_replace(());
            }
        }
    }

    fn wants(&self, newest: Revision) -> Option<Stamp> {
        let changed = &self.shared.changed;
        self.shared
            .feed
            .wants(newest, || changed.receiver_count() > 0)
    }

    /// Reads a page for everybody.
    async fn read_on(&self, from: Stamp, newest: Revision) {
        match self.page(from, Part::Present).await {
            Ok(page) => self.shared.feed.push(page),
            // The streams find out for themselves, and tell their clients.
            Err(error) => {
                tracing::warn!(%error, "history was not read for the watches");
                self.shared.feed.gap(newest);
            }
        }
    }
}

/// Reads on a thread where it holds up nobody.
async fn aside<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, ReadError> + Send + 'static,
) -> Result<T, PageError> {
    let read = tokio::task::spawn_blocking(read).await;
    let read = read.map_err(|error| RequestError::Storage(error.to_string()))?;
    Ok(read?)
}
