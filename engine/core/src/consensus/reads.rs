//! Linearizable reads by ReadIndex (Raft thesis §6.4): one round serves every read that waits.
//!
//! At most one round is out. Reads that arrive meanwhile wait for the next one: the leader's commit
//! index was noted when the round began, and says nothing of writes acknowledged after that.

use super::event::ReadToken;
use std::collections::VecDeque;

/// Names one round. The crate matches confirmations by these bytes alone, so none is ever reused:
/// member, boot and count are part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RoundContext(Vec<u8>);

impl RoundContext {
    fn new(member: u64, boot_nonce: u64, count: u64) -> Self {
        Self([member, boot_nonce, count].map(u64::to_be_bytes).concat())
    }

    pub(super) fn to_vec(&self) -> Vec<u8> {
        self.0.clone()
    }
}

struct Round {
    context: RoundContext,
    tokens: Vec<ReadToken>,
    started_tick: u64,
}

pub(super) struct Reads {
    member: u64,
    boot_nonce: u64,
    count: u64,
    waiting_max: usize,
    /// Each with the tick at which it began to wait.
    waiting: VecDeque<(u64, ReadToken)>,
    round: Option<Round>,
}

impl Reads {
    pub(super) fn new(member: u64, boot_nonce: u64, waiting_max: usize) -> Self {
        Self {
            member,
            boot_nonce,
            count: 0,
            waiting_max,
            waiting: VecDeque::new(),
            round: None,
        }
    }

    /// Returns whether there was room.
    pub(super) fn push(&mut self, token: ReadToken, tick: u64) -> bool {
        let room = self.waiting.len() < self.waiting_max;
        if room {
            self.waiting.push_back((tick, token));
        }
        room
    }

    /// Begins a round for every read that waits, unless one is out.
    pub(super) fn start_round(&mut self, tick: u64) -> Option<RoundContext> {
        if self.round.is_some() || self.waiting.is_empty() {
            return None;
        }
        self.count += 1;
        let context = RoundContext::new(self.member, self.boot_nonce, self.count);
        self.round = Some(Round {
            context: context.clone(),
            tokens: self.waiting.drain(..).map(|(_, token)| token).collect(),
            started_tick: tick,
        });
        Some(context)
    }

    /// The reads that the round of this context confirms; none if that round was given up.
    pub(super) fn confirm(&mut self, context: &[u8]) -> Vec<ReadToken> {
        match self.round.take_if(|round| round.context.0 == context) {
            Some(round) => round.tokens,
            None => Vec::new(),
        }
    }

    /// Gives up a round older than `round_ticks`: its messages may have been lost, or the leader had
    /// not committed in its term yet. Its reads go back to the front of the queue.
    pub(super) fn retry(&mut self, tick: u64, round_ticks: u64) {
        if let Some(round) = self
            .round
            .take_if(|round| tick - round.started_tick >= round_ticks)
        {
            for token in round.tokens.into_iter().rev() {
                self.waiting.push_front((round.started_tick, token));
            }
        }
    }

    /// The reads that have waited for `timeout_ticks`.
    pub(super) fn expire(&mut self, tick: u64, timeout_ticks: u64) -> Vec<ReadToken> {
        let mut expired = Vec::new();
        while self
            .waiting
            .front()
            .is_some_and(|(since, _)| tick - since >= timeout_ticks)
        {
            let (_, token) = self
                .waiting
                .pop_front()
                .expect("the front was just looked at");
            expired.push(token);
        }
        expired
    }
}
