//! Chance that is the same for the same seed.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt as _, SeedableRng as _};

/// Coins that come up true for a percentage of all tosses.
#[derive(Clone, Debug)]
pub(super) struct Coins {
    random: Xoshiro256PlusPlus,
    percent: u32,
}

impl Coins {
    pub(super) fn new(percent: u32, seed: u64) -> Self {
        Self {
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            percent,
        }
    }

    pub(super) fn toss(&mut self) -> bool {
        self.random.random_ratio(self.percent, 100)
    }
}
