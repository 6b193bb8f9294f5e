//! The watches of one stream: how far each is, what is to be read for them next, and what of it each is told.
//!
//! A watch is in one of three places. Those that were told everything are *synced*: all of them are at one place, and are
//! told the pages of the [`Ring`]. Those that are *behind* are told pages of the past, each together with all whose place
//! lies in the page, and so they come together. One whose revision waits for its rest, and there is no room for that, is
//! *alone*: it reads for itself, from its own keys, until that revision is told.

mod telling;

pub use telling::{Slice, Telling};

use super::messages::size_bytes;
use super::{InRing, KeyIndex, Mark, Page, Part, Reached, Ring, Wanted, WatchSpec};
use crate::{ChangesQuery, Event, PageLimits, Stamp};
use dengine_planted::planted;
use dengine_types::Revision;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Where a watch is.
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
    /// The first place that was not told; of a synced watch it may lag, for it is at least where all are.
    next: Stamp,
    /// The first place that was not read for it; of a synced watch as above.
    read: Stamp,
    /// The revision of which a fragment was told, but not the end.
    split: Option<Revision>,
    /// Events between `next` and `read` that wait for the rest of their revision.
    open: Vec<Event>,
    present: Mark,
    /// While it counts among those that want pages of the past.
    past: Option<Mark>,
}

/// What to do next for the watches of a stream.
#[derive(Clone, Debug)]
pub enum Work {
    /// Tell this page: [`WatchSet::tell`].
    Tell(Arc<Page>),
    /// Get a page of the past with this place in it, of this mark or a later one.
    ReadPast(Stamp, Mark),
    /// Read this, and tell it to one watch: [`WatchSet::tell_alone`].
    ReadAlone(u64, ChangesQuery),
}

/// The watches of one stream.
#[derive(Debug)]
pub struct WatchSet {
    watches: BTreeMap<u64, Watch>,
    index: KeyIndex<u64>,
    /// Where the synced ones are, if there are any.
    present: Stamp,
    synced: usize,
    /// By what was not read for them.
    behind: BTreeSet<(Stamp, u64)>,
    alone: VecDeque<u64>,
    /// Those with an open revision.
    open: BTreeSet<u64>,
    open_bytes: usize,
    open_bytes_max: usize,
    /// The latest marks of all watches.
    present_mark: Mark,
    past_mark: Mark,
    turns: u64,
}

impl WatchSet {
    /// Without watches. `open_bytes_max`: what watches may hold of revisions that wait for their rest, all together.
    #[must_use]
    pub fn new(open_bytes_max: usize) -> Self {
        Self {
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

    /// Adds a watch that is told of `first` and what follows. The id must be free.
    pub fn insert(&mut self, id: u64, spec: WatchSpec, first: Revision, wanted: &mut Wanted) {
        let present = wanted.add(Part::Present, &spec);
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

    /// Removes a watch; returns the first revision that was not told completely: where to begin anew.
    pub fn remove(&mut self, id: u64, wanted: &mut Wanted) -> Option<Revision> {
        let resume = self.next(id)?;
        self.leave_place(id);
        let watch = self.watches.remove(&id)?;
        self.index.remove(&watch.spec.keys, id);
        wanted.remove(Part::Present, &watch.spec);
        if watch.past.is_some() {
            wanted.remove(Part::Past, &watch.spec);
        }
        Some(resume)
    }

    /// Removes all, which must be done before it is dropped.
    pub fn clear(&mut self, wanted: &mut Wanted) {
        while let Some((&id, _)) = self.watches.first_key_value() {
            self.remove(id, wanted);
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.watches.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    /// Whether there is such a watch.
    #[must_use]
    pub fn contains(&self, id: u64) -> bool {
        self.watches.contains_key(&id)
    }

    /// All of them, lowest first.
    pub fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        self.watches.keys().copied()
    }

    /// What a watch asked for.
    #[must_use]
    pub fn spec(&self, id: u64) -> Option<&WatchSpec> {
        self.watches.get(&id).map(|watch| &watch.spec)
    }

    /// The first revision that a watch was not told completely.
    #[must_use]
    pub fn next(&self, id: u64) -> Option<Revision> {
        let watch = self.watches.get(&id)?;
        let told = match watch.place {
            Place::Synced if watch.open.is_empty() => watch.next.max(self.present),
            _ => watch.next,
        };
        Some(told.revision)
    }

    /// Up to which revision a watch was told everything, if it is synced: for a client that wants to know although
    /// nothing happens. `None` for a watch of the future.
    #[must_use]
    pub fn progress(&self, id: u64, newest: Revision) -> Option<Revision> {
        let synced = self.watches.get(&id)?.place == Place::Synced;
        let told = Revision(self.next(id)?.0.saturating_sub(1));
        (synced && told <= newest).then_some(told)
    }

    /// Whether all of them were told everything up to `newest`.
    #[must_use]
    pub fn is_told(&self, newest: Revision) -> bool {
        let present = self.synced == 0 || self.present.revision > newest;
        present && self.behind.is_empty() && self.alone.is_empty()
    }

    /// Whether some wait for what is new.
    #[must_use]
    pub fn has_synced(&self) -> bool {
        self.synced > 0
    }

    /// What to do next; nothing before the ring has something new.
    pub fn work(&mut self, ring: &Ring, wanted: &mut Wanted) -> Option<Work> {
        self.settle(ring, wanted);
        if let Some(page) = self.behind_in(ring) {
            return Some(Work::Tell(page));
        }
        let present = self.synced_in(ring, wanted);
        self.turns += 1;
        let [first, second] = [self.turns, self.turns + 1].map(|turn| match turn % 2 {
            0 => present.clone().map(Work::Tell),
            _ => self.read(turn / 2),
        });
        first.or(second)
    }

    /// What to read for those that are behind or alone, in turns: for the one furthest behind, so that all come together,
    /// and for the one nearest to the end, so that it does not wait for that.
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

    /// Those that have come to where the synced ones are, or to what the ring holds if there are none, are synced.
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
                wanted.remove(Part::Past, &watch.spec);
            }
        }
    }

    /// A page of the ring for the one furthest behind that it has something for. These go first, or they would never
    /// meet with those that are synced.
    fn behind_in(&self, ring: &Ring) -> Option<Arc<Page>> {
        let (at, _) = self.behind.range((ring.begins(), 0)..).next()?;
        match ring.find(*at) {
            InRing::Page(page) => Some(page),
            InRing::NotYet | InRing::NoMore => None,
        }
    }

    /// The next page of the ring for those that are synced. If it is gone, they are behind.
    fn synced_in(&mut self, ring: &Ring, wanted: &mut Wanted) -> Option<Arc<Page>> {
        if self.synced == 0 {
            return None;
        }
        match ring.find(self.present) {
            InRing::Page(page) => Some(page),
            InRing::NotYet => None,
            InRing::NoMore => {
                self.missed(ring, wanted);
                None
            }
        }
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

    /// Takes a watch from where it is, and what it holds of an open revision from it; returns from where on it has to read
    /// again.
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

    /// Of a watch that is nowhere.
    fn fall_behind(&mut self, id: u64, at: Stamp, wanted: &mut Wanted) {
        let watch = self.watches.get_mut(&id).expect("the watch is there");
        watch.place = Place::Behind;
        watch.read = at;
        watch.next = watch.next.max(at);
        self.behind.insert((at, id));
        let past = *watch
            .past
            .get_or_insert_with(|| wanted.add(Part::Past, &watch.spec));
        self.past_mark = self.past_mark.max(past);
    }

    /// Of a watch that is nowhere.
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

    /// A message that tells so far is on its way to the client.
    pub fn told(&mut self, id: u64, reached: Reached) {
        if let Some(watch) = self.watches.get_mut(&id) {
            watch.next = watch.next.max(reached.next);
            watch.split = reached.fragment.then_some(reached.revision);
        }
    }

    /// Those that are behind, and have something to read before this place.
    pub fn behind_before(&self, place: Stamp) -> impl Iterator<Item = u64> + '_ {
        self.behind.range(..(place, 0)).map(|(_, id)| *id)
    }
}

/// Changes that are looked at for one watch at once.
const ALONE_CHANGES: usize = 4096;
