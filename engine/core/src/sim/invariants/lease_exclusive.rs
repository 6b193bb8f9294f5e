//! A lease is exclusive: as long as a leader may answer reads by it, nobody else is elected (§6.4.1).

use super::{Invariant, Seen};

pub(super) struct LeaseExclusive;

impl Invariant for LeaseExclusive {
    fn name(&self) -> &'static str {
        "lease exclusive"
    }

    fn see(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        match seen {
            Seen::Elected {
                member,
                term,
                lease_of: Some(other),
            } => Err(format!(
                "{member} is elected in term {term} while the lease of {other} lasts"
            )),
            _ => Ok(()),
        }
    }
}
