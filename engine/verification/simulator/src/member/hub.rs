//! The shell around a member's watches: the hub's task and the tasks of its streams, over bounded
//! queues.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use dengine_kv::watch::{
    Addressed, Delivery, EventBatch, Feed, Follow, Follower, KeepLimits, Mark, Page, PageCache,
    Part, Slice, StreamId, Wanted, WatchSet, WatchSpec, Woken, Work,
};
use dengine_kv::{
    Changes, ChangesQuery, Event, KeyRange, PageLimits, ReadError, Reader, Stamp, Store,
};
use dengine_types::{MemberId, Revision};

use super::process::Process;
use super::{Actor, Machine, Member};
use crate::queue::MILLI;
use crate::surroundings::Surroundings;

/// Few, so that streams fall behind.
const KEEP_LIMITS: KeepLimits = KeepLimits {
    bytes: 16 << 10,
    pages: 8,
};
/// Messages that wait for a client to read them.
const QUEUED_MESSAGES: usize = 2;
/// Pages of members differ in their bounds, so that a watch goes on within a revision that others
/// cut elsewhere.
const PAGE_BYTES: [usize; 3] = [150, 500, 2048];
/// Small, so that there is much to cut.
const PAGE_CHANGES: usize = 16;
/// What watches of a stream hold of revisions whose rest was not read: sometimes there is no room.
const OPEN_BYTES: usize = 600;
/// How often a stream tells of progress.
const LOOK_EVERY: u64 = 500 * MILLI;

/// The watches of a member, all together.
pub(super) struct Hub {
    feed: Feed,
    follower: Follower,
    past: PageCache,
    limits: PageLimits,
    streams: BTreeMap<u64, Stream>,
    opened: u64,
    /// It is about to work.
    awake: bool,
    /// Only a stream wakes it.
    awaits_stream: bool,
}

/// A client's stream. Its watches are numbered from 0.
struct Stream {
    set: WatchSet,
    /// What is being told, as far as there was no room for it yet.
    telling: Option<Delivery>,
    slice: VecDeque<(u64, EventBatch)>,
    queue: VecDeque<WatchMessage>,
    /// It has said its last.
    ended: bool,
    awake: bool,
}

/// What a client is told of its watch.
#[derive(Clone, Debug)]
pub(crate) enum WatchMessage {
    /// It begins with this revision.
    Created(u64, Revision),
    Events(u64, EventBatch),
    /// It was told everything up to here.
    Progress(u64, Revision),
    /// The stream ends: what it is to tell next is compacted, up to here.
    Compacted(Revision),
    /// The stream ends.
    Ended,
}

impl Hub {
    pub(super) fn new(member: MemberId, now: Revision) -> Self {
        Self {
            feed: Feed::new(now, KEEP_LIMITS),
            follower: Follower::default(),
            past: PageCache::new(KEEP_LIMITS),
            limits: PageLimits {
                bytes: PAGE_BYTES[(member.0 % 3) as usize],
                changes: PAGE_CHANGES,
            },
            streams: BTreeMap::new(),
            opened: 0,
            awake: false,
            awaits_stream: false,
        }
    }

    /// Whether somebody watches.
    pub(super) fn is_listened_to(&self) -> bool {
        !self.streams.is_empty()
    }

    /// Reads a page for those of its watches that it is for.
    fn page(
        &self,
        sim: &mut Surroundings,
        reader: &Reader<impl Store>,
        from: Stamp,
        part: Part,
    ) -> Result<Page, ReadError> {
        self.feed.page(from, part, |want| {
            let want = |key: &[u8], _| want(key);
            let read = match part {
                Part::Present => reader.changes_followed(from, self.limits, want)?,
                Part::Past => reader.changes_wanted(from, self.limits, want)?,
            };
            check_bytes(sim, &read, self.limits.bytes);
            Ok(read)
        })
    }

    /// A page of the past, read now or for another stream.
    fn past(
        &mut self,
        sim: &mut Surroundings,
        reader: &Reader<impl Store>,
        at: Stamp,
        mark: Mark,
    ) -> Result<Arc<Page>, ReadError> {
        let there = at.revision >= reader.compact_revision();
        if let Some(page) = self.past.find(at, mark).filter(|_| there) {
            sim.count("pages of the past shared by watches");
            return Ok(page);
        }
        let page = Arc::new(self.page(sim, reader, at, Part::Past)?);
        self.past.push(Arc::clone(&page));
        Ok(page)
    }

    fn close(&mut self, id: u64) {
        if let Some(mut stream) = self.streams.remove(&id) {
            stream.set.clear(&mut self.feed.wanted());
        }
    }
}

impl Stream {
    fn new(id: u64) -> Self {
        Self {
            set: WatchSet::new(StreamId(id), OPEN_BYTES),
            telling: None,
            slice: VecDeque::new(),
            queue: VecDeque::new(),
            ended: false,
            awake: false,
        }
    }

    /// Queues what is being told, as far as there is room; whether that was all.
    fn tell(&mut self, sim: &mut Surroundings, wanted: &mut Wanted) -> bool {
        loop {
            while let Some((id, told)) = self.slice.pop_front() {
                if self.queue.len() >= QUEUED_MESSAGES {
                    self.slice.push_front((id, told));
                    return false;
                }
                if told.fragment {
                    sim.count("fragments told to watches");
                }
                self.set.delivered(id, told.reached());
                self.queue.push_back(WatchMessage::Events(id, told));
            }
            let Some(telling) = &mut self.telling else {
                return true;
            };
            match self.set.slice(telling) {
                Some(slice) => self.take(slice),
                None => {
                    let told = self.telling.take().expect("it was just there");
                    self.set.finish(told, wanted);
                }
            }
            if self.ended {
                return true;
            }
        }
    }

    fn take(&mut self, slice: Slice) {
        for Addressed { ids, messages } in slice {
            let Ok(messages) = messages else {
                return self.end(WatchMessage::Ended);
            };
            for id in ids {
                let messages = messages.iter().cloned();
                self.slice.extend(messages.map(|told| (id, told)));
            }
        }
    }

    fn end(&mut self, last: WatchMessage) {
        self.queue.push_back(last);
        self.slice.clear();
        self.telling = None;
        self.ended = true;
    }

    fn told_alone(&mut self, id: u64, query: &ChangesQuery, changes: Changes) {
        self.telling = Some(self.set.deliver_alone(id, query.from, changes));
    }
}

/// A page is larger than its bound by less than one event.
fn check_bytes(sim: &mut Surroundings, read: &Changes, most: usize) {
    let but_the_last = read.events.iter().rev().skip(1);
    let bytes: usize = but_the_last.map(Event::size_bytes).sum();
    if bytes >= most {
        let events = read.events.len();
        let what = format!("{bytes} bytes of {events} events, and one more; {most} are the bound");
        sim.fail(("pages are bounded", what));
    }
}

impl Process {
    /// The member has come to a newer revision.
    pub(super) fn wake_hub(&mut self, sim: &mut Surroundings, machine: Machine) {
        if !self.hub.awaits_stream && !std::mem::replace(&mut self.hub.awake, true) {
            let delay = sim.random.spread(MILLI / 10);
            machine.plan(sim, delay, Actor::Hub);
        }
    }

    /// Reads one page for all, or finds that there is nothing to read or nobody to read for.
    pub(super) fn follow(&mut self, sim: &mut Surroundings, machine: Machine) {
        let reader = self.applier.machine().reader();
        let newest = reader.revision();
        let hub = &mut self.hub;
        hub.awake = false;
        let is_listened_to = hub.is_listened_to();
        let mut notified = false;
        // All are woken: who wants nothing of a page has only passed it sooner.
        let mut notify = |_: Woken| notified = true;
        let next = hub
            .feed
            .follow(&mut hub.follower, newest, is_listened_to, &mut notify);
        match next {
            Follow::AwaitRevision => {}
            Follow::AwaitStream => {
                hub.past = PageCache::new(KEEP_LIMITS);
                reader.stop_following();
                hub.awaits_stream = true;
            }
            Follow::Read(from) => match hub.page(sim, &reader, from, Part::Present) {
                Ok(page) => {
                    sim.count("pages for watches");
                    if page.next.sub > 0 {
                        sim.count("pages that end inside a revision");
                    }
                    hub.feed.push(page, &mut notify);
                }
                Err(_) => hub.feed.gap(newest, &mut notify),
            },
        }
        if notified {
            let ids: Vec<_> = self.hub.streams.keys().copied().collect();
            ids.into_iter()
                .for_each(|id| self.wake_stream(sim, machine, id));
        }
        if matches!(next, Follow::Read(_)) {
            self.wake_hub(sim, machine);
        }
    }

    /// There is one more stream.
    fn wake_hub_for_stream(&mut self, sim: &mut Surroundings, machine: Machine) {
        if std::mem::take(&mut self.hub.awaits_stream) {
            sim.count("hubs woken by a stream");
            self.wake_hub(sim, machine);
        }
    }

    fn wake_stream(&mut self, sim: &mut Surroundings, machine: Machine, id: u64) {
        if let Some(stream) = self.hub.streams.get_mut(&id)
            && !std::mem::replace(&mut stream.awake, true)
        {
            let delay = sim.random.spread(MILLI / 10);
            machine.plan(sim, delay, Actor::Stream(id));
        }
    }

    /// One step of a stream's task.
    pub(super) fn stream(&mut self, sim: &mut Surroundings, machine: Machine, id: u64) {
        let reader = self.applier.machine().reader();
        let hub = &mut self.hub;
        // It gives way to the hub it belongs to, for as long as it works.
        let Some(mut stream) = hub.streams.remove(&id) else {
            return;
        };
        stream.awake = false;
        let told = !stream.ended && stream.tell(sim, &mut hub.feed.wanted());
        // What it told may have ended it.
        let again = told && !stream.ended && stream.work(sim, hub, &reader);
        hub.streams.insert(id, stream);
        if again {
            self.wake_stream(sim, machine, id);
        }
    }

    /// Tells those of progress to whom nothing happens.
    pub(super) fn look(&mut self, sim: &mut Surroundings, machine: Machine) {
        machine.plan(sim, LOOK_EVERY, Actor::Look);
        let newest = self.applier.machine().reader().revision();
        let feed = &self.hub.feed;
        for stream in self.hub.streams.values_mut() {
            let idle = stream.slice.is_empty() && stream.telling.is_none();
            if stream.ended || !idle || !stream.queue.is_empty() {
                continue;
            }
            // It passes what it was not woken for.
            let _ = feed.has_work(&mut stream.set);
            let ids = stream.set.ids();
            let told = ids.filter_map(|id| Some((id, stream.set.progress(id, newest)?)));
            let told = told.map(|(id, revision)| WatchMessage::Progress(id, revision));
            stream.queue.extend(told);
        }
    }
}

impl Stream {
    /// The next thing to tell; whether there is one.
    fn work(&mut self, sim: &mut Surroundings, hub: &mut Hub, reader: &Reader<impl Store>) -> bool {
        let synced = self.set.has_synced();
        let work = hub.feed.work(&mut self.set);
        if synced && !self.set.has_synced() {
            sim.count("pages missed by watches");
        }
        let read = match work {
            None => return false,
            Some(Work::Deliver(page)) => Ok(page),
            Some(Work::ReadPast(at, mark)) => hub.past(sim, reader, at, mark),
            Some(Work::ReadAlone(id, query)) => {
                sim.count("pages read for one watch");
                match reader.changes(&query) {
                    Ok(changes) => {
                        self.told_alone(id, &query, changes);
                        return true;
                    }
                    Err(error) => Err(error),
                }
            }
        };
        match read {
            Ok(page) => self.telling = Some(self.set.deliver(page)),
            Err(ReadError::Compacted { compacted, .. }) => {
                self.end(WatchMessage::Compacted(compacted));
            }
            Err(_) => self.end(WatchMessage::Ended),
        }
        true
    }
}

impl Member {
    /// Opens a stream with watches from `first` on, 0: from now on. `None` if nobody is there.
    pub(crate) fn watch(
        &mut self,
        sim: &mut Surroundings,
        specs: &[WatchSpec],
        first: &[Revision],
    ) -> Option<u64> {
        let machine = self.machine(sim.now);
        let process = self.process_mut()?;
        let newest = process.applier.machine().reader().revision();
        let hub = &mut process.hub;
        hub.opened += 1;
        let id = hub.opened;
        let mut stream = Stream::new(id);
        for (watch, (spec, first)) in (0..).zip(specs.iter().zip(first)) {
            let first = match first {
                Revision(0) => Revision(newest.0 + 1),
                asked => *asked,
            };
            stream
                .set
                .insert(watch, spec.clone(), first, &mut hub.feed.wanted());
            stream.queue.push_back(WatchMessage::Created(watch, first));
        }
        hub.streams.insert(id, stream);
        process.wake_hub_for_stream(sim, machine);
        process.wake_stream(sim, machine, id);
        Some(id)
    }

    /// The next message of a stream. `Err`: the stream is broken.
    pub(crate) fn read_watch(
        &mut self,
        sim: &mut Surroundings,
        id: u64,
    ) -> Result<Option<WatchMessage>, ()> {
        let machine = self.machine(sim.now);
        let process = self.process_mut().ok_or(())?;
        let stream = process.hub.streams.get_mut(&id).ok_or(())?;
        let message = stream.queue.pop_front();
        if stream.ended && stream.queue.is_empty() {
            process.hub.close(id);
        }
        if message.is_some() {
            process.wake_stream(sim, machine, id);
        }
        Ok(message)
    }

    /// The client has gone.
    pub(crate) fn close_watch(&mut self, id: u64) {
        if let Some(process) = self.process_mut() {
            process.hub.close(id);
        }
    }
}

/// All keys that clients use, and behind `held/` holders of leases.
pub(crate) fn all_keys() -> KeyRange {
    KeyRange::From(bytes::Bytes::from_static(b"h"))
}
