//! Session reads that wait for this member to catch up: how many there may be, and what tells them
//! of a new revision.
//!
//! What they wait for may never come. So no client has all places to wait, and a write wakes only
//! those who waited for it, however many wait for others ([`RevisionWaits`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dengine_kv::revision_waits::RevisionWaits;
use dengine_types::Revision;
use tokio::sync::{Notify, watch};

use crate::connections::{Share, Source};
use crate::node::NodeStatus;

/// All that wait.
pub(in crate::server) struct SessionReads {
    limit: usize,
    waiting: AtomicUsize,
    /// Wakes who follows the member's revision, when somebody begins to wait.
    begun: Notify,
    revisions: RevisionWaits,
}

/// One that waits, until this is dropped.
pub(in crate::server) struct Waiting<'a> {
    all: &'a SessionReads,
    own: &'a AtomicUsize,
}

impl SessionReads {
    /// So many at a time. Wakes them as the member's revision moves on, until that ends; none
    /// waits on a member that was removed.
    pub(in crate::server) fn start(
        limit: usize,
        revision: watch::Receiver<Revision>,
        status: watch::Receiver<NodeStatus>,
    ) -> Arc<Self> {
        let reads = Arc::new(Self::new(limit));
        tokio::spawn(follow(Arc::clone(&reads), revision, status));
        reads
    }

    fn new(limit: usize) -> Self {
        Self {
            limit,
            waiting: AtomicUsize::new(0),
            begun: Notify::new(),
            revisions: RevisionWaits::default(),
        }
    }

    /// A place to wait, unless there are too many, in all or of this client.
    pub(in crate::server) fn wait<'a>(&'a self, source: &'a Source) -> Option<Waiting<'a>> {
        // Counted first, so that of two at a time one sees the other.
        let place = Waiting {
            all: self,
            own: &source.session_reads,
        };
        let taken = self.waiting.fetch_add(1, Ordering::Relaxed);
        let own = source.session_reads.fetch_add(1, Ordering::Relaxed);
        (Share::HALF.more(self.limit, taken, own) > 0).then_some(place)
    }
}

impl Waiting<'_> {
    /// Waits until `now` covers `wanted`; whether it does, or the member has ended or was removed.
    pub(in crate::server) async fn reached(
        &self,
        wanted: Revision,
        now: &watch::Receiver<Revision>,
    ) -> bool {
        let revisions = &self.all.revisions;
        self.all.begun.notify_one();
        revisions.reached(wanted, || *now.borrow()).await
    }
}

async fn follow(
    reads: Arc<SessionReads>,
    mut revision: watch::Receiver<Revision>,
    mut status: watch::Receiver<NodeStatus>,
) {
    let (waits, mut was_removed) = (&reads.revisions, false);
    status.mark_changed();
    loop {
        // To be woken by every revision would cost each write a turn of a thread. Who is counted
        // later than this looks has it woken.
        let somebody_waits = reads.waiting.load(Ordering::Relaxed) > 0;
        let changed = tokio::select! {
            () = reads.begun.notified(), if !somebody_waits => {
                revision.mark_changed();
                Ok(())
            }
            changed = revision.changed(), if somebody_waits => changed.map(|()| {
                // Not held while others are woken: it would hold up who applies.
                let now = *revision.borrow_and_update();
                waits.advance(now);
            }),
            changed = status.changed() => changed.map(|()| {
                let removed = status.borrow_and_update().removed;
                match (was_removed, removed) {
                    (false, true) => waits.end(),
                    (true, false) => waits.resume(),
                    _ => {}
                }
                was_removed = removed;
            }),
        };
        if changed.is_err() {
            return waits.end();
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.all.waiting.fetch_sub(1, Ordering::Relaxed);
        self.own.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_millis(20);

    fn source(last: u8) -> Source {
        Source::new(IpAddr::from([10, 0, 0, last]))
    }

    /// They wait for a revision that may never come.
    #[test]
    fn one_client_leaves_places_to_wait_to_others() {
        let reads = SessionReads::new(8);
        let [greedy, other] = [1, 2].map(source);
        let waiting: Vec<_> = std::iter::from_fn(|| reads.wait(&greedy)).collect();
        assert_eq!(waiting.len(), 4);
        let others: Vec<_> = std::iter::from_fn(|| reads.wait(&other)).collect();
        assert_eq!(others.len(), 2);
        drop((waiting, others));
        let again: Vec<_> = std::iter::from_fn(|| reads.wait(&other)).collect();
        assert_eq!(again.len(), 4);
    }

    /// All of them were woken by each write, thousands of times a second.
    #[tokio::test]
    async fn a_revision_wakes_only_the_tasks_that_wait_for_it() {
        let (revision, now) = watch::channel(Revision(1));
        let (_status, status) = watch::channel(NodeStatus::waiting("a", "folder"));
        let reads = SessionReads::start(8, now.clone(), status);
        let source = source(1);
        let [first, second] = [(); 2].map(|()| reads.wait(&source).unwrap());
        assert!(
            first.reached(Revision(1), &now).await,
            "it is there already"
        );
        let (soon, never) = tokio::join!(
            async {
                let soon = timeout(100 * SOON, first.reached(Revision(3), &now));
                tokio::join!(soon, async { revision.send_replace(Revision(3)) }).0
            },
            timeout(SOON, second.reached(Revision(9), &now)),
        );
        assert!(soon.unwrap() && never.is_err());
        let ended = async {
            tokio::task::yield_now().await;
            drop(revision);
        };
        let (reached, ()) = tokio::join!(second.reached(Revision(9), &now), ended);
        assert!(!reached, "the member has ended");
    }

    /// What they wait for may never come, and they kept the member from ending for as long as they
    /// may wait.
    #[tokio::test]
    async fn nobody_waits_on_a_member_that_was_removed() {
        let (_revision, now) = watch::channel(Revision(1));
        let waiting = NodeStatus::waiting("a", "folder");
        let removed = NodeStatus {
            removed: true,
            ..waiting.clone()
        };
        let (status, changes) = watch::channel(waiting.clone());
        let reads = SessionReads::start(8, now.clone(), changes);
        let source = source(1);
        let read = async || {
            let place = reads.wait(&source).unwrap();
            timeout(100 * SOON, place.reached(Revision(9), &now)).await
        };
        let removal = async {
            tokio::task::yield_now().await;
            status.send_replace(removed);
        };
        let (waited, ()) = tokio::join!(read(), removal);
        assert_eq!(waited, Ok(false));
        assert_eq!(read().await, Ok(false));
        status.send_replace(waiting);
        let waits_again = async {
            while timeout(SOON, read()).await.is_ok() {
                tokio::task::yield_now().await;
            }
        };
        let counted_in = timeout(100 * SOON, waits_again);
        counted_in.await.expect("a leader counts it in");
    }
}
