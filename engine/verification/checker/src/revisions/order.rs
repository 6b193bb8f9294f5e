//! Revisions against real time, against sessions, and against the number of changes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::timeline::{Facts, Timeline};
use crate::history::{History, Level};
use crate::prepare::{Action, Prepared, Ready};
use crate::violation::{Rule, Violation};

/// Which operation took a revision, by its place among the prepared ones.
pub(super) type Taken = BTreeMap<u64, usize>;

/// The highest revision that was answered before an operation was called, and by which operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Floor {
    pub(super) revision: u64,
    told_by: Option<usize>,
}

/// The floor of each operation, after checking that it is above it: what is called after an answer
/// comes after it.
pub(super) fn real_time(history: &History, ready: &Ready) -> Result<Vec<Floor>, Violation> {
    let start = Floor {
        revision: history.alone_since.unwrap_or(0),
        told_by: None,
    };
    let mut floors = vec![start; ready.operations.len()];
    let mut floor = start;
    for (_, is_answer, at) in events(&ready.operations) {
        let operation = &ready.operations[at];
        if !is_answer {
            floors[at] = floor;
            continue;
        }
        let Some(outcome) = &operation.outcome else {
            continue;
        };
        let least = floors[at].revision + u64::from(operation.changed());
        if operation.level.is_strong() && outcome.revision < least {
            let earlier = floors[at].told_by.map(|at| ready.operations[at].at);
            let both = earlier.into_iter().chain([operation.at]);
            return Err(Violation::new(
                Rule::RealTime,
                format!(
                    "revision {} was answered, though {} had been before the call",
                    outcome.revision, floors[at].revision
                ),
                both.map(|at| &history.operations[at]),
            ));
        }
        floor = floor.max(Floor {
            revision: outcome.revision,
            told_by: Some(at),
        });
    }
    Ok(floors)
}

/// Calls and answers in order; what happens at once counts as calls first, so that it overlaps.
fn events(operations: &[Prepared]) -> Vec<(u64, bool, usize)> {
    let mut events = Vec::with_capacity(2 * operations.len());
    for (at, operation) in operations.iter().enumerate() {
        events.push((operation.invoked, false, at));
        if operation.outcome.is_some() {
            events.push((operation.completed, true, at));
        }
    }
    events.sort_unstable();
    events
}

/// Checks that no client's session went back: its reads see its own writes, and what earlier ones
/// saw.
pub(super) fn sessions(history: &History, ready: &Ready) -> Result<(), Violation> {
    let mut seen: BTreeMap<u64, Vec<(u64, usize)>> = BTreeMap::new();
    let mut floors = vec![(0, None); ready.operations.len()];
    for (_, is_answer, at) in events(&ready.operations) {
        let operation = &ready.operations[at];
        let client = history.operations[operation.at].client;
        let seen = seen.entry(client).or_default();
        let is_session = matches!(operation.level, Level::Session { .. });
        if !is_answer {
            floors[at] = seen
                .last()
                .map_or((0, None), |(revision, at)| (*revision, Some(*at)));
            continue;
        }
        let Some(outcome) = &operation.outcome else {
            continue;
        };
        let carried = match operation.level {
            Level::Session { after } => after,
            _ => 0,
        };
        let (least, earlier) = floors[at];
        if is_session && outcome.revision < least.max(carried) {
            let both = earlier.map(|at: usize| ready.operations[at].at);
            return Err(Violation::new(
                Rule::Session,
                format!(
                    "a session read was answered as of revision {}, though the client had seen \
                     {least} and carried {carried}",
                    outcome.revision
                ),
                both.into_iter()
                    .chain([operation.at])
                    .map(|at| &history.operations[at]),
            ));
        }
        let is_new = seen.last().is_none_or(|(last, _)| *last < outcome.revision);
        if is_new && (is_session || operation.changed()) {
            seen.push((outcome.revision, at));
        }
    }
    Ok(())
}

/// Finds which operation took which revision, after checking that each was taken once and, if no
/// other client wrote, that those in between can have been taken by calls of unknown outcome.
pub(super) fn revisions_taken(facts: &Facts<'_>) -> Result<Taken, Violation> {
    let mut taken = Taken::new();
    let mut highest = 0;
    for (at, operation) in facts.ready.operations.iter().enumerate() {
        let Some(outcome) = &operation.outcome else {
            continue;
        };
        highest = highest.max(outcome.revision);
        if operation.changed()
            && let Some(other) = taken.insert(outcome.revision, at)
        {
            let message = format!("revision {} was taken twice", outcome.revision);
            return Err(facts.violation(Rule::RevisionTakenTwice, message, [other, at]));
        }
    }
    if let Some(start) = facts.history.alone_since {
        accounted(facts, &taken, start, highest)?;
    }
    Ok(taken)
}

/// Checks that for every revision up to the highest that was answered there is an operation that
/// can have taken it.
fn accounted(facts: &Facts<'_>, taken: &Taken, start: u64, highest: u64) -> Result<(), Violation> {
    let mut takers = takers(facts, taken).into_iter().peekable();
    // The ends of those that can take this revision. The one that must go first does.
    let mut ready = BinaryHeap::new();
    let free = (start + 1..=highest).filter(|revision| !taken.contains_key(revision));
    for revision in free {
        while let Some((_, end)) = takers.next_if(|(after, _)| *after < revision) {
            ready.push(Reverse(end));
        }
        while ready.peek().is_some_and(|Reverse(end)| *end <= revision) {
            ready.pop();
        }
        if ready.pop().is_none() {
            let after = taken.range(revision..).next().map(|(_, at)| *at);
            let message = format!(
                "revision {revision} was taken by no call: something was applied twice, or by \
                 nobody"
            );
            return Err(facts.violation(Rule::UnexplainedRevision, message, after));
        }
    }
    Ok(())
}

/// After which revision, and before which one, each change without an answer can have happened; in
/// order.
fn takers(facts: &Facts<'_>, taken: &Taken) -> Vec<(u64, u64)> {
    let timeline = Timeline::of(facts, taken);
    let window = |(at, operation): (usize, &Prepared)| match operation.deed.then[..] {
        // What was replaced or deleted does not expire any more.
        [
            Action::Expire {
                key,
                put_at: Some(put_at),
            },
        ] => (put_at, timeline.after(key, put_at).unwrap_or(u64::MAX)),
        _ => (facts.floors[at].revision, u64::MAX),
    };
    let mut takers: Vec<_> = facts.unknown().map(window).collect();
    takers.sort_unstable();
    takers
}
