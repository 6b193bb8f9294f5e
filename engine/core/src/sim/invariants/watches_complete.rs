//! A watch leaves nothing out: every revision in its place, each with all of its changes, and the same ones from
//! whichever member.

use super::{Invariant, Seen};
use crate::kv::Event;
use crate::sim::trace::Hash;
use crate::types::Revision;
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct WatchesComplete {
    /// Of the changes of each revision.
    hashes: BTreeMap<Revision, u64>,
}

impl Invariant for WatchesComplete {
    fn name(&self) -> &'static str {
        "watches complete"
    }

    fn see(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let Seen::Watched { from, to, events } = seen else {
            return Ok(());
        };
        let mut told: BTreeMap<Revision, Hash> = BTreeMap::new();
        for event in *events {
            let hash = told.entry(event.kv.mod_revision).or_insert(Hash::EMPTY);
            hash.add(describe(event).as_bytes());
        }
        for revision in (from.0..=to.0).map(Revision) {
            let Some(hash) = told.get(&revision) else {
                return Err(format!(
                    "told of {from} to {to}, but not of revision {revision}"
                ));
            };
            let known = *self.hashes.entry(revision).or_insert(hash.0);
            if known != hash.0 {
                return Err(format!(
                    "two watches were told different changes of revision {revision}"
                ));
            }
        }
        Ok(())
    }
}

/// The pair before is not part of it: it may be compacted where another member still has it.
fn describe(event: &Event) -> String {
    format!("{:?} {:?}", event.kind, event.kv)
}
