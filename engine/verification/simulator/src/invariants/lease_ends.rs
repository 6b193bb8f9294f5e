//! Once the faults have ended and nobody keeps leases alive any more, all of them end, in about
//! their time to live.

use super::{Invariant, Seen};
use crate::queue::{Nanos, SECOND};

/// The longest time to live, an election, and what an end takes that got lost and is proposed
/// again.
const WITHIN: Nanos = 30 * SECOND;

#[derive(Default)]
pub(super) struct LeaseEnds {
    /// Since when nobody has kept any alive.
    since: Option<Nanos>,
}

impl Invariant for LeaseEnds {
    fn name(&self) -> &'static str {
        "lease ends"
    }

    fn see(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let Seen::Rests { now, leases } = seen else {
            return Ok(());
        };
        let since = *self.since.get_or_insert(*now);
        match leases {
            0 => Ok(()),
            _ if *now <= since + WITHIN => Ok(()),
            left => Err(format!("{left} leases that nobody keeps alive do not end")),
        }
    }
}
