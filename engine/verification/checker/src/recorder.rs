//! Records a history while it happens.

use super::history::{Answer, Call, History, Moment, Operation};

/// Records calls and answers in the order of the calls to it. With several threads it belongs
/// behind a lock; a call is recorded before it is sent, an answer after it was received.
#[derive(Debug, Default)]
pub struct Recorder {
    history: History,
    order: u64,
}

/// Identifies a recorded call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the answer belongs to it"]
pub struct CallId(usize);

impl Recorder {
    /// Begins a history. For `alone_since` see [`History::alone_since`].
    #[must_use]
    pub fn new(alone_since: Option<u64>) -> Self {
        Self {
            history: History {
                operations: Vec::new(),
                alone_since,
            },
            order: 0,
        }
    }

    /// Records a call that is about to be sent. Until it is answered its outcome is unknown.
    pub fn call(&mut self, client: u64, call: Call, nanos: u64) -> CallId {
        let id = CallId(self.history.operations.len());
        let invoked = self.moment(nanos);
        self.history.operations.push(Operation {
            client,
            member: 0,
            call,
            invoked,
            completed: None,
            answer: Answer::Unknown,
        });
        id
    }

    /// Records an answer, from `member` if that is known.
    pub fn answer(&mut self, id: CallId, answer: Answer, member: u64, nanos: u64) {
        let completed = self.moment(nanos);
        let operation = &mut self.history.operations[id.0];
        operation.completed = Some(completed);
        operation.answer = answer;
        operation.member = member;
    }

    /// Operations so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.history.operations.len()
    }

    /// Whether nothing was called yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.history.operations.is_empty()
    }

    /// What happened so far.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// What happened.
    #[must_use]
    pub fn into_history(self) -> History {
        self.history
    }

    fn moment(&mut self, nanos: u64) -> Moment {
        self.order += 1;
        Moment {
            order: self.order,
            nanos,
        }
    }
}
