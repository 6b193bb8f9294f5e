//! The watches of one stream: their progress, what to read for them next, and which events to
//! deliver.
//!
//! A watch is in one of three places. *Synced* watches have got everything: all of them are at one
//! place, and get the pages of the [`Ring`]. Watches that are *behind* get pages of the past, each
//! together with all whose place is in the page, and so they advance together. A watch is *alone*
//! if one of its revisions waits for its rest and there is no memory for it: it reads by itself,
//! only its own keys, until that revision is delivered.

mod delivery;

pub use delivery::{Addressed, Delivery, SHARED_BY_MAX, Slice};

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use dengine_planted::planted;
use dengine_types::Revision;

use super::messages::size_bytes;
use super::wanted::SOON_SEEN;
use super::{InRing, KeyIndex, Mark, Page, Part, Reached, Ring, StreamId, Wanted, WatchSpec};
use crate::{ChangesQuery, Event, PageLimits, Stamp};

/// The place of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Synced,
    Behind,
    Alone,
}

#[derive(Debug)]
struct Watch {
    spec: WatchSpec,
    place: Place,
    /// The first place that was not delivered; of a synced watch it may lag, because it is at least
    /// the common place.
    next: Stamp,
    /// The first place that was not read for it; of a synced watch as above.
    read: Stamp,
    /// The revision of which a fragment was delivered, but not the end.
    split: Option<Revision>,
    /// Events between `next` and `read` that wait for the rest of their revision.
    open: Vec<Event>,
    present: Mark,
    /// Set while its interest in pages of the past is registered.
    past: Option<Mark>,
}

/// The next work for the watches of a stream.
#[derive(Clone, Debug)]
pub enum Work {
    /// Deliver this page: [`WatchSet::deliver`].
    Deliver(Arc<Page>),
    /// Get a page of the past that includes this place, of this mark or a later one.
    ReadPast(Stamp, Mark),
    /// Read this, and deliver it to one watch: [`WatchSet::deliver_alone`].
    ReadAlone(u64, ChangesQuery),
}

#[derive(Debug)]
pub struct WatchSet {
    stream: StreamId,
    watches: BTreeMap<u64, Watch>,
    index: KeyIndex<u64>,
    /// The place of the synced watches, if there are any.
    present: Stamp,
    synced: usize,
    /// Ordered by what was not read for them.
    behind: BTreeSet<(Stamp, u64)>,
    alone: VecDeque<u64>,
    /// Those with an incomplete revision.
    open: BTreeSet<u64>,
    open_bytes: usize,
    open_bytes_max: usize,
    /// The latest marks of all watches.
    present_mark: Mark,
    past_mark: Mark,
    turns: u64,
}

impl WatchSet {
    /// An empty set of a stream, of which no other is of the same member. `open_bytes_max` limits
    /// the events of incomplete revisions of all watches together.
    #[must_use]
    pub fn new(stream: StreamId, open_bytes_max: usize) -> Self {
        Self {
            stream,
            watches: BTreeMap::new(),
            index: KeyIndex::default(),
            present: Stamp::start_of(Revision(0)),
            synced: 0,
            behind: BTreeSet::new(),
            alone: VecDeque::new(),
            open: BTreeSet::new(),
            open_bytes: 0,
            open_bytes_max,
            present_mark: Mark::default(),
            past_mark: Mark::default(),
            turns: 0,
        }
    }

    /// Adds a watch from the revision `first` on. The id must be unused.
    pub fn insert(&mut self, id: u64, spec: WatchSpec, first: Revision, wanted: &mut Wanted) {
        let present = wanted.add(self.stream, Part::Present, &spec);
        self.present_mark = self.present_mark.max(present);
        self.index.insert(&spec.keys, id);
        let next = Stamp::start_of(first);
        let watch = Watch {
            spec,
            place: Place::Alone,
            next,
            read: next,
            split: None,
            open: Vec::new(),
            present,
            past: None,
        };
        self.watches.insert(id, watch);
        self.fall_behind(id, next, wanted);
    }

    /// Removes a watch; returns the first revision that was not delivered completely, where a new
    /// watch has to begin.
    pub fn remove(&mut self, id: u64, wanted: &mut Wanted) -> Option<Revision> {
        let resume = self.next(id)?;
        self.leave_place(id);
        let watch = self.watches.remove(&id)?;
        self.index.remove(&watch.spec.keys, id);
        wanted.remove(self.stream, Part::Present, &watch.spec);
        if watch.past.is_some() {
            wanted.remove(self.stream, Part::Past, &watch.spec);
        }
        Some(resume)
    }

    /// Removes all watches, which must be done before the set is dropped.
    pub fn clear(&mut self, wanted: &mut Wanted) {
        wanted.set_of_all(self.stream, false);
        while let Some((&id, _)) = self.watches.first_key_value() {
            self.remove(id, wanted);
        }
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.watches.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    /// Whether there is such a watch.
    #[must_use]
    pub fn contains(&self, id: u64) -> bool {
        self.watches.contains_key(&id)
    }

    /// All ids, in ascending order.
    pub fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        self.watches.keys().copied()
    }

    /// The request of a watch.
    #[must_use]
    pub fn spec(&self, id: u64) -> Option<&WatchSpec> {
        self.watches.get(&id).map(|watch| &watch.spec)
    }

    /// The first revision that was not delivered completely to a watch.
    #[must_use]
    pub fn next(&self, id: u64) -> Option<Revision> {
        let watch = self.watches.get(&id)?;
        let delivered = match watch.place {
            Place::Synced if watch.open.is_empty() => watch.next.max(self.present),
            Place::Synced | Place::Behind | Place::Alone => watch.next,
        };
        Some(delivered.revision)
    }

    /// The revision up to which a synced watch has got everything, for a client that wants to know
    /// without events. `None` for a watch of the future.
    #[must_use]
    pub fn progress(&self, id: u64, newest: Revision) -> Option<Revision> {
        let synced = self.watches.get(&id)?.place == Place::Synced;
        let delivered = Revision(self.next(id)?.0.saturating_sub(1));
        (synced && delivered <= newest).then_some(delivered)
    }

    /// The same of many watches: the revisions, each with ascending ids of watches that may share a
    /// message about it.
    pub fn progress_of(
        &self,
        ids: impl IntoIterator<Item = u64>,
        newest: Revision,
    ) -> Vec<(Revision, Vec<u64>)> {
        let mut found: Vec<_> = ids
            .into_iter()
            .filter_map(|id| {
                let only = (!self.watches.get(&id)?.spec.shared).then_some(id);
                Some(((self.progress(id, newest)?, only), id))
            })
            .collect();
        found.sort_unstable();
        found.dedup();
        let alike = found.chunk_by(|(one, _), (other, _)| one == other);
        let sharing = alike.flat_map(|it| it.chunks(SHARED_BY_MAX));
        sharing
            .map(|it| (it[0].0.0, it.iter().map(|(_, id)| *id).collect()))
            .collect()
    }

    /// Whether all of them have got everything up to `newest`.
    #[must_use]
    pub fn is_delivered(&self, newest: Revision) -> bool {
        let present = self.synced == 0 || self.present.revision > newest;
        present && self.behind.is_empty() && self.alone.is_empty()
    }

    /// Whether some are synced, and so wait for new history.
    #[must_use]
    pub fn has_synced(&self) -> bool {
        self.synced > 0
    }

    /// Whether there is [`WatchSet::work`] to do. To ask costs nobody a turn.
    pub fn has_work(&mut self, ring: &Ring, wanted: &mut Wanted) -> bool {
        self.settle(ring, wanted);
        self.behind_in(ring).is_some()
            || self.synced_in(ring, wanted).is_some()
            || !self.behind.is_empty()
            || !self.alone.is_empty()
    }

    /// The next work, to be done at once: those who read the past take turns with the others. None
    /// until the ring has something new.
    pub fn work(&mut self, ring: &Ring, wanted: &mut Wanted) -> Option<Work> {
        self.settle(ring, wanted);
        if let Some(page) = self.behind_in(ring) {
            return Some(Work::Deliver(page));
        }
        let present = self.synced_in(ring, wanted);
        self.turns += 1;
        let [first, second] = [self.turns, self.turns + 1].map(|turn| match turn % 2 {
            0 => present.clone().map(Work::Deliver),
            _ => self.read(turn / 2),
        });
        first.or(second)
    }

    /// What to read for watches that are behind or alone, in turns: for the one furthest behind, so
    /// that all advance together, and for the one nearest to the end, so that it does not wait for
    /// the former.
    fn read(&self, turn: u64) -> Option<Work> {
        let alone = self.alone.front().copied();
        let behind = match turn / 2 % 2 {
            0 => self.behind.first(),
            _ => self.behind.last(),
        };
        let past = behind.map(|(at, _)| Work::ReadPast(*at, self.past_mark));
        match (alone, past) {
            (Some(id), past) if past.is_none() || turn.is_multiple_of(2) => {
                Some(Work::ReadAlone(id, self.query(id)))
            }
            (_, past) => past,
        }
    }

    fn query(&self, id: u64) -> ChangesQuery {
        let watch = &self.watches[&id];
        let spec = &watch.spec;
        ChangesQuery {
            from: watch.read,
            keys: spec.keys.clone(),
            prev_kv: spec.prev_kv,
            no_put: spec.no_put,
            no_delete: spec.no_delete,
            limits: PageLimits {
                bytes: spec.message_bytes,
                changes: ALONE_CHANGES,
            },
        }
    }

    /// Watches that have reached the place of the synced ones, or of the ring if there are none,
    /// become synced.
    fn settle(&mut self, ring: &Ring, wanted: &mut Wanted) {
        if self.synced == 0 {
            let reached = self.behind.range((ring.begins(), 0)..).next();
            let Some((at, _)) = reached else {
                return;
            };
            self.present = ring.next().min(*at);
        }
        for (_, id) in self.behind.split_off(&(self.present, 0)) {
            let watch = self.watches.get_mut(&id).expect("it is behind");
            watch.place = Place::Synced;
            self.synced += 1;
            if watch.past.take().is_some() {
                wanted.remove(self.stream, Part::Past, &watch.spec);
            }
        }
    }

    /// A page of the ring for the one furthest behind that is within the ring. These come first, or
    /// they would never join the synced ones.
    fn behind_in(&self, ring: &Ring) -> Option<Arc<Page>> {
        let (at, _) = self.behind.range((ring.begins(), 0)..).next()?;
        match ring.find(*at) {
            InRing::Page(page) => Some(page),
            InRing::NotYet | InRing::NoMore => None,
        }
    }

    /// The next page of the ring for the synced watches, which are beyond those with nothing for
    /// them at once. If it was dropped, they fall behind.
    fn synced_in(&mut self, ring: &Ring, wanted: &mut Wanted) -> Option<Arc<Page>> {
        while self.synced > 0 {
            match ring.find(self.present) {
                InRing::Page(page) if self.is_clearly_without(&page) => self.present = page.next,
                InRing::Page(page) => return Some(page),
                InRing::NotYet => return None,
                InRing::NoMore => {
                    self.missed(ring, wanted);
                    // Those of the future have missed nothing.
                    self.settle(ring, wanted);
                }
            }
        }
        None
    }

    /// Whether a page has nothing for any watch, as far as that is soon seen: a stream wants
    /// nothing of most pages.
    fn is_clearly_without(&self, page: &Page) -> bool {
        let is_for_all = page.mark >= self.present_mark && self.open.is_empty();
        let mut events = page.events.iter();
        is_for_all
            && page.events.len() <= SOON_SEEN
            && !events.any(|event| self.index.contains(&event.kv.key))
    }

    fn missed(&mut self, ring: &Ring, wanted: &mut Wanted) {
        if planted!(WatchSkipsGap) {
            self.present = ring.begins();
            return;
        }
        let synced = self.watches.iter();
        let synced = synced.filter(|(_, watch)| watch.place == Place::Synced);
        let ids: Vec<_> = synced.map(|(id, _)| *id).collect();
        for id in ids {
            let at = self.leave_place(id);
            self.fall_behind(id, at, wanted);
        }
    }

    /// Removes a watch from its place, with its events of an incomplete revision; returns where it
    /// has to read again.
    fn leave_place(&mut self, id: u64) -> Stamp {
        let watch = &self.watches[&id];
        let mut read = watch.read;
        match watch.place {
            Place::Synced => {
                self.synced -= 1;
                read = read.max(self.present);
            }
            Place::Behind => {
                self.behind.remove(&(read, id));
            }
            Place::Alone => self.alone.retain(|other| *other != id),
        }
        let open = self.take_open(id);
        let watch = self.watches.get_mut(&id).expect("the watch is there");
        match open.first() {
            Some(first) => first.stamp(),
            None => {
                if watch.place != Place::Alone {
                    watch.next = watch.next.max(read);
                }
                read
            }
        }
    }

    /// For a watch that was removed from its place.
    fn fall_behind(&mut self, id: u64, at: Stamp, wanted: &mut Wanted) {
        let watch = self.watches.get_mut(&id).expect("the watch is there");
        watch.place = Place::Behind;
        watch.read = at;
        watch.next = watch.next.max(at);
        self.behind.insert((at, id));
        let past = *watch
            .past
            .get_or_insert_with(|| wanted.add(self.stream, Part::Past, &watch.spec));
        self.past_mark = self.past_mark.max(past);
    }

    /// For a watch that was removed from its place.
    fn go_alone(&mut self, id: u64, at: Stamp) {
        let watch = self.watches.get_mut(&id).expect("the watch is there");
        watch.place = Place::Alone;
        watch.read = at;
        self.alone.push_back(id);
    }

    fn take_open(&mut self, id: u64) -> Vec<Event> {
        if !self.open.remove(&id) {
            return Vec::new();
        }
        let watch = self.watches.get_mut(&id).expect("the watch is there");
        let open = std::mem::take(&mut watch.open);
        self.open_bytes -= size_bytes(&open);
        open
    }

    /// Records that a message up to `reached` was sent to the client.
    pub fn delivered(&mut self, id: u64, reached: Reached) {
        if let Some(watch) = self.watches.get_mut(&id) {
            watch.next = watch.next.max(reached.next);
            watch.split = reached.fragment.then_some(reached.revision);
        }
    }

    /// The watches that are behind with something to read before this place.
    pub fn behind_before(&self, place: Stamp) -> impl Iterator<Item = u64> + '_ {
        self.behind.range(..(place, 0)).map(|(_, id)| *id)
    }
}

/// Changes that are examined for one watch at once.
const ALONE_CHANGES: usize = 4096;
