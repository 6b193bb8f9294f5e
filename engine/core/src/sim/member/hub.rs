//! The shell around a member's watches: the hub's task and the tasks of its streams, over bounded queues.

use super::process::Process;
use super::{Actor, Machine, Member};
use crate::kv::{ChangesQuery, KeyRange, ReadError};
use crate::sim::queue::MILLI;
use crate::sim::surroundings::Surroundings;
use crate::types::Revision;
use crate::watch::{Follower, Misfit, Page, PageLimits, Told, Watch, WatchSpec};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Pages that wait for a stream. Few, so that streams fall behind.
const RING_PAGES: usize = 8;
/// Messages that wait for a client to read them.
const QUEUED_MESSAGES: usize = 2;
/// Small, so that there is much to cut.
const PAGE_LIMITS: PageLimits = PageLimits {
    bytes: 2048,
    changes: 16,
};
/// How often a stream tells of progress.
const LOOK_EVERY: u64 = 500 * MILLI;

/// The watches of a member, all together.
pub(super) struct Hub {
    follower: Follower,
    streams: BTreeMap<u64, Stream>,
    opened: u64,
    awake: bool,
}

/// A client's stream, with one watch.
struct Stream {
    watch: Watch,
    /// Its end of the ring, and whether pages were dropped there.
    pages: VecDeque<Arc<Page>>,
    missed: bool,
    /// What is being told, as far as there was no room for it yet.
    telling: Option<(Arc<Page>, VecDeque<Told>)>,
    queue: VecDeque<WatchMessage>,
    /// It has said its last.
    ended: bool,
    awake: bool,
}

/// What a client is told of its watch.
#[derive(Clone, Debug)]
pub(in crate::sim) enum WatchMessage {
    /// It begins with this revision.
    Created(Revision),
    Told(Told),
    /// Everything up to here was told.
    Progress(Revision),
    /// It ends: what it is to tell next is compacted, up to here.
    Compacted(Revision),
    /// It ends.
    Ended,
}

/// What a stream does next.
enum Turn {
    /// It waits until something happens.
    Idle,
    Again,
    Read(ChangesQuery),
}

impl Hub {
    pub(super) fn new(now: Revision) -> Self {
        Self {
            follower: Follower::new(now, PAGE_LIMITS),
            streams: BTreeMap::new(),
            opened: 0,
            awake: false,
        }
    }
}

impl Stream {
    fn new(watch: Watch) -> Self {
        Self {
            queue: VecDeque::from([WatchMessage::Created(watch.next())]),
            watch,
            pages: VecDeque::new(),
            missed: false,
            telling: None,
            ended: false,
            awake: false,
        }
    }

    fn turn(&mut self, newest: Revision) -> Turn {
        if self.ended || !self.tell() {
            return Turn::Idle;
        }
        if std::mem::take(&mut self.missed) {
            self.watch.missed();
        }
        if let Some(page) = self.pages.pop_front() {
            if self.watch.is_synced() {
                self.cut(page);
            }
            return Turn::Again;
        }
        if self.watch.is_synced() {
            return Turn::Idle;
        }
        match self.watch.catch_up(newest, PAGE_LIMITS) {
            Some(query) => Turn::Read(query),
            None => Turn::Again,
        }
    }

    fn cut(&mut self, page: Arc<Page>) {
        match self.watch.cut(&page) {
            Ok(told) => self.telling = Some((page, told.into())),
            Err(Misfit::Gap) => self.watch.missed(),
            Err(Misfit::TooLarge { .. }) => self.end(WatchMessage::Ended),
        }
    }

    /// Queues what is being told, as far as there is room; whether that was all.
    fn tell(&mut self) -> bool {
        let Some((page, told)) = &mut self.telling else {
            return true;
        };
        while self.queue.len() < QUEUED_MESSAGES {
            let Some(message) = told.pop_front() else {
                self.watch.finish(page);
                self.telling = None;
                return true;
            };
            let (revision, fragment) = (message.revision, message.fragment);
            self.queue.push_back(WatchMessage::Told(message));
            self.watch.told(revision, fragment);
        }
        false
    }

    fn end(&mut self, last: WatchMessage) {
        self.queue.push_back(last);
        self.ended = true;
    }
}

impl Process {
    /// The member has come to a newer revision.
    pub(super) fn wake_hub(&mut self, sim: &mut Surroundings, machine: Machine) {
        if !std::mem::replace(&mut self.hub.awake, true) {
            let delay = sim.random.spread(MILLI / 10);
            machine.plan(sim, delay, Actor::Hub);
        }
    }

    /// Reads one page for all.
    pub(super) fn follow(&mut self, sim: &mut Surroundings, machine: Machine) {
        let reader = self.applier.machine().reader();
        let newest = reader.revision();
        let hub = &mut self.hub;
        hub.awake = false;
        let streams = hub.streams.values();
        let with_prev = streams.clone().any(|stream| stream.watch.spec().prev_kv);
        let Some(query) = hub.follower.next(newest, streams.len() > 0, with_prev) else {
            return;
        };
        let page = match reader.changes(&query) {
            Ok(changes) => hub.follower.page(&query, changes),
            Err(_) => Some(hub.follower.gap(newest)),
        };
        if let Some(page) = page {
            sim.count("pages for watches");
            let page = Arc::new(page);
            for stream in hub.streams.values_mut() {
                stream.pages.push_back(Arc::clone(&page));
                if stream.pages.len() > RING_PAGES {
                    stream.pages.pop_front();
                    stream.missed = true;
                    sim.count("pages missed by watches");
                }
            }
        }
        let ids: Vec<_> = self.hub.streams.keys().copied().collect();
        ids.into_iter()
            .for_each(|id| self.wake_stream(sim, machine, id));
        self.wake_hub(sim, machine);
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
        let Some(stream) = self.hub.streams.get_mut(&id) else {
            return;
        };
        stream.awake = false;
        match stream.turn(reader.revision()) {
            Turn::Idle => return,
            Turn::Again => {}
            Turn::Read(query) => match reader.changes(&query) {
                Ok(changes) => {
                    stream.cut(Arc::new(Page::new(query.from, query.prev_kv, changes)));
                }
                Err(ReadError::Compacted { compacted, .. }) => {
                    stream.end(WatchMessage::Compacted(compacted));
                }
                Err(_) => stream.end(WatchMessage::Ended),
            },
        }
        self.wake_stream(sim, machine, id);
    }

    /// Tells those of progress to whom nothing happens.
    pub(super) fn look(&mut self, sim: &mut Surroundings, machine: Machine) {
        machine.plan(sim, LOOK_EVERY, Actor::Look);
        let newest = self.applier.machine().reader().revision();
        for stream in self.hub.streams.values_mut() {
            let idle = !stream.ended && stream.telling.is_none() && stream.queue.is_empty();
            if let Some(revision) = stream.watch.progress(newest).filter(|_| idle) {
                stream.queue.push_back(WatchMessage::Progress(revision));
            }
        }
    }
}

impl Member {
    /// Opens a stream with a watch from `first` on, 0: from now on. `None` if nobody is there.
    pub(in crate::sim) fn watch(
        &mut self,
        sim: &mut Surroundings,
        spec: WatchSpec,
        first: Revision,
    ) -> Option<u64> {
        let machine = self.machine(sim.now);
        let process = self.process_mut()?;
        let first = match first {
            Revision(0) => Revision(process.applier.machine().reader().revision().0 + 1),
            asked => asked,
        };
        process.hub.opened += 1;
        let id = process.hub.opened;
        let stream = Stream::new(Watch::new(spec, first));
        process.hub.streams.insert(id, stream);
        process.wake_stream(sim, machine, id);
        Some(id)
    }

    /// The next message of a stream. `Err`: the stream is broken.
    pub(in crate::sim) fn read_watch(
        &mut self,
        sim: &mut Surroundings,
        id: u64,
    ) -> Result<Option<WatchMessage>, ()> {
        let machine = self.machine(sim.now);
        let process = self.process_mut().ok_or(())?;
        let stream = process.hub.streams.get_mut(&id).ok_or(())?;
        let message = stream.queue.pop_front();
        if stream.ended && stream.queue.is_empty() {
            process.hub.streams.remove(&id);
        }
        if message.is_some() {
            process.wake_stream(sim, machine, id);
        }
        Ok(message)
    }

    /// The client has gone.
    pub(in crate::sim) fn close_watch(&mut self, id: u64) {
        if let Some(process) = self.process_mut() {
            process.hub.streams.remove(&id);
        }
    }
}

/// All keys that clients use.
pub(in crate::sim) fn all_keys() -> KeyRange {
    KeyRange::From(bytes::Bytes::from_static(b"k"))
}
