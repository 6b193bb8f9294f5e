//! Who waits for what the replica was asked. The replica knows them by tokens.

use super::inbox::Reply;
use super::waiters::Awaited;
use crate::error::RequestError;
use dengine_raft::{ApplyJob, Token, Written};
use dengine_types::Term;
use std::collections::{HashMap, VecDeque};

/// Those who wait for the replica. Owned by its thread.
#[derive(Default)]
pub(super) struct Callers {
    writes: HashMap<Token, Awaited>,
    reads: HashMap<Token, Reply<()>>,
    transfers: HashMap<Token, Reply<Term>>,
}

impl Callers {
    pub(super) fn write(&mut self, token: Token, caller: Awaited) {
        self.writes.insert(token, caller);
    }

    pub(super) fn read(&mut self, token: Token, caller: Reply<()>) {
        self.reads.insert(token, caller);
    }

    pub(super) fn transfer(&mut self, token: Token, caller: Reply<Term>) {
        self.transfers.insert(token, caller);
    }

    /// Whether nobody waits for it any more.
    pub(super) fn is_gone(&self, token: Token) -> bool {
        match (self.writes.get(&token), self.reads.get(&token)) {
            (Some(write), _) => write.is_gone(),
            (None, Some(read)) => read.is_gone(),
            (None, None) => !self.transfers.contains_key(&token),
        }
    }

    /// Forgets those who are gone.
    pub(super) fn prune(&mut self) {
        self.writes.retain(|_, write| !write.is_gone());
        self.reads.retain(|_, read| !read.is_gone());
        self.transfers.retain(|_, transfer| !transfer.is_gone());
    }

    /// Those who wait for what is committed: the applier answers them.
    pub(super) fn of(&mut self, job: &ApplyJob) -> Vec<(Token, Awaited)> {
        let tokens = job.awaited.iter().map(|(_, token)| *token);
        let callers = tokens.filter_map(|token| Some((token, self.writes.remove(&token)?)));
        callers.collect()
    }

    pub(super) fn may_read(&mut self, tokens: &[Token]) {
        for caller in tokens.iter().filter_map(|token| self.reads.remove(token)) {
            caller.answer(Ok(()));
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
        } else if let Some(caller) = self.transfers.remove(&token) {
            caller.answer(Err(error));
        }
    }

    /// Nobody knows what becomes of this write.
    pub(super) fn forget(&mut self, token: Token) {
        self.writes.remove(&token);
    }
}

/// Those who wait for what was handed to the applier, in the order of its entries. Owned by its thread.
#[derive(Default)]
pub(super) struct Committed(VecDeque<(Token, Awaited)>);

impl Committed {
    pub(super) fn add(&mut self, callers: Vec<(Token, Awaited)>) {
        self.0.extend(callers);
    }

    /// Answers those whose entries are applied.
    pub(super) fn answer(&mut self, answers: Vec<(Token, Written)>) {
        for (token, written) in answers {
            // Some had nobody who waits.
            if self.0.front().is_some_and(|(first, _)| *first == token)
                && let Some((_, caller)) = self.0.pop_front()
            {
                caller.answer(Ok(written));
            }
        }
    }
}
