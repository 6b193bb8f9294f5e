//! The delivery of a page to the watches of a stream, slice by slice, so that other streams do not
//! wait long.

use std::ops::ControlFlow;
use std::sync::Arc;

use dengine_types::Revision;

use super::{Place, Watch, WatchSet};
use crate::watch::messages::{Cut, Rest, TooLarge, cut, size_bytes};
use crate::watch::{EventBatch, Mark, Page, Part, Wanted};
use crate::{Changes, Event, Stamp};

/// A slice ends after the revision in which it reaches this many matches of events and watches,
const MATCHES: usize = 4 * 1024;
/// or inside a revision with this many.
const MATCHES_MAX: usize = 64 * 1024;

/// The number of watches that share a message, so that their ids are a small part of it, or the
/// messages that are made of it at once are few.
pub const SHARED_BY_MAX: usize = 4 * 1024;

/// The index of no event, after all others.
const NO_EVENT: u32 = u32::MAX;

/// The watches that get a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    Synced,
    Behind,
    Alone(u64),
}

/// A page that is being delivered.
#[derive(Debug)]
pub struct Delivery {
    page: Arc<Page>,
    to: To,
    /// The next event; `None` at the end.
    at: Option<usize>,
}

/// The messages of a part of a page, each watch at most once among their addressees.
pub type Slice = Vec<Addressed>;

/// Messages with the watches that they are for.
#[derive(Debug)]
pub struct Addressed {
    /// At least one, at most [`SHARED_BY_MAX`], and several only of watches with
    /// [`WatchSpec::shared`](super::WatchSpec::shared). Ascending.
    pub ids: Vec<u64>,
    /// In order; or the revision that is larger than one message and must not be split, so that
    /// these watches have to end.
    pub messages: Result<Vec<EventBatch>, Revision>,
}

/// Watches that are equal in this get the same messages of the same events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Likeness {
    /// The watch itself, if it shares nothing now.
    only: Option<u64>,
    prev_kv: bool,
    fragment: bool,
    is_one_key: bool,
    message_bytes: usize,
}

impl WatchSet {
    /// Begins to deliver a page: to the synced watches if their place is in it, and otherwise to
    /// those that are behind. Call [`WatchSet::slice`] until it returns nothing, and then
    /// [`WatchSet::finish`].
    #[must_use]
    pub fn deliver(&mut self, page: Arc<Page>) -> Delivery {
        let synced = self.synced > 0 && page.from <= self.present && self.present < page.next;
        let mut behind = self.behind.range((page.from, 0)..(page.next, 0));
        let to = match behind.next() {
            None if synced && page.part == Part::Present => To::Synced,
            _ => To::Behind,
        };
        self.spare_who_is_too_new(&page, to);
        Delivery {
            page,
            to,
            at: Some(0),
        }
    }

    /// Begins to deliver what was read for one watch.
    #[must_use]
    pub fn deliver_alone(&mut self, id: u64, from: Stamp, changes: Changes) -> Delivery {
        let page = Page::new(from, Part::Past, Mark::default(), changes);
        Delivery {
            page: Arc::new(page),
            to: To::Alone(id),
            at: Some(0),
        }
    }

    /// A watch that registered after the page was begun may want what it lacks, and reads by
    /// itself.
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
                To::Behind | To::Alone(_) => (Place::Behind, watch.read),
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

    /// The messages of the next part of the page. Call [`WatchSet::delivered`] for each of them.
    pub fn slice(&mut self, delivery: &mut Delivery) -> Option<Slice> {
        let at = delivery.at?;
        if let To::Alone(id) = delivery.to {
            delivery.at = None;
            return Some(self.cut_alone(id, &delivery.page).into_iter().collect());
        }
        let (mut matches, end) = self.matches(delivery, at);
        matches.extend(self.waiting(delivery, end));
        matches.sort_unstable();
        let each = matches.chunk_by(|one, other| one.0 == other.0);
        let mut each: Vec<_> = each.map(|it| (self.likeness(it[0].0), it)).collect();
        // Stable, so that ids stay in their order.
        each.sort_by(|(one, its), (other, others)| {
            let places = || places(its).cmp(places(others));
            one.cmp(other).then_with(places)
        });
        let mut slice = Vec::new();
        for alike in each
            .chunk_by(|(one, its), (other, others)| one == other && places(its).eq(places(others)))
        {
            for sharing in alike.chunks(SHARED_BY_MAX) {
                let ids = sharing.iter().map(|(_, its)| its[0].0).collect();
                let events = places(alike[0].1).filter_map(|place| {
                    let place = usize::try_from(place).ok()?;
                    delivery.page.events.get(place)
                });
                slice.extend(self.cut(ids, events, end));
            }
        }
        Some(slice)
    }

    /// A watch with an incomplete revision has a beginning that others may not have.
    fn likeness(&self, id: u64) -> Likeness {
        let watch = &self.watches[&id];
        let shares = watch.spec.shared && watch.split.is_none() && watch.open.is_empty();
        Likeness {
            only: (!shares).then_some(id),
            prev_kv: watch.spec.prev_kv,
            fragment: watch.spec.fragment,
            is_one_key: watch.spec.is_one_key(),
            message_bytes: watch.spec.message_bytes,
        }
    }

    /// The events of the next part with their watches, and where the part ends.
    fn matches(&self, delivery: &mut Delivery, from: usize) -> (Vec<(u64, u32)>, Stamp) {
        let events = &delivery.page.events;
        let mut matches = Vec::new();
        for (place, event) in events.iter().enumerate().skip(from) {
            let begins = place == 0 || events[place - 1].kv.mod_revision < event.kv.mod_revision;
            let many = matches.len() >= MATCHES_MAX || begins && matches.len() >= MATCHES;
            if place > from && many {
                delivery.at = Some(place);
                let end = match begins {
                    true => Stamp::start_of(event.kv.mod_revision),
                    false => event.stamp(),
                };
                return (matches, end);
            }
            let _: ControlFlow<()> = self.index.visit(&event.kv.key, |id| {
                if self.takes(id, delivery, event) {
                    matches.push((id, place as u32));
                }
                ControlFlow::Continue(())
            });
        }
        delivery.at = None;
        (matches, delivery.page.next)
    }

    fn takes(&self, id: u64, delivery: &Delivery, event: &Event) -> bool {
        let watch = &self.watches[&id];
        let from = self.delivered_from(watch, delivery);
        from.is_some_and(|from| event.stamp() >= from && watch.spec.wants(event))
    }

    /// The place from which the page is delivered to a watch, if it is.
    fn delivered_from(&self, watch: &Watch, delivery: &Delivery) -> Option<Stamp> {
        match (delivery.to, watch.place) {
            (To::Synced, Place::Synced) => Some(watch.read.max(self.present)),
            (To::Behind, Place::Behind) => (watch.read >= delivery.page.from).then_some(watch.read),
            (To::Synced, Place::Behind | Place::Alone)
            | (To::Behind, Place::Synced | Place::Alone)
            | (To::Alone(_), _) => None,
        }
    }

    /// The watches of this page with an incomplete revision that ends before `end`, whether the
    /// page has more of it for them or not.
    fn waiting(&self, delivery: &Delivery, end: Stamp) -> Vec<(u64, u32)> {
        let waits = |id: &u64| {
            let watch = &self.watches[id];
            let open = watch.open.first().map(|event| event.kv.mod_revision);
            let read = self.delivered_from(watch, delivery);
            open < Some(end.revision) && read.is_some_and(|read| read < delivery.page.next)
        };
        let waiting = self.open.iter().copied().filter(waits);
        waiting.map(|id| (id, NO_EVENT)).collect()
    }

    /// Cuts these events into messages: all events before `end` of each of these watches, which are
    /// alike.
    fn cut<'e>(
        &mut self,
        ids: Vec<u64>,
        events: impl Iterator<Item = &'e Event>,
        end: Stamp,
    ) -> Option<Addressed> {
        let first = *ids.first()?;
        let mut held = self.take_open(first);
        let watch = self.watches.get(&first)?;
        held.extend(events.map(|event| watch.spec.copy(event)));
        let messages = match cut(&watch.spec, watch.split, held, end, Rest::MayFollow) {
            Ok(Cut { messages, open }) => {
                ids.iter().for_each(|id| self.hold(*id, &open));
                Ok(messages)
            }
            Err(TooLarge(revision)) => Err(revision),
        };
        let is_empty = messages.as_ref().is_ok_and(Vec::is_empty);
        (!is_empty).then_some(Addressed { ids, messages })
    }

    /// Keeps the beginning of a revision for a watch until the rest is read, if there is memory.
    fn hold(&mut self, id: u64, open: &[Event]) {
        let Some(first) = open.first().map(Event::stamp) else {
            return;
        };
        let bytes = size_bytes(open);
        if self.open_bytes + bytes > self.open_bytes_max {
            self.leave_place(id);
            self.go_alone(id, first);
            return;
        }
        self.open_bytes += bytes;
        self.open.insert(id);
        self.watches.get_mut(&id).expect("it was cut for").open = open.to_vec();
    }

    fn cut_alone(&mut self, id: u64, page: &Page) -> Option<Addressed> {
        let watch = self.watches.get_mut(&id)?;
        let events = page.events.clone();
        let messages = match cut(&watch.spec, watch.split, events, page.next, Rest::Follows) {
            Ok(Cut { messages, open }) => {
                watch.read = open.first().map_or(page.next, Event::stamp);
                Ok(messages)
            }
            Err(TooLarge(revision)) => Err(revision),
        };
        let ids = vec![id];
        Some(Addressed { ids, messages })
    }

    /// All messages of a page were sent: its watches have reached its end.
    pub fn finish(&mut self, delivery: Delivery, wanted: &mut Wanted) {
        let Delivery { page, to, .. } = delivery;
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

    /// Rejoins the others once only whole revisions were delivered.
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

/// The events of a watch, as indexes into the page.
fn places(matches: &[(u64, u32)]) -> impl Iterator<Item = u32> + '_ {
    matches.iter().map(|(_, place)| *place)
}
