//! What all watches of a member want to know, so that history is read once for all of them, and no value that nobody
//! wants.

use super::{KeyIndex, WatchSpec};
use crate::Want;

/// Where in history those are that a page is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All watches: pages of what is new.
    Present,
    /// Those that are behind: pages of what was before.
    Past,
}

/// Counts what was added to a [`Wanted`]: a page that was begun at a mark holds what was wanted by then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

#[derive(Debug, Default)]
struct Interest {
    plain: KeyIndex<()>,
    with_prev: KeyIndex<()>,
}

/// What the watches of a member want to know. Whoever adds must remove.
#[derive(Debug, Default)]
pub struct Wanted {
    present: Interest,
    past: Interest,
    mark: Mark,
}

impl Wanted {
    /// Adds what a watch asked for. Pages of that part that were begun at the mark returned, or later, hold it.
    pub fn add(&mut self, part: Part, spec: &WatchSpec) -> Mark {
        self.index(part, spec.prev_kv).insert(&spec.keys, ());
        self.mark.0 += 1;
        self.mark
    }

    /// Removes what a watch asked for.
    pub fn remove(&mut self, part: Part, spec: &WatchSpec) {
        self.index(part, spec.prev_kv).remove(&spec.keys, ());
    }

    /// To be noted before a page is read.
    #[must_use]
    pub fn mark(&self) -> Mark {
        self.mark
    }

    /// What somebody wants to know of a change of this key.
    #[must_use]
    pub fn want(&self, part: Part, key: &[u8]) -> Want {
        let interest = match part {
            Part::Present => &self.present,
            Part::Past => &self.past,
        };
        if interest.with_prev.contains(key) {
            Want::EventWithPrev
        } else if interest.plain.contains(key) {
            Want::Event
        } else {
            Want::Nothing
        }
    }

    fn index(&mut self, part: Part, prev: bool) -> &mut KeyIndex<()> {
        let interest = match part {
            Part::Present => &mut self.present,
            Part::Past => &mut self.past,
        };
        match prev {
            true => &mut interest.with_prev,
            false => &mut interest.plain,
        }
    }
}
