//! Who waits for an answer, as the surroundings of a replica represent them.

use super::error::RequestError;
use dengine_kv::Outcome;
use dengine_types::Term;

/// What a write came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The term of the leader that ordered it.
    pub term: Term,
    /// The state machine's answer.
    pub outcome: Outcome,
    /// Keys that its ranges visited, or KiB of them if these are more: for so long everything behind it waited.
    pub visited: usize,
}

/// Waits for one answer.
pub trait Caller<T> {
    /// Whether nobody waits any more; an answer would be lost, and changes nothing.
    fn is_gone(&self) -> bool;
    /// Gives the answer.
    fn answer(self, answer: Result<T, RequestError>);
}

/// The types of callers: channels in the server, records of a history in the simulator.
pub trait Env: 'static {
    /// Waits for a write or a membership change.
    type Write: Caller<Written>;
    /// Waits until it may read.
    type Read: Caller<()>;
    /// Waits for the term of another leader.
    type Transfer: Caller<Term>;
}
