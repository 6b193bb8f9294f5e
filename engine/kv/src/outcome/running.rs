//! At which revision each operation of a batch was done.

use dengine_types::Revision;

use super::BatchAnswer;

/// The store's revision while a batch was done: the one before it until its first change, and that
/// of the batch from then on. What changed something shows in the answers.
#[derive(Clone, Copy, Debug)]
pub struct RunningRevision {
    now: Revision,
    changed: Revision,
}

impl RunningRevision {
    /// Of a batch whose outcome has this revision and these answers.
    #[must_use]
    pub fn new(revision: Revision, answers: &[BatchAnswer]) -> Self {
        let before = match answers.iter().any(BatchAnswer::changes) {
            true => Revision(revision.0.saturating_sub(1)),
            false => revision,
        };
        Self {
            now: before,
            changed: revision,
        }
    }

    /// The revision once this operation was done. The answers have to be given in the order of the
    /// operations, each of a batch within the batch by itself.
    pub fn after(&mut self, answer: &BatchAnswer) -> Revision {
        if answer.changes() {
            self.now = self.changed;
        }
        self.now
    }
}

impl BatchAnswer {
    /// Whether the operation changed something.
    #[must_use]
    pub fn changes(&self) -> bool {
        match self {
            Self::Put { .. } => true,
            Self::Delete { deleted, .. } => *deleted > 0,
            Self::Get { .. } => false,
            Self::Batch { answers, .. } => answers.iter().any(Self::changes),
        }
    }
}
