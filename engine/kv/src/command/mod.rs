//! The data of a [`Command`](dengine_types::EntryKind::Command) entry: a [`Request`].
//!
//! One byte of format version, then a protobuf message (`encoding.rs`). Protobuf readers skip
//! unknown fields, which members of one cluster must never do with a command: a new field or kind
//! of command needs a new version, and members that do not know that version stop instead of
//! applying something else. Older versions keep their meaning permanently (`version.rs`).

mod batch;
mod batch_encoding;
mod duplicates;
mod encoding;
mod lease;
mod needed;
mod operations;
mod put;
mod records;
mod version;

pub use batch::{Batch, BatchOperation, Compare, CompareTarget, RangeRead, Relation};
pub use lease::{LeaseCheckpoint, PutLease};
pub use put::Put;
pub use version::CommandVersion;

use bytes::Bytes;
use dengine_types::{Index, LeaseId, Revision, SessionId};

use super::KeyRange;

/// A command, and the session that makes it safe to repeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Makes the command safe to repeat. Without it the command is applied as often as it was
    /// proposed. Only commands of [`Command::may_be_stamped`] may have one.
    pub session: Option<SessionStamp>,
    /// What to do.
    pub command: Command,
}

/// A request as decoded from the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedRequest {
    /// The version in which it was written, which decides what it means.
    pub version: CommandVersion,
    pub request: Request,
}

/// Identifies one command of one client, however often it is proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionStamp {
    /// The client's session, from [`Outcome::SessionOpened`](super::Outcome::SessionOpened).
    pub id: SessionId,
    /// Identifies the command within the session; the client counts from 1 and uses no number for
    /// two commands.
    pub sequence: u64,
    /// The client has the answers to all commands up to this one, and repeats none of them. Always
    /// below `sequence`.
    pub acknowledged: u64,
}

/// A request to change the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Sets a key.
    Put(Put),
    /// Deletes keys.
    Delete {
        keys: KeyRange,
        /// Return the deleted pairs.
        prev_kv: bool,
    },
    /// Sets a key if it is in the expected state.
    /// Afterwards it is attached to no lease.
    CompareAndSwap {
        key: Bytes,
        /// The required state of the key.
        expected: Expected,
        value: Bytes,
        /// As in [`Put`].
        ttl_ms: u64,
    },
    /// Compares, and then does one of two lists of operations, all in one revision.
    Batch(Batch),
    /// Compacts history: afterwards nothing can be read or watched below this revision.
    Compact {
        /// The first revision that stays readable.
        revision: Revision,
    },
    OpenSession {
        /// The session expires when it was not used for this many milliseconds.
        ttl_ms: u64,
    },
    /// Counts as a use of the session, and does nothing else.
    KeepAlive { session: SessionId },
    /// Ends a session, and drops its stored replies.
    CloseSession { session: SessionId },
    /// Ends a session if it was not used since. The leader proposes it, by its own clock.
    ExpireSession {
        session: SessionId,
        /// [`SessionInfo::last_used`](super::SessionInfo::last_used) as the leader has read it.
        last_used: Index,
    },
    /// Deletes those of these keys that were not changed since. The leader proposes it, by its own
    /// clock.
    ExpireKeys { keys: Vec<ExpiredKey> },
    /// Creates a lease.
    GrantLease {
        lease: LeaseId,
        /// How long it lasts unless it is kept alive, in milliseconds.
        ttl_ms: u64,
    },
    /// Ends a lease, and deletes the keys that are attached to it in one revision. If they take
    /// more than [`RANGE_DELETE_BYTES_MAX`](crate::RANGE_DELETE_BYTES_MAX), the lease is over for
    /// everybody all the same, and the leader has the rest deleted by [`Self::ExpireLease`].
    RevokeLease { lease: LeaseId },
    /// Ends a lease like [`Self::RevokeLease`], or deletes more of what one that has ended has
    /// left, unless its record was changed since. The leader proposes it, by its own clock.
    ExpireLease {
        lease: LeaseId,
        /// [`LeaseInfo::touched`](super::LeaseInfo::touched) as the leader knows it.
        seen: Index,
    },
    /// Records how much is left of those of these leases whose records were not changed since. The
    /// leader proposes it, by its own clock.
    CheckpointLeases { leases: Vec<LeaseCheckpoint> },
}

/// A key whose time to live is over, unless it was changed since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiredKey {
    pub key: Bytes,
    /// The revision of the put whose time to live is over.
    pub mod_revision: Revision,
}

/// The state of a key that a compare-and-swap requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Last changed by this revision; `Revision(0)`: absent.
    ModRevision(Revision),
    /// Present, with exactly this value.
    Value(Bytes),
}

/// Why bytes are not a command. All members decode the same, so the entry is refused, not fatal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// Not a message.
    #[error("the entry does not hold a command: {0}")]
    Malformed(String),
    /// A message with a missing field.
    #[error("the command lacks its {0}")]
    Incomplete(&'static str),
}

impl Request {
    /// The batch, if it changes nothing and its answer is not to be stored: such a batch needs no
    /// log entry ([`Reader::batch`](super::Reader::batch)).
    #[must_use]
    pub fn read_only(&self) -> Option<&Batch> {
        let Command::Batch(batch) = &self.command else {
            return None;
        };
        (self.session.is_none() && batch.reads_only()).then_some(batch)
    }
}

impl Command {
    /// Whether applying it may visit more records than it names keys.
    #[must_use]
    pub fn visits_ranges(&self) -> bool {
        self.ranges().next().is_some()
    }

    /// The ranges that it visits.
    pub fn ranges(&self) -> impl Iterator<Item = &KeyRange> {
        let mut of_batch = Vec::new();
        let one = match self {
            Self::Delete { keys, .. } => Some(keys),
            Self::Batch(batch) => {
                batch.for_each_range(&mut |keys| of_batch.push(keys));
                None
            }
            Self::Put(_)
            | Self::CompareAndSwap { .. }
            | Self::Compact { .. }
            | Self::OpenSession { .. }
            | Self::KeepAlive { .. }
            | Self::CloseSession { .. }
            | Self::ExpireSession { .. }
            | Self::ExpireKeys { .. }
            | Self::GrantLease { .. }
            | Self::RevokeLease { .. }
            | Self::ExpireLease { .. }
            | Self::CheckpointLeases { .. } => None,
        };
        let is_range = |keys: &&KeyRange| !matches!(keys, KeyRange::One(_));
        one.into_iter().chain(of_batch).filter(is_range)
    }

    /// The ranges whose deleted pairs it returns: these are gathered while it is applied, by every
    /// member.
    #[must_use]
    pub fn returned(&self) -> Vec<&KeyRange> {
        let mut returned = Vec::new();
        match self {
            Self::Delete {
                keys,
                prev_kv: true,
            } => returned.push(keys),
            Self::Batch(batch) => batch.for_each_returned(&mut |keys| returned.push(keys)),
            _ => {}
        }
        returned.retain(|keys| !matches!(keys, KeyRange::One(_)));
        returned
    }

    /// Whether it may read a revision of the past.
    pub(super) fn reads_past(&self) -> bool {
        match self {
            Self::Batch(batch) => batch.any_operation(&|operation| match operation {
                BatchOperation::Range(read) => read.revision.is_some(),
                _ => false,
            }),
            _ => false,
        }
    }

    /// How many records it may visit, as far as it names them, at least one: the cost of applying
    /// it besides its bytes. Records in its ranges are not included; they have limits of their own.
    #[must_use]
    pub fn records(&self) -> usize {
        match self {
            Self::Batch(batch) => batch.records().max(1),
            Self::ExpireKeys { keys } => keys.len().max(1),
            Self::CheckpointLeases { leases } => leases.len().max(1),
            Self::Put(_)
            | Self::Delete { .. }
            | Self::CompareAndSwap { .. }
            | Self::Compact { .. }
            | Self::OpenSession { .. }
            | Self::KeepAlive { .. }
            // The number of the session's replies is not known here.
            | Self::CloseSession { .. }
            | Self::ExpireSession { .. }
            | Self::GrantLease { .. }
            // Nor that of the lease's keys.
            | Self::RevokeLease { .. }
            | Self::ExpireLease { .. } => 1,
        }
    }

    /// Whether [`Request::session`] may be set. Commands about sessions cannot be repeated by one,
    /// those about leases are harmless to repeat, and those that the leader proposes need not be.
    #[must_use]
    pub fn may_be_stamped(&self) -> bool {
        match self {
            Self::Put(_)
            | Self::Delete { .. }
            | Self::CompareAndSwap { .. }
            | Self::Batch(_)
            | Self::Compact { .. } => true,
            Self::OpenSession { .. }
            | Self::KeepAlive { .. }
            | Self::CloseSession { .. }
            | Self::ExpireSession { .. }
            | Self::ExpireKeys { .. }
            | Self::GrantLease { .. }
            | Self::RevokeLease { .. }
            | Self::ExpireLease { .. }
            | Self::CheckpointLeases { .. } => false,
        }
    }
}

impl From<Command> for Request {
    fn from(command: Command) -> Self {
        Self {
            session: None,
            command,
        }
    }
}
