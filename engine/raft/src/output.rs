//! The outputs of a replica: [`Output`] and its parts.

use std::time::Duration;

use bytes::Bytes;
use dengine_kv::Outcome;
use dengine_log::Position;
use dengine_types::{Entry, HardState, Index, MemberId, Term};

use crate::consensus::{PeerMessageError, ReplicaState};
use crate::input::{AppendId, Token};
use crate::replica::RequestError;

/// Something to be done. Outputs are carried out in order. [`Output::Log`] and [`Output::Apply`]
/// may be done there and then, or each be given to a thread that keeps their order; it then
/// reports with [`Input::Persisted`](crate::Input::Persisted) and
/// [`Input::Applied`](crate::Input::Applied).
#[derive(Debug)]
pub enum Output {
    /// For the log writer.
    Log(LogJob),
    /// For the applier.
    Apply(ApplyJob),
    /// Send these to peers; any may be lost.
    Send(Vec<Outbound>),
    /// These reads are linearizable now that everything up to `index` is applied here.
    MayRead {
        tokens: Vec<Token>,
        /// What they are sure to see.
        index: Index,
    },
    /// These requests were not taken. Nothing was changed.
    Refused {
        tokens: Vec<Token>,
        error: RequestError,
    },
    /// Another entry is committed at the index of this write, so the write is not committed and
    /// never will be. See [`RequestError::lost`].
    Lost(Token),
    /// The outcome of this write can never be known: drop its caller without an answer.
    Forgotten(Token),
    /// Answers a question about a lease.
    Lease {
        /// Which question.
        token: Token,
        answer: LeaseAnswer,
    },
    /// The leadership transfer has completed.
    Transferred {
        /// Which transfer.
        token: Token,
        /// In which term the new leader leads.
        term: Term,
    },
    /// This leader hands over of its own accord: its disk is slow. What has the next one lead
    /// follows.
    HandsOver(HandOver),
    /// The role, the leader or the term has changed.
    StateChanged(ReplicaState),
    /// A peer sent what no member sends. It changed nothing.
    PeerRefused(PeerMessageError),
    /// Have the state machine written to disk, without waiting for more to come; then
    /// [`Input::Flushed`](crate::Input::Flushed).
    Flush,
    /// A follower needs a snapshot of what is applied here. Make one in place of the last one, then
    /// report [`Input::SnapshotMade`](crate::Input::SnapshotMade).
    MakeSnapshot,
    /// Send the snapshot that was made last, then report
    /// [`Input::SnapshotSent`](crate::Input::SnapshotSent).
    SendSnapshot {
        to: MemberId,
        /// What the receiver gives back as
        /// [`Input::SnapshotStaged`](crate::Input::SnapshotStaged).
        message: Bytes,
    },
    /// Forget the snapshot that was staged: this member does not need it.
    DiscardStaged,
    /// End this replica, and never start it from its data directory again. No output follows.
    Diverged(Divergence),
    /// The snapshot that was received replaces log and state machine. End this replica, reset the
    /// log to this, which is the moment from which the member is another one, and start it again
    /// from its data directory. No output follows.
    Install {
        /// The last entry of the snapshot.
        base: Position,
        /// Goes with it.
        hard_state: HardState,
    },
}

/// What a question about a lease comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseAnswer {
    /// It is kept alive: it lasts for so many milliseconds since it was asked, at least.
    Kept { ttl_ms: u64 },
    Lasts {
        ttl_ms: u64,
        /// How much is left of that. It may last longer.
        remaining_ms: u64,
    },
    /// There is no such lease.
    NotFound,
}

/// Why a leader hands over of its own accord.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandOver {
    /// Who is to lead.
    pub to: MemberId,
    /// How long an append takes to be on the leader's disk.
    pub own: Duration,
    /// And to be acknowledged by as many others as are a quorum without it.
    pub others: Duration,
}

/// What the log writer does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogJob {
    /// Write and sync; then [`Input::Persisted`](crate::Input::Persisted).
    Append {
        /// To report with.
        id: AppendId,
        /// Replaces the hard state.
        hard_state: Option<HardState>,
        /// Appended; if the first index is not past the log's end, the log is first cut there.
        entries: Vec<Entry>,
    },
    /// Forget the entries up to this one.
    TruncatePrefix(Index),
}

/// What the applier does; then [`Input::Applied`](crate::Input::Applied).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplyJob {
    /// These are committed.
    pub entries: Vec<Entry>,
    /// Those among them that were proposed here and that somebody waits for, in their order.
    pub awaited: Vec<(Index, Token)>,
}

/// What a write came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The term of the leader that ordered it.
    pub term: Term,
    /// The state machine's answer.
    pub outcome: Outcome,
    /// Keys that its ranges visited, or KiB of them if these are more: for so long everything
    /// behind it waited.
    pub visited: usize,
}

/// One message to one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outbound {
    /// Whom it is for.
    pub to: MemberId,
    /// The encoded message.
    pub bytes: Bytes,
    /// Whether it is part of the log's way to a follower: large, and of no use before those that
    /// precede it.
    pub carries_log: bool,
}

/// The leader's log contradicts what is committed here: acknowledged entries were given up, and
/// this member has them still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "entry {index} is committed here, and the log of the leader, member {leader} in term {term}, \
     has another one in its place: the cluster goes on without writes that this member has, as it \
     may after `dengine recover --accept-lost-writes`. Nothing of the leader's was applied on top"
)]
pub struct Divergence {
    /// An entry that differs.
    pub index: Index,
    /// Who leads.
    pub leader: MemberId,
    pub term: Term,
}
