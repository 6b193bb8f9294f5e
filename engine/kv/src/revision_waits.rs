//! Waiting for a member's state to reach a revision: a new revision wakes the tasks that wait for
//! it, and no others, however many wait for later ones.
//!
//! What may not live here: who may wait, for how long, and what observes new revisions.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};

use dengine_planted::planted;
use dengine_types::Revision;
use dengine_types::sync::{Mutex, MutexGuard};

/// All waiting tasks. See [the module](self).
#[derive(Debug, Default)]
pub struct RevisionWaits(Mutex<Waits>);

#[derive(Debug, Default)]
struct Waits {
    /// Those whose revision was not reached. A task that was not polled yet has no waker.
    entries: BTreeMap<Key, Option<Waker>>,
    /// The number of the last one.
    last: u64,
    ended: bool,
}

/// The awaited revision, and a number.
type Key = (Revision, u64);

/// A waiting task, removed when this is dropped.
struct Entry<'a> {
    all: &'a RevisionWaits,
    key: Key,
}

impl RevisionWaits {
    /// Waits until the state covers `wanted`; `false` if no newer revision will come. `now` is
    /// called once for the current revision; [`RevisionWaits::advance`] has to be called for every
    /// later one.
    pub async fn reached(&self, wanted: Revision, now: impl Fn() -> Revision) -> bool {
        let early = planted!(LookedBeforeWaiting).then(&now);
        let entry = self.enter(wanted);
        // Read after the task is registered: every later revision wakes it.
        early.unwrap_or_else(now).covers(wanted) || entry.await
    }

    /// Wakes the tasks whose revision a state at `now` covers.
    pub fn advance(&self, now: Revision) {
        let mut woken = Vec::new();
        let mut waits = self.lock();
        while let Some(first) = waits.entries.first_entry()
            && now.covers(first.key().0)
        {
            woken.extend(first.remove());
        }
        drop(waits);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Ends all waits, because no newer revision comes until [`resume`](Self::resume).
    pub fn end(&self) {
        let mut waits = self.lock();
        waits.ended = true;
        let woken: Vec<_> = waits
            .entries
            .values_mut()
            .filter_map(Option::take)
            .collect();
        drop(waits);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Newer revisions may come again.
    pub fn resume(&self) {
        self.lock().ended = false;
    }

    fn enter(&self, wanted: Revision) -> Entry<'_> {
        let mut waits = self.lock();
        waits.last += 1;
        let key = (wanted, waits.last);
        waits.entries.insert(key, None);
        Entry { all: self, key }
    }

    fn lock(&self) -> MutexGuard<'_, Waits> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the revision was reached.
impl Future for Entry<'_> {
    type Output = bool;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        let mut waits = self.all.lock();
        let ended = waits.ended;
        match waits.entries.get_mut(&self.key) {
            None => Poll::Ready(true),
            Some(_) if ended => Poll::Ready(false),
            Some(waker) => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.all.lock().entries.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    /// Counts the wake-ups.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Woken {
        fn poll<T>(self: &Arc<Self>, future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
            future.poll(&mut Context::from_waker(&Waker::from(Arc::clone(self))))
        }

        fn count(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    /// Every write woke all of them, thousands of times a second.
    #[test]
    fn a_revision_wakes_only_the_tasks_that_wait_for_it() {
        let waits = RevisionWaits::default();
        let now = || Revision(1);
        let woken = [(); 3].map(|()| Arc::<Woken>::default());
        let counts = || woken.each_ref().map(|it| it.count());
        let mut there = pin!(waits.reached(Revision(1), now));
        assert_eq!(woken[0].poll(there.as_mut()), Poll::Ready(true));
        let mut soon = pin!(waits.reached(Revision(3), now));
        let mut as_soon = pin!(waits.reached(Revision(3), now));
        let mut later = pin!(waits.reached(Revision(9), now));
        assert!(woken[0].poll(soon.as_mut()).is_pending());
        assert!(woken[1].poll(as_soon.as_mut()).is_pending());
        assert!(woken[2].poll(later.as_mut()).is_pending());
        waits.advance(Revision(2));
        assert_eq!(counts(), [0, 0, 0]);
        waits.advance(Revision(4));
        assert_eq!(counts(), [1, 1, 0]);
        assert_eq!(woken[0].poll(soon), Poll::Ready(true));
        waits.end();
        assert_eq!(counts(), [1, 1, 1]);
        assert_eq!(woken[2].poll(later), Poll::Ready(false));
        assert_eq!(
            woken[1].poll(as_soon),
            Poll::Ready(true),
            "it was reached before the end"
        );
        let mut late = pin!(waits.reached(Revision(9), now));
        assert_eq!(woken[0].poll(late.as_mut()), Poll::Ready(false));
        waits.resume();
        let mut again = pin!(waits.reached(Revision(9), now));
        assert!(woken[0].poll(again.as_mut()).is_pending());
        waits.advance(Revision(9));
        assert_eq!(woken[0].poll(again), Poll::Ready(true));
    }

    #[test]
    fn a_dropped_wait_is_removed() {
        let waits = RevisionWaits::default();
        let woken = Arc::<Woken>::default();
        {
            let mut waiting = Box::pin(waits.reached(Revision(3), || Revision(1)));
            assert!(woken.poll(waiting.as_mut()).is_pending());
        }
        assert!(waits.lock().entries.is_empty());
        waits.advance(Revision(3));
        assert_eq!(woken.count(), 0);
    }
}
