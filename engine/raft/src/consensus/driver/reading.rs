//! Linearizable reads: this member's rounds, those that peers ask of it when it leads, and its
//! lease.

use dengine_planted::planted;
use dengine_types::{Index, Moment, Term};
use raft::{StateRole, eraftpb};

use super::Consensus;
use crate::consensus::log_view::LogRead;
use crate::consensus::reads::RoundContext;
use crate::consensus::types::Refusal;
use crate::input::Token;
use crate::output::Output;

/// A lease is kept up for so many election timeouts after somebody last asked for it.
const LEASE_KEPT_TIMEOUTS: u64 = 3;

impl<L: LogRead> Consensus<L> {
    pub(super) fn on_read(&mut self, token: Token) -> Result<(), Refusal> {
        match self.reads.push(token, self.tick) {
            true => Ok(()),
            false => Err(Refusal::TooManyReads),
        }
    }

    /// Confirms none of the reads that wait; returns them.
    pub fn give_up_reads(&mut self) -> Vec<Token> {
        self.reads.give_up()
    }

    /// Somebody would read by the lease: it is kept up for a while.
    pub fn want_lease(&mut self) {
        self.lease_wanted_until =
            self.tick + LEASE_KEPT_TIMEOUTS * self.config.election_ticks as u64;
    }

    /// Answers from the lease if it holds, else by a round, which renews it.
    pub(super) fn on_lease_read(&mut self, token: Token) -> Result<Option<Index>, Refusal> {
        self.want_lease();
        if self.holds_lease(self.now) {
            return Ok(Some(Index(self.node.raft.raft_log.committed)));
        }
        self.on_read(token).map(|()| None)
    }

    /// Whether this member leads, and no other can have been elected by `now`.
    #[must_use]
    pub fn holds_lease(&self, now: Moment) -> bool {
        self.lease_until().is_some_and(|until| now < until)
    }

    /// Until when no other can be elected, if this member leads and a quorum confirmed that.
    #[must_use]
    pub fn lease_until(&self) -> Option<Moment> {
        let raft = &self.node.raft;
        let leads = raft.state == StateRole::Leader && raft.commit_to_current_term();
        self.lease.until(Term(raft.term)).filter(|_| leads)
    }

    /// Keeps the lease of a leader that is asked for it, so that reads need not wait for a round of
    /// theirs.
    pub(super) fn renew_lease(&mut self) {
        let raft = &self.node.raft;
        let leads = raft.state == StateRole::Leader && raft.commit_to_current_term();
        let due = self.tick.is_multiple_of(self.config.heartbeat_ticks as u64);
        if leads
            && due
            && self.tick < self.lease_wanted_until
            && let Some(context) = self.reads.start(self.tick)
        {
            self.begin_round(context);
        }
    }

    fn begin_round(&mut self, context: RoundContext) {
        let raft = &self.node.raft;
        if raft.state == StateRole::Leader {
            self.lease
                .begin(Term(raft.term), context.number(), self.now);
            self.lease.count(raft.prs().conf().voters().ids().iter());
        }
        self.node.read_index(context.to_vec());
    }

    /// Hands out the reads of a confirmed round.
    pub(super) fn on_round_confirmed(&mut self, context: &[u8], index: Index) {
        let tokens = self.reads.confirm(context);
        if !tokens.is_empty() {
            self.outputs.push(Output::MayRead { tokens, index });
        }
    }

    /// A leader cannot confirm a read before it committed an entry of its term (Raft thesis §6.4),
    /// and a follower cannot ask without a leader: until then reads wait here.
    ///
    /// A leader's round is that of its peers too, as far as they asked before it began: each round
    /// of their own would take two messages more for each member.
    pub(super) fn start_read_round(&mut self) {
        let raft = &self.node.raft;
        if raft.state != StateRole::Leader {
            self.peer_reads.clear();
        }
        let can_ask = match raft.state {
            StateRole::Leader => raft.commit_to_current_term(),
            StateRole::Follower => raft.leader_id != raft::INVALID_ID,
            StateRole::PreCandidate | StateRole::Candidate => false,
        };
        if planted!(ReadBeforeFirstCommit) && raft.state == StateRole::Leader && !can_ask {
            let index = Index(raft.raft_log.committed);
            if let Some(context) = self.reads.start_round(self.tick) {
                self.on_round_confirmed(&context.to_vec(), index);
            }
            return;
        }
        if !can_ask {
            return;
        }
        let context = match self.peer_reads.is_empty() {
            true => self.reads.start_round(self.tick),
            false => self.reads.start(self.tick),
        };
        if let Some(context) = context {
            self.join_peer_reads();
            self.begin_round(context);
        }
    }

    /// The crate confirms with a round whatever was asked before it; but the only voter needs no
    /// round, and is told of no answer.
    fn join_peer_reads(&mut self) {
        let raft = &mut self.node.raft;
        let asked = std::mem::take(&mut self.peer_reads).into_values();
        if raft.prs().is_singleton() {
            return asked.for_each(|message| drop(raft.step(message)));
        }
        let raft = &mut raft.r;
        let (own, committed) = (raft.id, raft.raft_log.committed);
        for message in asked {
            raft.read_only.add_request(committed, message, own);
        }
    }

    /// The crate loses a peer's round that comes before the term's first commit, and forwards one
    /// that comes to a follower under a false sender. So here the first waits, as all do, and the
    /// second is dropped: its sender will learn of another leader and ask that one.
    pub(super) fn on_peer_read(&mut self, message: eraftpb::Message) {
        let raft = &mut self.node.raft;
        if raft.state != StateRole::Leader || raft.prs().get(message.from).is_none() {
            return;
        }
        if planted!(PeerReadJoinsEarlierRound) && raft.pending_read_count() > 0 {
            return self.join_earlier_round(message);
        }
        self.peer_reads.insert(message.from, message);
    }

    /// Only for `PeerReadJoinsEarlierRound`: whatever is before a round in the crate's queue is
    /// confirmed with it.
    fn join_earlier_round(&mut self, message: eraftpb::Message) {
        let raft = &mut self.node.raft.r;
        let (own, committed) = (raft.id, raft.raft_log.committed);
        let rounds = &mut raft.read_only;
        let last = rounds.pending_read_count();
        rounds.add_request(committed, message, own);
        if rounds.pending_read_count() > last {
            rounds.read_index_queue.swap(last - 1, last);
        }
    }
}
