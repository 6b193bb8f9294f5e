//! A client that watches: at one member after the other, and each time where it stopped. How far it
//! was told is `dengine-client`'s own book-keeping.

use bytes::Bytes;
use dengine_client::policy::WatchCursor;
use dengine_kv as kv;
use dengine_kv::KeyRange;
use dengine_kv::watch::{EventBatch, WatchSpec};
use dengine_types::{MemberId, Revision};

use super::invariants::Seen;
use super::member::{WatchMessage, all_keys};
use super::queue::MILLI;
use super::random::Random;
use super::surroundings::{Event, Surroundings};
use super::world::Members;

/// Watches of one stream, at most.
const WATCHES_MAX: u64 = 3;

pub(super) struct Watcher {
    id: u64,
    random: Random,
    watches: Vec<Watching>,
    /// The member that it watches at, its process there, and its stream.
    at: Option<(MemberId, u64, u64)>,
}

/// One watch.
struct Watching {
    spec: WatchSpec,
    cursor: WatchCursor,
    /// The first revision that was not handed on with all its events, and the events of it that
    /// were.
    handed_on: (Revision, Vec<kv::Event>),
}

impl Watching {
    fn new(keys: KeyRange, random: &mut Random) -> Self {
        let fragment = random.chance(700_000);
        let narrow = matches!(keys, KeyRange::One(_));
        let spec = WatchSpec {
            keys,
            prev_kv: random.chance(500_000),
            no_put: narrow && random.chance(200_000),
            no_delete: narrow && random.chance(200_000),
            fragment,
            shared: true,
            message_bytes: match fragment {
                true => random.between(100, 1_000) as usize,
                false => 1 << 20,
            },
        };
        Self {
            spec,
            // The first change takes revision 2.
            cursor: WatchCursor::new(2),
            handed_on: (Revision(2), Vec::new()),
        }
    }
}

impl Watcher {
    /// The first watch of the first one is of everything.
    pub(super) fn new(id: u64, keys: u64, mut random: Random) -> Self {
        let watches = random.between(1, WATCHES_MAX + 1);
        let watches = (0..watches).map(|watch| {
            let narrow = id + watch > 0 && random.chance(700_000);
            let one = KeyRange::One(Bytes::from(format!("k{}", random.below(keys))));
            Watching::new(if narrow { one } else { all_keys() }, &mut random)
        });
        Self {
            id,
            watches: watches.collect(),
            random,
            at: None,
        }
    }

    /// Begins again behind this revision: what it was told of later ones may be lost.
    pub(super) fn begin_anew(&mut self, members: &mut Members, revision: Revision) {
        self.leave(members);
        for watch in &mut self.watches {
            if watch.cursor.next_revision() > revision.0 + 1 {
                watch.cursor = WatchCursor::new(revision.0 + 1);
                watch.handed_on = (Revision(revision.0 + 1), Vec::new());
            }
        }
    }

    /// Whether it was told everything up to `revision`.
    pub(super) fn has_come_to(&self, revision: Revision) -> bool {
        let mut watches = self.watches.iter();
        watches.all(|it| it.cursor.next_revision() > revision.0)
    }

    /// Takes in what came; in a storm sometimes late. In the calm it has to come to the end in
    /// time, even if every event is a message of its own.
    pub(super) fn look(&mut self, sim: &mut Surroundings, members: &mut Members, storm: bool) {
        let mean = match storm {
            true if self.random.chance(20_000) => 3_000 * MILLI,
            true => 10 * MILLI,
            false => MILLI,
        };
        let delay = self.random.spread(mean);
        sim.after(delay, Event::Watcher(self.id));
        // About as often, and not before a member has told of its progress.
        if self.random.chance(if storm { 20_000 } else { 500 }) {
            self.leave(members);
        }
        let Some((id, boot, stream)) = self.at.or_else(|| self.begin(sim, members)) else {
            return;
        };
        self.at = Some((id, boot, stream));
        let member = members.get_mut(&id).filter(|member| member.boot() == boot);
        let Some(member) = member else {
            self.at = None;
            return;
        };
        for _ in 0..self.random.between(1, 8) {
            match member.read_watch(sim, stream) {
                Ok(Some(message)) => {
                    if let Err(broken) = self.hear(sim, message) {
                        return sim.fail(("watches complete", broken));
                    }
                }
                Ok(None) => return,
                Err(()) => self.at = None,
            }
        }
    }

    fn leave(&mut self, members: &mut Members) {
        if let Some((id, boot, stream)) = self.at.take() {
            let member = members.get_mut(&id).filter(|member| member.boot() == boot);
            if let Some(member) = member {
                member.close_watch(stream);
            }
        }
    }

    fn begin(
        &mut self,
        sim: &mut Surroundings,
        members: &mut Members,
    ) -> Option<(MemberId, u64, u64)> {
        let ids: Vec<_> = members.keys().copied().collect();
        let id = *self.random.pick(&ids)?;
        // What is told of a history that may have been given up does not count.
        if sim.restored.holds(id) {
            return None;
        }
        let member = members.get_mut(&id)?;
        let specs: Vec<_> = self.watches.iter().map(|it| it.spec.clone()).collect();
        let first = self.watches.iter_mut().map(|it| it.cursor.resume());
        let first: Vec<_> = first.map(Revision).collect();
        let stream = member.watch(sim, &specs, &first)?;
        Some((id, member.boot(), stream))
    }

    fn hear(&mut self, sim: &mut Surroundings, message: WatchMessage) -> Result<(), String> {
        match message {
            WatchMessage::Created(watch, first) => {
                let watch = &mut self.watches[watch as usize];
                watch.cursor.created(first.0).map_err(|broken| broken.0)?;
                // It was left to the member to choose, or it begins where it stopped.
                let next = Revision(watch.cursor.next_revision());
                watch.handed_on.0 = watch.handed_on.0.max(next);
            }
            WatchMessage::Events(watch, told) => {
                sim.count("watch responses");
                self.watches[watch as usize].take(sim, told)?;
            }
            WatchMessage::Progress(watch, revision) => {
                let watch = &mut self.watches[watch as usize];
                (watch.cursor.progress(revision.0)).map_err(|broken| broken.0)?;
                watch.hand_on(sim);
            }
            // They are told, and begin again with what is left, or with what comes.
            WatchMessage::Compacted(compacted) => {
                let first = self.random.below(2) * compacted.0;
                for watch in &mut self.watches {
                    if watch.cursor.next_revision() <= compacted.0 {
                        watch.cursor = WatchCursor::new(first);
                        watch.handed_on = (Revision(first), Vec::new());
                    }
                }
                self.at = None;
            }
            WatchMessage::Ended => self.at = None,
        }
        Ok(())
    }
}

impl Watching {
    fn take(&mut self, sim: &mut Surroundings, told: EventBatch) -> Result<(), String> {
        let revisions = told.events.iter().map(|event| event.kv.mod_revision.0);
        let repeated = (self.cursor)
            .events(revisions, told.revision.0, told.fragment)
            .map_err(|broken| broken.0)?;
        self.handed_on
            .1
            .extend(told.events.into_iter().skip(repeated));
        self.hand_on(sim);
        Ok(())
    }

    /// Shows the invariants every revision that was handed on as a whole.
    fn hand_on(&mut self, sim: &mut Surroundings) {
        let (from, events) = &mut self.handed_on;
        let next = Revision(self.cursor.next_revision());
        let whole = events.partition_point(|event| event.kv.mod_revision < next);
        let events: Vec<_> = events.drain(..whole).collect();
        let (from, to) = (std::mem::replace(from, next), Revision(next.0 - 1));
        let spec = &self.spec;
        sim.see(&Seen::Watched {
            spec,
            from,
            to,
            events: &events,
        });
    }
}
