//! What [`super::Consensus`] is asked, and what it says of itself.

use std::net::IpAddr;

use bytes::Bytes;
use dengine_types::{Index, MemberId, Term};

/// A command to replicate.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// Stored with the entry, so that only the proposer's own entry answers its caller.
    pub context: Vec<u8>,
    /// What to apply.
    pub data: Bytes,
}

/// Proposals that members exchange, which is no part of Raft.
#[derive(Clone, Debug)]
pub enum PassedOn {
    /// A follower asks this leader to propose these, in the term in which it leads.
    Asked {
        by: MemberId,
        /// They may be proposed in no other.
        term: Term,
        /// Whose they are.
        client: IpAddr,
        proposals: Vec<Proposal>,
    },
    /// This leader takes nothing of the start that has passed these on.
    NotTaken {
        by: MemberId,
        contexts: Vec<Vec<u8>>,
    },
    /// A leader has not proposed, and will not, what has these contexts.
    Refused {
        by: MemberId,
        contexts: Vec<Vec<u8>>,
    },
}

/// A change of who votes. One at a time: any two configurations that follow each other share a
/// quorum (Raft thesis §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigChange {
    /// What happens to it.
    pub kind: ConfigChangeKind,
    pub member: MemberId,
}

/// What a [`ConfigChange`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigChangeKind {
    /// It gets the log and does not vote.
    AddLearner,
    /// It votes: the first member at bootstrap, or a learner that is promoted.
    AddVoter,
    /// It is removed permanently.
    Remove,
}

/// Why a request was not taken. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Only a leader can do this.
    #[error("this member does not lead")]
    NotLeader,
    /// The leader is handing over, or holds as many uncommitted bytes as it may.
    #[error(
        "the leader accepts no proposals now: too much is uncommitted, or leadership is being \
         transferred"
    )]
    Overloaded,
    /// No leader confirmed the read in time.
    #[error("no leader confirmed the read in time")]
    NoQuorum,
    /// As many reads wait as may.
    #[error("too many reads wait for confirmation")]
    TooManyReads,
}

/// What a member does (Raft thesis §3.3, and §9.6 for the pre-candidate).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Follows a leader, or waits for one.
    #[default]
    Follower,
    /// Asks whether it could win an election.
    PreCandidate,
    /// Asks for votes.
    Candidate,
    /// Orders the log.
    Leader,
}

/// A member's place in the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaState {
    /// What it does.
    pub role: Role,
    /// Whom it follows.
    pub leader: Option<MemberId>,
    pub term: Term,
}

/// The leader's view of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub member: MemberId,
    /// The last entry known to be on its disk.
    pub matched: Index,
    /// Whether it was heard from within the last election timeout.
    pub recently_active: bool,
    /// Whether its disk has all that the leader's log held one or two election timeouts ago. Who
    /// only answers, because its disk is full, hangs, or has another history, does not.
    pub keeps_up: bool,
    /// Whether it has space and its disk does not hang, if it has said so in this term.
    pub fit: Option<bool>,
    /// Whether it votes.
    pub voter: bool,
}
