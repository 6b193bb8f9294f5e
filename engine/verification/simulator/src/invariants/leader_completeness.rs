//! Leader completeness: if a log entry is committed in a given term, then that entry will be
//! present in the logs of the leaders for all higher-numbered terms (§3.6.3).

use std::collections::BTreeMap;

use dengine_raft::consensus::Role;
use dengine_types::{Index, Term};

use super::{Invariant, Seen};

#[derive(Default)]
pub(super) struct LeaderCompleteness {
    /// Each entry that was seen to be committed: its term, and a term by which it was.
    committed: BTreeMap<Index, (Term, Term)>,
}

impl Invariant for LeaderCompleteness {
    fn name(&self) -> &'static str {
        "leader completeness"
    }

    fn see(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        match seen {
            Seen::Commits { term, entries, .. } => {
                for entry in *entries {
                    let known = self
                        .committed
                        .entry(entry.index)
                        .or_insert((entry.term, *term));
                    known.1 = known.1.min(*term);
                }
                Ok(())
            }
            Seen::LossAccepted { index, .. } => {
                self.committed.split_off(&index.next());
                Ok(())
            }
            Seen::State { member, state, log } if state.role == Role::Leader => {
                let first = log.base().index;
                for (index, (term, by)) in self.committed.range(first..).rev() {
                    if *by < state.term && log.term(*index) != Some(*term) {
                        return Err(format!(
                            "member {member} leads term {} without entry {index} of term {term}, \
                             which was committed in term {by} or earlier",
                            state.term
                        ));
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
