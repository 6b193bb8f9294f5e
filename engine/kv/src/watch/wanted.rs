//! The interest of all watches of a member, so that history is read once for all of them, without
//! values that none wants, and only those streams are woken that want something of it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use dengine_planted::planted;

use super::{KeyIndex, Page, WatchSpec};
use crate::Want;

/// The part of history for which a page is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// For all watches: pages of new history.
    Present,
    /// For those that are behind: pages of the past.
    Past,
}

/// A stream of watches of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(pub u64);

/// The streams for which there may be something new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Woken {
    All,
    /// These, ascending.
    Only(Vec<StreamId>),
}

/// Counts the additions to a [`Wanted`]: a page that was begun at a mark includes what was wanted
/// by then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

#[derive(Debug, Default)]
struct Interest {
    plain: KeyIndex<StreamId>,
    with_prev: KeyIndex<StreamId>,
}

/// What a stream wants of the present.
#[derive(Debug, Default)]
struct Interested {
    watches: usize,
    /// That of the newest one.
    mark: Mark,
}

/// The interest of the watches of a member. Every addition must be removed again.
#[derive(Debug, Default)]
pub struct Wanted {
    present: Interest,
    past: Interest,
    streams: BTreeMap<StreamId, Interested>,
    /// These want to know of everything.
    of_all: BTreeSet<StreamId>,
    mark: Mark,
}

/// Events of a page that are looked at for whom to wake: a page of more is for all.
pub(super) const SOON_SEEN: usize = 64;

impl Wanted {
    /// Adds the interest of a watch. Pages of that part that were begun at the returned mark, or
    /// later, include it.
    pub fn add(&mut self, stream: StreamId, part: Part, spec: &WatchSpec) -> Mark {
        self.index(part, spec.prev_kv).insert(&spec.keys, stream);
        self.mark.0 += 1;
        if part == Part::Present {
            let interested = self.streams.entry(stream).or_default();
            interested.watches += 1;
            interested.mark = self.mark;
        }
        self.mark
    }

    /// Removes the interest of a watch.
    pub fn remove(&mut self, stream: StreamId, part: Part, spec: &WatchSpec) {
        self.index(part, spec.prev_kv).remove(&spec.keys, stream);
        if part == Part::Present
            && let Some(interested) = self.streams.get_mut(&stream)
        {
            interested.watches -= 1;
            if interested.watches == 0 {
                self.streams.remove(&stream);
            }
        }
    }

    /// Has a stream be woken by whatever is new, or no longer.
    pub fn set_of_all(&mut self, stream: StreamId, of_all: bool) {
        match of_all {
            true => self.of_all.insert(stream),
            false => self.of_all.remove(&stream),
        };
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

    /// For whom there may be something in a page of the present that is in the ring by now. A watch
    /// that begins after this finds it there.
    #[must_use]
    pub fn woken(&self, page: &Page) -> Woken {
        // Who has the beginning of a revision waits for its end, whatever that changes.
        let is_whole = page.from.sub == 0 && page.next.sub == 0;
        if !is_whole || page.events.len() > SOON_SEEN {
            return Woken::All;
        }
        let mut woken: Vec<_> = self.of_all.iter().copied().collect();
        // It may lack what they want.
        if page.mark < self.mark && !planted!(WokenByEventsAlone) {
            let newer = self.streams.iter().filter(|(_, it)| it.mark > page.mark);
            woken.extend(newer.map(|(stream, _)| *stream));
        }
        for event in &page.events {
            for index in [&self.present.plain, &self.present.with_prev] {
                let _: ControlFlow<()> = index.visit(&event.kv.key, |stream| {
                    // Watches of a stream are beside each other.
                    if woken.last() != Some(&stream) {
                        woken.push(stream);
                    }
                    ControlFlow::Continue(())
                });
            }
        }
        woken.sort_unstable();
        woken.dedup();
        Woken::Only(woken)
    }

    fn index(&mut self, part: Part, prev: bool) -> &mut KeyIndex<StreamId> {
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
