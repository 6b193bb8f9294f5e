//! The one source of chance. Equal seeds give equal draws, on every machine.

/// A generator (xoshiro256++, Blackman and Vigna 2019), seeded through SplitMix64.
#[derive(Clone, Debug)]
pub(super) struct Random {
    state: [u64; 4],
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        let mut z = seed;
        let state = std::array::from_fn(|_| {
            z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        });
        Self { state }
    }

    /// A generator of its own for one part of the simulation, so that what one part draws does not
    /// change what another gets.
    pub(super) fn fork(&mut self) -> Self {
        Self::new(self.next())
    }

    pub(super) fn next(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// Below `bound`, which is not 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        // The bias is far below what any seed could show.
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// From `low` on, before `high`.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low)
    }

    /// True so many times in a million.
    pub(super) fn chance(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.below(1_000_000) < u64::from(per_million)
    }

    pub(super) fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let count = items.len() as u64;
        (count > 0).then(|| &items[self.below(count) as usize])
    }

    /// Around `mean`: half to twice of it mostly, sometimes far more.
    pub(super) fn spread(&mut self, mean: u64) -> u64 {
        let scaled = |by: u64| (mean / 1000).saturating_mul(by);
        match self.below(100) {
            0 => scaled(self.between(3_000, 10_000)),
            1..=9 => scaled(self.between(1_500, 3_000)),
            _ => scaled(self.between(500, 1_500)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn equal_seeds_draw_equally_and_others_differ() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..8).map(|_| random.next()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn draws_stay_within_their_bounds() {
        let mut random = Random::new(7);
        for _ in 0..10_000 {
            assert!(random.below(3) < 3);
            assert!((5..9).contains(&random.between(5, 9)));
            assert!(!random.chance(0));
            assert!(random.chance(1_000_000));
        }
    }
}
