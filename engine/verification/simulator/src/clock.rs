//! A member's own clock: it starts anywhere and runs a little too fast or too slow.

use std::time::Duration;

use dengine_types::Moment;

use super::queue::Nanos;
use super::random::Random;

const MILLION: u128 = 1_000_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    origin: u64,
    /// So many of its seconds pass in a million true ones.
    rate_per_million: u64,
}

impl Clock {
    /// Draws a clock such that no two differ in speed by more than `drift_percent_max`.
    pub(super) fn draw(random: &mut Random, drift_percent_max: u32) -> Self {
        // (1 + x) / (1 - x) <= 1 + d holds for x = d / (2 + d).
        let drift = u64::from(drift_percent_max) * 10_000;
        let most = drift * 1_000_000 / (2_000_000 + drift);
        // The ends are where bounds break.
        let rate_per_million = match random.below(4) {
            0 => 1_000_000 - most,
            1 => 1_000_000 + most,
            _ => 1_000_000 - most + random.below(2 * most + 1),
        };
        Self {
            // Far enough from zero to stand still for as long as any run lasts.
            origin: (1 << 50) + random.below(1 << 50),
            rate_per_million,
        }
    }

    /// What it shows.
    pub(super) fn read(self, now: Nanos) -> Moment {
        let passed = u128::from(now) * u128::from(self.rate_per_million) / MILLION;
        Moment(self.origin + passed as u64)
    }

    /// It shows so much less from now on. Whoever looks at it sleeps for as long.
    pub(super) fn stand_still(&mut self, duration: Duration) {
        let nanos = duration.as_nanos() * u128::from(self.rate_per_million) / MILLION;
        self.origin -= nanos as u64;
    }

    /// How much true time passes while it counts `duration`.
    pub(super) fn wait(self, duration: Duration) -> Nanos {
        (duration.as_nanos() * MILLION / u128::from(self.rate_per_million)) as u64
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Clock, Random};

    #[test]
    fn clocks_stay_within_the_drift_of_each_other() {
        let mut random = Random::new(3);
        let clocks: Vec<_> = (0..64).map(|_| Clock::draw(&mut random, 10)).collect();
        let rates = || clocks.iter().map(|clock| clock.rate_per_million);
        let (slowest, fastest) = (rates().min().unwrap(), rates().max().unwrap());
        assert!(fastest * 100 <= slowest * 110, "{slowest} {fastest}");
        assert!(fastest * 100 > slowest * 109, "the bound is tried");
    }

    #[test]
    fn waiting_is_the_inverse_of_reading() {
        let clock = Clock::draw(&mut Random::new(4), 10);
        let wait = clock.wait(Duration::from_secs(10));
        let shown = clock.read(wait).since(clock.read(0));
        let error = shown.abs_diff(Duration::from_secs(10));
        assert!(error < Duration::from_micros(1), "{shown:?}");
    }
}
