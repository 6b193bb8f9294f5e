//! The simulator's promises about itself.

use super::{Keep, Report, run};

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

/// Members of an older program are replaced, and what only the present one reads is written once
/// all of them are.
#[test]
fn rolls_come_to_write_the_newest_commands() {
    let rolled = |seed| {
        let counts = run(seed, Keep::Hash).counts;
        let newer = counts.contains_key("appends of newer commands in a roll");
        newer && counts.contains_key("rolls completed")
    };
    assert!((1..=20).any(rolled));
}

#[test]
fn followers_come_to_pass_writes_on() {
    let passed_on = |seed| {
        let counts = run(seed, Keep::Hash).counts;
        counts.contains_key("turns that passed writes on")
    };
    assert!((1..=5).all(passed_on));
}

/// A hub sleeps while there are no streams.
#[test]
fn streams_come_to_wake_hubs() {
    let woken = |seed| {
        run(seed, Keep::Hash)
            .counts
            .contains_key("hubs woken by a stream")
    };
    assert!((1..=20).any(woken));
}

#[test]
fn without_a_planted_bug_nothing_is_found() {
    let broken = |seed: &u64| run(*seed, Keep::Nothing).violation.is_some();
    if let Some(seed) = (1..=600).find(broken) {
        let Report {
            violation, lines, ..
        } = run(seed, Keep::Last(40));
        panic!("seed {seed}: {violation:?}\n{}", lines.join("\n"));
    }
}

#[cfg(feature = "planted-bugs")]
mod planted {
    use std::collections::BTreeSet;
    use std::num::NonZero;
    use std::path::Path;
    use std::{fs, thread};

    use dengine_planted::Bug;

    use crate::invariants::{ELSEWHERE, Invariants};
    use crate::{Keep, Search, run};

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
        let reported = reported_in(&root.join("src"));
        let names = Invariants::names();
        for name in &reported {
            assert!(names.contains(&name.as_str()), "{name:?} is not listed");
        }
        for name in ELSEWHERE {
            assert!(reported.contains(name), "nobody reports {name:?}");
        }
        let docs = fs::read_to_string(root.join("../../../docs/simulator.md")).unwrap();
        for name in names {
            let rows = [" |", " (§"].map(|end| format!("\n| {name}{end}"));
            let is_there = rows.iter().any(|row| docs.contains(row));
            assert!(is_there, "docs/simulator.md does not list {name:?}");
        }
    }

    /// Several times what the rarest takes (docs/simulator.md): the same seed is another run with
    /// each change of the core. And no invariant is there that never was the first to see anything:
    /// it might see nothing at all.
    #[test]
    fn planted_bugs_are_found() {
        let search = Search {
            bugs: Bug::ALL.to_vec(),
            ranges: vec![1],
            within: 5_000,
            threads: thread::available_parallelism().map_or(1, NonZero::get),
        };
        let all = search.run(|_| ());
        let lost: Vec<_> = all.iter().filter(|it| !it.is_found()).collect();
        assert!(lost.is_empty(), "not found: {lost:?}");
        // Whatever was found is that bug.
        for seed in all.iter().flat_map(|it| it.seeds[0]) {
            let without = run(seed, Keep::Nothing).violation;
            assert!(without.is_none(), "seed {seed}: {without:?}");
        }
        let never = search.never_first(&all);
        assert!(never.is_empty(), "never the first: {never:?}");
    }
}
