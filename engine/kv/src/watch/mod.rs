//! What watches are told of history, and when: pure, so that the simulator runs what ships.
//!
//! History is read in [`Page`]s that are bounded in bytes, so that a revision of any size takes no more memory than a small
//! one: a page may begin and end inside a revision. Pages are shared: what is new goes once through a [`Ring`] to all
//! watches of a member, and those that are behind find what others have just read in a [`PageCache`]. [`Wanted`] says of
//! which keys pages need to tell at all. [`Feed`] has those two between the threads of a member.
//!
//! [`WatchSet`] holds the watches of one stream. Whatever the pages are cut like, a watch is told each event that it asked
//! for once, in order, and all events of a revision in one message, except for one that is larger than a message
//! ([`Told::fragment`]). [`KeyIndex`] finds the watches of a change, so that a page costs what it holds for them, not what
//! they could have wanted.
//!
//! What may not live here: reading, waiting, and deciding who is too slow (`dengine`'s `server/watch`).

mod feed;
mod index;
mod messages;
mod pages;
mod set;
#[cfg(test)]
mod tests;
mod wanted;

use crate::{Event, EventKind, KeyRange, Stamp};
use dengine_types::Revision;
pub use feed::Feed;
pub use index::KeyIndex;
pub use pages::{InRing, KeepLimits, Page, PageCache, Ring};
pub use set::{Slice, Telling, WatchSet, Work};
pub use wanted::{Mark, Part, Wanted};

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

impl WatchSpec {
    /// Whether an event is among what was asked for.
    #[must_use]
    pub fn wants(&self, event: &Event) -> bool {
        let filtered = match event.kind {
            EventKind::Put => self.no_put,
            EventKind::Delete => self.no_delete,
        };
        !filtered && self.keys.contains(&event.kv.key)
    }

    /// No revision changes a key twice: of a single key there is never a second event in one.
    fn is_one_key(&self) -> bool {
        matches!(self.keys, KeyRange::One(_))
    }

    fn copy(&self, event: &Event) -> Event {
        Event {
            prev: event.prev.clone().filter(|_| self.prev_kv),
            ..event.clone()
        }
    }
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
    /// The first place that was not told with it.
    pub next: Stamp,
}

/// How far a message tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    revision: Revision,
    fragment: bool,
    next: Stamp,
}

impl Told {
    /// How far it tells.
    #[must_use]
    pub fn reached(&self) -> Reached {
        Reached {
            revision: self.revision,
            fragment: self.fragment,
            next: self.next,
        }
    }
}
