//! Heartbeats, which rounds of reads are too: what a leader tells by them of its log, what a
//! follower promises by its answer, and what the leader makes of that.

use std::time::Duration;

use dengine_planted::planted;
use dengine_types::{Index, Moment, Term};
use raft::{ProgressState, StateRole, eraftpb};

use super::Consensus;
use crate::consensus::log_view::LogRead;

/// What a heartbeat told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    term: Term,
    at: Moment,
    commit: Index,
}

impl<L: LogRead> Consensus<L> {
    /// A heartbeat's own commit index goes no further than what the follower is known to have. Of
    /// one that waits for a snapshot that stands still, so that it would not know how far behind it
    /// is. So a leader tells what is committed in a field that the crate has no use for there, and
    /// that is 0 in heartbeats of earlier versions. No decision of consensus rests on it.
    pub(super) fn tell_of_commit(&self, messages: &mut [eraftpb::Message]) {
        for message in messages.iter_mut().filter(|it| is_heartbeat(it)) {
            message.reject_hint = self.commit_index().0;
        }
    }

    /// What was committed in its leader's log when the leader told of it last, and when that was;
    /// now, if this member leads. A leader of an earlier version tells that nothing is.
    #[must_use]
    pub fn leader_commit(&self) -> Option<(Moment, Index)> {
        let raft = &self.node.raft;
        if raft.state == StateRole::Leader {
            return Some((self.now, self.commit_index()));
        }
        // A term has one leader.
        let follows = raft.leader_id != raft::INVALID_ID;
        let told = self.told.filter(|told| follows && told.term.0 == raft.term);
        told.map(|told| (told.at, told.commit))
    }

    /// A member that answers a leader votes for no other for an election timeout. The crate keeps
    /// to that only for as long as it knows the leader, and forgets it when any message tells of a
    /// later term; but the leader may have a lease by then that rests on the promise. How long that
    /// is goes with the answer, in a field that the crate has no use for there, and that is 0 in
    /// answers of earlier versions.
    pub(super) fn on_heartbeat(&mut self, message: eraftpb::Message) {
        let (from, term) = (message.from, message.term);
        let commit = Index(message.reject_hint);
        let _ = self.node.step(message);
        let raft = &self.node.raft;
        if raft.leader_id != from || raft.term != term {
            return;
        }
        self.told = Some(Told {
            term: Term(term),
            at: self.now,
            commit,
        });
        let raft = &mut self.node.raft;
        if let Some(answer) = raft.msgs.last_mut().filter(|it| is_answer(it)) {
            let micros = self.lease.promise().as_micros();
            answer.reject_hint = u64::try_from(micros).expect("a second at most");
            answer.reject = self.is_unfit;
        }
        if !planted!(RoundForgottenForLaterTerm) {
            let timeout = self.config.election_ticks as u64;
            self.votes_from = self.votes_from.max(self.tick + timeout);
        }
    }

    /// A member that is unfit to lead says so with each answer, in a field that the crate has no
    /// use for there.
    pub fn set_unfit(&mut self, is_unfit: bool) {
        self.is_unfit = is_unfit;
    }

    fn note_fitness(&mut self, message: &eraftpb::Message) {
        let raft = &self.node.raft;
        if raft.state == StateRole::Leader && raft.term == message.term {
            let said = (Term(message.term), !message.reject);
            self.fitness.insert(message.from, said);
        }
    }

    /// Whether a member is fit to lead, if it has said so in this term.
    pub(super) fn is_fit(&self, id: u64) -> Option<bool> {
        let said = self.fitness.get(&id);
        let said = said.filter(|(term, _)| term.0 == self.node.raft.term);
        said.map(|(_, is_fit)| *is_fit)
    }

    /// Takes note of what a member promised by its answer to a round.
    fn note_promise(&mut self, message: &eraftpb::Message) {
        let raft = &self.node.raft;
        let leads = raft.state == StateRole::Leader && raft.term == message.term;
        let round = self.reads.number_of(&message.context);
        if let Some(round) = round.filter(|_| leads) {
            let promise = Duration::from_micros(message.reject_hint);
            let term = Term(message.term);
            self.lease.answered(term, round, message.from, promise);
            self.lease.count(raft.prs().conf().voters().ids().iter());
        }
    }

    /// The crate takes each answer of a follower that lags for a reason to send it as much of the
    /// log as fits into a message, because to the crate heartbeats are rare. With rounds of reads
    /// there are thousands a second, and reading the log for all of them would keep a leader from
    /// everything else. So one answer in each heartbeat interval has that effect, and the others
    /// only count for their rounds.
    pub(super) fn on_heartbeat_response(&mut self, message: eraftpb::Message) {
        self.note_promise(&message);
        self.note_fitness(&message);
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

fn is_heartbeat(message: &eraftpb::Message) -> bool {
    message.msg_type() == eraftpb::MessageType::MsgHeartbeat
}

fn is_answer(message: &eraftpb::Message) -> bool {
    message.msg_type() == eraftpb::MessageType::MsgHeartbeatResponse
}
