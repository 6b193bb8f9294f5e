//! A client that watches: at one member after the other, and each time where it stopped. How far it was told is
//! `dengine-client`'s own book-keeping.

use super::invariants::Seen;
use super::member::{WatchMessage, all_keys};
use super::queue::MILLI;
use super::random::Random;
use super::surroundings::{Event, Surroundings};
use super::world::Members;
use crate::kv;
use crate::kv::KeyRange;
use crate::types::{MemberId, Revision};
use crate::watch::{Told, WatchSpec};
use bytes::Bytes;
use dengine_client_core::WatchCursor;

pub(super) struct Watcher {
    id: u64,
    random: Random,
    spec: WatchSpec,
    /// The member that it watches at, its process there, and its stream.
    at: Option<(MemberId, u64, u64)>,
    cursor: WatchCursor,
    /// The first revision that was not handed on with all its events, and the events of it that were.
    handed_on: (Revision, Vec<kv::Event>),
}

impl Watcher {
    /// The first one watches everything.
    pub(super) fn new(id: u64, keys: u64, mut random: Random) -> Self {
        let narrow = id > 0 && random.chance(700_000);
        let fragment = random.chance(700_000);
        let one = KeyRange::One(Bytes::from(format!("k{}", random.below(keys))));
        let spec = WatchSpec {
            keys: if narrow { one } else { all_keys() },
            prev_kv: random.chance(500_000),
            no_put: id > 0 && random.chance(200_000),
            no_delete: id > 0 && random.chance(200_000),
            fragment,
            message_bytes: match fragment {
                true => random.between(100, 1_000) as usize,
                false => 1 << 20,
            },
        };
        Self {
            id,
            random,
            spec,
            at: None,
            // The first change takes revision 2.
            cursor: WatchCursor::new(2),
            handed_on: (Revision(2), Vec::new()),
        }
    }

    /// Whether it was told everything up to `revision`.
    pub(super) fn has_come_to(&self, revision: Revision) -> bool {
        self.cursor.next_revision() > revision.0
    }

    /// Takes in what came; in a storm sometimes late. In the calm it has to come to the end in time, even if every
    /// event is a message of its own.
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
        let member = members.get_mut(&id)?;
        let first = Revision(self.cursor.resume());
        let stream = member.watch(sim, self.spec.clone(), first)?;
        Some((id, member.boot(), stream))
    }

    fn hear(&mut self, sim: &mut Surroundings, message: WatchMessage) -> Result<(), String> {
        match message {
            WatchMessage::Created(first) => {
                self.cursor.created(first.0).map_err(|broken| broken.0)?;
                // It was left to the member to choose, or it begins where it stopped.
                self.handed_on.0 = self.handed_on.0.max(Revision(self.cursor.next_revision()));
            }
            WatchMessage::Told(told) => {
                sim.count("watch responses");
                self.take(sim, told)?;
            }
            WatchMessage::Progress(revision) => {
                self.cursor
                    .progress(revision.0)
                    .map_err(|broken| broken.0)?;
                self.hand_on(sim);
            }
            // It is told, and begins anew with what is left, or with what comes.
            WatchMessage::Compacted(compacted) => {
                let first = self.random.below(2) * compacted.0;
                self.cursor = WatchCursor::new(first);
                self.handed_on = (Revision(first), Vec::new());
                self.at = None;
            }
            WatchMessage::Ended => self.at = None,
        }
        Ok(())
    }

    fn take(&mut self, sim: &mut Surroundings, told: Told) -> Result<(), String> {
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
