//! A lease is exclusive: as long as a leader may answer reads by it, nobody else leads a later term
//! (§6.4.1).

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
            Seen::Leased {
                holder,
                newer: Some(newer),
            } => Err(format!(
                "{holder} gets a lease while {newer} leads a later term"
            )),
            _ => Ok(()),
        }
    }
}
