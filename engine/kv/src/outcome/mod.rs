//! What becomes of entries: the answers, equal on every member.

mod encoding;

pub use encoding::{decode_kept, encode_kept};

use super::{CommandError, KeyValue, Membership, MembershipRefusal};
use bytes::Bytes;
use dengine_types::{Index, Revision, SessionId, Term};
use std::sync::Arc;

/// What became of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Which entry.
    pub index: Index,
    /// Its term.
    pub term: Term,
    /// Its context, by which the member that proposed it finds who waits.
    pub context: Bytes,
    /// The answer.
    pub outcome: Outcome,
    /// Records that it visited of those that [`Command::records`](super::Command::records) counts, or of a session that it ended; one at least.
    pub records: usize,
    /// Keys that its ranges visited, or KiB of them if these are more.
    pub visited: usize,
}

/// The answer to an entry, equal on every member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// To [`Command::Put`](super::Command::Put).
    Put {
        /// The revision it took.
        revision: Revision,
        /// The pair before, if it was asked for and existed.
        prev: Option<KeyValue>,
    },
    /// To [`Command::Delete`](super::Command::Delete).
    Delete {
        /// The revision it took, or the current one if there was nothing to delete.
        revision: Revision,
        /// How many keys it deleted.
        deleted: u64,
        /// What they were, if that was asked for.
        prev: Vec<KeyValue>,
    },
    /// To [`Command::CompareAndSwap`](super::Command::CompareAndSwap).
    CompareAndSwap {
        /// The revision it took, or the current one if it did not succeed.
        revision: Revision,
        /// Whether the key was as expected.
        succeeded: bool,
        /// The pair as it was when compared, if it existed.
        prev: Option<KeyValue>,
    },
    /// To [`Command::Batch`](super::Command::Batch).
    Batch {
        /// The revision it took, or the current one if it changed nothing.
        revision: Revision,
        /// Whether the comparisons held, and so which operations were done.
        succeeded: bool,
        /// One answer for each operation that was done.
        answers: Vec<BatchAnswer>,
    },
    /// To [`Command::Compact`](super::Command::Compact).
    Compact {
        /// The store's revision.
        revision: Revision,
    },
    /// To [`Command::OpenSession`](super::Command::OpenSession).
    SessionOpened {
        /// Names the session from now on.
        session: SessionId,
    },
    /// To [`Command::KeepAlive`](super::Command::KeepAlive).
    SessionKept,
    /// To [`Command::CloseSession`](super::Command::CloseSession) and
    /// [`Command::ExpireSession`](super::Command::ExpireSession).
    SessionClosed {
        /// Whether this entry ended it. If not, it was gone, or was used and goes on.
        closed: bool,
    },
    /// To [`Command::ExpireKeys`](super::Command::ExpireKeys).
    ExpireKeys {
        /// The revision it took, or the current one if there was nothing to delete.
        revision: Revision,
        /// How many keys it deleted.
        deleted: u64,
    },
    /// To a membership change: the members after it, or why nothing changed.
    Membership(Result<Arc<Membership>, MembershipRefusal>),
    /// To the empty entry with which a leader begins its term.
    Empty,
    /// The entry holds no command; nothing changed.
    Rejected(CommandError),
    /// The command cannot be done; no data changed.
    Refused(Refusal),
    /// The command was applied earlier, once, and this was the answer, except that the pairs of it are
    /// left out, and of a batch all answers: with them it was larger than
    /// [`REPLY_BYTES_MAX`](super::REPLY_BYTES_MAX), too large to be kept. The first time too it is answered so if there are
    /// more than [`PREVIOUS_BYTES_MAX`](super::PREVIOUS_BYTES_MAX) of the pairs before it, or by a member that has no memory
    /// for them.
    Trimmed(Box<Outcome>),
}

impl Outcome {
    /// The same without its pairs, and without all answers of a batch, as a session keeps what is too large.
    #[must_use]
    pub fn without_pairs(mut self) -> Self {
        match &mut self {
            Self::Put { prev, .. } | Self::CompareAndSwap { prev, .. } => *prev = None,
            Self::Delete { prev, .. } => *prev = Vec::new(),
            Self::Batch { answers, .. } => *answers = Vec::new(),
            _ => return self,
        }
        Self::Trimmed(Box::new(self))
    }

    /// What the pairs in it cost in memory, roughly.
    #[must_use]
    pub fn pairs_bytes(&self) -> usize {
        match self {
            Self::Put { prev, .. } | Self::CompareAndSwap { prev, .. } => pairs_bytes(prev),
            Self::Delete { prev, .. } => pairs_bytes(prev),
            Self::Batch { answers, .. } => answers.iter().map(BatchAnswer::pairs_bytes).sum(),
            Self::Trimmed(outcome) => outcome.pairs_bytes(),
            _ => 0,
        }
    }
}

fn pairs_bytes<'a>(pairs: impl IntoIterator<Item = &'a KeyValue>) -> usize {
    let bytes = |kv: &KeyValue| size_of::<KeyValue>() + kv.key.len() + kv.value.len();
    pairs.into_iter().map(bytes).sum()
}

/// The answer to one operation of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchAnswer {
    /// To a put.
    Put {
        /// The pair before, if it was asked for and existed.
        prev: Option<KeyValue>,
    },
    /// To a delete.
    Delete {
        /// How many keys it deleted.
        deleted: u64,
        /// What they were, if that was asked for.
        prev: Vec<KeyValue>,
    },
    /// To a read.
    Get {
        /// The pairs, in the order of their keys.
        kvs: Vec<KeyValue>,
        /// Whether a bound left out pairs.
        more: bool,
        /// How many keys the range holds. 0 if there are more than were returned: only a read that asks for the count
        /// alone goes on to count them; before [`CommandVersion::V3`](super::CommandVersion::V3) all did.
        count: u64,
    },
}

impl BatchAnswer {
    fn pairs_bytes(&self) -> usize {
        match self {
            Self::Put { prev } => pairs_bytes(prev),
            Self::Delete { prev: kvs, .. } | Self::Get { kvs, .. } => pairs_bytes(kvs),
        }
    }
}

/// Why a command that reads well cannot be done. No data changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A batch would change a key twice.
    #[error("the batch would change a key twice")]
    DuplicateKey,
    /// The revision has not happened yet.
    #[error("revision {requested} lies in the future: the store is at revision {current}")]
    Future {
        /// What was asked for.
        requested: Revision,
        /// The store's revision.
        current: Revision,
    },
    /// History below this revision is gone already.
    #[error("revision {requested} is compacted: history begins at revision {compacted}")]
    Compacted {
        /// What was asked for.
        requested: Revision,
        /// The first revision that can be read.
        compacted: Revision,
    },
    /// The session was never opened, is closed, or expired. Whether the command was applied while it was
    /// open cannot be told any more, so it is not applied now.
    #[error("session {0} does not exist: it was closed, or expired")]
    UnknownSession(SessionId),
    /// The client has said that it has this command's answer.
    #[error("command {sequence} of the session is acknowledged, as all up to {acknowledged} are")]
    Acknowledged {
        /// What was asked for.
        sequence: u64,
        /// The highest acknowledged one.
        acknowledged: u64,
    },
    /// The client has to acknowledge answers first. Then it may repeat the command under its sequence.
    #[error(
        "the session keeps {replies} answers of {bytes} bytes and can keep no more: acknowledge some"
    )]
    WindowFull {
        /// How many answers are kept for the session.
        replies: u64,
        /// Their size.
        bytes: u64,
    },
    /// There are as many sessions as there may be.
    #[error("there are {0} sessions, as many as there may be")]
    TooManySessions(u64),
    /// Ranges to delete hold more than one command may delete, and nothing was deleted.
    #[error(
        "the keys to delete take more than {bytes_max} bytes, which is all that one command may delete: delete a part of the range at a time"
    )]
    DeletesTooMuch {
        /// See [`RANGE_DELETE_BYTES_MAX`](crate::RANGE_DELETE_BYTES_MAX).
        bytes_max: u64,
    },
    /// The ranges of the command hold more than one command may visit, and nothing was changed.
    #[error(
        "the ranges of the request hold more than {keys_max} keys or {bytes_max} bytes (keys deleted lately count too), which is all that one write or batch may visit: use smaller ranges, read with a limit, or read outside of the batch"
    )]
    RangesTooLarge {
        /// See [`RANGE_VISIT_KEYS_MAX`](crate::RANGE_VISIT_KEYS_MAX).
        keys_max: u64,
        /// See [`RANGE_VISIT_BYTES_MAX`](crate::RANGE_VISIT_BYTES_MAX).
        bytes_max: u64,
    },
    /// Only commands that change keys can be repeated within a session.
    #[error("this kind of command takes no session")]
    NotForSessions,
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn what_is_too_large_is_kept_without_pairs_and_says_so() {
        let revision = Revision(3);
        let pair = || KeyValue {
            key: Bytes::from_static(b"key"),
            value: Bytes::from_static(b"value"),
            create_revision: revision,
            mod_revision: revision,
            version: 1,
            ttl_ms: 0,
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
