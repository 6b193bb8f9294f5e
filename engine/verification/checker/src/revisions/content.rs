//! What was seen at a revision against what the changes up to it made.

use std::collections::BTreeMap;

use super::order::Taken;
use super::timeline::{Facts, Sighting, Timeline, What, sightings};
use crate::prepare::{Action, KeyId, Pair, Wanted};
use crate::violation::{Rule, Violation};

/// Checks every sighting and every compare.
pub(super) fn check(facts: &Facts<'_>, taken: &Taken) -> Result<(), Violation> {
    let sightings = sightings(facts);
    let mut timeline = Timeline::of(facts, taken);
    timeline.place_unknown(facts, taken, &sightings)?;
    let content = Content {
        facts,
        timeline: &timeline,
        taken,
        gaps: gaps(facts),
    };
    let exact = content.exact_pairs();
    let mut first: BTreeMap<(KeyId, u64), (Pair, usize)> = BTreeMap::new();
    for sighting in &sightings {
        content.sighting(sighting)?;
        if let What::Pair(pair) = sighting.what {
            let before = first.entry((sighting.key, pair.modified));
            let (other, by) = *before.or_insert((pair, sighting.by));
            if other != pair {
                let message = format!("revision {} of the key was seen differently", pair.modified);
                let shown_by = [by, sighting.by];
                return Err(facts.violation(Rule::SeenDifferently, message, shown_by));
            }
            content.exactly(sighting, pair, exact.get(&(sighting.key, pair.modified)))?;
        }
    }
    content.compares()
}

/// How calls of unknown outcome may have touched a key. That a pair expires which a known call has
/// put is no part of it: the timeline says which may.
#[derive(Clone, Debug, Default)]
struct Gap {
    /// The least floor of those that may have set it.
    set_since: Option<u64>,
    /// The least floor of those that may have deleted it.
    deleted_since: Option<u64>,
}

impl Gap {
    fn is_none(&self) -> bool {
        self.set_since.is_none() && self.deleted_since.is_none()
    }
}

fn gaps(facts: &Facts<'_>) -> Vec<Gap> {
    let mut gaps = vec![Gap::default(); facts.ready.keys.len()];
    for (at, operation) in facts.unknown() {
        let floor = facts.floors[at].revision;
        for action in operation.deed.then.iter().chain(&operation.deed.otherwise) {
            let gap = &mut gaps[action.key()];
            let least = |since: &mut Option<u64>| {
                *since = Some(since.map_or(floor, |before| before.min(floor)));
            };
            match *action {
                Action::Get(_) | Action::Expire { .. } => {}
                Action::Delete(_) => least(&mut gap.deleted_since),
                Action::Put { expires, .. } => {
                    least(&mut gap.set_since);
                    // What it puts may be gone again.
                    let gone = expires.then_some(&mut gap.deleted_since);
                    gone.into_iter().for_each(least);
                }
            }
        }
    }
    gaps
}

struct Content<'a> {
    facts: &'a Facts<'a>,
    timeline: &'a Timeline,
    taken: &'a Taken,
    /// For each key.
    gaps: Vec<Gap>,
}

impl Content<'_> {
    fn sighting(&self, sighting: &Sighting) -> Result<(), Violation> {
        let last = self.timeline.until(sighting.key, sighting.revision);
        let gap = &self.gaps[sighting.key];
        let changed = last.map_or(0, |(revision, _)| revision);
        let since = |floor: Option<u64>| {
            floor.is_some_and(|floor| self.has_room(changed.max(floor), sighting.revision))
        };
        let fits = match (sighting.what, last) {
            (What::Pair(pair), Some((revision, written))) => {
                pair.modified == revision && written.value == Some(pair.value)
            }
            (What::Pair(_), None) => false,
            (What::Absent, Some((_, written))) => {
                let expired = written.expires.then_some(changed);
                written.value.is_none() || since(expired) || since(gap.deleted_since)
            }
            (What::Absent, None) => true,
            (What::Present, Some((_, written))) => written.value.is_some() || since(gap.set_since),
            (What::Present, None) => since(gap.set_since),
        };
        if fits {
            return Ok(());
        }
        let made_by = last.and_then(|(_, written)| written.by);
        let message = match last {
            Some((revision, _)) => format!(
                "as of revision {} the key was last changed by {revision}; that is not what was \
                 seen",
                sighting.revision
            ),
            None => format!("as of revision {} the key was never set", sighting.revision),
        };
        let shown_by = made_by.into_iter().chain([sighting.by]);
        Err(self
            .facts
            .violation(Rule::WrongAtRevision, message, shown_by))
    }

    /// Whether a revision in between, `upto` included, is not known to be taken.
    fn has_room(&self, after: u64, upto: u64) -> bool {
        upto > after && {
            let taken = self.taken.range(after + 1..=upto).count() as u64;
            taken < upto - after
        }
    }

    /// Every pair that ever was, of keys that no operation of unknown outcome touched. None that
    /// follows one that may have expired: the key may have been created again.
    fn exact_pairs(&self) -> BTreeMap<(KeyId, u64), Pair> {
        let mut pairs = BTreeMap::new();
        for (key, _) in self
            .gaps
            .iter()
            .enumerate()
            .filter(|(_, gap)| gap.is_none())
        {
            let mut before: Option<Pair> = None;
            let mut is_known = true;
            for (revision, written) in self.timeline.changes(key) {
                before = written.value.map(|value| Pair {
                    value,
                    created: before.map_or(revision, |before| before.created),
                    modified: revision,
                    version: before.map_or(1, |before| before.version + 1),
                });
                let exact = before.filter(|_| is_known);
                pairs.extend(exact.map(|pair| ((key, revision), pair)));
                is_known = match written.value {
                    Some(_) => is_known && !written.expires,
                    None => true,
                };
            }
        }
        pairs
    }

    fn exactly(
        &self,
        sighting: &Sighting,
        seen: Pair,
        exact: Option<&Pair>,
    ) -> Result<(), Violation> {
        match exact {
            Some(exact) if *exact != seen => {
                let message = format!(
                    "seen: created by {}, version {}; but all changes together make: created by \
                     {}, version {}",
                    seen.created, seen.version, exact.created, exact.version
                );
                Err(self
                    .facts
                    .violation(Rule::WrongAtRevision, message, [sighting.by]))
            }
            _ => Ok(()),
        }
    }

    fn compares(&self) -> Result<(), Violation> {
        for (by, operation) in self.facts.ready.operations.iter().enumerate() {
            let Some(outcome) = &operation.outcome else {
                continue;
            };
            let revision = outcome.revision - u64::from(operation.changed()).min(outcome.revision);
            let held = (operation.deed.compares.iter())
                .map(|(key, wanted)| self.held(*key, *wanted, revision));
            let wrong = if outcome.succeeded {
                held.clone().any(|held| held == Some(false))
            } else {
                held.clone().all(|held| held == Some(true))
            };
            if wrong && !operation.deed.compares.is_empty() {
                let message = format!(
                    "as of revision {revision} the compares came out as {}, not as answered",
                    !outcome.succeeded
                );
                return Err(self.facts.violation(Rule::Compare, message, [by]));
            }
        }
        Ok(())
    }

    /// Whether a compare held at a revision; `None` if calls of unknown outcome or a time to live
    /// leave it open.
    fn held(&self, key: KeyId, wanted: Wanted, revision: u64) -> Option<bool> {
        if !self.gaps[key].is_none() {
            return None;
        }
        let last = self.timeline.until(key, revision);
        if last.is_some_and(|(_, written)| written.expires) {
            return None;
        }
        let live = last.filter(|(_, written)| written.value.is_some());
        Some(match (wanted, live) {
            (Wanted::ModRevision(wanted), live) => {
                live.map_or(0, |(revision, _)| revision) == wanted
            }
            (Wanted::Value(wanted), live) => {
                live.is_some_and(|(_, written)| written.value == Some(wanted))
            }
        })
    }
}
