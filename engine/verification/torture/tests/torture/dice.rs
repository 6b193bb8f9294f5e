//! Chance from one seed. What happens when is up to the machine, so a seed repeats the plan, not
//! the run.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// Draws everything that this test decides.
pub(crate) struct Dice(StdRng);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// Below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0.random_range(0..bound)
    }

    /// In milliseconds.
    pub(crate) fn millis(&mut self, from: u64, to: u64) -> std::time::Duration {
        std::time::Duration::from_millis(self.0.random_range(from..to))
    }

    /// Dice of their own for somebody else.
    pub(crate) fn fork(&mut self) -> Self {
        Self::new(self.0.random())
    }
}
