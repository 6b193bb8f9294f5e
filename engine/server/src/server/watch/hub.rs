//! Reads history, once for all watches that are at the same place.
//!
//! One thread follows the member's revision while there are streams; each time, it reads what is
//! new and keeps it in a ring, from which all streams take it. Who falls behind the ring reads from
//! the past: one page at a time for the whole member, in turns that go round by address, so that
//! those who are at about the same place find there what another has just read. No watch waits for
//! another's client, nor for its threads, and no watch is ever told anything else for it. All of it
//! is bounded in bytes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dengine_kv::watch::{
    Feed, Follow, Follower, KeepLimits, Mark, Page, PageCache, Part, StreamId, Wanted, WatchSet,
    Woken, Work,
};
use dengine_kv::{Changes, ChangesQuery, PageLimits, ReadError, Stamp};
use dengine_types::Revision;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::{JoinError, yield_now};
use tokio_util::sync::CancellationToken;

use crate::connections::Share;
use crate::error::RequestError;
use crate::node::{CommitWaiter, Node};
use crate::server::turns::{Turns, Whose};

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
/// Pages of the past that are kept for the next watch that needs them.
const PAST_LIMITS: KeepLimits = KeepLimits {
    bytes: 4 * 1024 * 1024,
    pages: 64,
};
/// Reads for single watches at once, of which one address may have three.
const ALONE_READS: usize = 4;

/// The member's watches, all together.
#[derive(Clone)]
pub(super) struct Hub {
    node: Node,
    /// Where the past is read: not on a client's own threads, which may be of lower priority.
    threads: Handle,
    shared: Arc<HubShared>,
}

struct HubShared {
    feed: Feed,
    /// Who has watches, or will have.
    listeners: Mutex<Listeners>,
    /// Wakes the task that follows when there is a stream again.
    listened: Notify,
    /// What was read of the past, and turns to read more of it.
    past: Mutex<PageCache>,
    past_turns: Turns,
    alone_turns: Turns,
}

#[derive(Default)]
struct Listeners {
    last: u64,
    /// What wakes each of them.
    by_stream: BTreeMap<StreamId, Arc<Notify>>,
}

/// A stream of watches that is woken, until this is dropped, when there may be new
/// [`Hub::work`] for it.
pub(super) struct Listener {
    stream: StreamId,
    woken: Arc<Notify>,
    shared: Arc<HubShared>,
    _waits: CommitWaiter,
}

impl Listener {
    /// Of whom the watches are.
    pub(super) fn stream(&self) -> StreamId {
        self.stream
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.listeners().by_stream.remove(&self.stream);
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
    /// Begins to follow `node` on the thread `history`, until `stop` is cancelled. Within the
    /// runtime that is to read the past.
    pub(super) fn start(node: Node, history: &Handle, stop: CancellationToken) -> Self {
        let now = *node.revision_changes().borrow();
        let shared = HubShared {
            feed: Feed::new(now, RING_LIMITS),
            listeners: Mutex::default(),
            listened: Notify::new(),
            past: Mutex::new(PageCache::new(PAST_LIMITS)),
            past_turns: Turns::new(1, Share::HALF),
            alone_turns: Turns::new(ALONE_READS, Share::THREE_QUARTERS),
        };
        let hub = Self {
            node,
            threads: Handle::current(),
            shared: Arc::new(shared),
        };
        let follower = hub.clone();
        history.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = follower.clone().follow() => {}
            }
            follower.stop_following();
        });
        hub
    }

    /// Begins to listen for new [`Hub::work`]. A caller that listens first and then reads the
    /// member's revision misses nothing.
    pub(super) fn listen(&self) -> Listener {
        let shared = &self.shared;
        let (stream, woken) = Feed::listen(
            || shared.listeners().one_more(),
            || shared.listened.notify_one(),
        );
        Listener {
            stream,
            woken,
            shared: Arc::clone(shared),
            _waits: self.node.await_commits(),
        }
    }

    /// What all watches want to know. Never to be held while something is awaited.
    pub(super) fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.shared.feed.wanted()
    }

    /// Whether there is something to do for the watches of a stream.
    pub(super) fn has_work(&self, watches: &mut WatchSet) -> bool {
        self.shared.feed.has_work(watches)
    }

    /// Waits until there is something to do for the watches of a stream; with `of_all`, until there
    /// is anything new, of which it then [has to be told](Wanted::set_of_all).
    pub(super) async fn news(&self, listener: &Listener, watches: &mut WatchSet, of_all: bool) {
        loop {
            listener.woken.notified().await;
            if of_all || self.has_work(watches) {
                return;
            }
        }
    }

    /// What to do next for the watches of a stream, now.
    pub(super) fn work(&self, watches: &mut WatchSet) -> Option<Work> {
        self.shared.feed.work(watches)
    }

    /// The newest revision that can be read. Watches that wait for it to change are told a little
    /// later than those whose writes made it, so a client that was answered must not find an older
    /// one here.
    pub(super) fn revision(&self) -> Revision {
        match self.node.reader() {
            Ok(reader) => reader.revision(),
            // The member is being started from a snapshot: what it showed before is true all the
            // same.
            Err(_) => *self.node.revision_changes().borrow(),
        }
    }

    /// A page of the past with this place in it, of this mark or a later one.
    pub(super) async fn past(
        &self,
        whose: Whose,
        at: Stamp,
        mark: Mark,
    ) -> Result<Arc<Page>, PageError> {
        if let Some(page) = self.kept(at, mark)? {
            return Ok(page);
        }
        let hub = self.clone();
        let read = move || {
            // The watch that had the turn before may have read it.
            if let Some(page) = hub.kept(at, mark)? {
                return Ok(page);
            }
            let page = Arc::new(hub.page(at, Part::Past)?);
            hub.shared.kept().push(Arc::clone(&page));
            Ok(page)
        };
        let turns = &self.shared.past_turns;
        let read = turns
            .read((&self.threads, &self.threads), whose, read)
            .await;
        read.map_err(|error| ended(&error))?
    }

    /// One that was read, unless its history is gone by now.
    fn kept(&self, at: Stamp, mark: Mark) -> Result<Option<Arc<Page>>, PageError> {
        let compacted = self.node.reader()?.compact_revision();
        let there = at.revision >= compacted;
        Ok(self.shared.kept().find(at, mark).filter(|_| there))
    }

    /// Reads history for one watch.
    pub(super) async fn alone(
        &self,
        whose: Whose,
        query: ChangesQuery,
    ) -> Result<Changes, PageError> {
        let node = self.node.clone();
        let read = move || Ok(node.reader()?.changes(&query)?);
        let turns = &self.shared.alone_turns;
        let read = turns
            .read((&self.threads, &self.threads), whose, read)
            .await;
        read.map_err(|error| ended(&error))?
    }

    /// Reads a page, without the values that no watch wants. It blocks.
    fn page(&self, from: Stamp, part: Part) -> Result<Page, PageError> {
        let reader = self.node.reader()?;
        let page = self.shared.feed.page(from, part, |want| {
            let want = |key: &[u8], _| want(key);
            match part {
                Part::Present => reader.changes_followed(from, PAGE_LIMITS, want),
                Part::Past => reader.changes_wanted(from, PAGE_LIMITS, want),
            }
        });
        Ok(page?)
    }

    async fn follow(self) {
        let shared = &self.shared;
        let mut revision = self.node.revision_changes();
        let mut follower = Follower::default();
        loop {
            let newest = *revision.borrow_and_update();
            let is_listened_to = !shared.listeners().by_stream.is_empty();
            let notify = |woken| shared.notify(&woken);
            match shared
                .feed
                .follow(&mut follower, newest, is_listened_to, notify)
            {
                Follow::Read(from) => {
                    self.read_on(from, newest);
                    // It is always behind where much is written, and must end all the same.
                    yield_now().await;
                }
                Follow::AwaitStream => {
                    *shared.kept() = PageCache::new(PAST_LIMITS);
                    self.stop_following();
                    shared.listened.notified().await;
                }
                Follow::AwaitRevision if revision.changed().await.is_err() => return,
                Follow::AwaitRevision => {}
            }
        }
    }

    /// What is new need not be kept for this any more.
    fn stop_following(&self) {
        if let Ok(reader) = self.node.reader() {
            reader.stop_following();
        }
    }

    /// Reads a page for everybody. It blocks.
    fn read_on(&self, from: Stamp, newest: Revision) {
        match self.page(from, Part::Present) {
            Ok(page) => self
                .shared
                .feed
                .push(page, |woken| self.shared.notify(&woken)),
            // The streams find out for themselves, and tell their clients.
            Err(error) => {
                tracing::warn!(%error, "history was not read for the watches");
                self.shared
                    .feed
                    .gap(newest, |woken| self.shared.notify(&woken));
            }
        }
    }
}

impl HubShared {
    fn notify(&self, woken: &Woken) {
        let listeners = self.listeners();
        let all = &listeners.by_stream;
        match woken {
            Woken::All => all.values().for_each(|it| it.notify_one()),
            Woken::Only(streams) => {
                let there = streams.iter().filter_map(|stream| all.get(stream));
                there.for_each(|it| it.notify_one());
            }
        }
    }

    fn listeners(&self) -> MutexGuard<'_, Listeners> {
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Never to be held while something is read.
    fn kept(&self) -> MutexGuard<'_, PageCache> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listeners {
    fn one_more(&mut self) -> (StreamId, Arc<Notify>) {
        self.last += 1;
        let (stream, woken) = (StreamId(self.last), Arc::new(Notify::new()));
        self.by_stream.insert(stream, Arc::clone(&woken));
        (stream, woken)
    }
}

/// A read ended without a result.
fn ended(error: &JoinError) -> PageError {
    RequestError::Storage(error.to_string()).into()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::pin::pin;
    use std::time::Duration;

    use futures::FutureExt as _;
    use tokio::time::timeout;

    use super::*;
    use crate::node::testing;

    /// A follower learned of each commit a millisecond late, and so did its watches.
    #[tokio::test(flavor = "multi_thread")]
    async fn who_watches_waits_for_what_is_committed() {
        let dir = tempfile::tempdir().unwrap();
        let node = testing::leading(dir.path()).await;
        let hub = Hub::start(node.clone(), &Handle::current(), CancellationToken::new());
        assert!(!node.commits_are_awaited());
        let listener = hub.listen();
        assert!(node.commits_are_awaited());
        drop(listener);
        assert!(!node.commits_are_awaited());
        node.shutdown().await.unwrap();
    }

    /// It had the one lock that everybody's need, until its threads, which are of lower priority,
    /// had a processor.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_client_that_is_not_polled_holds_up_nobodys_watches_of_the_past() {
        let dir = tempfile::tempdir().unwrap();
        let node = testing::leading(dir.path()).await;
        let hub = Hub::start(node.clone(), &Handle::current(), CancellationToken::new());
        let whose = |last| Some(IpAddr::from([10, 0, 0, last]));
        let past = |last| {
            let at = Stamp::start_of(Revision(1));
            hub.past(whose(last), at, Mark::default())
        };
        let held = hub.shared.past_turns.take(whose(9)).await;
        let mut heavy = pin!(past(1));
        assert!((&mut heavy).now_or_never().is_none());
        drop(held);
        let other = timeout(Duration::from_secs(10), past(2)).await;
        assert!(other.expect("it had its turn").is_ok());
        assert!(heavy.await.is_ok());
        node.shutdown().await.unwrap();
    }
}
