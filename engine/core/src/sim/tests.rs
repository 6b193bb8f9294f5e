//! The simulator's promises about itself.

use super::{Keep, run};

#[test]
fn two_runs_of_one_seed_are_identical() {
    for seed in 1..4 {
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
