//! A member's history, its ring, and one stream, in one thread.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::{Changes, ChangesQuery, PageLimits, Want};

/// The messages that a watch got.
#[derive(Clone, Debug, Default)]
pub(super) struct Received {
    pub(super) messages: Vec<EventBatch>,
    pub(super) too_large: Option<Revision>,
}

pub(super) struct Member {
    /// In the order of history.
    pub(super) history: Vec<Event>,
    pub(super) newest: Revision,
    pub(super) limits: PageLimits,
    pub(super) ring: Ring,
    pub(super) cache: PageCache,
    pub(super) wanted: Wanted,
    pub(super) set: WatchSet,
    /// The stream was told that there may be something new.
    woken: bool,
    pub(super) received: BTreeMap<u64, Received>,
    /// A page that was begun and is not read yet.
    pub(super) begun: Option<Page>,
    /// How many changes were examined.
    pub(super) examined: usize,
    /// How many messages were sent: a shared one counts once.
    pub(super) sent: usize,
}

impl Member {
    pub(super) fn new(limits: PageLimits, keep: KeepLimits, open_bytes: usize) -> Self {
        Self {
            history: Vec::new(),
            newest: Revision(1),
            limits,
            ring: Ring::new(Revision(1), keep),
            cache: PageCache::new(keep),
            wanted: Wanted::default(),
            set: WatchSet::new(STREAM, open_bytes),
            woken: false,
            received: BTreeMap::new(),
            begun: None,
            examined: 0,
            sent: 0,
        }
    }

    /// Adds a revision that changes these keys.
    pub(super) fn change<'k>(&mut self, keys: impl IntoIterator<Item = &'k str>) {
        self.newest.0 += 1;
        let keys = (0..).zip(keys);
        let events = keys.map(|(sub, key)| event(self.newest.0, sub, key));
        self.history.extend(events);
    }

    pub(super) fn watch(&mut self, id: u64, spec: WatchSpec, first: u64) {
        self.set.insert(id, spec, Revision(first), &mut self.wanted);
        // It was about to look for work anyway.
        self.woken = true;
        self.received.insert(id, Received::default());
    }

    /// Reads like the reader of a state machine.
    fn read(&mut self, from: Stamp, limits: PageLimits, want: impl Fn(&Event) -> Want) -> Changes {
        let (mut events, mut bytes, mut examined) = (Vec::new(), 0, 0);
        let mut next = Stamp::end_of(self.newest).max(from);
        for event in self.history.iter().filter(|it| it.stamp() >= from) {
            let wanted = want(event);
            let full = bytes >= limits.bytes;
            let stops = match event.sub {
                0 => full || examined >= limits.changes,
                _ => full && wanted > Want::Nothing,
            };
            if examined > 0 && stops {
                next = event.stamp();
                break;
            }
            examined += 1;
            if wanted > Want::Nothing {
                let mut event = event.clone();
                event.prev = event.prev.filter(|_| wanted == Want::EventWithPrev);
                bytes += event.size_bytes();
                events.push(event);
            }
        }
        self.examined += examined;
        let revision = self.newest;
        Changes {
            events,
            next,
            revision,
        }
    }

    fn page(&mut self, from: Stamp, part: Part) -> Page {
        let mark = self.wanted.mark();
        let wanted = std::mem::take(&mut self.wanted);
        let changes = self.read(from, self.limits, |it| wanted.want(part, &it.kv.key));
        self.wanted = wanted;
        Page::new(from, part, mark, changes)
    }

    /// The hub begins to read.
    pub(super) fn begin_page(&mut self) {
        if self.begun.is_none()
            && let Some(from) = self.ring.wants(self.newest)
        {
            self.begun = Some(self.page(from, Part::Present));
        }
    }

    /// The hub has read the page.
    pub(super) fn end_page(&mut self) {
        let Some(page) = self.begun.take().map(Arc::new) else {
            return;
        };
        let is_time_for_all = self.ring.push(Arc::clone(&page));
        self.woken |= is_time_for_all
            || match self.wanted.woken(&page) {
                Woken::All => true,
                Woken::Only(streams) => streams == [STREAM],
            };
    }

    /// The stream does one unit of work; whether there was one.
    pub(super) fn work(&mut self) -> bool {
        // As streams do, which then wait for room.
        let has_work = self.set.has_work(&self.ring, &mut self.wanted);
        let work = self.set.work(&self.ring, &mut self.wanted);
        assert_eq!(has_work, work.is_some());
        let Some(work) = work else {
            self.woken = false;
            return false;
        };
        let mut delivery = match work {
            Work::Deliver(page) => self.set.deliver(page),
            Work::ReadPast(at, mark) => {
                let page = match self.cache.find(at, mark) {
                    Some(page) => page,
                    None => {
                        let page = Arc::new(self.page(at, Part::Past));
                        self.cache.push(Arc::clone(&page));
                        page
                    }
                };
                self.set.deliver(page)
            }
            Work::ReadAlone(id, query) => {
                let changes = self.read_alone(&query);
                self.set.deliver_alone(id, query.from, changes)
            }
        };
        while let Some(slice) = self.set.slice(&mut delivery) {
            self.receive(slice);
        }
        self.set.finish(delivery, &mut self.wanted);
        true
    }

    /// The same of a stream that sleeps until it is told of something.
    pub(super) fn work_if_woken(&mut self) -> bool {
        self.woken && self.work()
    }

    fn read_alone(&mut self, query: &ChangesQuery) -> Changes {
        let wants = |event: &Event| {
            let filtered = match event.kind {
                EventKind::Put => query.no_put,
                EventKind::Delete => query.no_delete,
            };
            match (
                !filtered && query.keys.contains(&event.kv.key),
                query.prev_kv,
            ) {
                (false, _) => Want::Nothing,
                (true, false) => Want::Event,
                (true, true) => Want::EventWithPrev,
            }
        };
        self.read(query.from, query.limits, wants)
    }

    fn receive(&mut self, slice: Slice) {
        for Addressed { ids, messages } in slice {
            assert!(ids.is_sorted_by(|one, other| one < other), "{ids:?}");
            assert!((1..=SHARED_BY_MAX).contains(&ids.len()), "{}", ids.len());
            self.sent += messages.as_ref().map_or(1, Vec::len);
            for id in &ids {
                let shared = self.set.spec(*id).expect("it is there").shared;
                assert!(shared || ids.len() == 1, "a watch that shares nothing");
                self.receive_one(*id, messages.clone());
            }
        }
    }

    fn receive_one(&mut self, id: u64, messages: Result<Vec<EventBatch>, Revision>) {
        let received = self.received.get_mut(&id).expect("it watches");
        match messages {
            Ok(messages) => {
                for message in messages {
                    self.set.delivered(id, message.reached());
                    received.messages.push(message);
                }
            }
            Err(revision) => {
                received.too_large = Some(revision);
                self.set.remove(id, &mut self.wanted);
            }
        }
    }

    /// Delivers everything that can be delivered.
    pub(super) fn settle(&mut self) {
        for _ in 0..100_000 {
            self.begin_page();
            self.end_page();
            if !self.work_if_woken() && self.ring.wants(self.newest).is_none() {
                assert!(!self.work(), "the stream was not told of it");
                assert!(self.set.is_delivered(self.newest), "nothing is left to do");
                return;
            }
        }
        panic!("it comes to no end: {:?}", self.set);
    }
}
