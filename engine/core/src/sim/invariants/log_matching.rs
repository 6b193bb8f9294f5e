//! Log matching: if two logs contain an entry with the same index and term, then the logs are identical in
//! all entries up through the given index (§3.5).
//!
//! Shown by induction: wherever an entry of this index and term is written, it says the same and stands
//! behind an entry of the same term.

use super::{Invariant, Seen, entry_hash};
use crate::types::{Index, Term};
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct LogMatching {
    /// The term of the entry before, and the hash of what it says.
    entries: BTreeMap<(Index, Term), (Term, u64)>,
}

impl Invariant for LogMatching {
    fn name(&self) -> &'static str {
        "log matching"
    }

    fn see(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let Seen::Appends {
            member,
            log,
            entries,
            ..
        } = seen
        else {
            return Ok(());
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
        for entry in *entries {
            let this = (before, entry_hash(entry));
            let known = *self
                .entries
                .entry((entry.index, entry.term))
                .or_insert(this);
            if known != this {
                return Err(format!(
                    "member {member} writes another entry {} of term {} than was written before, or \
                     behind another one",
                    entry.index, entry.term
                ));
            }
            before = entry.term;
        }
        Ok(())
    }
}
