//! Who waits for an answer, and where the answers gather.

use std::collections::BTreeMap;

use dengine_raft::replica::RequestError;
use dengine_raft::{Confirm, Input, LeaseAnswer, LeaseAsk, Successor, Token, Write, Written};
use dengine_types::LeaseId;

use super::queue::Nanos;

/// Who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// A client, with the number of its attempt.
    Client(u64, u64),
    /// Whoever runs the cluster, with the number of its request.
    Operator(u64),
    /// A holder of leases, with the number of its request.
    Holder(u64, u64),
    /// Nobody listens.
    Nobody,
}

/// What a member is asked for.
#[derive(Debug)]
pub(super) enum Request {
    Write(Write),
    Read(Confirm),
    Lease(LeaseId, LeaseAsk),
    Transfer(Successor),
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Answered {
    Written(Result<Written, RequestError>),
    MayRead(Result<(), RequestError>),
    Lease(Result<LeaseAnswer, RequestError>),
    Leads,
}

/// One caller, who waits until `deadline`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket {
    pub(super) asker: Asker,
    pub(super) deadline: Nanos,
}

/// For what a caller waits.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Write,
    Read,
    Lease,
    Transfer,
}

/// Those who wait for one process, and the answers that it has given and nobody has taken. Who gave
/// up stays until its answer comes, which may then come late.
#[derive(Debug, Default)]
pub(super) struct Callers {
    waiting: BTreeMap<Token, (Kind, Ticket)>,
    answers: Vec<(Asker, Answered)>,
}

impl Callers {
    /// Somebody waits from now on. Returns what the replica is told.
    pub(super) fn ask(&mut self, token: Token, request: Request, ticket: Ticket) -> Input {
        let (kind, input) = match request {
            Request::Write(write) => (Kind::Write, Input::Write { token, write }),
            Request::Read(confirm) => (Kind::Read, Input::Read { token, confirm }),
            Request::Lease(lease, ask) => (Kind::Lease, Input::Lease { token, lease, ask }),
            Request::Transfer(to) => (Kind::Transfer, Input::Transfer { token, to }),
        };
        self.waiting.insert(token, (kind, ticket));
        input
    }

    pub(super) fn is_gone(&self, token: Token, now: Nanos) -> bool {
        let waits = self.waiting.get(&token);
        waits.is_none_or(|(_, ticket)| now > ticket.deadline)
    }

    pub(super) fn written(&mut self, token: Token, written: Written) {
        self.answer(token, |_| Answered::Written(Ok(written)));
    }

    pub(super) fn may_read(&mut self, token: Token) {
        self.answer(token, |_| Answered::MayRead(Ok(())));
    }

    pub(super) fn lease(&mut self, token: Token, answer: LeaseAnswer) {
        self.answer(token, |_| Answered::Lease(Ok(answer)));
    }

    pub(super) fn transferred(&mut self, token: Token) {
        self.answer(token, |_| Answered::Leads);
    }

    pub(super) fn refuse(&mut self, token: Token, error: RequestError) {
        self.answer(token, |kind| match kind {
            Kind::Write => Answered::Written(Err(error)),
            Kind::Read => Answered::MayRead(Err(error)),
            Kind::Lease => Answered::Lease(Err(error)),
            Kind::Transfer => Answered::Leads,
        });
    }

    /// Nobody knows what becomes of it.
    pub(super) fn forget(&mut self, token: Token) {
        self.waiting.remove(&token);
    }

    pub(super) fn take_answers(&mut self) -> Vec<(Asker, Answered)> {
        std::mem::take(&mut self.answers)
    }

    fn answer(&mut self, token: Token, answered: impl FnOnce(Kind) -> Answered) {
        if let Some((kind, ticket)) = self.waiting.remove(&token) {
            self.answers.push((ticket.asker, answered(kind)));
        }
    }
}
