//! A key outlives the time that its put gave it, by whichever clock is the fastest.

use std::collections::BTreeMap;

use dengine_types::Revision;

use super::{Invariant, Seen};
use crate::queue::{MILLI, Nanos};

/// In hundredths of the time to live: a clock that is as fast as any may be counts 100 while so
/// many pass.
const LEAST_PERCENT: u64 = 95;

#[derive(Default)]
pub(super) struct NeverExpiresEarly {
    /// When a member first was at this revision or a later one.
    reached: BTreeMap<Revision, Nanos>,
}

impl Invariant for NeverExpiresEarly {
    fn name(&self) -> &'static str {
        "never expires early"
    }

    fn see(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        match seen {
            Seen::Reaches { revision, now } => {
                let newest = self.reached.last_key_value().map(|(newest, _)| *newest);
                if newest < Some(*revision) {
                    self.reached.insert(*revision, *now);
                }
                Ok(())
            }
            Seen::Expires { key, put, now } => {
                let reached = self.reached.range(put.mod_revision..).next();
                let lived = reached.map_or(0, |(_, reached)| now - reached);
                if lived >= put.ttl_ms * MILLI / 100 * LEAST_PERCENT {
                    return Ok(());
                }
                Err(format!(
                    "{key}, put at revision {} for {} ms, is expired after {} ms",
                    put.mod_revision,
                    put.ttl_ms,
                    lived / MILLI
                ))
            }
            _ => Ok(()),
        }
    }
}
