//! Every write that a client asked for took effect at most once, and nothing else took a revision.

use dengine_checker::Rule;

use super::{End, Invariant};

pub(super) struct AppliedOnce;

impl Invariant for AppliedOnce {
    fn name(&self) -> &'static str {
        "applied once"
    }

    fn end(&mut self, end: &End<'_>) -> Result<(), String> {
        end.judge(&[Rule::UnexplainedRevision, Rule::RevisionTakenTwice])
    }
}
