//! Checks what clients saw: histories of calls and answers, and two checkers for them.
//!
//! - [`history`]: the input; written as JSON Lines when something is wrong. [`Recorder`] makes it.
//! - [`revisions`]: everything that revisions alone prove, over all keys at once and for reads of
//!   every level: real-time order and the order of revisions agree, and every pair that was seen at
//!   a revision is what the writes up to there make of it. Near linear, never undecided, takes
//!   every batch apart by keys.
//! - [`linearizable`]: searches an order of all strong operations that explains every answer (Wing
//!   & Gong 1993; the cache of visited states is Lowe's, 2017), for each set of keys that batches
//!   connect. Complete for operations of unknown outcome; gives up, and says so, after a bounded
//!   number of steps.
//!
//! Neither knows anything of the engine but its guarantees, so that the simulator, `make torture`
//! and tests of single rules use the same ones. What neither can see: writes of other clients,
//! unless [`History::alone_since`] says that there are none.

pub mod history;
pub mod linearizable;
mod model;
mod prepare;
mod recorder;
pub mod revisions;
#[cfg(test)]
mod tests;
mod violation;

pub use history::{
    Answer, BatchStep, Call, Expected, History, Key, Level, Moment, Operation, Reply, Seen, Value,
};
pub use recorder::{CallId, Recorder};
pub use violation::{Rule, Violation};

/// What was checked, for a summary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Operations with an answer.
    pub answered: usize,
    /// Operations whose outcome the client never learned.
    pub unknown: usize,
    /// Sets of keys for which the search found no answer within its bound.
    pub undecided: usize,
}

/// Runs both checkers; `steps` bounds the search for each set of keys
/// ([`linearizable::DEFAULT_STEPS`] decides all but hopeless cases).
///
/// # Errors
/// The first guarantee that the history breaks.
pub fn check(history: &History, steps: usize) -> Result<Summary, Violation> {
    revisions::check(history)?;
    let undecided = linearizable::check(history, steps)?.undecided;
    let unknown = (history.operations.iter())
        .filter(|operation| operation.answer == Answer::Unknown)
        .count();
    Ok(Summary {
        answered: history.operations.len() - unknown,
        unknown,
        undecided,
    })
}
