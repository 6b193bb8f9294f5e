//! Log matching: if two logs contain an entry with the same index and term, then the logs are
//! identical in all entries up through the given index (§3.5).
//!
//! Shown by induction: wherever an entry of this index and term is written, it says the same and
//! stands behind an entry of the same term. What a member wrote in a term that its disk has
//! forgotten, nobody else has: nothing leaves a member before the term is on its disk. A sole voter
//! leads, and writes, before that, and may lead that term again.

use std::collections::BTreeMap;

use dengine_types::{Entry, Index, MemberId, Term};

use super::{Invariant, Seen, entry_hash};

#[derive(Default)]
pub(super) struct LogMatching {
    entries: BTreeMap<(Index, Term), Written>,
}

struct Written {
    /// The term of the entry before.
    before: Term,
    /// Of what it says.
    hash: u64,
    by: MemberId,
    /// Others wrote it too.
    is_shared: bool,
}

impl Invariant for LogMatching {
    fn name(&self) -> &'static str {
        "log matching"
    }

    fn see(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let (member, log, entries) = match seen {
            Seen::Starts { member, term, .. } => {
                self.forget(*member, *term);
                return Ok(());
            }
            Seen::Appends {
                member,
                log,
                entries,
                ..
            } => (*member, log, *entries),
            _ => return Ok(()),
        };
        let Some(first) = entries.first() else {
            return Ok(());
        };
        let Some(mut before) = log.term(Index(first.index.0 - 1)) else {
            return Err(format!(
                "member {member} appends entry {} to a log that ends at {}",
                first.index,
                log.last().index
            ));
        };
        for entry in entries {
            self.write(member, before, entry)?;
            before = entry.term;
        }
        Ok(())
    }
}

impl LogMatching {
    fn write(&mut self, member: MemberId, before: Term, entry: &Entry) -> Result<(), String> {
        let this = (before, entry_hash(entry));
        let known = self.entries.entry((entry.index, entry.term));
        let known = known.or_insert(Written {
            before: this.0,
            hash: this.1,
            by: member,
            is_shared: false,
        });
        known.is_shared |= known.by != member;
        if (known.before, known.hash) == this {
            return Ok(());
        }
        Err(format!(
            "member {member} writes another entry {} of term {} than was written before, or behind \
             another one",
            entry.index, entry.term
        ))
    }

    /// What only this member wrote, in terms that it does not remember.
    fn forget(&mut self, member: MemberId, term: Term) {
        self.entries
            .retain(|(_, of), it| *of <= term || it.by != member || it.is_shared);
    }
}
