//! Reads that wait: for a quorum's word, then for the state machine.

use super::env::Caller;
use super::{Env, Replica};
use crate::consensus::{Event, LogRead, ReadToken, Refusal};
use crate::planted::planted;
use crate::types::Index;
use std::collections::{BTreeMap, HashMap};

pub(super) struct Reads<C> {
    /// Asked of consensus.
    asked: HashMap<ReadToken, C>,
    /// Those for which the lease will do, until the clock is read once more.
    lease: Vec<C>,
    /// Confirmed, and ahead of the state machine.
    confirmed: BTreeMap<Index, Vec<C>>,
}

impl<C> Default for Reads<C> {
    fn default() -> Self {
        Self {
            asked: HashMap::new(),
            lease: Vec::new(),
            confirmed: BTreeMap::new(),
        }
    }
}

impl<L: LogRead, E: Env> Replica<L, E> {
    pub(super) fn on_read(&mut self, caller: E::Read) {
        let token = self.read_token(caller);
        self.step(Event::Read(token));
    }

    pub(super) fn on_lease_read(&mut self, caller: E::Read) {
        self.reads.lease.push(caller);
    }

    /// Asks consensus for the reads that the lease may answer. The clock was observed after the last of
    /// them came in: the lease must hold at a moment within each of them.
    pub(super) fn ask_lease_reads(&mut self) {
        for caller in std::mem::take(&mut self.reads.lease) {
            let token = self.read_token(caller);
            self.step(Event::LeaseRead(token));
        }
    }

    /// Before the effects of this round are carried out: see [`LeaseView`](super::LeaseView).
    pub(super) fn publish_lease(&self) {
        let until = self.consensus.lease_until();
        let committed = self.consensus.commit_index();
        self.lease.publish(until, self.applied, committed);
    }

    fn read_token(&mut self, caller: E::Read) -> ReadToken {
        let token = ReadToken(self.token());
        self.reads.asked.insert(token, caller);
        token
    }

    pub(super) fn on_reads_confirmed(
        &mut self,
        tokens: &[ReadToken],
        index: Index,
        by_lease: bool,
    ) {
        self.counts.reads_confirmed += tokens.len() as u64;
        if by_lease {
            self.counts.lease_reads += tokens.len() as u64;
        } else {
            self.counts.read_rounds += 1;
        }
        let reads = &mut self.reads;
        let callers = tokens.iter().filter_map(|token| reads.asked.remove(token));
        if index <= self.applied || planted!(ReadBeforeApply) {
            callers.for_each(|caller| caller.answer(Ok(())));
        } else {
            let waiting = reads.confirmed.entry(index).or_default();
            waiting.extend(callers);
        }
    }

    pub(super) fn on_reads_refused(&mut self, tokens: &[ReadToken], refusal: Refusal) {
        for token in tokens {
            if let Some(caller) = self.reads.asked.remove(token) {
                let error = self.request_error(refusal);
                caller.answer(Err(error));
            }
        }
    }

    /// Answers what waited for the state machine to come this far.
    pub(super) fn answer_reads(&mut self) {
        let later = self.reads.confirmed.split_off(&self.applied.next());
        let now = std::mem::replace(&mut self.reads.confirmed, later);
        for caller in now.into_values().flatten() {
            caller.answer(Ok(()));
        }
    }

    pub(super) fn prune_reads(&mut self) {
        self.reads.confirmed.retain(|_, callers| {
            callers.retain(|caller| !caller.is_gone());
            !callers.is_empty()
        });
    }
}
