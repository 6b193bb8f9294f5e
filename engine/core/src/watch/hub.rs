//! Follows a member's history once for all of its watches: which part is to be read next, and what becomes of it.
//!
//! The pages go through a ring of bounded length to every stream of the member. Who falls behind the ring, or
//! subscribes late, reads history for itself ([`Watch::catch_up`](super::Watch::catch_up)).

use super::{Page, PageLimits};
use crate::kv::{Changes, ChangesQuery, KeyRange};
use crate::types::Revision;
use bytes::Bytes;
use std::sync::Arc;

/// How far the pages of a member have come.
#[derive(Clone, Copy, Debug)]
pub struct Follower {
    told: Revision,
    limits: PageLimits,
}

impl Follower {
    /// Follows from behind `now` on, in pages that are no larger than `limits`, single revisions apart.
    #[must_use]
    pub fn new(now: Revision, limits: PageLimits) -> Self {
        Self { told: now, limits }
    }

    /// What to read for the next page, if something is new at `newest`. Without listeners nothing is: who comes
    /// later begins by reading for itself. `with_prev`: somebody wants to know what was before.
    pub fn next(
        &mut self,
        newest: Revision,
        listeners: bool,
        with_prev: bool,
    ) -> Option<ChangesQuery> {
        if !listeners {
            self.told = self.told.max(newest);
        }
        let everything = KeyRange::From(Bytes::from_static(b"\0"));
        let from = Revision(self.told.0 + 1);
        (self.told < newest).then(|| self.limits.query(from, everything, with_prev))
    }

    /// The page that reading `query` brought; `None` if there was nothing.
    pub fn page(&mut self, query: &ChangesQuery, read: Changes) -> Option<Page> {
        let page = Page::new(query.from, query.prev_kv, read);
        let more = page.to > self.told;
        self.told = self.told.max(page.to);
        more.then_some(page)
    }

    /// The page that stands for history up to `newest`, which could not be read: a gap for every watch that was
    /// not told that far, so that each reads for itself and tells its client what is wrong.
    pub fn gap(&mut self, newest: Revision) -> Page {
        self.told = self.told.max(newest);
        Page {
            from: Revision(newest.0 + 1),
            to: newest,
            with_prev: true,
            events: Arc::default(),
        }
    }
}
