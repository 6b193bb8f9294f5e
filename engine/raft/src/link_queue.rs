//! A [`PeerQueue`] between the thread that fills it and the task of the link that sends what it
//! holds, which waits while there is nothing. Once the link is closed, the task ends behind what
//! was queued before.
//!
//! What may not live here: streams and clocks. The simulator, which has one thread, runs the queue
//! without this.

use std::future::{Future, poll_fn};
use std::sync::PoisonError;
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use dengine_planted::planted;
use dengine_types::sync::{Mutex, MutexGuard};

use crate::output::Outbound;
use crate::peer_queue::{Dropped, PeerQueue, QueueLimits};

/// See [the module](self). One task waits at a time.
#[derive(Debug)]
pub struct LinkQueue(Mutex<Link>);

#[derive(Debug)]
struct Link {
    queue: PeerQueue,
    closed: bool,
    /// Of the task, if it waits.
    waker: Option<Waker>,
}

impl LinkQueue {
    /// An empty one, whose stream has yet to be opened.
    #[must_use]
    pub fn new(limits: QueueLimits) -> Self {
        Self(Mutex::new(Link {
            queue: PeerQueue::new(limits),
            closed: false,
            waker: None,
        }))
    }

    /// Queues a message; never waits.
    ///
    /// # Errors
    /// It was dropped.
    pub fn push(&self, message: Outbound) -> Result<(), Dropped> {
        self.change(|link| link.queue.push(message))
    }

    /// Nothing more is queued.
    pub fn close(&self) {
        self.change(|link| link.closed = true);
    }

    /// See [`PeerQueue::opened`].
    pub fn opened(&self) {
        self.lock().queue.opened();
    }

    /// See [`PeerQueue::broke`].
    pub fn broke(&self) -> Duration {
        self.lock().queue.broke()
    }

    /// Whether nothing more is queued.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Waits until nothing more is queued.
    pub fn closed(&self) -> impl Future<Output = ()> {
        self.until(|link| link.closed.then_some(()))
    }

    /// The messages of the next frame; none if nothing waits.
    pub fn take_frame(&self) -> Vec<Bytes> {
        self.lock().queue.next_frame()
    }

    /// How many bytes wait.
    pub fn bytes(&self) -> usize {
        self.lock().queue.bytes()
    }

    /// Waits for the messages of the next frame. `None` once it is closed and everything is sent
    /// that was queued before.
    pub fn next_frame(&self) -> impl Future<Output = Option<Vec<Bytes>>> {
        self.until(|link| {
            if planted!(ClosedBeforeQueued) && link.closed {
                return Some(None);
            }
            match link.queue.next_frame() {
                // Asked for last: what was queued before it was closed is sent.
                none if none.is_empty() => link.closed.then_some(None),
                messages => Some(Some(messages)),
            }
        })
    }

    /// Waits until `look` finds something.
    fn until<T>(&self, look: impl Fn(&mut Link) -> Option<T>) -> impl Future<Output = T> {
        poll_fn(move |context| {
            let mut link = self.lock();
            if let Some(found) = look(&mut link) {
                return Poll::Ready(found);
            }
            if planted!(LinkWakerLeftAfterLook) {
                drop(link);
                link = self.lock();
            }
            // Under the lock under which it was looked: whatever comes from now on wakes this.
            link.waker = Some(context.waker().clone());
            Poll::Pending
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut Link) -> T) -> T {
        let mut link = self.lock();
        let changed = change(&mut link);
        let waker = link.waker.take();
        drop(link);
        if let Some(waker) = waker {
            waker.wake();
        }
        changed
    }

    fn lock(&self) -> MutexGuard<'_, Link> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
