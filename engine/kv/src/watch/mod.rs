//! The delivery of history to watches: without I/O, so that the simulator runs what ships.
//!
//! History is read in [`Page`]s that are bounded in bytes, so that a revision of any size takes no
//! more memory than a small one: a page may begin and end inside a revision. Pages are shared: new
//! ones go once through a [`Ring`] to all watches of a member, and watches that are behind find
//! recently read ones in a [`PageCache`]. [`Wanted`] knows which keys pages need to include, and
//! which streams want something of one.
//! [`Feed`] shares ring and interest between the threads of a member.
//!
//! [`WatchSet`] has the watches of one stream. However history is cut into pages, a watch gets each
//! event that it asked for once, in order, and all events of a revision in one message, except for
//! a revision that is larger than a message ([`EventBatch::fragment`]). [`KeyIndex`] finds the
//! watches of a change, so that the cost of a page depends on its matches, not on the number of
//! watches. Watches that get the same messages may share them ([`Addressed`]): they are cut and
//! encoded once, and sent once where the protocol can name several watches.
//!
//! What may not live here: reading, waiting, and deciding which watches are too slow (`dengine`'s
//! `server/watch`).

mod feed;
mod index;
mod messages;
mod pages;
mod set;
#[cfg(test)]
mod tests;
mod wanted;

use dengine_types::Revision;

use crate::{Event, EventKind, KeyRange, Stamp};

pub use feed::{Feed, Follow, Follower};
pub use index::KeyIndex;
pub use pages::{InRing, KeepLimits, Page, PageCache, Ring};
pub use set::{Addressed, Delivery, SHARED_BY_MAX, Slice, WatchSet, Work};
pub use wanted::{Mark, Part, StreamId, Wanted, Woken};

/// The request for a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchSpec {
    pub keys: KeyRange,
    /// Include the previous pairs.
    pub prev_kv: bool,
    /// Omit events that set a key.
    pub no_put: bool,
    /// Omit events that delete a key.
    pub no_delete: bool,
    /// Allow splitting a revision that is larger than one message.
    pub fragment: bool,
    /// Allow messages to be addressed to other watches of the stream as well ([`Addressed`]).
    pub shared: bool,
    /// The size of a message, which a single event may exceed.
    pub message_bytes: usize,
}

impl WatchSpec {
    /// Whether an event was requested.
    #[must_use]
    pub fn wants(&self, event: &Event) -> bool {
        let filtered = match event.kind {
            EventKind::Put => self.no_put,
            EventKind::Delete => self.no_delete,
        };
        !filtered && self.keys.contains(&event.kv.key)
    }

    /// No revision changes a key twice: a single key has at most one event in each.
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

/// The events of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventBatch {
    pub events: Vec<Event>,
    /// The revision of the last event.
    pub revision: Revision,
    /// More events of that revision follow in the next message.
    pub fragment: bool,
    /// The first place after the message.
    pub next: Stamp,
}

/// The end of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    revision: Revision,
    fragment: bool,
    next: Stamp,
}

impl EventBatch {
    #[must_use]
    pub fn reached(&self) -> Reached {
        Reached {
            revision: self.revision,
            fragment: self.fragment,
            next: self.next,
        }
    }
}
