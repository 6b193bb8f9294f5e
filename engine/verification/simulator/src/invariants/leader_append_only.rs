//! Leader append-only: a leader never overwrites or deletes entries in its log; it only appends
//! (§3.5).

use dengine_raft::consensus::Role;

use super::{Invariant, Seen};

pub(super) struct LeaderAppendOnly;

impl Invariant for LeaderAppendOnly {
    fn name(&self) -> &'static str {
        "leader append-only"
    }

    fn see(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let Seen::Appends {
            member,
            state,
            log,
            entries,
        } = seen
        else {
            return Ok(());
        };
        let Some(first) = entries.first().filter(|first| first.term == state.term) else {
            return Ok(());
        };
        if state.role == Role::Leader && first.index != log.last().index.next() {
            return Err(format!(
                "member {member}, which leads term {}, writes entry {} although its log ends at {}",
                state.term,
                first.index,
                log.last().index
            ));
        }
        Ok(())
    }
}
