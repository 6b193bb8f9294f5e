//! A page on its way to the watches of a stream, slice by slice: so much at once that nobody else has to wait for it.

use super::{Place, WatchSet};
use crate::watch::messages::{Cut, Rest, TooLarge, cut, size_bytes};
use crate::watch::{Mark, Page, Part, Told, Wanted};
use crate::{Changes, Event, Stamp};
use dengine_types::Revision;
use std::ops::ControlFlow;
use std::sync::Arc;

/// A slice ends behind the revision with which it has so many matches of events and watches,
const MATCHES: usize = 4 * 1024;
/// and inside one with so many.
const MATCHES_MAX: usize = 64 * 1024;

/// The place of no event, behind all others.
const NO_EVENT: u32 = u32::MAX;

/// To whom a page is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    Synced,
    Behind,
    Alone(u64),
}

/// A page that is being told.
#[derive(Debug)]
pub struct Telling {
    page: Arc<Page>,
    to: To,
    /// The next event, or that it is done.
    at: Option<usize>,
}

/// What watches are told of a part of a page: messages, or that this revision is larger than one and must not be split, so
/// that the watch has to end.
pub type Slice = Vec<(u64, Result<Vec<Told>, Revision>)>;

impl WatchSet {
    /// Begins to tell a page: to those that are synced, if they are at a place in it, and else to those that are behind.
    /// Say [`WatchSet::slice`] until it returns nothing, and then [`WatchSet::finish`].
    #[must_use]
    pub fn tell(&mut self, page: Arc<Page>) -> Telling {
        let synced = self.synced > 0 && page.from <= self.present && self.present < page.next;
        let mut behind = self.behind.range((page.from, 0)..(page.next, 0));
        let to = match behind.next() {
            None if synced && page.part == Part::Present => To::Synced,
            _ => To::Behind,
        };
        self.spare_who_is_too_new(&page, to);
        Telling {
            page,
            to,
            at: Some(0),
        }
    }

    /// Begins to tell what was read for one watch.
    #[must_use]
    pub fn tell_alone(&mut self, id: u64, from: Stamp, changes: Changes) -> Telling {
        let page = Page::new(from, Part::Past, Mark::default(), changes);
        Telling {
            page: Arc::new(page),
            to: To::Alone(id),
            at: Some(0),
        }
    }

    /// Who came after the page was begun may want what it does not hold, and reads for itself.
    fn spare_who_is_too_new(&mut self, page: &Page, to: To) {
        let latest = match page.part {
            Part::Present => self.present_mark,
            Part::Past => self.past_mark,
        };
        if page.mark >= latest {
            return;
        }
        let watches = self.watches.iter().filter(|(_, watch)| {
            let mark = match page.part {
                Part::Present => Some(watch.present),
                Part::Past => watch.past,
            };
            let (place, read) = match to {
                To::Synced => (Place::Synced, watch.read.max(self.present)),
                _ => (Place::Behind, watch.read),
            };
            let there = watch.place == place && page.from <= read && read < page.next;
            there && mark > Some(page.mark)
        });
        let ids: Vec<_> = watches.map(|(id, _)| *id).collect();
        for id in ids {
            let at = self.leave_place(id);
            self.go_alone(id, at);
        }
    }

    /// What watches are told of the next part of the page. Say [`WatchSet::told`] of each message.
    pub fn slice(&mut self, telling: &mut Telling) -> Option<Slice> {
        let at = telling.at?;
        if let To::Alone(id) = telling.to {
            telling.at = None;
            return Some(self.cut_alone(id, &telling.page).into_iter().collect());
        }
        let (mut matches, end) = self.matches(telling, at);
        matches.extend(self.waiting(telling, end));
        matches.sort_unstable();
        let mut slice = Vec::new();
        for them in matches.chunk_by(|one, other| one.0 == other.0) {
            let events = them.iter().filter_map(|(_, place)| {
                let place = usize::try_from(*place).ok()?;
                telling.page.events.get(place)
            });
            slice.extend(self.cut(them[0].0, events, end));
        }
        Some(slice)
    }

    /// The events of the next part with the watches that they are for, and where the part ends.
    fn matches(&self, telling: &mut Telling, from: usize) -> (Vec<(u64, u32)>, Stamp) {
        let events = &telling.page.events;
        let mut matches = Vec::new();
        for (place, event) in events.iter().enumerate().skip(from) {
            let begins = place == 0 || events[place - 1].kv.mod_revision < event.kv.mod_revision;
            let many = matches.len() >= MATCHES_MAX || begins && matches.len() >= MATCHES;
            if place > from && many {
                telling.at = Some(place);
                let end = match begins {
                    true => Stamp::start_of(event.kv.mod_revision),
                    false => event.stamp(),
                };
                return (matches, end);
            }
            let _: ControlFlow<()> = self.index.visit(&event.kv.key, |id| {
                if self.takes(id, telling, event) {
                    matches.push((id, place as u32));
                }
                ControlFlow::Continue(())
            });
        }
        telling.at = None;
        (matches, telling.page.next)
    }

    fn takes(&self, id: u64, telling: &Telling, event: &Event) -> bool {
        self.is_told_by(id, telling).is_some_and(|from| {
            let watch = &self.watches[&id];
            event.stamp() >= from && watch.spec.wants(event)
        })
    }

    /// From where on the page is told to a watch, if it is.
    fn is_told_by(&self, id: u64, telling: &Telling) -> Option<Stamp> {
        let watch = &self.watches[&id];
        match (telling.to, watch.place) {
            (To::Synced, Place::Synced) => Some(watch.read.max(self.present)),
            (To::Behind, Place::Behind) => (watch.read >= telling.page.from).then_some(watch.read),
            _ => None,
        }
    }

    /// Those who are told this page and wait for the end of a revision that ends before `end`, whether the page holds more
    /// of it for them or not.
    fn waiting(&self, telling: &Telling, end: Stamp) -> Vec<(u64, u32)> {
        let waits = |id: &u64| {
            let open = self.watches[id].open.first();
            let open = open.map(|event| event.kv.mod_revision);
            let read = self.is_told_by(*id, telling);
            open < Some(end.revision) && read.is_some_and(|read| read < telling.page.next)
        };
        let waiting = self.open.iter().copied().filter(waits);
        waiting.map(|id| (id, NO_EVENT)).collect()
    }

    /// What a watch is told of these events, the only ones for it before `end`.
    fn cut<'e>(
        &mut self,
        id: u64,
        events: impl Iterator<Item = &'e Event>,
        end: Stamp,
    ) -> Option<(u64, Result<Vec<Told>, Revision>)> {
        let mut held = self.take_open(id);
        let watch = self.watches.get_mut(&id)?;
        held.extend(events.map(|event| watch.spec.copy(event)));
        match cut(&watch.spec, watch.split, held, end, Rest::MayFollow) {
            Ok(Cut { told, open }) => {
                self.hold(id, open);
                (!told.is_empty()).then_some((id, Ok(told)))
            }
            Err(TooLarge(revision)) => Some((id, Err(revision))),
        }
    }

    /// Keeps the beginning of a revision for a watch until the rest is read, if there is room.
    fn hold(&mut self, id: u64, open: Vec<Event>) {
        let Some(first) = open.first().map(Event::stamp) else {
            return;
        };
        let bytes = size_bytes(&open);
        if self.open_bytes + bytes > self.open_bytes_max {
            self.leave_place(id);
            self.go_alone(id, first);
            return;
        }
        self.open_bytes += bytes;
        self.open.insert(id);
        self.watches.get_mut(&id).expect("it was cut for").open = open;
    }

    fn cut_alone(&mut self, id: u64, page: &Page) -> Option<(u64, Result<Vec<Told>, Revision>)> {
        let watch = self.watches.get_mut(&id)?;
        let events = page.events.clone();
        match cut(&watch.spec, watch.split, events, page.next, Rest::Follows) {
            Ok(Cut { told, open }) => {
                watch.read = open.first().map_or(page.next, Event::stamp);
                Some((id, Ok(told)))
            }
            Err(TooLarge(revision)) => Some((id, Err(revision))),
        }
    }

    /// All messages of a page are on their way: those whom it was told have come to its end.
    pub fn finish(&mut self, telling: Telling, wanted: &mut Wanted) {
        let Telling { page, to, .. } = telling;
        match to {
            To::Synced => self.present = self.present.max(page.next),
            To::Behind => self.advance(&page),
            To::Alone(id) => self.finish_alone(id, wanted),
        }
    }

    fn advance(&mut self, page: &Page) {
        let here = self.behind.range((page.from, 0)..(page.next, 0));
        let here: Vec<_> = here.copied().collect();
        for (read, id) in here {
            self.behind.remove(&(read, id));
            self.behind.insert((page.next, id));
            let watch = self.watches.get_mut(&id).expect("it is behind");
            watch.read = page.next;
            if watch.open.is_empty() {
                watch.next = watch.next.max(page.next);
            }
        }
    }

    /// Once it was told whole revisions only, it goes on with the others.
    fn finish_alone(&mut self, id: u64, wanted: &mut Wanted) {
        let Some(read) = self.watches.get(&id).map(|watch| watch.read) else {
            return;
        };
        let at = self.leave_place(id);
        match read.sub {
            0 => self.fall_behind(id, at, wanted),
            _ => self.go_alone(id, at),
        }
    }
}
