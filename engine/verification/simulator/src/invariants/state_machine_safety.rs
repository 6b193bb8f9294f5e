//! State machine safety: if a server has applied a log entry at a given index to its state machine,
//! no other server will ever apply a different log entry for the same index (§3.6.3).

use std::collections::BTreeMap;

use dengine_types::{Index, MemberId, Term};

use super::{Invariant, Seen, entry_hash};

#[derive(Default)]
pub(super) struct StateMachineSafety {
    /// Term and hash of each entry, and who handed it to its state machine first.
    entries: BTreeMap<Index, (Term, u64, MemberId)>,
}

impl Invariant for StateMachineSafety {
    fn name(&self) -> &'static str {
        "state machine safety"
    }

    fn see(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        if let Seen::LossAccepted { index, .. } = seen {
            self.entries.split_off(&index.next());
        }
        let Seen::Commits {
            member, entries, ..
        } = seen
        else {
            return Ok(());
        };
        for entry in *entries {
            let this = (entry.term, entry_hash(entry), *member);
            let known = *self.entries.entry(entry.index).or_insert(this);
            if (known.0, known.1) != (this.0, this.1) {
                return Err(format!(
                    "member {member} applies entry {} of term {}, where member {} applied another \
                     one of term {}",
                    entry.index, entry.term, known.2, known.0
                ));
            }
        }
        Ok(())
    }
}
