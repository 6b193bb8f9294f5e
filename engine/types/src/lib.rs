//! Raft's vocabulary as types, shared by the log, consensus and the state machine.

pub mod sync;

use bytes::Bytes;
use dengine_planted::planted;
use std::fmt;
use std::time::Duration;

/// The largest term, index or file number that is believed. They are counted up one by one, and a thousand million a second
/// would take over a century to get there: a larger one is damage or a lie. Sums of a few of them do not overflow.
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
    /// Names one cluster for ever; drawn at random when it is bootstrapped. 0 is no cluster.
    ClusterId
}
number! {
    /// Names one member of a cluster; never reused within it, not even after a removal. 0 is no member.
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

impl Revision {
    /// The revision after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Whether a state at this revision shows what a session has seen that has come to `wanted`.
    #[must_use]
    pub fn covers(self, wanted: Self) -> bool {
        self >= wanted || planted!(SessionReadAtOnce)
    }
}

impl Index {
    /// The position after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A moment on a member's own clock: nanoseconds since some origin, on a clock that never goes back and
/// counts on while the machine sleeps (`CLOCK_BOOTTIME`). Moments of different members mean nothing to
/// each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub u64);

impl Moment {
    /// So much later.
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
    /// Where it stands.
    pub index: Index,
    /// The term of the leader that created it.
    pub term: Term,
    /// How to read `data`.
    pub kind: EntryKind,
    /// Names the proposal, so that the member that made it can answer its caller. Empty if nobody waits.
    pub context: Bytes,
    /// What to apply.
    pub data: Bytes,
}

/// What a member must never forget about elections (Raft thesis, figure 3.1), and how far it knew the
/// log to be committed (a hint: it is not synced on its own).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// The latest term seen.
    pub term: Term,
    /// The candidate that got this member's vote in `term`; `MemberId(0)` for none.
    pub vote: MemberId,
    /// The highest index known to be committed.
    pub commit: Index,
}
