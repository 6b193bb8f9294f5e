//! A client that watches all keys: it reads history where it stopped, of one member after the other. How far it
//! was told is `dengine-client`'s own book-keeping.

use super::invariants::Seen;
use super::queue::MILLI;
use super::random::Random;
use super::surroundings::{Event, Surroundings};
use super::world::Members;
use crate::kv::reader::ChangesQuery;
use crate::kv::{KeyRange, ReadError};
use crate::types::{MemberId, Revision};
use bytes::Bytes;
use dengine_client_core::WatchCursor;

pub(super) struct Watcher {
    random: Random,
    /// The member that it watches at.
    at: Option<MemberId>,
    cursor: WatchCursor,
}

impl Watcher {
    pub(super) fn new(random: Random) -> Self {
        Self {
            random,
            at: None,
            // The first change takes revision 2.
            cursor: WatchCursor::new(2),
        }
    }

    /// Takes in what is new.
    pub(super) fn look(&mut self, sim: &mut Surroundings, members: &Members) {
        let delay = self.random.spread(200 * MILLI);
        sim.after(delay, Event::Watcher);
        if self.random.chance(50_000) {
            self.at = None;
        }
        let ids: Vec<_> = members.keys().copied().collect();
        let at = self.at.or_else(|| self.random.pick(&ids).copied());
        let reader = at.and_then(|id| members.get(&id)?.reader());
        self.at = at.filter(|_| reader.is_some());
        let Some(reader) = reader else {
            return;
        };
        let from = self.cursor.resume();
        let query = ChangesQuery {
            prev_kv: true,
            max_changes: self.random.between(1, 50) as usize,
            ..ChangesQuery::new(Revision(from), KeyRange::From(Bytes::from_static(b"k")))
        };
        match reader.changes(&query) {
            Ok(changes) => {
                sim.count("watch responses");
                let revisions = changes.events.iter().map(|event| event.kv.mod_revision.0);
                let header = changes.complete_to.0.max(from.saturating_sub(1));
                if let Err(broken) = self.cursor.events(revisions, header, false) {
                    return sim.fail(("watches complete", broken.0));
                }
                let (from, to, events) = (Revision(from), Revision(header), &changes.events);
                sim.see(&Seen::Watched { from, to, events });
            }
            // It is told, and begins anew with what is left.
            Err(ReadError::Compacted { compacted, .. }) => {
                self.cursor = WatchCursor::new(compacted.0.max(2));
            }
            Err(_) => {}
        }
    }
}
