//! Searches for planted bugs: how many seeds it takes to find each, and which invariants see it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use dengine_planted::{Bug, plant};

use super::stories::tells;
use super::{Keep, invariants, run};

/// Seeds within which most bugs show themselves.
const SOON: u64 = 50;

/// What to look for, and where.
#[derive(Clone, Debug)]
pub struct Search {
    /// Planted one at a time.
    pub bugs: Vec<Bug>,
    /// The first seed of each range. A range ends with the first of its seeds that finds the bug.
    pub ranges: Vec<u64>,
    /// Seeds of a range, after which it is given up. Those that tell no story in which a bug shows
    /// itself count, but are not run.
    pub within: u64,
    /// Bugs that are looked for at the same time.
    pub threads: usize,
}

/// What came of the search for one bug.
#[derive(Clone, Debug)]
pub struct Sought {
    pub bug: Bug,
    /// For each range, how many seeds it took; none if none of them found it.
    pub seeds: Vec<Option<u64>>,
    /// The invariants that reported it first, each once: in the seeds that found it, and in two
    /// more of each range if they find it soon, for a bug does not show itself in the same way each
    /// time.
    pub found_as: Vec<&'static str>,
}

impl Sought {
    /// Whether a seed of each range found it.
    #[must_use]
    pub fn is_found(&self) -> bool {
        self.seeds.iter().all(Option::is_some)
    }
}

impl Search {
    /// Looks for all, and shows what came of each in their order, as soon as that is known.
    pub fn run(&self, mut show: impl FnMut(&Sought)) -> Vec<Sought> {
        let next = AtomicUsize::new(0);
        let (sender, receiver) = mpsc::channel();
        thread::scope(|scope| {
            for _ in 0..self.threads.max(1) {
                let (next, sender) = (&next, sender.clone());
                scope.spawn(move || {
                    while let Some((at, bug)) = self.take(next) {
                        sender.send((at, self.seek(bug))).expect("somebody listens");
                    }
                });
            }
            drop(sender);
            let (mut early, mut all) = (BTreeMap::new(), Vec::new());
            for (at, sought) in receiver {
                early.insert(at, sought);
                while let Some(sought) = early.remove(&all.len()) {
                    show(&sought);
                    all.push(sought);
                }
            }
            all
        })
    }

    /// The invariants that are never the first to report anything: they might see nothing at all.
    ///
    /// Which one is the first is chance where a bug breaks several. So the bugs that show
    /// themselves soon are looked for in further ranges while one is missing from what was found.
    #[must_use]
    pub fn never_first(&self, found: &[Sought]) -> Vec<&'static str> {
        const FURTHER: RangeInclusive<u64> = 300_000..=300_450;
        let is_soon = |sought: &&Sought| sought.seeds.iter().flatten().any(|it| *it <= SOON);
        let soon: Vec<_> = found.iter().filter(is_soon).map(|it| it.bug).collect();
        let mut never = invariants::Invariants::names();
        strike(&mut never, found);
        for first in FURTHER.step_by(SOON as usize) {
            if never.is_empty() {
                break;
            }
            let further = Self {
                bugs: soon.clone(),
                ranges: vec![first],
                within: SOON,
                threads: self.threads,
            };
            strike(&mut never, &further.run(|_| ()));
        }
        never
    }

    fn take(&self, next: &AtomicUsize) -> Option<(usize, Bug)> {
        let at = next.fetch_add(1, Ordering::Relaxed);
        self.bugs.get(at).map(|bug| (at, *bug))
    }

    fn seek(&self, bug: Bug) -> Sought {
        let mut sought = Sought {
            bug,
            seeds: Vec::new(),
            found_as: Vec::new(),
        };
        for first in &self.ranges {
            let (seeds, found_as) = self.seek_from(*first, bug);
            sought.seeds.push(seeds);
            for invariant in found_as {
                if !sought.found_as.contains(&invariant) {
                    sought.found_as.push(invariant);
                }
            }
        }
        sought
    }

    /// How many seeds of this range it takes, and the invariants that reported it first.
    fn seek_from(&self, first: u64, bug: Bug) -> (Option<u64>, Vec<&'static str>) {
        plant(Some(bug));
        let look = |seeds| {
            let seed = first + seeds - 1;
            let told = tells(seed, bug).then(|| run(seed, Keep::Nothing))?;
            Some((seeds, told.violation?.invariant))
        };
        let found = (1..=self.within).find_map(look);
        let after = found.map_or(SOON, |(seeds, _)| seeds) + 1;
        let more = (after..=self.within.min(SOON)).filter_map(look).take(2);
        let found_as = found.into_iter().chain(more);
        let found_as = found_as.map(|(_, invariant)| invariant).collect();
        plant(None);
        (found.map(|(seeds, _)| seeds), found_as)
    }
}

/// Leaves the invariants that reported none of these first.
fn strike(never: &mut Vec<&'static str>, found: &[Sought]) {
    let first: BTreeSet<_> = found.iter().flat_map(|it| it.found_as.clone()).collect();
    never.retain(|name| !first.contains(name));
}
