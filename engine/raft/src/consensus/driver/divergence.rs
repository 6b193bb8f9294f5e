//! A leader whose log contradicts what is committed here.
//!
//! In Raft there is none (thesis §3.6.3). But where acknowledged entries were lost and a person
//! went on without them, members that lost them may elect one of themselves, and then write other
//! entries in their place. A member that still has the old ones must never apply the new ones on
//! top: all such messages are refused ([`validate`](crate::consensus::validate)), and a member to
//! which its leader keeps on sending them ends for good. Only where acknowledged entries can be
//! lost, and only by a leader that votes here: elsewhere such a leader lies, and a lie must end
//! no member. Wherever, it serves no reads meanwhile: what it has is not what the cluster has.

use dengine_planted::planted;
use dengine_types::{Index, MemberId, Term};
use raft::StateRole;

use super::Consensus;
use crate::consensus::log_view::LogRead;
use crate::output::{Divergence, Output};

/// Whether a leader's log contradicted, and what came of it. In one term a leader's log only grows,
/// so that what contradicts once always will.
#[derive(Default)]
pub(super) enum Contradictions {
    #[default]
    None,
    Noted(Noted),
    /// This consensus has ended, and has still to say so.
    Settled(Divergence),
    /// It has ended, and said so.
    HandedOut,
}

pub(super) struct Noted {
    divergence: Divergence,
    since_tick: u64,
    last_tick: u64,
}

impl Contradictions {
    pub(super) fn has_ended(&self) -> bool {
        matches!(self, Self::Settled(_) | Self::HandedOut)
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

    /// A message was refused because it contradicts the entry at `index`, which is committed here.
    /// It counts if it comes from whom this member follows; anybody could say it once.
    pub(super) fn note_contradiction(&mut self, leader: MemberId, term: Term, index: Index) {
        if !self.follows(leader, term) || planted!(ContradictionIgnored) {
            return;
        }
        let tick = self.tick;
        let divergence = Divergence {
            index,
            leader,
            term,
        };
        let same = |it: &Noted| (it.divergence.leader, it.divergence.term) == (leader, term);
        match &mut self.contradictions {
            Contradictions::Noted(noted) if same(noted) => noted.last_tick = tick,
            other => {
                *other = Contradictions::Noted(Noted {
                    divergence,
                    since_tick: tick,
                    last_tick: tick,
                });
            }
        }
    }

    /// Ends this consensus if its leader has contradicted it for an election timeout, in which
    /// no other was elected.
    pub(super) fn settle_contradiction(&mut self) {
        let Contradictions::Noted(noted) = &self.contradictions else {
            return;
        };
        let Divergence { leader, term, .. } = noted.divergence;
        let timeout = self.config.election_ticks as u64;
        let long = noted.last_tick - noted.since_tick >= timeout - 1;
        if !self.follows(leader, term) {
            self.contradictions = Contradictions::None;
        } else if long && self.tick - noted.since_tick >= timeout && self.may_be_right(leader) {
            self.contradictions = Contradictions::Settled(noted.divergence);
        }
    }

    /// Whether this member's leader contradicted it within the last election timeout.
    pub fn is_contradicted(&self) -> bool {
        let timeout = self.config.election_ticks as u64;
        match &self.contradictions {
            Contradictions::None => false,
            Contradictions::Noted(noted) => self.tick - noted.last_tick <= timeout,
            Contradictions::Settled(_) | Contradictions::HandedOut => true,
        }
    }

    pub(super) fn hand_out_divergence(&mut self) {
        if let Contradictions::Settled(divergence) = self.contradictions {
            self.contradictions = Contradictions::HandedOut;
            self.outputs.push(Output::Diverged(divergence));
        }
    }
}
