//! The callers that wait for the replica, by the tokens under which it knows them.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use dengine_raft::{ApplyJob, LeaseAnswer, Token, Written};
use dengine_types::Term;

use super::inbox::Reply;
use super::syncs::Syncs;
use super::waiters::Awaited;
use crate::error::RequestError;

/// Those who wait for the replica. Owned by its thread.
#[derive(Default)]
pub(super) struct Callers {
    writes: HashMap<Token, Awaited>,
    reads: HashMap<Token, Reply<()>>,
    leases: HashMap<Token, Reply<LeaseAnswer>>,
    transfers: HashMap<Token, Reply<Term>>,
}

impl Callers {
    pub(super) fn write(&mut self, token: Token, caller: Awaited) {
        self.writes.insert(token, caller);
    }

    pub(super) fn read(&mut self, token: Token, caller: Reply<()>) {
        self.reads.insert(token, caller);
    }

    pub(super) fn ask_lease(&mut self, token: Token, caller: Reply<LeaseAnswer>) {
        self.leases.insert(token, caller);
    }

    pub(super) fn transfer(&mut self, token: Token, caller: Reply<Term>) {
        self.transfers.insert(token, caller);
    }

    /// Whether its caller waits no more.
    pub(super) fn is_gone(&self, token: Token) -> bool {
        if let Some(write) = self.writes.get(&token) {
            return write.is_gone();
        }
        if let Some(read) = self.reads.get(&token) {
            return read.is_gone();
        }
        match self.leases.get(&token) {
            Some(lease) => lease.is_gone(),
            None => !self.transfers.contains_key(&token),
        }
    }

    /// Forgets those who are gone.
    pub(super) fn prune(&mut self) {
        self.writes.retain(|_, write| !write.is_gone());
        self.reads.retain(|_, read| !read.is_gone());
        self.leases.retain(|_, lease| !lease.is_gone());
        self.transfers.retain(|_, transfer| !transfer.is_gone());
    }

    /// Those who wait for what is committed, for the applier to answer; `None` is gone by now.
    pub(super) fn of(&mut self, job: &ApplyJob) -> Vec<(Token, Option<Awaited>)> {
        let tokens = job.awaited.iter().map(|(_, token)| *token);
        tokens.map(|it| (it, self.writes.remove(&it))).collect()
    }

    pub(super) fn may_read(&mut self, tokens: &[Token]) {
        for caller in tokens.iter().filter_map(|token| self.reads.remove(token)) {
            caller.answer(Ok(()));
        }
    }

    pub(super) fn lease(&mut self, token: Token, answer: LeaseAnswer) {
        if let Some(caller) = self.leases.remove(&token) {
            caller.answer(Ok(answer));
        }
    }

    pub(super) fn transferred(&mut self, token: Token, term: Term) {
        if let Some(caller) = self.transfers.remove(&token) {
            caller.answer(Ok(term));
        }
    }

    pub(super) fn refuse(&mut self, token: Token, error: RequestError) {
        if let Some(caller) = self.writes.remove(&token) {
            caller.answer(Err(error));
        } else if let Some(caller) = self.reads.remove(&token) {
            caller.answer(Err(error));
        } else if let Some(caller) = self.leases.remove(&token) {
            caller.answer(Err(error));
        } else if let Some(caller) = self.transfers.remove(&token) {
            caller.answer(Err(error));
        }
    }

    /// What becomes of this write is unknown.
    pub(super) fn forget(&mut self, token: Token) {
        self.writes.remove(&token);
    }
}

/// Those who wait for what was handed to the applier, in the order of its entries. Owned by its
/// thread.
#[derive(Default)]
pub(super) struct Committed(VecDeque<(Token, Option<Awaited>)>);

impl Committed {
    pub(super) fn add(&mut self, callers: Vec<(Token, Option<Awaited>)>) {
        self.0.extend(callers);
    }

    /// Answers those whose entries are applied, which began at `since`. All of these were added, in
    /// the same order.
    pub(super) fn answer(&mut self, answers: Vec<(Token, Written)>, since: Instant, syncs: &Syncs) {
        for (token, written) in answers {
            // An entry that was passed over gets no answer, and must not hold up those behind it.
            while let Some((first, caller)) = self.0.pop_front() {
                if first == token {
                    if let Some(caller) = caller {
                        if let Some(trace) = caller.trace() {
                            trace.applied(since, |batch| syncs.of(batch));
                        }
                        caller.answer(Ok(written));
                    }
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use dengine_kv::Outcome;
    use dengine_raft::replica::WriteAnswers;
    use dengine_types::{Index, Revision};

    use super::*;

    fn written(term: u64) -> Written {
        let outcome = Outcome::Put {
            revision: Revision(term),
            prev: None,
        };
        Written {
            term: Term(term),
            outcome,
            visited: 0,
        }
    }

    /// The second caller is gone when its write is committed, and the first entry is passed over.
    #[test]
    fn each_caller_gets_its_own_answer_whoever_is_gone_before_it() {
        let (replies, answers) = WriteAnswers::of(4, None);
        let mut callers = Callers::default();
        for (token, reply) in (1..).map(Token).zip(replies) {
            callers.write(token, reply.into());
        }
        callers.forget(Token(2));
        let job = ApplyJob {
            entries: Vec::new(),
            awaited: (1..=4).map(|it| (Index(it), Token(it))).collect(),
        };
        let mut committed = Committed::default();
        committed.add(callers.of(&job));
        let (now, syncs) = (Instant::now(), Syncs::default());
        let answers_of = |tokens: std::ops::RangeInclusive<u64>| {
            tokens.map(|it| (Token(it), written(it))).collect()
        };
        committed.answer(answers_of(2..=3), now, &syncs);
        committed.answer(answers_of(4..=4), now, &syncs);
        let (answers, _) = answers.take(RequestError::lost);
        let terms: Vec<_> = answers
            .into_iter()
            .map(|it| it.ok().map(|it| it.term.0))
            .collect();
        assert_eq!(terms, [None, None, Some(3), Some(4)]);
    }

    #[test]
    fn whoever_has_no_entry_yet_is_answered_by_no_other_and_counts_as_gone_afterwards() {
        let (replies, answers) = WriteAnswers::of(2, None);
        let mut callers = Callers::default();
        for (token, reply) in (1..).map(Token).zip(replies) {
            callers.write(token, reply.into());
        }
        callers.refuse(Token(1), RequestError::lost());
        assert!(callers.is_gone(Token(1)) && !callers.is_gone(Token(2)));
        drop(answers);
        assert!(callers.is_gone(Token(2)));
        callers.prune();
        assert!(callers.writes.is_empty());
    }
}
