//! What a hub reads for the watches of its streams ([`Feed`]), while they come and the member goes
//! on.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use dengine_kv::watch::{
    Addressed, Feed, Follow, Follower, KeepLimits, Page, Part, StreamId, WatchSet, WatchSpec,
    Woken, Work,
};
use dengine_kv::{Changes, Event, EventKind, KeyRange, KeyValue, Stamp, Want};
use dengine_planted::{Bug, plant};
use dengine_types::sync::atomic::{AtomicUsize, Ordering};
use dengine_types::sync::{Mutex, MutexGuard};
use dengine_types::{LeaseId, Revision};
use shuttle::sync::Condvar;
use shuttle::thread;

use super::any_turns;

const FIRST: u64 = 1;
const LAST: u64 = 3;
/// Each revision changes all of them.
const KEYS: [&str; 2] = ["a", "b"];
const BYTES: usize = 10_000;
/// Told as the revision: there will be no stream any more.
const NEVER: u64 = u64::MAX;

/// Tells of changes of a number, or of the last of several, as `dengine`'s channels do.
#[derive(Default)]
struct Channel {
    told: Mutex<u64>,
    changed: Condvar,
}

impl Channel {
    fn now(&self) -> MutexGuard<'_, u64> {
        self.told.lock().expect("nobody panics")
    }

    fn tell(&self, tell: impl FnOnce(&mut u64)) {
        tell(&mut self.now());
        self.changed.notify_all();
    }

    fn wait(&self, seen: u64) -> u64 {
        let now = self.now();
        let changed = self.changed.wait_while(now, |now| *now == seen);
        *changed.expect("nobody panics")
    }
}

/// A key, and the first and the last revision that a watch of it waits for.
type Watched = (&'static str, u64, u64);

struct Hub {
    /// What the member shows, and has.
    revision: Channel,
    feed: Feed,
    /// For each stream there ever is, how often it was told that there may be something new.
    changed: Vec<Channel>,
    listeners: AtomicUsize,
    /// How often a stream has begun to listen.
    listened: Channel,
}

fn event(revision: u64, sub: u32, key: &'static str) -> Event {
    let kv = KeyValue {
        key: Bytes::from_static(key.as_bytes()),
        value: Bytes::new(),
        create_revision: Revision(1),
        mod_revision: Revision(revision),
        version: 1,
        ttl_ms: 0,
        lease: LeaseId::NONE,
    };
    Event {
        kind: EventKind::Put,
        sub,
        kv,
        prev: None,
    }
}

impl Hub {
    fn new(streams: usize) -> Self {
        let limits = KeepLimits {
            bytes: BYTES,
            pages: 8,
        };
        Self {
            revision: Channel {
                told: Mutex::new(FIRST),
                changed: Condvar::new(),
            },
            feed: Feed::new(Revision(FIRST), limits),
            changed: (0..streams).map(|_| Channel::default()).collect(),
            listeners: AtomicUsize::new(0),
            listened: Channel::default(),
        }
    }

    fn read(&self, from: Stamp, want: &dyn Fn(&[u8]) -> Want) -> Changes {
        let newest = *self.revision.now();
        let events = (from.revision.0..=newest).flat_map(|revision| {
            (0..)
                .zip(KEYS)
                .map(move |(sub, key)| event(revision, sub, key))
        });
        Changes {
            events: events
                .filter(|it| want(&it.kv.key) > Want::Nothing)
                .collect(),
            next: Stamp::end_of(Revision(newest)).max(from),
            revision: Revision(newest),
        }
    }

    fn page(&self, from: Stamp, part: Part) -> Page {
        let page = self.feed.page(from, part, |want| {
            Ok::<_, Infallible>(self.read(from, want))
        });
        page.unwrap_or_else(|never| match never {})
    }

    fn notify(&self, woken: &Woken) {
        for (id, changed) in (0..).zip(&self.changed) {
            let is_woken = match woken {
                Woken::All => true,
                Woken::Only(streams) => streams.contains(&StreamId(id)),
            };
            if is_woken {
                changed.tell(|times| *times += 1);
            }
        }
    }

    /// As the hub's task, until there will be no stream any more.
    fn follow(&self) {
        let (mut follower, mut listened) = (Follower::default(), 0);
        loop {
            let newest = *self.revision.now();
            if newest == NEVER {
                return;
            }
            let is_listened_to = self.listeners.load(Ordering::Relaxed) > 0;
            let notify = |woken| self.notify(&woken);
            let next = self
                .feed
                .follow(&mut follower, Revision(newest), is_listened_to, notify);
            match next {
                Follow::Read(from) => {
                    let page = self.page(from, Part::Present);
                    self.feed.push(page, notify);
                }
                Follow::AwaitRevision => {
                    self.revision.wait(newest);
                }
                Follow::AwaitStream => listened = self.listened.wait(listened),
            }
        }
    }

    /// As the task of a stream that watches a key from `first` to `last`: which revisions it is
    /// told of.
    fn watch(&self, stream: usize, (key, first, last): Watched) -> Vec<u64> {
        Feed::listen(
            || self.listeners.fetch_add(1, Ordering::Relaxed),
            || self.listened.tell(|times| *times += 1),
        );
        let changed = &self.changed[stream];
        let mut seen = *changed.now();
        let mut watches = WatchSet::new(StreamId(stream as u64), BYTES);
        let spec = WatchSpec {
            keys: KeyRange::One(Bytes::from_static(key.as_bytes())),
            prev_kv: false,
            no_put: false,
            no_delete: false,
            fragment: false,
            shared: false,
            message_bytes: BYTES,
        };
        watches.insert(1, spec, Revision(first), &mut self.feed.wanted());
        let mut heard = Vec::new();
        loop {
            while let Some(work) = self.feed.work(&mut watches) {
                self.tell(&mut watches, work, &mut heard);
            }
            // It may have been passed without a word.
            if watches.is_delivered(Revision(last)) {
                break;
            }
            seen = changed.wait(seen);
        }
        watches.clear(&mut self.feed.wanted());
        self.listeners.fetch_sub(1, Ordering::Relaxed);
        heard
    }

    fn tell(&self, watches: &mut WatchSet, work: Work, heard: &mut Vec<u64>) {
        let mut telling = match work {
            Work::Deliver(page) => watches.deliver(page),
            Work::ReadPast(at, _) => watches.deliver(Arc::new(self.page(at, Part::Past))),
            Work::ReadAlone(id, query) => {
                let want = |key: &[u8]| match query.keys.contains(key) {
                    true => Want::Event,
                    false => Want::Nothing,
                };
                watches.deliver_alone(id, query.from, self.read(query.from, &want))
            }
        };
        while let Some(slice) = watches.slice(&mut telling) {
            for Addressed { ids, messages } in slice {
                for message in messages.expect("events are small") {
                    heard.extend(message.events.iter().map(|it| it.kv.mod_revision.0));
                    ids.iter()
                        .for_each(|id| watches.delivered(*id, message.reached()));
                }
            }
        }
        watches.finish(telling, &mut self.feed.wanted());
    }
}

/// A watch that is never told of the last revision shows as a deadlock.
fn all_are_told(watched: &[Watched]) {
    let hub = Arc::new(Hub::new(watched.len()));
    let streams = watched
        .iter()
        .copied()
        .enumerate()
        .map(|(stream, watched)| {
            let hub = Arc::clone(&hub);
            thread::spawn(move || {
                let heard = hub.watch(stream, watched);
                let (_, first, last) = watched;
                let newest = heard.last().copied().unwrap_or_default();
                let all = Vec::from_iter(first..=last.max(newest));
                assert_eq!(heard, all, "not told of all");
            })
        });
    let streams: Vec<_> = streams.collect();
    let follower = Arc::clone(&hub);
    let follower = thread::spawn(move || follower.follow());
    for revision in FIRST + 1..=LAST {
        hub.revision.tell(|now| *now = revision);
    }
    for stream in streams {
        stream.join().expect("it was told");
    }
    hub.revision.tell(|now| *now = NEVER);
    hub.listened.tell(|times| *times += 1);
    follower.join().expect("it ends");
}

/// It may come at any time: before there is anything new, or while the hub sleeps.
fn one_who_comes_late_is_told() {
    all_are_told(&[("a", LAST, LAST)]);
}

/// One may come while the hub reads for the other.
fn both_are_told() {
    all_are_told(&[("a", FIRST + 1, LAST), ("b", LAST, LAST)]);
}

/// One may come as the other goes, and the hub falls asleep.
fn one_who_comes_when_another_goes_is_told() {
    all_are_told(&[("a", FIRST + 1, FIRST + 1), ("b", LAST, LAST)]);
}

#[test]
fn whoever_watches_is_told_of_what_it_wants() {
    any_turns(3_000, one_who_comes_late_is_told);
    any_turns(3_000, both_are_told);
    any_turns(3_000, one_who_comes_when_another_goes_is_told);
}

#[test]
#[should_panic(expected = "deadlock")]
fn streams_that_are_notified_too_early_are_found() {
    plant(Some(Bug::NotifiedBeforeRing));
    any_turns(100_000, one_who_comes_late_is_told);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_ring_that_is_left_where_it_was_is_found() {
    plant(Some(Bug::WokenWithoutGap));
    any_turns(100_000, one_who_comes_late_is_told);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_hub_that_is_woken_before_there_is_a_stream_is_found() {
    plant(Some(Bug::WokenBeforeListened));
    any_turns(100_000, one_who_comes_late_is_told);
}

/// A watch is told of less, or waits forever: a deadlock.
#[test]
#[should_panic(expected = "")]
fn a_page_that_is_marked_too_late_is_found() {
    plant(Some(Bug::MarkedAfterRead));
    any_turns(3_000, both_are_told);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_page_that_wakes_only_those_whose_events_it_has_is_found() {
    plant(Some(Bug::WokenByEventsAlone));
    any_turns(3_000, both_are_told);
}
