//! The state that a member's hub and its streams share: the hub fills the ring, the streams deliver
//! from it and register what they want.

use std::sync::{Arc, PoisonError};

use dengine_planted::planted;
use dengine_types::Revision;
use dengine_types::sync::{Mutex, MutexGuard};

use super::{KeepLimits, Page, Part, Ring, Wanted, WatchSet, Woken, Work};
use crate::{Changes, Stamp, Want};

/// The [`Ring`] of a member, and the interest of all of its watches.
#[derive(Debug)]
pub struct Feed {
    /// Lock order: before `wanted`.
    ring: Mutex<Ring>,
    wanted: Mutex<Wanted>,
}

/// Where the task of a hub is that follows the member's revision: it sleeps while there are no
/// streams, for to be woken by every revision costs each write a turn of a thread.
#[derive(Debug, Default)]
pub struct Follower {
    sleeps: bool,
}

/// What it does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// Reads a page from there on, for [`Feed::push`], or [`Feed::gap`].
    Read(Stamp),
    /// Waits for a revision that it has not seen.
    AwaitRevision,
    /// Waits until a stream listens.
    AwaitStream,
}

impl Feed {
    /// Follows history from after `now` on, without watches.
    #[must_use]
    pub fn new(now: Revision, limits: KeepLimits) -> Self {
        Self {
            ring: Mutex::new(Ring::new(now, limits)),
            wanted: Mutex::default(),
        }
    }

    /// The interest of all watches. Must not be held across an await, or while another method of
    /// this is called.
    pub fn wanted(&self) -> MutexGuard<'_, Wanted> {
        lock(&self.wanted)
    }

    /// Whether there is [`Feed::work`] for the watches of a stream. Without any, a notification
    /// follows once there may be some: subscribe to it before the call, so that none is missed.
    pub fn has_work(&self, watches: &mut WatchSet) -> bool {
        let ring = lock(&self.ring);
        watches.has_work(&ring, &mut self.wanted())
    }

    /// The next work for the watches of a stream, to be done at once.
    pub fn work(&self, watches: &mut WatchSet) -> Option<Work> {
        let ring = lock(&self.ring);
        watches.work(&ring, &mut self.wanted())
    }

    /// Where to continue reading, if there is something new at `newest`.
    fn wants(&self, newest: Revision) -> Option<Stamp> {
        lock(&self.ring).wants(newest)
    }

    /// Adds what was read from the place that [`Follow::Read`] names, and notifies the streams that
    /// may want something of it; now and then all of them.
    pub fn push(&self, page: Page, notify: impl FnOnce(Woken)) {
        let page = Arc::new(page);
        if planted!(NotifiedBeforeRing) {
            notify(Woken::All);
            lock(&self.ring).push(page);
            return;
        }
        let is_time_for_all = lock(&self.ring).push(Arc::clone(&page));
        let woken = match is_time_for_all {
            true => Woken::All,
            false => self.wanted().woken(&page),
        };
        notify(woken);
    }

    /// History up to `newest` was not read: watches that need it read it from the past. Notifies
    /// the streams, of which one may have found the ring where it was.
    pub fn gap(&self, newest: Revision, notify: impl FnOnce(Woken)) {
        lock(&self.ring).gap(newest);
        notify(Woken::All);
    }

    /// What the hub's task is to do next, if the member has come to `newest` and streams listen to
    /// it or not. It asks again after that, and for the newest revision again, of which later ones
    /// must wake it.
    pub fn follow(
        &self,
        follower: &mut Follower,
        newest: Revision,
        is_listened_to: bool,
        notify: impl FnOnce(Woken),
    ) -> Follow {
        match (follower.sleeps, is_listened_to) {
            (true, false) => Follow::AwaitStream,
            (false, true) => match self.wants(newest) {
                Some(from) => Follow::Read(from),
                None => Follow::AwaitRevision,
            },
            // Its pages need not be kept meanwhile.
            (false, false) => {
                follower.sleeps = true;
                self.gap(newest, notify);
                Follow::AwaitStream
            }
            // A stream may have found the ring where it was left, and waits for what is after it.
            (true, true) => {
                follower.sleeps = false;
                if !planted!(WokenWithoutGap) {
                    self.gap(newest, notify);
                }
                Follow::AwaitRevision
            }
        }
    }

    /// Begins to listen, and then wakes who follows: before, it would find no stream and sleep on.
    pub fn listen<T>(listen: impl FnOnce() -> T, wake: impl FnOnce()) -> T {
        if planted!(WokenBeforeListened) {
            wake();
            return listen();
        }
        let listener = listen();
        wake();
        listener
    }

    /// The wanted part of history from `from` on. `read` gets a function that decides for each key
    /// what is wanted of it.
    ///
    /// # Errors
    ///
    /// Those of `read`.
    pub fn page<E>(
        &self,
        from: Stamp,
        part: Part,
        read: impl FnOnce(&dyn Fn(&[u8]) -> Want) -> Result<Changes, E>,
    ) -> Result<Page, E> {
        // Marked before the read: the page may lack what only a watch wants that registers during
        // it.
        let mut mark = self.wanted().mark();
        let changes = read(&|key| self.wanted().want(part, key))?;
        if planted!(MarkedAfterRead) {
            mark = self.wanted().mark();
        }
        Ok(Page::new(from, part, mark, changes))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
