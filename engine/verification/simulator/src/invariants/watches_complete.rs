//! A watch leaves nothing out and adds nothing: of every revision in its place it is told the
//! changes that it asked for, and the same ones from whichever member.

use std::collections::BTreeMap;

use dengine_kv::Event;
use dengine_kv::watch::WatchSpec;
use dengine_types::Revision;

use super::{Invariant, Seen};

#[derive(Default)]
pub(super) struct WatchesComplete {
    /// The changes of each revision, as the first member that came to it has them in its store.
    history: BTreeMap<Revision, Vec<Event>>,
}

impl Invariant for WatchesComplete {
    fn name(&self) -> &'static str {
        "watches complete"
    }

    fn see(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        match seen {
            Seen::History(events) => {
                for event in *events {
                    let changes = self.history.entry(event.kv.mod_revision).or_default();
                    changes.push(event.clone());
                }
                Ok(())
            }
            Seen::LossAccepted { revision, .. } => {
                self.history.split_off(&Revision(revision.0 + 1));
                Ok(())
            }
            Seen::Watched {
                spec,
                from,
                to,
                events,
            } => self.check(spec, (*from, *to), events),
            _ => Ok(()),
        }
    }
}

impl WatchesComplete {
    fn check(
        &self,
        spec: &WatchSpec,
        (from, to): (Revision, Revision),
        events: &[Event],
    ) -> Result<(), String> {
        let mut told = events;
        for revision in (from.0..=to.0).map(Revision) {
            let here = told.partition_point(|event| event.kv.mod_revision <= revision);
            let (now, later) = told.split_at(here);
            told = later;
            // Of what was compacted at once nothing is known.
            let Some(changes) = self.history.get(&revision) else {
                continue;
            };
            let wanted = changes.iter().filter(|event| spec.wants(event));
            let same = |(made, told): (&Event, &Event)| is_told_as(spec, made, told);
            if wanted.clone().count() != now.len() || !wanted.zip(now).all(same) {
                return Err(format!(
                    "a watch was told {now:?} of revision {revision}, which made {changes:?}"
                ));
            }
        }
        if told.is_empty() {
            return Ok(());
        }
        Err(format!(
            "a watch was told {told:?} before {to} was complete"
        ))
    }
}

/// What was before is not told if it was not asked for; and it may be compacted, at this member or
/// at that which had the change first.
fn is_told_as(spec: &WatchSpec, made: &Event, told: &Event) -> bool {
    let prev = match (&made.prev, &told.prev) {
        (Some(made), Some(told)) => spec.prev_kv && made == told,
        (None, Some(_)) => spec.prev_kv,
        (_, None) => true,
    };
    (made.kind, made.sub, &made.kv) == (told.kind, told.sub, &told.kv) && prev
}
