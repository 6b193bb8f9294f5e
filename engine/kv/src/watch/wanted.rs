//! The interest of all watches of a member, so that history is read once for all of them, without
//! values that none wants.

use super::{KeyIndex, WatchSpec};
use crate::Want;

/// The part of history for which a page is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// For all watches: pages of new history.
    Present,
    /// For those that are behind: pages of the past.
    Past,
}

/// Counts the additions to a [`Wanted`]: a page that was begun at a mark includes what was wanted
/// by then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

#[derive(Debug, Default)]
struct Interest {
    plain: KeyIndex<()>,
    with_prev: KeyIndex<()>,
}

/// The interest of the watches of a member. Every addition must be removed again.
#[derive(Debug, Default)]
pub struct Wanted {
    present: Interest,
    past: Interest,
    mark: Mark,
}

impl Wanted {
    /// Adds the interest of a watch. Pages of that part that were begun at the returned mark, or
    /// later, include it.
    pub fn add(&mut self, part: Part, spec: &WatchSpec) -> Mark {
        self.index(part, spec.prev_kv).insert(&spec.keys, ());
        self.mark.0 += 1;
        self.mark
    }

    /// Removes the interest of a watch.
    pub fn remove(&mut self, part: Part, spec: &WatchSpec) {
        self.index(part, spec.prev_kv).remove(&spec.keys, ());
    }

    /// To be noted before a page is read.
    #[must_use]
    pub fn mark(&self) -> Mark {
        self.mark
    }

    /// What is wanted of a change of this key.
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
