//! Random histories: right ones pass, and every way of breaking one guarantee is caught.

use proptest::prelude::*;

use super::store::{Fault, run};
use crate::{Summary, check, linearizable, revisions};

/// Few steps: the search must hardly ever have to go back.
const STEPS: usize = 200_000;

proptest! {
    #[test]
    fn what_a_sequential_store_answers_is_right(seed: u64, calls in 1..400_usize) {
        let history = run(seed, calls, Fault::None).history;
        let Summary { undecided, .. } = check(&history, STEPS).unwrap();
        prop_assert_eq!(undecided, 0);
    }
}

/// How many of 100 broken histories each checker catches; all must be caught by one of them.
fn caught(fault: Fault) -> (usize, usize) {
    let broken = (0..)
        .map(|seed| run(seed, 150, fault))
        .filter(|run| run.faulty);
    let mut caught = (0, 0);
    for (nth, run) in broken.take(100).enumerate() {
        let by_revisions = revisions::check(&run.history).is_err();
        let by_search = linearizable::check(&run.history, STEPS).is_err();
        assert!(by_revisions || by_search, "{fault:?}, broken history {nth}");
        caught.0 += usize::from(by_revisions);
        caught.1 += usize::from(by_search);
    }
    caught
}

#[test]
#[expect(
    clippy::print_stdout,
    reason = "which checker finds what is worth knowing"
)]
fn broken_histories_are_caught() {
    for fault in [
        Fault::StaleRead,
        Fault::LostWrite,
        Fault::AppliedTwice,
        Fault::BlindSwap,
        Fault::InventedValue,
        Fault::SessionBack,
        Fault::HalfBatch,
        Fault::TornRead,
    ] {
        let (by_revisions, by_search) = caught(fault);
        println!("{fault:?}: {by_revisions} of 100 by revisions, {by_search} by search");
    }
}
