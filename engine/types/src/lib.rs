//! Raft's vocabulary as types, shared by the log, consensus and the state machine.

pub mod sync;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use dengine_planted::planted;

/// The largest term, index or file number that is accepted. Counting a thousand million a second
/// would take over a century to reach it, so a larger number is damage or forged. Sums of a few of
/// them do not overflow.
pub const NUMBER_MAX: u64 = (1 << 62) - 1;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// Identifies a cluster, permanently; drawn at random at bootstrap. 0 is no cluster.
    ClusterId
}
number! {
    /// Identifies a member of a cluster; never reused within it, not even after a removal. 0 is no
    /// member.
    MemberId
}
number! {
    /// A period with at most one leader (Raft thesis §3.3).
    Term
}
number! {
    /// Position in the replicated log; the first entry has index 1.
    Index
}
number! {
    /// Position in the history of the key-value store; one for every request that changed it. The
    /// empty store is at revision 1, as etcd's is.
    Revision
}
number! {
    /// Names one client session: the index of the entry that opened it, so no id is used twice.
    SessionId
}

/// Names a lease, to which keys are attached. Clients choose ids, and may choose negative ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub i64);

impl LeaseId {
    /// No lease: what a key has that is attached to none.
    pub const NONE: Self = Self(0);
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Revision {
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Whether a read at this revision includes everything that a session has seen up to `wanted`.
    #[must_use]
    pub fn covers(self, wanted: Self) -> bool {
        self >= wanted || planted!(SessionReadAtOnce)
    }
}

impl Index {
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// An instant on a member's own clock: nanoseconds since some origin. The clock is monotonic and
/// goes on while the machine sleeps (`CLOCK_BOOTTIME`). Instants of different members are not
/// comparable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub u64);

impl Moment {
    /// This instant plus `duration`.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }

    /// The time since `earlier`; zero if that is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// What the state machine does with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A command of the key-value store, or the empty entry with which a leader begins its term.
    Command,
    /// A change of the membership.
    Membership,
}

/// One entry of the replicated log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub index: Index,
    /// The term of the leader that created it.
    pub term: Term,
    /// How to read `data`.
    pub kind: EntryKind,
    /// Identifies the proposal, so that the member that made it can answer its caller. Empty if no
    /// caller waits.
    pub context: Bytes,
    /// What to apply.
    pub data: Bytes,
}

/// The state that a member must keep on disk for elections (Raft thesis, figure 3.1), and how far
/// it knew the log to be committed (a hint: it is not synced on its own).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    pub term: Term,
    /// The candidate that got this member's vote in `term`; `MemberId(0)` for none.
    pub vote: MemberId,
    /// The highest index known to be committed.
    pub commit: Index,
}
