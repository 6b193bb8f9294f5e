//! Linearizable reads: this member's rounds, and those that peers ask of it when it leads.

use super::Consensus;
use crate::consensus::event::{Action, ReadToken, Refusal};
use crate::consensus::log_view::LogRead;
use raft::{StateRole, eraftpb};

impl<L: LogRead> Consensus<L> {
    pub(super) fn on_read(&mut self, token: ReadToken) {
        if !self.reads.push(token, self.tick) {
            self.actions.push(Action::ReadRefused {
                tokens: vec![token],
                refusal: Refusal::TooManyReads,
            });
        }
    }

    /// A leader cannot confirm a read before it committed an entry of its term (Raft thesis §6.4), and
    /// a follower cannot ask without a leader: until then reads wait here.
    pub(super) fn start_read_round(&mut self) {
        self.start_early_reads();
        let raft = &self.node.raft;
        let can_ask = match raft.state {
            StateRole::Leader => raft.commit_to_current_term(),
            StateRole::Follower => raft.leader_id != raft::INVALID_ID,
            StateRole::PreCandidate | StateRole::Candidate => false,
        };
        if can_ask && let Some(context) = self.reads.start_round(self.tick) {
            self.node.read_index(context.to_vec());
        }
    }

    fn start_early_reads(&mut self) {
        if self.node.raft.state != StateRole::Leader {
            self.early_reads.clear();
        } else if self.node.raft.commit_to_current_term() {
            for message in std::mem::take(&mut self.early_reads).into_values() {
                let _ = self.node.raft.step(message);
            }
        }
    }

    /// The crate loses a peer's round that comes before the term's first commit, and forwards one that
    /// comes to a follower under a false sender. So here the first waits, and the second is dropped: its
    /// sender will learn of another leader and ask that one.
    pub(super) fn on_peer_read(&mut self, message: eraftpb::Message) {
        let raft = &mut self.node.raft;
        if raft.state != StateRole::Leader || raft.prs().get(message.from).is_none() {
            return;
        }
        if raft.commit_to_current_term() {
            let _ = raft.step(message);
        } else {
            self.early_reads.insert(message.from, message);
        }
    }
}
