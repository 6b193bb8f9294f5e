//! What goes into [`super::Consensus`] and what comes out of it.

use bytes::Bytes;
use dengine_log::Position;
use dengine_types::{Entry, HardState, Index, MemberId, Term};

/// Names one write to the log; counts up. A later one is on disk only if all earlier ones are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct AppendId(pub u64);

/// Names one proposal to its proposer; unique within one run of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Names one linearizable read to its caller; unique within one run of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadToken(pub u64);

/// A command to replicate.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// To match the answer.
    pub token: Token,
    /// Stored with the entry, so that only the proposer's own entry answers its caller.
    pub context: Bytes,
    /// What to apply.
    pub data: Bytes,
}

/// A change of who votes. One at a time: any two configurations that follow each other share a quorum
/// (Raft thesis §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigChange {
    /// What happens to it.
    pub kind: ConfigChangeKind,
    /// To whom.
    pub member: MemberId,
}

/// What a [`ConfigChange`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigChangeKind {
    /// It gets the log and does not vote.
    AddLearner,
    /// It votes: the first member at bootstrap, or a learner that is promoted.
    AddVoter,
    /// It is gone for ever.
    Remove,
}

/// Something happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// One tick of time passed. Ticks that were missed are skipped, never replayed.
    Tick,
    /// A peer's message, as it came off the stream that `from` opened.
    Message {
        /// Who the stream belongs to.
        from: MemberId,
        /// The encoded message.
        bytes: Bytes,
    },
    /// Replicate these commands, in this order. Answered by [`Action::Proposed`] or [`Action::Refused`].
    Propose(Vec<Proposal>),
    /// Replicate a membership change; `proposal.data` is what the state machine applies.
    ProposeChange {
        /// What the state machine sees.
        proposal: Proposal,
        /// What consensus does once it is applied.
        change: ConfigChange,
    },
    /// Confirm that reads from now on are linearizable.
    Read(ReadToken),
    /// The same, and the leader's lease will do. Valid only if the clock was observed
    /// ([`super::Consensus::observe`]) after the read was asked for.
    LeaseRead(ReadToken),
    /// Everything up to and including this append is on disk.
    Persisted(AppendId),
    /// The state machine has applied everything up to `index`; `changes` are the membership changes
    /// among it that it accepted, in order.
    Applied {
        /// The last applied entry.
        index: Index,
        /// Accepted changes.
        changes: Vec<ConfigChange>,
    },
    /// Hand leadership to this voter.
    TransferLeader(MemberId),
    /// A message to this member could not be sent.
    Unreachable(MemberId),
    /// A snapshot that [`Action::MakeSnapshot`] asked for can be sent; `None`: it could not be made.
    SnapshotMade(Option<SnapshotMeta>),
    /// How the sending that [`Action::SendSnapshot`] asked for ended.
    SnapshotSent {
        /// To whom.
        to: MemberId,
        /// Whether it has all of it.
        ok: bool,
    },
    /// A snapshot that a leader sent is here, complete and on disk.
    Snapshot {
        /// Who sent it.
        from: MemberId,
        /// The message of [`Action::SendSnapshot`].
        message: Bytes,
    },
    /// The log is about to forget its entries up to this one. The state machine has them on disk.
    Truncate(Index),
}

/// What a snapshot holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotMeta {
    /// The last entry that is applied in it.
    pub last: Position,
    /// Who votes, as of then.
    pub voters: Vec<MemberId>,
    /// Who only listens, as of then.
    pub learners: Vec<MemberId>,
}

/// One message to one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outbound {
    /// Whom it is for.
    pub to: MemberId,
    /// The encoded message.
    pub bytes: Bytes,
    /// Whether it is part of the log's way to a follower: large, and of no use before those that precede it.
    pub carries_log: bool,
}

/// Why a request was not taken. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Only a leader can do this.
    #[error("this member does not lead")]
    NotLeader,
    /// The leader is handing over, or holds as many uncommitted bytes as it may.
    #[error(
        "the leader takes no proposals now: too much is uncommitted, or leadership is being handed over"
    )]
    Overloaded,
    /// No leader confirmed the read in time.
    #[error("no leader confirmed the read in time")]
    NoQuorum,
    /// As many reads wait as may.
    #[error("too many reads wait for confirmation")]
    TooManyReads,
}

/// Something must be done. Actions are carried out in order; only `Append` and `Apply` may be handed
/// to another thread, each kind keeping its own order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write to the log and sync it, then report [`Event::Persisted`].
    Append {
        /// To report with.
        id: AppendId,
        /// Replaces the hard state.
        hard_state: Option<HardState>,
        /// Appended; if the first index is not past the log's end, the log is first cut there.
        entries: Vec<Entry>,
    },
    /// Send these; any may be lost.
    Send(Vec<Outbound>),
    /// Apply these, then report [`Event::Applied`].
    Apply(Vec<Entry>),
    /// The proposal is in this member's log at this position. It may still be overwritten: compare the
    /// context of what is applied there.
    Proposed {
        /// Which one.
        token: Token,
        /// Where.
        index: Index,
        /// Under which term.
        term: Term,
    },
    /// The proposal was not taken.
    Refused {
        /// Which one.
        token: Token,
        /// Why.
        refusal: Refusal,
    },
    /// These reads are linearizable once everything up to `index` is applied here.
    ReadReady {
        /// Which ones.
        tokens: Vec<ReadToken>,
        /// How far to apply first.
        index: Index,
        /// The leader's lease did it, and nobody was asked.
        by_lease: bool,
    },
    /// These reads cannot be confirmed.
    ReadRefused {
        /// Which ones.
        tokens: Vec<ReadToken>,
        /// Why.
        refusal: Refusal,
    },
    /// The role, the leader or the term is another one.
    StateChanged(State),
    /// A follower needs a snapshot of what is applied here. Make one, then report
    /// [`Event::SnapshotMade`]; one that was made before may go now.
    MakeSnapshot,
    /// Send the snapshot that was made last, then report [`Event::SnapshotSent`].
    SendSnapshot {
        /// To whom.
        to: MemberId,
        /// What the receiver gives to its consensus once it has the snapshot.
        message: Bytes,
    },
    /// This member must end, and must not start from its folder again. Nothing follows this action.
    Diverged(Divergence),
    /// The snapshot that was received replaces log and state machine. Reset the log to this; that is the
    /// moment from which the member is another one, and it starts anew. Nothing follows this action.
    Install {
        /// The last entry of the snapshot.
        base: Position,
        /// Goes with it.
        hard_state: HardState,
    },
}

/// The leader's log contradicts what is committed here: acknowledged entries were given up, and this member has them still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "entry {index} is committed here, and the log of the leader, member {leader} in term {term}, has another one in its place: the \
     cluster goes on without writes that this member has, as it may after `dengine recover --accept-lost-writes`. Nothing of \
     the leader's was applied on top"
)]
pub struct Divergence {
    /// An entry that differs.
    pub index: Index,
    /// Who leads.
    pub leader: MemberId,
    /// In which term.
    pub term: Term,
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
pub struct State {
    /// What it does.
    pub role: Role,
    /// Whom it follows.
    pub leader: Option<MemberId>,
    /// In which term.
    pub term: Term,
}

/// The leader's view of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Which member.
    pub member: MemberId,
    /// The last entry known to be on its disk.
    pub matched: Index,
    /// Whether it was heard from within the last election timeout.
    pub recently_active: bool,
    /// Whether its disk has all that the leader's log held one or two election timeouts ago. Who only answers, because its disk is
    /// full, hangs, or has another history, does not.
    pub keeps_up: bool,
    /// Whether it has space and its disk does not hang, if it has said so in this term.
    pub fit: Option<bool>,
    /// Whether it votes.
    pub voter: bool,
}
