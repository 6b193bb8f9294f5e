//! Why a member did not do what it was asked.

use std::time::Duration;

use dengine_types::MemberId;

/// Whom to ask instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderHint {
    /// The leader's id.
    pub id: MemberId,
    /// `host:port` for clients.
    pub client_address: String,
}

/// Why a request was not served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Only the leader can do this. Nothing was changed.
    #[error("this member does not lead{}", .leader.as_ref().map_or_else(
        || ", and knows no leader".to_owned(),
        |l| format!("; member {} at {} does", l.id, l.client_address),
    ))]
    NotLeader {
        /// Who does, if known.
        leader: Option<LeaderHint>,
    },
    /// This member is in its cluster no more. Nothing was changed.
    #[error("this member was removed from its cluster; nothing was changed, ask another one")]
    Removed,
    /// This member has an empty data directory and no identity yet.
    #[error("this member belongs to no cluster yet: bootstrap it, or join it to a cluster")]
    WaitingForIdentity,
    /// A bound is reached. Nothing was changed.
    #[error("too many {what} (at most {limit}); try again later")]
    Busy {
        what: &'static str,
        /// The bound.
        limit: usize,
    },
    /// The disk of the leader is nearly full. Nothing was changed.
    #[error(
        "the disk of this member is nearly full: {free_bytes} bytes are free, and writes are taken \
         again once {wanted_bytes} are (--min-free-bytes, a quarter of it more, and what the log \
         takes next); delete keys or give it a larger volume"
    )]
    LowOnSpace {
        free_bytes: u64,
        /// What must be free for writes to be taken again.
        wanted_bytes: u64,
    },
    /// Not served this time. Nothing was changed; a retry may succeed.
    #[error("not served: {reason}; nothing was changed, try again")]
    NotServed { reason: String },
    /// It is unknown whether the write took or will take effect.
    #[error("no answer within {waited:?}: the write may or may not take effect")]
    UnknownOutcome {
        /// How long it was waited for.
        waited: Duration,
    },
    /// The cluster is not in a state in which this may be done. Nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// The request can never succeed as it is.
    #[error("{0}")]
    Invalid(String),
    /// This member is stopping. Nothing was changed.
    #[error("this member is shutting down")]
    ShuttingDown,
    /// The store failed; the member is about to end.
    #[error("the store failed: {0}")]
    Storage(String),
}

impl RequestError {
    /// What a write comes to that is lost ([`Output::Lost`](crate::Output::Lost)).
    #[must_use]
    pub fn lost() -> Self {
        Self::NotServed {
            reason: "the leader changed before a quorum had it".to_owned(),
        }
    }

    /// Whether nothing was changed and the same request may succeed later or elsewhere.
    #[must_use]
    pub fn retryable(&self) -> bool {
        match self {
            Self::NotLeader { .. }
            | Self::Removed
            | Self::WaitingForIdentity
            | Self::Busy { .. }
            | Self::LowOnSpace { .. }
            | Self::NotServed { .. }
            | Self::ShuttingDown => true,
            Self::UnknownOutcome { .. }
            | Self::Refused(_)
            | Self::Invalid(_)
            | Self::Storage(_) => false,
        }
    }
}
