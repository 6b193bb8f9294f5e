//! The simulator's promises about itself.

use super::{Keep, run};
use crate::planted::Bug;

#[test]
fn two_runs_of_one_seed_are_identical() {
    for seed in 1..6 {
        let (once, again) = (run(seed, Keep::Hash), run(seed, Keep::Everything));
        assert_eq!(once.trace_hash, again.trace_hash, "seed {seed}");
        assert_eq!(once.counts, again.counts, "seed {seed}");
        assert_eq!(once.simulated, again.simulated, "seed {seed}");
    }
}

#[test]
fn two_seeds_are_not() {
    assert_ne!(run(1, Keep::Hash).trace_hash, run(2, Keep::Hash).trace_hash);
}

/// Members of an older program are replaced, and what only the present one reads is written once all of them are.
#[test]
fn rolls_come_to_write_the_newest_commands() {
    let rolled = |seed| {
        let counts = run(seed, Keep::Hash).counts;
        let newer = counts.contains_key("appends of newer commands in a roll");
        newer && counts.contains_key("rolls completed")
    };
    assert!((1..=20).any(rolled));
}

/// In as many seeds as any planted bug is looked for in: whatever is found in those is that bug.
#[test]
fn without_a_planted_bug_nothing_is_found() {
    let most = Bug::ALL.iter().map(|(_, seeds)| *seeds).max();
    for seed in 1..=most.expect("there are some") {
        let report = run(seed, Keep::Last(40));
        if let Some(violation) = report.violation {
            panic!(
                "seed {seed}: {}: {}\n{}",
                violation.invariant,
                violation.what,
                report.lines.join("\n")
            );
        }
    }
}

#[cfg(feature = "planted-bugs")]
mod planted {
    use crate::planted::{Bug, plant};
    use crate::sim::invariants::{ELSEWHERE, Invariants};
    use crate::sim::seek;
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    /// The names under which this folder's code reports what is broken.
    fn reported_in(folder: &Path) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                names.extend(reported_in(&path));
                continue;
            }
            let source = fs::read_to_string(&path).unwrap();
            for call in ["fail", "Err"] {
                let call = format!("{call}((");
                let pairs = source.split(&call).skip(1);
                let literals = pairs.filter_map(|pair| pair.trim_start().strip_prefix('"'));
                names.extend(literals.filter_map(|it| Some(it.split_once('"')?.0.to_owned())));
            }
        }
        names
    }

    /// Otherwise nobody would notice that it is never the first.
    #[test]
    fn whatever_is_reported_is_listed() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let reported = reported_in(&root.join("src/sim"));
        let names = Invariants::names();
        for name in &reported {
            assert!(names.contains(&name.as_str()), "{name:?} is not listed");
        }
        for name in ELSEWHERE {
            assert!(reported.contains(name), "nobody reports {name:?}");
        }
        let docs = fs::read_to_string(root.join("../../docs/simulator.md")).unwrap();
        for name in names {
            let rows = [" |", " (§"].map(|end| format!("\n| {name}{end}"));
            let is_there = rows.iter().any(|row| docs.contains(row));
            assert!(is_there, "docs/simulator.md does not list {name:?}");
        }
    }

    /// The invariants that report this bug first.
    fn found_as(bug: Bug, seeds: u64) -> Vec<&'static str> {
        plant(Some(bug));
        let found = seek(1, seeds);
        plant(None);
        found.map(|it| it.found_as).unwrap_or_default()
    }

    /// And no invariant is there that never was the first to see anything: it might see nothing at all.
    #[test]
    fn planted_bugs_are_found_within_the_stated_seeds() {
        let (mut lost, mut broken) = (Vec::new(), BTreeSet::new());
        for (bug, seeds) in Bug::ALL {
            let found_as = found_as(bug, seeds);
            if found_as.is_empty() {
                lost.push(bug);
            }
            broken.extend(found_as);
        }
        assert!(lost.is_empty(), "not found: {lost:?}");
        let mut never = Invariants::names();
        never.retain(|it| !broken.contains(it));
        assert!(never.is_empty(), "never the first: {never:?}");
    }
}
