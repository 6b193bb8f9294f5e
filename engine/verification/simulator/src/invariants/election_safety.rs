//! Election safety: at most one leader can be elected in a given term (§3.4).

use std::collections::BTreeMap;

use dengine_raft::consensus::Role;
use dengine_types::{MemberId, Term};

use super::{Invariant, Seen};

#[derive(Default)]
pub(super) struct ElectionSafety {
    leaders: BTreeMap<Term, MemberId>,
}

impl Invariant for ElectionSafety {
    fn name(&self) -> &'static str {
        "election safety"
    }

    fn see(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let Seen::State { member, state, .. } = seen else {
            return Ok(());
        };
        if state.role != Role::Leader {
            return Ok(());
        }
        let first = *self.leaders.entry(state.term).or_insert(*member);
        if first == *member {
            Ok(())
        } else {
            Err(format!(
                "members {first} and {member} both lead term {}",
                state.term
            ))
        }
    }
}
