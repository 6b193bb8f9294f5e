//! What one watch is told of history, and when: pure, so that the simulator runs what ships.
//!
//! History comes in [`Page`]s: all changes of a run of revisions, read once and shared by every watch that is
//! at the same place. A watch that is not reads pages of its own. Whatever the pages are cut like, a watch is
//! told each event that it asked for once, in order, and whole revisions at a time. [`Follower`] says what to
//! read for all, [`Watch`] what one is told.
//!
//! What may not live here: reading, waiting, and deciding who is too slow (`dengine`'s `server/watch`).

mod hub;
#[cfg(test)]
mod tests;

use crate::kv::{Changes, ChangesQuery, Event, EventKind, KeyRange, KeyValue};
use crate::planted::planted;
use crate::types::Revision;
pub use hub::Follower;
use std::sync::Arc;

/// What an event costs in a message besides keys and values.
const EVENT_OVERHEAD_BYTES: usize = 64;

/// All changes of some keys from `from` to `to`, both included.
#[derive(Clone, Debug)]
pub struct Page {
    /// The first revision that was looked at.
    pub from: Revision,
    /// The last revision that was looked at completely.
    pub to: Revision,
    /// Whether the events say what the pairs were before.
    pub with_prev: bool,
    /// In the order of history.
    pub events: Arc<[Event]>,
}

impl Page {
    /// What reading history from `from` on brought.
    #[must_use]
    pub fn new(from: Revision, with_prev: bool, changes: Changes) -> Self {
        Self {
            from,
            // Nothing to read yet: `complete_to` lies before `from` then.
            to: changes.complete_to.max(Revision(from.0.saturating_sub(1))),
            with_prev,
            events: changes.events.into(),
        }
    }
}

/// How large a page may be. A single revision may be larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLimits {
    /// Bytes of its events.
    pub bytes: usize,
    /// Changes that are looked at, of whatever keys.
    pub changes: usize,
}

impl PageLimits {
    fn query(self, from: Revision, keys: KeyRange, prev_kv: bool) -> ChangesQuery {
        ChangesQuery {
            prev_kv,
            max_bytes: self.bytes,
            max_changes: self.changes,
            ..ChangesQuery::new(from, keys)
        }
    }
}

/// What a client asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchSpec {
    /// Whose changes.
    pub keys: KeyRange,
    /// With the pairs as they were before.
    pub prev_kv: bool,
    /// Without events that set a key.
    pub no_put: bool,
    /// Without events that delete one.
    pub no_delete: bool,
    /// A revision that is larger than one message may be split.
    pub fragment: bool,
    /// How large a message may be. A single event may be larger.
    pub message_bytes: usize,
}

/// A watch: what was asked for, and how far it was told.
#[derive(Clone, Debug)]
pub struct Watch {
    spec: WatchSpec,
    /// The first revision that was not told.
    next: Revision,
    /// Whether it was told everything there was, and takes the pages that all get; else it reads for itself.
    synced: bool,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// At least one.
    pub events: Vec<Event>,
    /// The revision of the last of them.
    pub revision: Revision,
    /// More events of that revision follow in the next message.
    pub fragment: bool,
}

/// Why a page was not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// The watch is behind the page's beginning, or wants what the page lacks: it must read for itself.
    Gap,
    /// A revision is larger than one message, and must not be split.
    TooLarge {
        /// Which.
        revision: Revision,
    },
}

impl Watch {
    /// Tells of `first` and what follows.
    #[must_use]
    pub fn new(spec: WatchSpec, first: Revision) -> Self {
        Self {
            spec,
            next: first,
            synced: false,
        }
    }

    /// Whether it takes the pages that all get. Else it reads history for itself: [`Watch::catch_up`].
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// A page did not reach it, or was a [`Misfit::Gap`]: it reads for itself from now on.
    pub fn missed(&mut self) {
        self.synced = planted!(WatchSkipsGap);
    }

    /// What to read to get to `newest`, the newest revision there is. If it is there already, it is synced from now
    /// on, and must be given every page that is made from then on.
    pub fn catch_up(&mut self, newest: Revision, limits: PageLimits) -> Option<ChangesQuery> {
        if self.next > newest {
            self.synced = true;
            return None;
        }
        let (keys, prev_kv) = (self.spec.keys.clone(), self.spec.prev_kv);
        Some(limits.query(self.next, keys, prev_kv))
    }

    /// Up to which revision it was told everything, if it is synced: for a client that wants to know although
    /// nothing happens. `None` for a watch of the future.
    #[must_use]
    pub fn progress(&self, newest: Revision) -> Option<Revision> {
        let told = Revision(self.next.0.saturating_sub(1));
        (self.synced && told <= newest).then_some(told)
    }

    /// Whether it is synced and was told everything up to `newest`.
    #[must_use]
    pub fn is_told(&self, newest: Revision) -> bool {
        self.synced && self.next > newest
    }

    /// What was asked for.
    #[must_use]
    pub fn spec(&self) -> &WatchSpec {
        &self.spec
    }

    /// The first revision that was not told: where to begin anew.
    #[must_use]
    pub fn next(&self) -> Revision {
        self.next
    }

    /// Cuts what the page holds for this watch into messages. Say [`Watch::told`] of each, and then
    /// [`Watch::finish`].
    ///
    /// # Errors
    /// Nothing of the page is to be told.
    pub fn cut(&self, page: &Page) -> Result<Vec<Told>, Misfit> {
        if page.to < self.next {
            return Ok(Vec::new());
        }
        let lacks = page.from > self.next && !planted!(WatchSkipsGap);
        if lacks || (self.spec.prev_kv && !page.with_prev) {
            return Err(Misfit::Gap);
        }
        let mut messages = Messages::new(&self.spec);
        let mut wanted = page.events.iter().filter(|it| self.wants(it)).peekable();
        while let Some(first) = wanted.peek() {
            let revision = first.kv.mod_revision;
            let mut whole = Vec::new();
            while let Some(event) = wanted.next_if(|it| it.kv.mod_revision == revision) {
                whole.push(self.copy(event));
            }
            messages.add(revision, whole)?;
        }
        Ok(messages.done)
    }

    /// A message, up to `revision` and all of that unless it is a fragment, is on its way to the client.
    pub fn told(&mut self, revision: Revision, fragment: bool) {
        self.next = Revision(revision.0 + u64::from(!fragment));
    }

    /// All messages of the page are on their way.
    pub fn finish(&mut self, page: &Page) {
        self.next = self.next.max(Revision(page.to.0 + 1));
    }

    fn wants(&self, event: &Event) -> bool {
        let filtered = match event.kind {
            EventKind::Put => self.spec.no_put,
            EventKind::Delete => self.spec.no_delete,
        };
        !filtered && event.kv.mod_revision >= self.next && self.spec.keys.contains(&event.kv.key)
    }

    fn copy(&self, event: &Event) -> Event {
        Event {
            prev: event.prev.clone().filter(|_| self.spec.prev_kv),
            ..event.clone()
        }
    }
}

/// Messages while they are being filled.
struct Messages<'a> {
    spec: &'a WatchSpec,
    done: Vec<Told>,
    /// Of the last message, if more revisions may be added to it.
    bytes: usize,
}

impl<'a> Messages<'a> {
    fn new(spec: &'a WatchSpec) -> Self {
        Self {
            spec,
            done: Vec::new(),
            bytes: 0,
        }
    }

    /// Adds all events of a revision.
    fn add(&mut self, revision: Revision, events: Vec<Event>) -> Result<(), Misfit> {
        let bytes: usize = events.iter().map(event_bytes).sum();
        if bytes > self.spec.message_bytes && events.len() > 1 {
            return self.split(revision, events);
        }
        match self.done.last_mut() {
            Some(last) if !last.fragment && self.bytes + bytes <= self.spec.message_bytes => {
                last.events.extend(events);
                last.revision = revision;
                self.bytes += bytes;
            }
            _ => {
                self.push(revision, events, false);
                self.bytes = bytes;
            }
        }
        Ok(())
    }

    /// A revision in as many messages as it takes.
    fn split(&mut self, revision: Revision, events: Vec<Event>) -> Result<(), Misfit> {
        if !self.spec.fragment {
            return Err(Misfit::TooLarge { revision });
        }
        let mut part = Vec::new();
        let mut bytes = 0;
        for event in events {
            let more = event_bytes(&event);
            if !part.is_empty() && bytes + more > self.spec.message_bytes {
                self.push(revision, std::mem::take(&mut part), true);
                bytes = 0;
            }
            bytes += more;
            part.push(event);
        }
        self.push(revision, part, false);
        // Nothing is added to the end of a revision that was split.
        self.bytes = self.spec.message_bytes;
        Ok(())
    }

    fn push(&mut self, revision: Revision, events: Vec<Event>, fragment: bool) {
        self.done.push(Told {
            events,
            revision,
            fragment,
        });
    }
}

fn event_bytes(event: &Event) -> usize {
    let pair = |kv: &KeyValue| kv.key.len() + kv.value.len();
    EVENT_OVERHEAD_BYTES + pair(&event.kv) + event.prev.as_ref().map_or(0, pair)
}
