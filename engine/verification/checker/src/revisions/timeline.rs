//! What each key was from revision to revision, as far as the history says.

use std::collections::{BTreeMap, BTreeSet};

use super::order::{Floor, Taken};
use crate::history::History;
use crate::prepare::{Action, KeyId, Pair, Prepared, Ready, Told, ValueId};
use crate::violation::{Rule, Violation};

/// What is known before contents are checked.
pub(super) struct Facts<'a> {
    pub(super) history: &'a History,
    pub(super) ready: &'a Ready,
    /// For each operation.
    pub(super) floors: &'a [Floor],
}

impl Facts<'_> {
    /// The operations that may have changed something at any time since.
    pub(super) fn unknown(&self) -> impl Iterator<Item = (usize, &Prepared)> {
        let all = self.ready.operations.iter().enumerate();
        all.filter(|(_, operation)| operation.outcome.is_none() && operation.may_change())
    }

    pub(super) fn violation(
        &self,
        rule: Rule,
        message: impl Into<String>,
        shown_by: impl IntoIterator<Item = usize>,
    ) -> Violation {
        let places = shown_by.into_iter().map(|at| self.ready.operations[at].at);
        let operations = places.map(|at| &self.history.operations[at]);
        Violation::new(rule, message, operations)
    }
}

/// A sighting of one key as of one revision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sighting {
    /// By which operation.
    pub(super) by: usize,
    pub(super) key: KeyId,
    pub(super) revision: u64,
    pub(super) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Absent,
    Present,
    Pair(Pair),
}

/// Everything that was seen of keys. What a batch saw of its own changes is left to the search.
pub(super) fn sightings(facts: &Facts<'_>) -> Vec<Sighting> {
    let mut sightings = Vec::new();
    for (by, operation) in facts.ready.operations.iter().enumerate() {
        let Some(outcome) = &operation.outcome else {
            continue;
        };
        let revision = outcome.revision - u64::from(operation.changed()).min(outcome.revision);
        let mut own = BTreeSet::new();
        for (action, told) in operation.told() {
            let what = match (action, told) {
                (Action::Get(_), Told::Got(None)) => Some(What::Absent),
                (Action::Get(_), Told::Got(Some(pair))) => Some(What::Pair(pair)),
                (Action::Delete(_), Told::Deleted(false)) => Some(What::Absent),
                (Action::Delete(_), Told::Deleted(true)) => Some(What::Present),
                _ => None,
            };
            let key = action.key();
            sightings.extend(what.filter(|_| !own.contains(&key)).map(|what| Sighting {
                by,
                key,
                revision,
                what,
            }));
            if !matches!(action, Action::Get(_)) {
                own.insert(key);
            }
        }
    }
    sightings
}

/// What a revision made of a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    /// `None`: deleted.
    pub(super) value: Option<ValueId>,
    /// Whether the pair may expire.
    pub(super) expires: bool,
    /// Which operation did it, unless that can only be guessed.
    pub(super) by: Option<usize>,
}

/// The changes of every key, by revision.
#[derive(Debug)]
pub(super) struct Timeline(Vec<BTreeMap<u64, Written>>);

impl Timeline {
    /// The changes that were answered.
    pub(super) fn of(facts: &Facts<'_>, taken: &Taken) -> Self {
        let mut keys = vec![BTreeMap::new(); facts.ready.keys.len()];
        for (revision, by) in taken {
            for (action, told) in facts.ready.operations[*by].told() {
                if let Some(value) = change(action, told) {
                    let written = Written {
                        value,
                        expires: matches!(action, Action::Put { expires: true, .. }),
                        by: Some(*by),
                    };
                    keys[action.key()].insert(*revision, written);
                }
            }
        }
        Self(keys)
    }

    /// What `revision` itself made of a key.
    pub(super) fn at(&self, key: KeyId, revision: u64) -> Option<Written> {
        self.0[key].get(&revision).copied()
    }

    /// The last change of a key up to `revision`.
    pub(super) fn until(&self, key: KeyId, revision: u64) -> Option<(u64, Written)> {
        let last = self.0[key].range(..=revision).next_back();
        last.map(|(revision, written)| (*revision, *written))
    }

    /// The first change of a key after `revision`.
    pub(super) fn after(&self, key: KeyId, revision: u64) -> Option<u64> {
        let mut later = self.0[key].range(revision + 1..);
        later.next().map(|(revision, _)| *revision)
    }

    /// All changes of a key, in order.
    pub(super) fn changes(&self, key: KeyId) -> impl Iterator<Item = (u64, Written)> {
        self.0[key]
            .iter()
            .map(|(revision, written)| (*revision, *written))
    }

    /// Places the changes of unknown outcome that some client saw.
    pub(super) fn place_unknown(
        &mut self,
        facts: &Facts<'_>,
        taken: &Taken,
        sightings: &[Sighting],
    ) -> Result<(), Violation> {
        let mut wanted: BTreeMap<(KeyId, ValueId), BTreeMap<u64, usize>> = BTreeMap::new();
        for sighting in sightings {
            let What::Pair(pair) = sighting.what else {
                continue;
            };
            if self.at(sighting.key, pair.modified).is_some() {
                continue;
            }
            if let Some(other) = taken.get(&pair.modified) {
                let message = format!("revision {} did not write this key", pair.modified);
                let shown_by = [*other, sighting.by];
                return Err(facts.violation(Rule::NeverWritten, message, shown_by));
            }
            let places = wanted.entry((sighting.key, pair.value)).or_default();
            places.insert(pair.modified, sighting.by);
        }
        let writers = writers(facts);
        for ((key, value), places) in wanted {
            self.place(facts, (key, value), &places, writers.get(&(key, value)))?;
        }
        Ok(())
    }

    /// Gives each place at which a value was seen a writer that was called early enough.
    fn place(
        &mut self,
        facts: &Facts<'_>,
        (key, value): (KeyId, ValueId),
        places: &BTreeMap<u64, usize>,
        writers: Option<&Writers>,
    ) -> Result<(), Violation> {
        for (nth, (revision, seen_by)) in places.iter().enumerate() {
            // Both are in order, so if the nth fails no other assignment succeeds.
            let floor = writers.and_then(|writers| writers.floors.get(nth));
            if floor.is_none_or(|floor| floor >= revision) {
                let message = format!("nobody can have written this value at revision {revision}");
                return Err(facts.violation(Rule::NeverWritten, message, [*seen_by]));
            }
            let written = Written {
                value: Some(value),
                expires: writers.is_some_and(|writers| writers.expires),
                by: None,
            };
            self.0[key].insert(*revision, written);
        }
        Ok(())
    }
}

/// Those of unknown outcome that may have written a value to a key.
#[derive(Default)]
struct Writers {
    /// Of each, in order.
    floors: Vec<u64>,
    /// Whether one of them put it to expire.
    expires: bool,
}

fn writers(facts: &Facts<'_>) -> BTreeMap<(KeyId, ValueId), Writers> {
    let mut writers: BTreeMap<_, Writers> = BTreeMap::new();
    for (at, operation) in facts.unknown() {
        let actions = operation.deed.then.iter().chain(&operation.deed.otherwise);
        let puts: BTreeSet<_> = actions
            .filter_map(|action| match *action {
                Action::Put {
                    key,
                    value,
                    expires,
                } => Some(((key, value), expires)),
                _ => None,
            })
            .collect();
        for (what, expires) in puts {
            let writers = writers.entry(what).or_default();
            writers.floors.push(facts.floors[at].revision);
            writers.expires |= expires;
        }
    }
    for writers in writers.values_mut() {
        writers.floors.sort_unstable();
    }
    writers
}

/// What an action makes of its key, if anything; the inner `None`: deleted.
fn change(action: Action, told: Told) -> Option<Option<ValueId>> {
    match (action, told) {
        (Action::Put { value, .. }, _) => Some(Some(value)),
        (Action::Delete(_), Told::Deleted(true)) => Some(None),
        _ => None,
    }
}
