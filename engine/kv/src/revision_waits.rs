//! Who waits for a member's state to come to a revision: a new revision wakes those who waited for it, and no others, however
//! many wait for later ones.
//!
//! What may not live here: who may wait, for how long, and what tells of a new revision.

use dengine_planted::planted;
use dengine_types::Revision;
use dengine_types::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};

/// All that wait. See [the module](self).
#[derive(Debug, Default)]
pub struct RevisionWaits(Mutex<Waits>);

#[derive(Debug, Default)]
struct Waits {
    /// Those who were not reached. Whoever has not been polled yet has no waker.
    entries: BTreeMap<Key, Option<Waker>>,
    /// The number of the last one.
    last: u64,
    ended: bool,
}

/// What is waited for, and a number.
type Key = (Revision, u64);

/// One that waits, until this is dropped.
struct Entry<'a> {
    all: &'a RevisionWaits,
    key: Key,
}

impl RevisionWaits {
    /// Waits until the state covers `wanted`; whether it does, or there is no newer one any more. `now` is asked for the
    /// revision once, and [`RevisionWaits::advance`] has to be told of each that it would say later.
    pub async fn reached(&self, wanted: Revision, now: impl Fn() -> Revision) -> bool {
        let early = planted!(LookedBeforeWaiting).then(&now);
        let entry = self.enter(wanted);
        // Looked at behind it: what comes from now on wakes this.
        early.unwrap_or_else(now).covers(wanted) || entry.await
    }

    /// Wakes those that a state at this revision covers.
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

    /// No newer revision comes, unless this is told to [resume](Self::resume): nobody waits any more.
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

/// Whether it was reached.
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
    use super::*;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    /// Counts how often it woke.
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

    /// All of them were woken by each write, thousands of times a second.
    #[test]
    fn a_revision_wakes_those_who_wait_for_it_and_no_others() {
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
        let mut anew = pin!(waits.reached(Revision(9), now));
        assert!(woken[0].poll(anew.as_mut()).is_pending());
        waits.advance(Revision(9));
        assert_eq!(woken[0].poll(anew), Poll::Ready(true));
    }

    #[test]
    fn whoever_leaves_is_forgotten() {
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
