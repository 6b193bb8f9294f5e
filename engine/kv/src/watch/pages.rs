//! Parts of history that were read, kept for a while for every watch that comes by: what is new, in a [`Ring`], and
//! what was before, in a [`PageCache`]. Both are bounded in bytes and in pages.

use super::{Mark, Part};
use crate::{Changes, Event, Stamp};
use dengine_types::Revision;
use std::collections::VecDeque;
use std::sync::Arc;

/// What a page costs besides its events.
const PAGE_OVERHEAD_BYTES: usize = 256;

/// A part of history, as far as watches of a member want to know of it. It may begin and end inside a revision.
#[derive(Clone, Debug)]
pub struct Page {
    /// The first place that was looked at.
    pub from: Stamp,
    /// The first place that was not looked at any more.
    pub next: Stamp,
    /// For whom.
    pub part: Part,
    /// It holds what was wanted at this mark.
    pub mark: Mark,
    /// In the order of history.
    pub events: Vec<Event>,
    bytes: usize,
}

impl Page {
    /// What reading history for `part` from `from` on brought, begun at `mark`.
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

/// How much a [`Ring`] or a [`PageCache`] may hold. The newest page stays, whatever its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepLimits {
    /// Bytes of all pages.
    pub bytes: usize,
    /// Pages.
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

/// Follows a member's history once for all of its watches. Who falls behind what it holds, or comes late, reads from
/// the past.
#[derive(Debug)]
pub struct Ring {
    held: Pages,
    /// The first place that it has not come to. Its pages lead there without a gap.
    next: Stamp,
}

/// What a [`Ring`] has for a place in history.
#[derive(Clone, Debug)]
pub enum InRing {
    /// A page with this place in it.
    Page(Arc<Page>),
    /// Nothing yet.
    NotYet,
    /// Nothing any more.
    NoMore,
}

impl Ring {
    /// Follows from behind `now` on.
    #[must_use]
    pub fn new(now: Revision, limits: KeepLimits) -> Self {
        Self {
            held: Pages::new(limits),
            next: Stamp::end_of(now),
        }
    }

    /// Where to read on, if something is new at `newest`. Without `listeners` nothing is: who comes later begins with
    /// the past.
    pub fn wants(&mut self, newest: Revision, listeners: bool) -> Option<Stamp> {
        if !listeners {
            self.gap(newest);
        }
        (self.next.revision <= newest).then_some(self.next)
    }

    /// Takes in what was read from where [`Ring::wants`] said.
    pub fn push(&mut self, page: Arc<Page>) {
        if page.from == self.next && page.next > self.next {
            self.next = page.next;
            self.held.push(page);
        }
    }

    /// History up to `newest` could not be read, or is not needed. Who is to be told of it reads from the past.
    pub fn gap(&mut self, newest: Revision) {
        self.held.clear();
        self.next = self.next.max(Stamp::end_of(newest));
    }

    /// What it has for a place.
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

    /// The first place that it has something for.
    #[must_use]
    pub fn begins(&self) -> Stamp {
        let first = self.held.pages.front();
        first.map_or(self.next, |page| page.from)
    }

    /// The first place that it has not come to.
    #[must_use]
    pub fn next(&self) -> Stamp {
        self.next
    }

    /// What its pages occupy.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.held.bytes
    }
}

/// The last pages of the past that were read: watches that are at about the same place share them.
#[derive(Debug)]
pub struct PageCache(Pages);

impl PageCache {
    /// An empty one.
    #[must_use]
    pub fn new(limits: KeepLimits) -> Self {
        Self(Pages::new(limits))
    }

    /// A page with this place in it that holds what was wanted at `mark`.
    #[must_use]
    pub fn find(&self, at: Stamp, mark: Mark) -> Option<Arc<Page>> {
        let mut pages = self.0.pages.iter().rev();
        let found = pages.find(|page| page.covers(at) && page.mark >= mark);
        found.map(Arc::clone)
    }

    /// Keeps a page for whoever comes next.
    pub fn push(&mut self, page: Arc<Page>) {
        self.0.push(page);
    }
}
