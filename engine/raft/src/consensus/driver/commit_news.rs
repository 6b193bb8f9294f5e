//! When a leader tells the others what is committed.
//!
//! Each append carries it. The `raft` crate sends one without entries besides, to each member, as
//! soon as more is committed: two messages for each write in a cluster of three, at the moment at
//! which the next write begins. So the news waits a little for an append that carries it, and
//! leaves by itself only when none comes. A change of the members is told at once, as the crate
//! does.
//!
//! A member at which somebody waits for what is committed, as a watch does, says so with each
//! answer to an append. If all of the log is committed, no append is about to follow, and the news
//! for that member does not wait: of one write at a time each is told at once. Under load there is
//! always more to commit, and each append carries the news of those before.

use std::collections::{BTreeMap, BTreeSet};

use dengine_types::Moment;
use raft::{ProgressState, StateRole, eraftpb};

use super::Consensus;
use crate::consensus::log_view::LogRead;

/// For so many ticks a member goes on saying that somebody waits: callers may come and go.
const AWAITED_TICKS: u64 = 2;

/// What the others were told of, and what this member asks to be told.
#[derive(Debug, Default)]
pub(super) struct CommitNews {
    /// The commit index of the newest append to each member.
    told: BTreeMap<u64, u64>,
    /// Until then a follower that was not told of all of it waits for an append.
    due: Option<Moment>,
    /// The followers at which somebody waits for it, as they said last to this leader.
    awaiting: BTreeSet<u64>,
    /// Before this tick somebody waits at this member.
    awaited_until: u64,
}

impl<L: LogRead> Consensus<L> {
    /// When [`Self::outputs`] must be called although nothing happens.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Moment> {
        self.commit_news.due
    }

    /// Somebody waits at this member for what is committed, and is to be told of it at once. To be
    /// said again with each tick, at least, while that is so.
    pub fn await_commits(&mut self) {
        self.commit_news.awaited_until = self.tick + AWAITED_TICKS;
    }

    /// An answer to an append says whether somebody waits, in a field that the crate uses only to
    /// reject one, and that is 0 otherwise in answers of earlier versions. No decision of consensus
    /// rests on it.
    pub(super) fn tell_of_waiting(&self, messages: &mut [eraftpb::Message]) {
        let is_awaited = self.tick < self.commit_news.awaited_until;
        for answer in messages.iter_mut().filter(|it| is_acknowledgement(it)) {
            answer.reject_hint = is_awaited.into();
        }
    }

    /// Takes note of what a member says by its answer to an append.
    pub(super) fn note_waiting(&mut self, answer: &eraftpb::Message) {
        let raft = &self.node.raft;
        let leads = raft.state == StateRole::Leader && raft.term == answer.term;
        let is_member = raft.prs().get(answer.from).is_some();
        if !leads || !is_member || !is_acknowledgement(answer) {
            return;
        }
        let awaiting = &mut self.commit_news.awaiting;
        match answer.reject_hint {
            0 => awaiting.remove(&answer.from),
            _ => awaiting.insert(answer.from),
        };
    }

    /// Forgets members that were removed.
    pub(super) fn forget_waiting(&mut self) {
        let members = self.node.raft.prs();
        let awaiting = &mut self.commit_news.awaiting;
        awaiting.retain(|id| members.get(*id).is_some());
    }

    pub(super) fn note_commit_told(&mut self, messages: &[eraftpb::Message]) {
        for message in messages {
            if message.msg_type() == eraftpb::MessageType::MsgAppend {
                self.commit_news.told.insert(message.to, message.commit);
            }
        }
    }

    /// Sends the news to those who were not told of it while it waited.
    pub(super) fn send_commit_news(&mut self) {
        if self.config.commit_news_delay.is_zero() {
            return;
        }
        let untold = self.untold();
        if untold.is_empty() {
            self.commit_news.due = None;
            return;
        }
        let (news, log) = (&mut self.commit_news, &self.node.raft.raft_log);
        let delay = self.config.commit_news_delay;
        let is_due = self.now >= *news.due.get_or_insert_with(|| self.now.after(delay));
        let is_all = log.committed == log.last_index();
        let is_told_now = |id: &u64| is_due || is_all && news.awaiting.contains(id);
        let (told, others): (Vec<_>, Vec<_>) = untold.into_iter().partition(is_told_now);
        // A follower that can be sent nothing more at present learns it by a heartbeat.
        if others.is_empty() {
            news.due = None;
        }
        for id in told {
            self.node.raft.send_append(id);
        }
    }

    /// Those who were sent an entry, and not that it is committed.
    fn untold(&mut self) -> Vec<u64> {
        let raft = &self.node.raft;
        if raft.state != StateRole::Leader {
            self.commit_news.told.clear();
            self.commit_news.awaiting.clear();
            return Vec::new();
        }
        let (own, committed) = (raft.id, raft.raft_log.committed);
        let told = &self.commit_news.told;
        let is_untold = |(id, progress): (&u64, &raft::Progress)| {
            let told = told.get(id).copied().unwrap_or_default();
            let hears = progress.state == ProgressState::Replicate && !progress.is_paused();
            // What was sent to it, though its answer is not back: the slowest waits no longer.
            let has = progress.next_idx - 1;
            (*id != own && hears && told < has.min(committed)).then_some(*id)
        };
        raft.prs().iter().filter_map(is_untold).collect()
    }
}

fn is_acknowledgement(message: &eraftpb::Message) -> bool {
    message.msg_type() == eraftpb::MessageType::MsgAppendResponse && !message.reject
}
