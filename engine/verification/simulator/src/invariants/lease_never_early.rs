//! A lease that was granted, or kept alive, lasts for its whole time since it was asked for, by
//! whichever clock is the fastest, unless it is revoked.

use std::collections::{BTreeMap, BTreeSet};

use dengine_types::LeaseId;

use super::{Invariant, Seen};
use crate::queue::{MILLI, Nanos};

/// In hundredths of the time to live: a clock that is as fast as any may be counts 100 while so
/// many pass.
const LEAST_PERCENT: u64 = 95;

#[derive(Default)]
pub(super) struct LeaseNeverEarly {
    /// Until when each lasts, at least.
    promised: BTreeMap<LeaseId, Nanos>,
    /// When the first member found that it is over. An answer may come later.
    over: BTreeMap<LeaseId, Nanos>,
    revoked: BTreeSet<LeaseId>,
}

impl LeaseNeverEarly {
    fn check(&self, lease: LeaseId) -> Result<(), String> {
        let (promised, over) = (self.promised.get(&lease), self.over.get(&lease));
        match (promised, over) {
            (Some(promised), Some(over)) if over < promised && !self.revoked.contains(&lease) => {
                Err(format!(
                    "lease {lease} is over {} ms before it was promised to be",
                    (promised - over) / MILLI
                ))
            }
            _ => Ok(()),
        }
    }
}

impl Invariant for LeaseNeverEarly {
    fn name(&self) -> &'static str {
        "lease never early"
    }

    fn see(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let lease = match *seen {
            Seen::LeasePromised {
                lease,
                asked,
                ttl_ms,
            } => {
                let until = asked + ttl_ms * MILLI / 100 * LEAST_PERCENT;
                let promised = self.promised.entry(lease).or_default();
                *promised = until.max(*promised);
                lease
            }
            Seen::LeaseOver { lease, now } => {
                self.over.entry(lease).or_insert(now);
                lease
            }
            // It is over by the end of the question, perhaps not by its beginning.
            Seen::LeaseMissing { lease, asked } => {
                let promised = self.promised.get(&lease).copied().unwrap_or_default();
                if asked < promised && !self.over.contains_key(&lease) {
                    return Err(format!("lease {lease} is said to be over, and is not"));
                }
                lease
            }
            Seen::LeaseRevoked(lease) => {
                self.revoked.insert(lease);
                return Ok(());
            }
            _ => return Ok(()),
        };
        self.check(lease)
    }
}
