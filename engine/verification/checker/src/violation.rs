//! What a checker reports when a guarantee was broken.

use std::fmt;

use super::history::Operation;

/// The guarantee that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// An answer does not belong to its call: the history is wrong, not the engine.
    Malformed,
    /// Each change takes a revision of its own.
    RevisionTakenTwice,
    /// Real time: a call that begins after an answer comes after it in the order of revisions.
    RealTime,
    /// A pair that was seen was written, by that revision.
    NeverWritten,
    /// What is seen at a revision is what the writes up to it left.
    WrongAtRevision,
    /// Everything that was seen of one revision of a key is the same.
    SeenDifferently,
    /// A session never goes back.
    Session,
    /// A compare decides by the state before its revision.
    Compare,
    /// Each call is applied at most once, and nothing else is.
    UnexplainedRevision,
    /// There is an order of the operations that explains every answer.
    Linearizable,
}

/// A broken guarantee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    /// How it shows.
    pub message: String,
    /// The operations that show it.
    pub operations: Vec<Operation>,
}

impl Violation {
    pub(super) fn new<'a>(
        rule: Rule,
        message: impl Into<String>,
        operations: impl IntoIterator<Item = &'a Operation>,
    ) -> Self {
        Self {
            rule,
            message: message.into(),
            operations: operations.into_iter().cloned().collect(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.message)?;
        for operation in &self.operations {
            let end = operation.completed.map(|at| at.order);
            write!(
                f,
                "\n  client {} at member {}, {}..{}: {:?} -> {:?}",
                operation.client,
                operation.member,
                operation.invoked.order,
                end.map_or_else(|| "never".to_owned(), |end| end.to_string()),
                operation.call,
                operation.answer,
            )?;
        }
        Ok(())
    }
}

impl std::error::Error for Violation {}
