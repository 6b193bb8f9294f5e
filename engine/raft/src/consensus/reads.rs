//! Linearizable reads by ReadIndex (Raft thesis §6.4): one round serves every read that waits.
//!
//! At most one round is out. Reads that arrive meanwhile wait for the next one: the leader's commit
//! index was noted when the round began, and says nothing of writes acknowledged after that.

use std::collections::VecDeque;

use dengine_planted::planted;

use crate::input::Token;

/// Names one round. The crate matches confirmations by these bytes alone, so none is ever reused:
/// member, boot and count are part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RoundContext {
    member: u64,
    boot_nonce: u64,
    count: u64,
}

impl RoundContext {
    pub(super) const BYTES: usize = 3 * size_of::<u64>();

    pub(super) fn to_vec(self) -> Vec<u8> {
        [self.member, self.boot_nonce, self.count]
            .map(u64::to_be_bytes)
            .concat()
    }

    /// Its number among those that its member began in this run.
    pub(super) fn number(self) -> u64 {
        self.count
    }

    /// Whether these bytes could be the context of a round that `member` began.
    pub(super) fn is_of(bytes: &[u8], member: u64) -> bool {
        bytes.len() == Self::BYTES && bytes.starts_with(&member.to_be_bytes())
    }
}

/// A read, and the tick at which it began to wait.
struct Waiting {
    since_tick: u64,
    token: Token,
}

struct Round {
    context: RoundContext,
    reads: VecDeque<Waiting>,
    started_tick: u64,
}

pub(super) struct Reads {
    member: u64,
    boot_nonce: u64,
    count: u64,
    waiting_max: usize,
    /// Oldest first.
    waiting: VecDeque<Waiting>,
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
    pub(super) fn push(&mut self, token: Token, tick: u64) -> bool {
        let in_round = self.round.as_ref().map_or(0, |round| round.reads.len());
        let room = self.waiting.len() + in_round < self.waiting_max;
        if room {
            let queue = match &mut self.round {
                Some(round) if planted!(ReadJoinsEarlierRound) => &mut round.reads,
                _ => &mut self.waiting,
            };
            queue.push_back(Waiting {
                since_tick: tick,
                token,
            });
        }
        room
    }

    /// Begins a round for every read that waits, unless one is out.
    pub(super) fn start_round(&mut self, tick: u64) -> Option<RoundContext> {
        if self.waiting.is_empty() {
            return None;
        }
        self.start(tick)
    }

    /// Begins a round, for the lease alone if no read waits, unless one is out: that one renews it
    /// as well.
    pub(super) fn start(&mut self, tick: u64) -> Option<RoundContext> {
        if self.round.is_some() {
            return None;
        }
        self.count += 1;
        let context = RoundContext {
            member: self.member,
            boot_nonce: self.boot_nonce,
            count: self.count,
        };
        self.round = Some(Round {
            context,
            reads: std::mem::take(&mut self.waiting),
            started_tick: tick,
        });
        Some(context)
    }

    /// The reads that the round of this context confirms; none if that round was given up.
    pub(super) fn confirm(&mut self, context: &[u8]) -> Vec<Token> {
        let round = self
            .round
            .take_if(|round| round.context.to_vec() == context);
        let reads = round.map_or_else(VecDeque::new, |round| round.reads);
        reads.into_iter().map(|read| read.token).collect()
    }

    /// The number of the round of this context, if it was begun here, in this run.
    pub(super) fn number_of(&self, context: &[u8]) -> Option<u64> {
        let (run, number) = context.split_last_chunk()?;
        let own = [self.member, self.boot_nonce].map(u64::to_be_bytes);
        (run == own.as_flattened()).then_some(u64::from_be_bytes(*number))
    }

    /// Gives up a round older than `round_ticks`, whose messages may have been lost. Its reads go
    /// back to the front of the queue.
    pub(super) fn retry(&mut self, tick: u64, round_ticks: u64) {
        if let Some(mut round) = self
            .round
            .take_if(|round| tick - round.started_tick >= round_ticks)
        {
            round.reads.append(&mut self.waiting);
            self.waiting = round.reads;
        }
    }

    /// All that wait, in the round that is out or for the next one.
    pub(super) fn give_up(&mut self) -> Vec<Token> {
        let round = self.round.as_mut().map(|round| &mut round.reads);
        let in_round = round.map(std::mem::take).unwrap_or_default();
        let waiting = std::mem::take(&mut self.waiting);
        let all = in_round.into_iter().chain(waiting);
        all.map(|read| read.token).collect()
    }

    /// The reads that have waited for `timeout_ticks`, however many rounds were tried for them.
    pub(super) fn expire(&mut self, tick: u64, timeout_ticks: u64) -> Vec<Token> {
        let expired = |read: &&Waiting| tick - read.since_tick >= timeout_ticks;
        let count = self.waiting.iter().take_while(expired).count();
        self.waiting.drain(..count).map(|read| read.token).collect()
    }
}
