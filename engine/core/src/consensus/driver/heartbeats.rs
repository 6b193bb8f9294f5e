//! Heartbeats, which rounds of reads are too: what a follower promises by its answer, and what a leader makes of it.

use super::Consensus;
use crate::consensus::log_view::LogRead;
use crate::planted::planted;
use raft::{ProgressState, StateRole, eraftpb};

impl<L: LogRead> Consensus<L> {
    /// Whoever answers a leader votes for nobody else for an election timeout. The crate keeps to that only for as long
    /// as it knows the leader, and forgets it when any message tells of a later term; but the leader may have a
    /// lease by then that rests on the promise.
    pub(super) fn on_heartbeat(&mut self, message: eraftpb::Message) {
        let (from, term) = (message.from, message.term);
        let _ = self.node.step(message);
        let raft = &self.node.raft;
        let followed = raft.leader_id == from && raft.term == term;
        if followed && !planted!(RoundForgottenForLaterTerm) {
            let timeout = self.config.election_ticks as u64;
            self.votes_from = self.votes_from.max(self.tick + timeout);
        }
    }

    /// The crate takes each answer of a follower that lags for a reason to send it as much of the log as fits into a
    /// message, because to the crate heartbeats are rare. With rounds of reads there are thousands a second, and
    /// reading the log for all of them would keep a leader from everything else. So one answer in each heartbeat
    /// interval has that effect, and the others only count for their rounds.
    pub(super) fn on_heartbeat_response(&mut self, message: eraftpb::Message) {
        let from = message.from;
        let raft = &self.node.raft;
        let leads = raft.state == StateRole::Leader && raft.term == message.term;
        let last = raft.raft_log.last_index();
        let lags = |progress: &raft::Progress| progress.matched < last;
        if !leads || !raft.prs().get(from).is_some_and(lags) || self.may_send_again(from) {
            // The only error is that its sender was removed meanwhile; the same below.
            let _ = self.node.step(message);
            return;
        }
        // As if it did not lag: then the crate neither sends nor counts anything as lost.
        let Some(progress) = self.node.raft.mut_prs().get_mut(from) else {
            return;
        };
        let kept = (progress.state, progress.matched, progress.paused);
        (progress.state, progress.matched) = (ProgressState::Probe, last);
        let _ = self.node.step(message);
        if let Some(progress) = self.node.raft.mut_prs().get_mut(from) {
            (progress.state, progress.matched, progress.paused) = kept;
        }
    }

    fn may_send_again(&mut self, to: u64) -> bool {
        let interval = self.tick / self.config.heartbeat_ticks as u64;
        self.sent_again.insert(to, interval) != Some(interval)
    }
}
