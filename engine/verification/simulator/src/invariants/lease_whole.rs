//! The keys of a lease go together: none that is attached to it is left by the revision that
//! deletes the first of them, and none by the end of the lease. Holders delete no single key.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use dengine_kv::{Event, EventKind};
use dengine_types::{LeaseId, Revision};

use super::{Invariant, Seen};

#[derive(Default)]
pub(super) struct LeaseWhole {
    /// The last revision that was seen.
    to: Revision,
    /// Which keys are attached to which lease by then.
    attached: BTreeMap<Bytes, LeaseId>,
}

impl LeaseWhole {
    fn on_revision(&mut self, events: &[Event]) -> Result<(), String> {
        let mut ended = BTreeSet::new();
        for event in events {
            let before = self.attached.remove(&event.kv.key);
            match event.kind {
                EventKind::Delete => ended.extend(before),
                EventKind::Put if event.kv.lease != LeaseId::NONE => {
                    self.attached.insert(event.kv.key.clone(), event.kv.lease);
                }
                EventKind::Put => {}
            }
        }
        ended.into_iter().try_for_each(|lease| self.has_none(lease))
    }

    fn has_none(&self, lease: LeaseId) -> Result<(), String> {
        let mut left = self.attached.iter().filter(|(_, of)| **of == lease);
        match left.next() {
            Some((key, _)) => Err(format!(
                "lease {lease} is over at revision {}, and has left {}",
                self.to,
                key.escape_ascii()
            )),
            None => Ok(()),
        }
    }
}

impl Invariant for LeaseWhole {
    fn name(&self) -> &'static str {
        "lease whole"
    }

    fn see(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        match seen {
            Seen::History(events) => {
                let same = |a: &Event, b: &Event| a.kv.mod_revision == b.kv.mod_revision;
                for revision in events.chunk_by(same) {
                    let at = revision[0].kv.mod_revision;
                    if self.to != Revision(0) && at > self.to.next() {
                        // What was compacted at once is not known.
                        self.attached.clear();
                    }
                    self.to = at;
                    self.on_revision(revision)?;
                }
                Ok(())
            }
            Seen::LeaseOver { lease, .. } => self.has_none(*lease),
            _ => Ok(()),
        }
    }
}
