//! Who waits for an answer, and where the answers gather.

use super::queue::Nanos;
use dengine_raft::replica::{Caller, Env, RequestError, Written};
use dengine_types::Term;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// A client, with the number of its attempt.
    Client(u64, u64),
    /// Whoever runs the cluster, with the number of its request.
    Operator(u64),
    /// Nobody listens.
    Nobody,
}

/// What a replica or an applier answered.
#[derive(Debug)]
pub(super) enum Answered {
    Written(Result<Written, RequestError>),
    MayRead(Result<(), RequestError>),
    Leads,
}

/// Collects the answers that a part of a member gives while it works.
#[derive(Clone, Debug, Default)]
pub(super) struct Mailbox {
    answers: Rc<RefCell<Vec<(Asker, Answered)>>>,
    now: Rc<Cell<Nanos>>,
}

impl Mailbox {
    /// A caller that waits until `deadline`.
    pub(super) fn ticket(&self, asker: Asker, deadline: Nanos) -> Ticket {
        Ticket {
            asker,
            deadline,
            mailbox: self.clone(),
        }
    }

    pub(super) fn set_time(&self, now: Nanos) {
        self.now.set(now);
    }

    pub(super) fn take(&self) -> Vec<(Asker, Answered)> {
        self.answers.take()
    }
}

/// One caller.
#[derive(Debug)]
pub(super) struct Ticket {
    asker: Asker,
    deadline: Nanos,
    mailbox: Mailbox,
}

impl Ticket {
    fn put(self, answered: Answered) {
        self.mailbox
            .answers
            .borrow_mut()
            .push((self.asker, answered));
    }

    fn is_late(&self) -> bool {
        self.mailbox.now.get() > self.deadline
    }
}

impl Caller<Written> for Ticket {
    fn is_gone(&self) -> bool {
        self.is_late()
    }

    fn answer(self, answer: Result<Written, RequestError>) {
        self.put(Answered::Written(answer));
    }
}

impl Caller<()> for Ticket {
    fn is_gone(&self) -> bool {
        self.is_late()
    }

    fn answer(self, answer: Result<(), RequestError>) {
        self.put(Answered::MayRead(answer));
    }
}

impl Caller<Term> for Ticket {
    fn is_gone(&self) -> bool {
        self.is_late()
    }

    fn answer(self, _: Result<Term, RequestError>) {
        self.put(Answered::Leads);
    }
}

/// The surroundings of a simulated replica.
#[derive(Debug)]
pub(super) struct SimEnv;

impl Env for SimEnv {
    type Write = Ticket;
    type Read = Ticket;
    type Transfer = Ticket;
}
