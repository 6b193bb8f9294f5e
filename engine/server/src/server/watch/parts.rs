//! What was read of a revision that is sent whole, until its rest is read.

use dengine_kv::Event;
use dengine_kv::watch::EventBatch;

use super::backlog::Held;

/// When the rest of a revision is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// Before anything else of the stream.
    IsNext,
    /// Others may be read for before it.
    MayWait,
}

/// The parts of one revision, in order.
#[derive(Default)]
pub(super) struct Parts {
    parts: Vec<EventBatch>,
    held: Vec<Held>,
}

impl Parts {
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Adds one, which counts as `held`.
    pub(super) fn push(&mut self, part: EventBatch, held: Held) {
        self.parts.push(part);
        self.held.push(held);
    }

    /// All of them and a further one. None is left, and none counts any more.
    pub(super) fn followed_by(&mut self, part: EventBatch) -> Vec<EventBatch> {
        self.held.clear();
        let mut parts = std::mem::take(&mut self.parts);
        parts.push(part);
        parts
    }

    /// The same as one message.
    pub(super) fn joined_with(&mut self, last: EventBatch) -> Vec<EventBatch> {
        let mut parts = self.followed_by(last).into_iter();
        let Some(mut whole) = parts.next() else {
            return Vec::new();
        };
        for part in parts {
            whole.events.extend(part.events);
            whole.revision = part.revision;
            whole.fragment = part.fragment;
            whole.next = part.next;
        }
        vec![whole]
    }
}

/// What a part takes while it waits.
pub(super) fn memory_bytes(part: &EventBatch) -> usize {
    let events = part.events.iter().map(Event::size_bytes);
    size_of_val(part.events.as_slice()) + events.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Arc;

    use bytes::Bytes;
    use dengine_kv::{EventKind, KeyValue, Stamp};
    use dengine_types::{LeaseId, Revision};

    use super::*;
    use crate::connections::{Connection, Source};
    use crate::server::watch::backlog::{Backlog, Backlogs, Bound, WHOLE_BYTES_MAX};

    const ADDRESS: [u8; 4] = [10, 0, 0, 1];

    fn backlog(backlogs: &Backlogs) -> Arc<Backlog> {
        let source = Source::new(IpAddr::from(ADDRESS));
        backlogs.begin(&Arc::new(Connection::of(Arc::new(source))))
    }

    fn push(parts: &mut Parts, part: EventBatch, of: &Arc<Backlog>) -> bool {
        let held = of.part_of_revision(memory_bytes(&part), Bound::OfStream);
        held.map(|held| parts.push(part, held)).is_some()
    }

    fn part(sub: u32, fragment: bool) -> EventBatch {
        let revision = Revision(7);
        let next = Stamp { revision, sub };
        EventBatch {
            events: Vec::new(),
            revision,
            fragment,
            next,
        }
    }

    fn part_of_bytes(bytes: usize) -> EventBatch {
        let revision = Revision(7);
        let kv = KeyValue {
            key: Bytes::from(vec![0; bytes]),
            value: Bytes::new(),
            create_revision: revision,
            mod_revision: revision,
            version: 1,
            ttl_ms: 0,
            lease: LeaseId::NONE,
        };
        let event = Event {
            kind: EventKind::Put,
            sub: 0,
            kv,
            prev: None,
        };
        EventBatch {
            events: vec![event],
            ..part(1, true)
        }
    }

    /// A thousand watches held the same large revision each, and nothing counted it.
    #[test]
    fn all_watches_of_a_stream_hold_no_more_than_one_may() {
        let backlogs = Backlogs::new(1 << 30);
        let backlog = backlog(&backlogs);
        let bytes = WHOLE_BYTES_MAX / 8;
        let mut watches: Vec<_> = (0..8).map(|_| Parts::default()).collect();
        let hold = |it: &mut Parts| push(it, part_of_bytes(bytes), &backlog);
        let holding = watches.iter_mut().map(hold).filter(|it| *it).count();
        assert_eq!(holding, 7, "what an event takes besides its key counts too");
        let held = backlogs.held_by(ADDRESS.into());
        assert!(held > 7 * bytes && held < 8 * bytes);
        watches.clear();
        assert_eq!(backlogs.held_by(ADDRESS.into()), 0);
    }

    #[test]
    fn parts_become_one_message_that_ends_where_the_last_does() {
        let backlogs = Backlogs::new(1 << 20);
        let backlog = backlog(&backlogs);
        let mut parts = Parts::default();
        assert!(push(&mut parts, part(1, true), &backlog));
        assert!(push(&mut parts, part(2, true), &backlog));
        let whole = parts.joined_with(part(3, false));
        assert_eq!(whole, [part(3, false)]);
        assert!(parts.is_empty());
        assert!(push(&mut parts, part(1, true), &backlog));
        let followed = parts.followed_by(part(2, false));
        assert_eq!(followed, [part(1, true), part(2, false)]);
    }
}
