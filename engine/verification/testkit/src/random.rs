//! Chance in tests. Equal seeds give equal draws, on every machine.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng as _, SeedableRng as _};

/// A generator whose numbers no release of `rand` changes. What is made of them is decided here, so
/// that a seed which found something keeps finding it.
#[derive(Clone, Debug)]
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    /// Starts where every generator of this seed does.
    pub fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// A generator of its own for one part of a test, so that what one part draws does not change
    /// what another gets.
    pub fn fork(&mut self) -> Self {
        Self::new(self.0.next_u64())
    }

    /// Below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.between(0, bound as u64) as usize
    }

    /// From `low` on, before `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low < high, "nothing lies from {low} on and before {high}");
        // The bias is far below what any seed could show.
        let scaled = u128::from(self.0.next_u64()) * u128::from(high - low);
        low + (scaled >> 64) as u64
    }

    /// True `percent` times in 100.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.between(0, 100) < percent
    }

    /// So many bytes, which nothing can compress.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.fill_bytes(&mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    /// As the algorithm's authors define them. Other numbers, and other seeds find what these do.
    #[test]
    fn the_first_draws_of_a_seed_never_change() {
        let first: [u64; 2] = [0xd076_4d4f_4476_689f, 0x519e_4174_576f_3791];
        let mut expected = first.map(u64::to_le_bytes).concat();
        expected.truncate(11);
        assert_eq!(Random::new(42).bytes(11), expected);
    }

    #[test]
    fn forks_of_equal_generators_draw_equally_and_not_as_these() {
        let (mut one, mut other) = (Random::new(1), Random::new(1));
        let forked = one.fork().bytes(64);
        assert_eq!(forked, other.fork().bytes(64));
        assert_eq!(one.bytes(64), other.bytes(64));
        assert_ne!(forked, Random::new(1).bytes(64));
    }

    #[test]
    fn draws_stay_within_their_bounds() {
        let mut random = Random::new(7);
        let mut heads = 0;
        for _ in 0..10_000 {
            assert!(random.below(3) < 3);
            assert!((5..9).contains(&random.between(5, 9)));
            assert!(!random.chance(0));
            assert!(random.chance(100));
            heads += usize::from(random.chance(20));
        }
        assert!((1_800..2_200).contains(&heads), "{heads}");
    }
}
