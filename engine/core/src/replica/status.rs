//! What a member tells of itself and, while it leads, of the others.

use super::error::LeaderHint;
use super::{Env, Replica};
use crate::consensus::{LogRead, Role as RaftRole};
use crate::kv::Member;
use crate::types::{Index, MemberId, Revision, Term};

/// A member that has this many committed entries still to apply is not ready to answer reads.
const READY_LAG_ENTRIES_MAX: u64 = 10_000;

/// The member's part in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Orders the log.
    Leader,
    /// Votes and follows, or waits for a leader.
    Follower,
    /// Asks for votes, or asks whether it should.
    Candidate,
    /// Receives the log and does not vote.
    Learner,
}

/// Where a member stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// Its part.
    pub role: Role,
    /// Whom it follows, if anybody; itself if it leads.
    pub leader: Option<LeaderHint>,
    /// The latest term it knows.
    pub term: Term,
    /// The first entry of its log.
    pub first_index: Index,
    /// The end of its log.
    pub last_index: Index,
    /// How far it knows the log to be committed.
    pub commit_index: Index,
    /// How far its state machine has come.
    pub applied_index: Index,
    /// The store's revision at `applied_index`.
    pub revision: Revision,
    /// Whether it could answer a linearizable read now.
    pub ready: bool,
    /// Whether its log or its state machine has not got on for several election timeouts: its disk hangs.
    pub stalled: bool,
}

/// The leader's view of one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberProgress {
    /// Who.
    pub member: Member,
    /// Whether it is the leader itself.
    pub leader: bool,
    /// Whether the leader heard from it within the last election timeout.
    pub reachable: bool,
    /// Entries that the leader holds and it has not acknowledged.
    pub lag_entries: u64,
}

impl<L: LogRead, E: Env> Replica<L, E> {
    /// Where this member stands.
    #[must_use]
    pub fn status(&self) -> ReplicaStatus {
        let state = self.consensus.state();
        let commit_index = self.consensus.commit_index();
        let lag = commit_index.0.saturating_sub(self.applied.0);
        let role = match state.role {
            RaftRole::Leader => Role::Leader,
            RaftRole::PreCandidate | RaftRole::Candidate => Role::Candidate,
            RaftRole::Follower if self.is_voter(self.config.member_id) => Role::Follower,
            RaftRole::Follower => Role::Learner,
        };
        let timeout = self.config.election_timeout;
        let stalled = self.outstanding.is_stalled(self.now, timeout);
        ReplicaStatus {
            role,
            leader: self.leader_hint(),
            term: state.term,
            first_index: self.consensus.first_index(),
            last_index: self.consensus.last_index(),
            commit_index,
            applied_index: self.applied,
            revision: self.revision,
            ready: self.consensus.can_confirm_reads() && lag <= READY_LAG_ENTRIES_MAX && !stalled,
            stalled,
        }
    }

    /// The members as this leader sees them, in the order of their ids; empty on any other member.
    #[must_use]
    pub fn progress(&self) -> Vec<MemberProgress> {
        let last = self.consensus.last_index().0;
        let progress = self.consensus.progress().into_iter();
        let members = progress.filter_map(|p| {
            Some(MemberProgress {
                member: self.membership.members.get(&p.member)?.clone(),
                leader: p.member == self.config.member_id,
                reachable: p.recently_active,
                lag_entries: last - p.matched.0.min(last),
            })
        });
        members.collect()
    }

    pub(super) fn is_voter(&self, id: MemberId) -> bool {
        let member = self.membership.members.get(&id);
        member.is_some_and(|member| member.voter)
    }

    pub(super) fn leader_hint(&self) -> Option<LeaderHint> {
        let id = self.consensus.state().leader?;
        let member = self.membership.members.get(&id);
        Some(LeaderHint {
            id,
            client_address: member.map_or_else(String::new, |m| m.client_address.clone()),
        })
    }
}
