//! What a member's hub and its streams share: the hub fills the ring, the streams take from it, and say what they want to know.

use super::{KeepLimits, Page, Part, Ring, Wanted, WatchSet, Work};
use crate::{Changes, Stamp, Want};
use dengine_planted::planted;
use dengine_types::Revision;
use dengine_types::sync::{Mutex, MutexGuard};
use std::sync::{Arc, PoisonError};

/// The [`Ring`] of a member, and what all of its watches want to know.
#[derive(Debug)]
pub struct Feed {
    /// To be held before `wanted`, by whoever holds both.
    ring: Mutex<Ring>,
    wanted: Mutex<Wanted>,
}

impl Feed {
    /// Follows from behind `now` on, for no watches yet.
    #[must_use]
    pub fn new(now: Revision, limits: KeepLimits) -> Self {
        Self {
            ring: Mutex::new(Ring::new(now, limits)),
            wanted: Mutex::default(),
        }
    }

    /// What all watches want to know. Never to be held while something is awaited, or anything else is asked of this.
    pub fn wanted(&self) -> MutexGuard<'_, Wanted> {
        lock(&self.wanted)
    }

    /// What to do next for the watches of a stream. If there is nothing, it is said that something has changed once there may
    /// be: whoever listens to that before this, misses nothing.
    pub fn work(&self, watches: &mut WatchSet) -> Option<Work> {
        let ring = lock(&self.ring);
        watches.work(&ring, &mut self.wanted())
    }

    /// Where to read on, if something is new at `newest` and anybody listens. Afterwards, say [`Feed::push`] or [`Feed::gap`],
    /// and that something has changed.
    pub fn wants(&self, newest: Revision, listens: impl Fn() -> bool) -> Option<Stamp> {
        let early = planted!(ListenersCountedBeforeRing).then(&listens);
        let mut ring = lock(&self.ring);
        // Counted under the lock: whoever listens only from now on finds the ring beyond what nobody was told of, and whoever
        // has looked at it before is counted.
        ring.wants(newest, early.unwrap_or_else(listens))
    }

    /// Takes in what was read from where [`Feed::wants`] said.
    pub fn push(&self, page: Page) {
        lock(&self.ring).push(Arc::new(page));
    }

    /// History up to `newest` could not be read.
    pub fn gap(&self, newest: Revision) {
        lock(&self.ring).gap(newest);
    }

    /// What history holds from `from` on of what is wanted. `read` is told of each key what somebody wants to know of it.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn page<E>(
        &self,
        from: Stamp,
        part: Part,
        read: impl FnOnce(&dyn Fn(&[u8]) -> Want) -> Result<Changes, E>,
    ) -> Result<Page, E> {
        // Before anything is read: what is read does not hold what only somebody wants who comes meanwhile.
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
