//! One sequence on two systems that are equal at its beginning.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::join;
use tokio::time::Instant;

use crate::operation::Operation;
use crate::reply::{Reply, difference, in_lines};
use crate::system::System;
use crate::{explained, masks};

/// How long events may be missing on one side before that is a difference.
const EVENTS_PATIENCE: Duration = Duration::from_secs(4);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What one or many sequences came to.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// By name and code of the answer.
    pub calls: BTreeMap<(&'static str, String), u64>,
    pub events: u64,
    pub explained: BTreeMap<&'static str, u64>,
}

/// Where two systems differ, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The call after which it was seen, from 0.
    pub at: usize,
    pub what: String,
}

impl Tally {
    /// How many calls were answered alike.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.calls.values().sum()
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (call, count) in &other.calls {
            *self.calls.entry(call.clone()).or_default() += count;
        }
        for (name, count) in &other.explained {
            *self.explained.entry(name).or_default() += count;
        }
        self.events += other.events;
    }

    fn add(&mut self, operation: &Operation, reply: &Reply) {
        let answer = match reply {
            Reply::Refused(code, text) => format!("{code:?}: {text}"),
            _ => "Ok".to_owned(),
        };
        *self.calls.entry((operation.name(), answer)).or_default() += 1;
    }
}

/// Runs the sequence until it ends or a difference is found. What was done alike is added to
/// `tally`.
pub(crate) async fn run(
    left: &mut impl System,
    right: &mut impl System,
    operations: &[Operation],
    tally: &mut Tally,
) -> Option<Difference> {
    let (mut chosen, mut compacted) = (BTreeSet::new(), BTreeSet::new());
    for (at, operation) in operations.iter().enumerate() {
        let created = operation.created_watch();
        let is_next_to_chosen = created.is_some_and(|(stream, _)| {
            let mut chosen = chosen.iter();
            chosen.any(|(of, _): &(usize, i64)| *of == stream)
        });
        if (operation.meets_watches() || is_next_to_chosen)
            && let Some(what) = compare_watches(left, right, tally).await
        {
            return Some(Difference { at, what });
        }
        if let Some((stream, id)) = created {
            let is_kept = |id| left.keeps(stream, id) || right.keeps(stream, id);
            let mut chosen_there = chosen.iter().filter(|(of, _)| *of == stream);
            // Documented: DEngine gives the id away at once, also where it chooses one itself.
            let differs = match id {
                0 => chosen_there.any(|(_, id)| is_kept(*id)),
                id => is_kept(id),
            };
            if differs {
                continue;
            }
            if id != 0 {
                chosen.insert((stream, id));
            }
        }
        let (mut one, mut other) = join!(left.call(operation), right.call(operation));
        masks::apply(operation, &mut one);
        masks::apply(operation, &mut other);
        if one == other && one.may_be() {
            tally.add(operation, &one);
            if let (Operation::Compact(request), Reply::Compact(_)) = (operation, &one) {
                compacted.insert(request.revision);
            }
            continue;
        }
        let Some(explained) = explained::reason(operation, &one, &other, &compacted) else {
            let what = difference(&in_lines(&one), &in_lines(&other));
            return Some(Difference { at, what });
        };
        *tally.explained.entry(explained.name).or_default() += 1;
        if explained.ends {
            return None;
        }
    }
    let what = compare_watches(left, right, tally).await?;
    let at = operations.len().saturating_sub(1);
    Some(Difference { at, what })
}

/// How what was watched differs, once both sides have had time.
async fn compare_watches(
    left: &mut impl System,
    right: &mut impl System,
    tally: &mut Tally,
) -> Option<String> {
    join!(left.settle(), right.settle());
    let begun = Instant::now();
    loop {
        for (side, broken) in [("left", left.broken()), ("right", right.broken())] {
            if !broken.is_empty() {
                return Some(format!("{side}: {}\n", broken.join(&format!("\n{side}: "))));
            }
        }
        let (one, other) = (left.watched(), right.watched());
        if one == other {
            let watches = one.streams.values().flat_map(BTreeMap::values);
            tally.events += watches.map(|entries| entries.len() as u64).sum::<u64>();
            left.forget();
            right.forget();
            return None;
        }
        if begun.elapsed() > EVENTS_PATIENCE {
            return Some(difference(&in_lines(&one), &in_lines(&other)));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
