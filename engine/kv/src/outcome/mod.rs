//! The outcomes of entries, equal on every member.

mod encoding;
mod running;

pub use encoding::{decode_kept, encode_kept};
pub use running::RunningRevision;

use std::sync::Arc;

use bytes::Bytes;
use dengine_types::{Index, LeaseId, Revision, SessionId, Term};

use super::{CommandError, KeyValue, LeaseCheckpoint, Membership, MembershipRefusal};

/// An applied entry with its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    pub index: Index,
    pub term: Term,
    /// The context of the entry, by which the member that proposed it finds the waiting caller.
    pub context: Bytes,
    pub outcome: Outcome,
    /// The visited records that [`Command::records`](super::Command::records) counts, or of a
    /// session that was ended; at least one.
    pub records: usize,
    /// Keys that its ranges visited, or KiB of them if these are more.
    pub visited: usize,
}

/// The outcome of an entry, equal on every member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// To [`Command::Put`](super::Command::Put).
    Put {
        /// The revision of the change.
        revision: Revision,
        /// The previous pair, if it was requested and existed.
        prev: Option<KeyValue>,
    },
    /// To [`Command::Delete`](super::Command::Delete).
    Delete {
        /// The revision of the change, or the current one if nothing was deleted.
        revision: Revision,
        /// How many keys were deleted.
        deleted: u64,
        /// The deleted pairs, if they were requested.
        prev: Vec<KeyValue>,
    },
    /// To [`Command::CompareAndSwap`](super::Command::CompareAndSwap).
    CompareAndSwap {
        /// The revision of the change, or the current one if the swap failed.
        revision: Revision,
        /// Whether the key was as expected.
        succeeded: bool,
        /// The pair at the time of the comparison, if it existed.
        prev: Option<KeyValue>,
    },
    /// To [`Command::Batch`](super::Command::Batch).
    Batch {
        /// The revision of the change, or the current one if nothing changed.
        revision: Revision,
        /// Whether the comparisons held, and so which operations were done.
        succeeded: bool,
        /// One answer for each operation that was done.
        answers: Vec<BatchAnswer>,
    },
    /// To [`Command::Compact`](super::Command::Compact).
    Compact { revision: Revision },
    /// To [`Command::OpenSession`](super::Command::OpenSession).
    SessionOpened {
        /// The id of the session.
        session: SessionId,
    },
    /// To [`Command::KeepAlive`](super::Command::KeepAlive).
    SessionKept,
    /// To [`Command::CloseSession`](super::Command::CloseSession) and
    /// [`Command::ExpireSession`](super::Command::ExpireSession).
    SessionClosed {
        /// Whether this entry ended it. If not, it had ended before, or was used since.
        closed: bool,
    },
    /// To [`Command::ExpireKeys`](super::Command::ExpireKeys).
    ExpireKeys {
        /// The revision of the change, or the current one if nothing was deleted.
        revision: Revision,
        /// How many keys were deleted.
        deleted: u64,
    },
    /// To [`Command::GrantLease`](super::Command::GrantLease).
    LeaseGranted {
        lease: LeaseId,
        /// See [`Command::GrantLease`](super::Command::GrantLease).
        ttl_ms: u64,
        /// The current revision.
        revision: Revision,
    },
    /// To [`Command::RevokeLease`](super::Command::RevokeLease) and
    /// [`Command::ExpireLease`](super::Command::ExpireLease).
    LeaseEnded {
        lease: LeaseId,
        /// The revision of the change, or the current one if nothing was deleted.
        revision: Revision,
        /// How many keys were deleted.
        deleted: u64,
        end: LeaseEnd,
    },
    /// To [`Command::CheckpointLeases`](super::Command::CheckpointLeases).
    LeasesCheckpointed {
        /// What was recorded: not of leases that have ended, or were changed since.
        leases: Vec<LeaseCheckpoint>,
    },
    /// To a membership change: the membership after it, or why it was refused.
    Membership(Result<Arc<Membership>, MembershipRefusal>),
    /// To the empty entry with which a leader begins its term.
    Empty,
    /// The entry is not a command; nothing changed.
    Rejected(CommandError),
    /// The command cannot be done; no data changed.
    Refused(Refusal),
    /// The command was applied earlier, once, with this outcome, without its pairs, and for a batch
    /// without all answers: with them it was larger than
    /// [`REPLY_BYTES_MAX`](super::REPLY_BYTES_MAX), too large to be stored. It is also the first
    /// answer if there are more than [`PREVIOUS_BYTES_MAX`](super::PREVIOUS_BYTES_MAX) of previous
    /// pairs, or if the member has no memory for them.
    Trimmed(Box<Outcome>),
}

impl Outcome {
    /// Of which kind of call it is the answer, for logs: an outcome itself may hold users' values.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Put { .. } => "Put",
            Self::Delete { .. } => "Delete",
            Self::CompareAndSwap { .. } => "CompareAndSwap",
            Self::Batch { .. } => "Batch",
            Self::Compact { .. } => "Compact",
            Self::Trimmed(outcome) => outcome.name(),
            Self::SessionOpened { .. }
            | Self::SessionKept
            | Self::SessionClosed { .. }
            | Self::ExpireKeys { .. }
            | Self::LeaseGranted { .. }
            | Self::LeaseEnded { .. }
            | Self::LeasesCheckpointed { .. }
            | Self::Membership(_)
            | Self::Empty
            | Self::Rejected(_)
            | Self::Refused(_) => "other",
        }
    }

    /// The outcome without its pairs, and for a batch without its answers, as a session stores it
    /// if it is too large.
    #[must_use]
    pub fn without_pairs(mut self) -> Self {
        match &mut self {
            Self::Put { prev, .. } | Self::CompareAndSwap { prev, .. } => *prev = None,
            Self::Delete { prev, .. } => *prev = Vec::new(),
            Self::Batch { answers, .. } => *answers = Vec::new(),
            Self::Compact { .. }
            | Self::SessionOpened { .. }
            | Self::SessionKept
            | Self::SessionClosed { .. }
            | Self::ExpireKeys { .. }
            | Self::LeaseGranted { .. }
            | Self::LeaseEnded { .. }
            | Self::LeasesCheckpointed { .. }
            | Self::Membership(_)
            | Self::Empty
            | Self::Rejected(_)
            | Self::Refused(_)
            | Self::Trimmed(_) => return self,
        }
        Self::Trimmed(Box::new(self))
    }

    /// The approximate memory of the pairs in it.
    #[must_use]
    pub fn pairs_bytes(&self) -> usize {
        match self {
            Self::Put { prev, .. } | Self::CompareAndSwap { prev, .. } => pairs_bytes(prev),
            Self::Delete { prev, .. } => pairs_bytes(prev),
            Self::Batch { answers, .. } => answers.iter().map(BatchAnswer::pairs_bytes).sum(),
            Self::Trimmed(outcome) => outcome.pairs_bytes(),
            Self::Compact { .. }
            | Self::SessionOpened { .. }
            | Self::SessionKept
            | Self::SessionClosed { .. }
            | Self::ExpireKeys { .. }
            | Self::LeaseGranted { .. }
            | Self::LeaseEnded { .. }
            | Self::LeasesCheckpointed { .. }
            | Self::Membership(_)
            | Self::Empty
            | Self::Rejected(_)
            | Self::Refused(_) => 0,
        }
    }
}

fn pairs_bytes<'a>(pairs: impl IntoIterator<Item = &'a KeyValue>) -> usize {
    let bytes = |kv: &KeyValue| size_of::<KeyValue>() + kv.key.len() + kv.value.len();
    pairs.into_iter().map(bytes).sum()
}

/// What is left of a lease after an entry that may end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseEnd {
    /// Nothing.
    Gone,
    /// It has ended, and has keys that are still to be deleted.
    Dying,
    /// There is no such lease, or it was changed since; nothing was done.
    NotDone,
}

/// The answer to one operation of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchAnswer {
    Put {
        /// The previous pair, if it was requested and existed.
        prev: Option<KeyValue>,
    },
    Delete {
        /// How many keys were deleted.
        deleted: u64,
        /// The deleted pairs, if they were requested.
        prev: Vec<KeyValue>,
    },
    /// To a read.
    Get {
        /// The pairs, in the order of their keys, or in the one that was asked for.
        kvs: Vec<KeyValue>,
        /// Whether pairs were left out because of a limit.
        more: bool,
        /// How many keys the range has; 0 if there are more than were returned. Only a read for the
        /// count alone goes on to count them, and one that is whole
        /// ([`RangeRead`](super::RangeRead)); before
        /// [`CommandVersion::V3`](super::CommandVersion::V3) all reads did.
        count: u64,
    },
    /// To a batch within the batch.
    Batch {
        /// Whether its comparisons held, and so which operations were done.
        succeeded: bool,
        /// One answer for each operation that was done.
        answers: Vec<BatchAnswer>,
    },
}

impl BatchAnswer {
    fn pairs_bytes(&self) -> usize {
        match self {
            Self::Put { prev } => pairs_bytes(prev),
            Self::Delete { prev: kvs, .. } | Self::Get { kvs, .. } => pairs_bytes(kvs),
            Self::Batch { answers, .. } => answers.iter().map(Self::pairs_bytes).sum(),
        }
    }
}

/// Why a valid command cannot be done. No data changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A batch would change a key twice.
    #[error("the batch would change a key twice")]
    DuplicateKey,
    /// A put is to keep the value or the lease of a key that does not exist.
    #[error("the key whose value or lease is to be kept does not exist")]
    KeyNotFound,
    /// The revision is in the future.
    #[error("revision {requested} is in the future: the store is at revision {current}")]
    Future {
        requested: Revision,
        current: Revision,
    },
    /// History below this revision was compacted before.
    #[error("revision {requested} is compacted: history begins at revision {compacted}")]
    Compacted {
        requested: Revision,
        /// The first revision that can be read.
        compacted: Revision,
    },
    /// The session was never opened, was closed, or expired. Whether the command was applied while
    /// it was open is not known any more, so it is not applied now.
    #[error("session {0} does not exist: it was closed, or expired")]
    UnknownSession(SessionId),
    /// The client has acknowledged the answer to this command.
    #[error("command {sequence} of the session is acknowledged, as all up to {acknowledged} are")]
    Acknowledged {
        sequence: u64,
        /// The highest acknowledged sequence.
        acknowledged: u64,
    },
    /// The client has to acknowledge answers first. Then it may repeat the command under its
    /// sequence.
    #[error(
        "the session keeps {replies} answers of {bytes} bytes and can keep no more: acknowledge \
         some"
    )]
    WindowFull {
        /// How many replies are stored for the session.
        replies: u64,
        bytes: u64,
    },
    /// The maximum number of sessions is open.
    #[error("there are {0} sessions, the maximum")]
    TooManySessions(u64),
    /// Ranges to delete exceed what one command may delete, and nothing was deleted.
    #[error(
        "the keys to delete take more than {bytes_max} bytes, the maximum of one command: delete a \
         part of the range at a time"
    )]
    DeletesTooMuch {
        /// See [`RANGE_DELETE_BYTES_MAX`](crate::RANGE_DELETE_BYTES_MAX).
        bytes_max: u64,
    },
    /// The ranges of the command exceed what one command may visit, and nothing was changed.
    #[error(
        "the ranges of the request hold more than {keys_max} keys or {bytes_max} bytes (keys \
         deleted lately count too), the maximum of one write or batch: use smaller ranges, read \
         with a limit, or read outside of the batch"
    )]
    RangesTooLarge {
        /// See [`RANGE_VISIT_KEYS_MAX`](crate::RANGE_VISIT_KEYS_MAX).
        keys_max: u64,
        /// See [`RANGE_VISIT_BYTES_MAX`](crate::RANGE_VISIT_BYTES_MAX).
        bytes_max: u64,
    },
    /// The whole reads of a batch exceed what they may return together, and nothing was changed.
    #[error(
        "the reads of the batch return more than {bytes_max} bytes, the maximum of one batch: use \
         smaller ranges, read with a limit, or read outside of the batch"
    )]
    ReadsTooMuch {
        /// See [`BATCH_READ_BYTES_MAX`](crate::BATCH_READ_BYTES_MAX).
        bytes_max: u64,
    },
    /// The lease was never granted, was revoked, or expired.
    #[error("lease {0} does not exist: it was revoked, or expired")]
    LeaseNotFound(LeaseId),
    /// A lease has this id.
    #[error("lease {0} exists")]
    LeaseExists(LeaseId),
    /// There is the maximum number of leases.
    #[error("there are {0} leases, the maximum")]
    TooManyLeases(u64),
    /// Only commands that change keys can be repeated within a session.
    #[error("this kind of command takes no session")]
    NotForSessions,
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_reply_that_is_too_large_is_stored_without_pairs() {
        let revision = Revision(3);
        let pair = || KeyValue {
            key: Bytes::from_static(b"key"),
            value: Bytes::from_static(b"value"),
            create_revision: revision,
            mod_revision: revision,
            version: 1,
            ttl_ms: 0,
            lease: LeaseId::NONE,
        };
        let put = |prev| Outcome::Put { revision, prev };
        assert_eq!(
            put(Some(pair())).without_pairs(),
            Outcome::Trimmed(Box::new(put(None)))
        );
        let batch = |answers| Outcome::Batch {
            revision,
            succeeded: true,
            answers,
        };
        let answers = vec![BatchAnswer::Get {
            kvs: vec![pair()],
            more: false,
            count: 1,
        }];
        assert_eq!(
            batch(answers).without_pairs(),
            Outcome::Trimmed(Box::new(batch(vec![])))
        );
        let kept = Outcome::Compact { revision };
        assert_eq!(kept.clone().without_pairs(), kept);
    }
}
