//! When a leader tells the others what is committed.
//!
//! Each append carries it. The `raft` crate sends one without entries besides, to each member, as
//! soon as more is committed: two messages for each write in a cluster of three, at the moment at
//! which the next write begins. So the news waits a little for an append that carries it, and
//! leaves by itself only when none comes. A change of the members is told at once, as the crate
//! does.

use std::collections::BTreeMap;

use dengine_types::Moment;
use raft::{ProgressState, StateRole, eraftpb};

use super::Consensus;
use crate::consensus::log_view::LogRead;

/// What the others were told of.
#[derive(Debug, Default)]
pub(super) struct CommitNews {
    /// The commit index of the newest append to each member.
    told: BTreeMap<u64, u64>,
    /// Until then a follower that was not told of all of it waits for an append.
    due: Option<Moment>,
}

impl<L: LogRead> Consensus<L> {
    /// When [`Self::outputs`] must be called although nothing happens.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Moment> {
        self.commit_news.due
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
        let due = self.commit_news.due.get_or_insert_with(|| {
            let delay = self.config.commit_news_delay;
            self.now.after(delay)
        });
        if self.now < *due {
            return;
        }
        for id in untold {
            self.node.raft.send_append(id);
        }
        // A follower that can be sent nothing more at present learns it by a heartbeat.
        self.commit_news.due = None;
    }

    /// Those who were sent an entry, and not that it is committed.
    fn untold(&mut self) -> Vec<u64> {
        let raft = &self.node.raft;
        if raft.state != StateRole::Leader {
            self.commit_news.told.clear();
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
