//! A leader whose log contradicts what is committed here.
//!
//! In Raft there is none (thesis §3.6.3). But where acknowledged entries were lost and a person went on without them, members
//! that lost them may elect one of themselves, and then write other entries in their place. A member that still has the old ones
//! must never apply the new ones on top: all such messages are refused ([`validate`](crate::consensus::validate)), and a member
//! to which its leader keeps on sending them ends for good. Only where acknowledged entries can be lost, and only by a leader
//! that votes here: elsewhere such a leader lies, and a lie must end nobody.

use super::Consensus;
use crate::consensus::event::{Action, Divergence};
use crate::consensus::log_view::LogRead;
use crate::planted::planted;
use crate::types::{Index, MemberId, Term};
use raft::StateRole;

/// What contradicted, and when: a leader's log in one term only grows, so that what contradicts once always will.
#[derive(Default)]
pub(super) struct Contradictions {
    noted: Option<Noted>,
    /// This consensus has ended.
    settled: Option<Divergence>,
    handed_out: bool,
}

struct Noted {
    divergence: Divergence,
    since_tick: u64,
    last_tick: u64,
}

impl Contradictions {
    pub(super) fn has_ended(&self) -> bool {
        self.settled.is_some()
    }
}

impl<L: LogRead> Consensus<L> {
    fn follows(&self, leader: MemberId, term: Term) -> bool {
        let raft = &self.node.raft;
        raft.state == StateRole::Follower && raft.leader_id == leader.0 && raft.term == term.0
    }

    /// Whether a leader that contradicts this member may be right.
    fn may_be_right(&self, leader: MemberId) -> bool {
        let voters = self.node.raft.prs().conf().voters();
        self.config.acknowledges_unsynced && voters.contains(leader.0)
    }

    /// A message was refused because it contradicts the entry at `index`, which is committed here. It counts if it comes
    /// from whom this member follows; anybody could say it once.
    pub(super) fn note_contradiction(&mut self, leader: MemberId, term: Term, index: Index) {
        let counts = self.follows(leader, term) && self.may_be_right(leader);
        if !counts || planted!(ContradictionIgnored) {
            return;
        }
        let tick = self.tick;
        let divergence = Divergence {
            index,
            leader,
            term,
        };
        let known = self.contradictions.noted.as_mut();
        let same = |it: &&mut Noted| (it.divergence.leader, it.divergence.term) == (leader, term);
        match known.filter(same) {
            Some(noted) => noted.last_tick = tick,
            None => {
                self.contradictions.noted = Some(Noted {
                    divergence,
                    since_tick: tick,
                    last_tick: tick,
                });
            }
        }
    }

    /// Ends this consensus if its leader has contradicted it for an election timeout, in which nobody else was elected.
    pub(super) fn settle_contradiction(&mut self) {
        let Some(noted) = &self.contradictions.noted else {
            return;
        };
        let Divergence { leader, term, .. } = noted.divergence;
        let timeout = self.config.election_ticks as u64;
        let long = noted.last_tick - noted.since_tick >= timeout - 1;
        if !self.follows(leader, term) {
            self.contradictions.noted = None;
        } else if long && self.tick - noted.since_tick >= timeout {
            self.contradictions.settled = Some(noted.divergence);
        }
    }

    pub(super) fn hand_out_divergence(&mut self) {
        let Some(divergence) = self.contradictions.settled else {
            return;
        };
        if !std::mem::replace(&mut self.contradictions.handed_out, true) {
            self.actions.push(Action::Diverged(divergence));
        }
    }
}
