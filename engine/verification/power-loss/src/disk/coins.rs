//! Chance that is the same for the same seed.

/// Coins that fall on true so many times in a hundred.
#[derive(Clone, Debug)]
pub(super) struct Coins {
    state: u64,
    percent: u64,
}

impl Coins {
    pub(super) fn new(percent: u64, seed: u64) -> Self {
        Self {
            state: seed,
            percent,
        }
    }

    /// SplitMix64: good enough for coins, also from seeds that follow each other.
    pub(super) fn toss(&mut self) -> bool {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % 100 < self.percent
    }
}
