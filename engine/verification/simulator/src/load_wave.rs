//! How much clients write from time to time: load comes in waves. At the height of a wave every
//! other client writes and the rest reads, so that somebody is left to see what becomes of it: a
//! write to a leader that is cut off keeps its client busy.

use super::queue::Nanos;

/// What the clients do now. Between waves it is what the plan says.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LoadWave {
    low_until: Nanos,
    high_until: Nanos,
    /// Whether it is the clients of even numbers who write in a wave, and not the others.
    even: bool,
}

impl LoadWave {
    /// So many of a thousand operations of a writer write in a wave, if the plan does not say more.
    const HIGH: u64 = 600;

    /// Nobody writes before `low_until`, and then writers do much before `high_until`.
    pub(super) fn begin(&mut self, low_until: Nanos, high_until: Nanos) {
        *self = Self {
            low_until,
            high_until,
            even: false,
        };
    }

    /// Whoever read in the wave writes, and the others read, before `high_until`.
    pub(super) fn swap_sides(&mut self, high_until: Nanos) {
        *self = Self {
            low_until: 0,
            high_until,
            even: !self.even,
        };
    }

    /// How many of a thousand operations of this client write, if ordinarily `writes` do.
    pub(super) fn writes(self, now: Nanos, client: u64, writes: u64) -> u64 {
        if now < self.low_until {
            0
        } else if now < self.high_until {
            match client.is_multiple_of(2) == self.even {
                true => writes.max(Self::HIGH),
                false => 0,
            }
        } else {
            writes
        }
    }
}
