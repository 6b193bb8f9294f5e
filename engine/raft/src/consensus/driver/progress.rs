//! What a leader knows of the others.

use dengine_types::{Index, MemberId};

use super::Consensus;
use crate::consensus::log_view::LogRead;
use crate::consensus::types::{Progress, Role};

impl<L: LogRead> Consensus<L> {
    /// The leader's view of every member, itself included; empty on any other member.
    #[must_use]
    pub fn progress(&self) -> Vec<Progress> {
        if self.state.role != Role::Leader {
            return Vec::new();
        }
        let tracker = self.node.raft.prs();
        let mut progress: Vec<_> = tracker
            .iter()
            .map(|(&id, progress)| Progress {
                member: MemberId(id),
                matched: Index(progress.matched),
                recently_active: self.was_heard(id),
                keeps_up: id == self.config.id.0 || progress.matched >= self.ended_at[1].0,
                fit: self.is_fit(id),
                voter: tracker.conf().voters().contains(id),
            })
            .collect();
        progress.sort_by_key(|p| p.member);
        progress
    }

    /// The last entry that a member is known to have on its disk, if this one leads.
    #[must_use]
    pub fn matched(&self, member: MemberId) -> Index {
        let progress = self.node.raft.prs().get(member.0);
        Index(progress.map_or(0, |it| it.matched))
    }

    /// Looks where a leader's log ends. Of one that was just elected it counts from now on: what
    /// others had before, it does not know yet.
    pub(super) fn note_end(&mut self) {
        let end = self.last_index();
        if self.state.role != Role::Leader {
            self.ended_at = [end; 2];
        } else if self.tick.is_multiple_of(self.config.election_ticks as u64) {
            self.ended_at = [end, self.ended_at[0]];
        }
    }

    /// This member stood still for an election timeout, and no tick of its own says so: whom it
    /// heard, and what they acknowledged, counts from now on.
    pub(super) fn forget_what_is_old(&mut self) {
        self.heard.clear();
        self.ended_at = [self.last_index(); 2];
    }

    pub(super) fn note_heard(&mut self, from: MemberId) {
        if self.node.raft.prs().get(from.0).is_some() {
            self.heard.insert(from.0, self.tick);
        }
    }

    /// The crate's own mark is wiped whenever it checks its quorum, and would be false for a moment
    /// in every election timeout.
    fn was_heard(&self, id: u64) -> bool {
        let timeout = self.config.election_ticks as u64;
        let heard = self.heard.get(&id);
        id == self.config.id.0 || heard.is_some_and(|heard| self.tick - heard < timeout)
    }

    /// Forgets members that were removed.
    pub(super) fn forget_removed(&mut self) {
        let tracker = self.node.raft.prs();
        self.heard.retain(|id, _| tracker.get(*id).is_some());
        self.sent_again.retain(|id, _| tracker.get(*id).is_some());
        self.fitness.retain(|id, _| tracker.get(*id).is_some());
        self.forget_waiting();
    }
}
