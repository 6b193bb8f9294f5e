//! Parts of history that were read, kept for a while for all watches: new history in a [`Ring`],
//! and older history in a [`PageCache`]. Both are bounded in bytes and in pages.

use std::collections::VecDeque;
use std::sync::Arc;

use dengine_types::Revision;

use super::{Mark, Part};
use crate::{Changes, Event, Stamp};

/// What a page costs besides its events.
const PAGE_OVERHEAD_BYTES: usize = 256;

/// A part of history that the watches of a member want. It may begin and end inside a revision.
#[derive(Clone, Debug)]
pub struct Page {
    /// The first place in the page.
    pub from: Stamp,
    /// The first place after the page.
    pub next: Stamp,
    /// The watches for which it was read.
    pub part: Part,
    /// It includes what was wanted at this mark.
    pub mark: Mark,
    /// In the order of history.
    pub events: Vec<Event>,
    bytes: usize,
}

impl Page {
    /// The page of `changes`, read for `part` from `from` on, begun at `mark`.
    #[must_use]
    pub fn new(from: Stamp, part: Part, mark: Mark, changes: Changes) -> Self {
        let events = changes.events.iter().map(Event::size_bytes);
        Self {
            from,
            next: changes.next,
            part,
            mark,
            bytes: PAGE_OVERHEAD_BYTES + events.sum::<usize>(),
            events: changes.events,
        }
    }

    fn covers(&self, at: Stamp) -> bool {
        self.from <= at && at < self.next
    }
}

/// The size of a [`Ring`] or a [`PageCache`]. The newest page stays, whatever its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepLimits {
    pub bytes: usize,
    pub pages: usize,
}

#[derive(Debug)]
struct Pages {
    pages: VecDeque<Arc<Page>>,
    bytes: usize,
    limits: KeepLimits,
}

impl Pages {
    fn new(limits: KeepLimits) -> Self {
        Self {
            pages: VecDeque::new(),
            bytes: 0,
            limits,
        }
    }

    fn push(&mut self, page: Arc<Page>) {
        self.bytes += page.bytes;
        self.pages.push_back(page);
        let limits = self.limits;
        while self.pages.len() > 1 && (self.bytes > limits.bytes || self.pages.len() > limits.pages)
        {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some(page) = self.pages.pop_front() {
            self.bytes -= page.bytes;
        }
    }

    fn clear(&mut self) {
        self.pages.clear();
        self.bytes = 0;
    }
}

/// Follows a member's history once for all of its watches. Watches that are further behind than its
/// pages, or that are new, read from the past.
#[derive(Debug)]
pub struct Ring {
    held: Pages,
    /// The first place after its pages, which are without a gap up to there.
    next: Stamp,
    /// What was added since all streams were to be woken.
    added: Added,
}

#[derive(Clone, Copy, Debug, Default)]
struct Added {
    pages: usize,
    bytes: usize,
}

/// Streams that want nothing of what is new are woken when this part of a ring is: well before it
/// drops what they have not passed.
const ALL_WOKEN_EVERY: usize = 4;

/// The result of looking a place up in a [`Ring`].
#[derive(Clone, Debug)]
pub enum InRing {
    /// A page that includes this place.
    Page(Arc<Page>),
    /// The place is ahead of the ring.
    NotYet,
    /// The place is behind the ring's pages.
    NoMore,
}

impl Ring {
    /// Follows history from after `now` on.
    #[must_use]
    pub fn new(now: Revision, limits: KeepLimits) -> Self {
        Self {
            held: Pages::new(limits),
            next: Stamp::end_of(now),
            added: Added::default(),
        }
    }

    /// Where to continue reading, if there is something new at `newest`.
    #[must_use]
    pub fn wants(&self, newest: Revision) -> Option<Stamp> {
        (self.next.revision <= newest).then_some(self.next)
    }

    /// Adds what was read from the place that [`Ring::wants`] returned. Returns whether it is time
    /// to wake streams that want nothing of it, so that they pass it before it is dropped.
    pub fn push(&mut self, page: Arc<Page>) -> bool {
        if page.from == self.next && page.next > self.next {
            self.next = page.next;
            self.added.pages += 1;
            self.added.bytes += page.bytes;
            self.held.push(page);
        }
        let KeepLimits { bytes, pages } = self.held.limits;
        let is_time = self.added.pages > pages / ALL_WOKEN_EVERY
            || self.added.bytes > bytes / ALL_WOKEN_EVERY;
        if is_time {
            self.added = Added::default();
        }
        is_time
    }

    /// History up to `newest` could not be read, or is not needed. Watches that need it read from
    /// the past.
    pub fn gap(&mut self, newest: Revision) {
        self.held.clear();
        self.next = self.next.max(Stamp::end_of(newest));
    }

    /// Looks a place up.
    #[must_use]
    pub fn find(&self, at: Stamp) -> InRing {
        if at >= self.next {
            return InRing::NotYet;
        }
        let pages = &self.held.pages;
        let place = pages.partition_point(|page| page.next <= at);
        match pages.get(place).filter(|page| page.covers(at)) {
            Some(page) => InRing::Page(Arc::clone(page)),
            None => InRing::NoMore,
        }
    }

    /// The first place of its pages.
    #[must_use]
    pub fn begins(&self) -> Stamp {
        let first = self.held.pages.front();
        first.map_or(self.next, |page| page.from)
    }

    /// The first place after its pages.
    #[must_use]
    pub fn next(&self) -> Stamp {
        self.next
    }

    /// The size of its pages.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.held.bytes
    }
}

/// The most recently read pages of the past: watches at nearly the same place share them.
#[derive(Debug)]
pub struct PageCache(Pages);

impl PageCache {
    #[must_use]
    pub fn new(limits: KeepLimits) -> Self {
        Self(Pages::new(limits))
    }

    /// A page that includes this place and what was wanted at `mark`.
    #[must_use]
    pub fn find(&self, at: Stamp, mark: Mark) -> Option<Arc<Page>> {
        let mut pages = self.0.pages.iter().rev();
        let found = pages.find(|page| page.covers(at) && page.mark >= mark);
        found.map(Arc::clone)
    }

    /// Keeps a page for other watches.
    pub fn push(&mut self, page: Arc<Page>) {
        self.0.push(page);
    }
}
