//! Everything that reaches the replica thread, through one queue.
//!
//! The queue itself has no bound; what enters it has. A request or a peer's message carries permits of a
//! semaphore that it gives back when it was handled, and the log writer and the applier answer once for
//! what they were given. So the replica never waits for the threads that it feeds, and they never for it.

use super::Written;
use super::status::MembersView;
use crate::error::{Fatal, RequestError};
use bytes::Bytes;
use dengine_core::consensus::{AppendId, ConfigChange};
use dengine_core::kv::MembershipChange;
use dengine_core::types::{Index, MemberId, Term};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// Answers one caller.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, RequestError>>;

pub(crate) enum Input {
    /// From a caller; the permit counts it among the requests that wait for the replica.
    Request(Request),
    /// From a peer's stream. The permit counts its bytes.
    Message {
        from: MemberId,
        bytes: Bytes,
        permit: OwnedSemaphorePermit,
    },
    /// A peer could not be reached.
    Unreachable(MemberId),
    /// From the log writer.
    Persisted(AppendId),
    /// From the applier.
    Applied {
        index: Index,
        changes: Vec<ConfigChange>,
    },
    /// A thread failed; nothing may be acknowledged any more.
    Failed(Fatal),
    /// End the thread.
    Stop,
}

pub(crate) enum Request {
    Write {
        data: Bytes,
        reply: Reply<Written>,
    },
    Change {
        change: MembershipChange,
        reply: Reply<Written>,
    },
    Read {
        reply: Reply<()>,
    },
    Members {
        reply: Reply<MembersView>,
    },
    TransferLeader {
        to: MemberId,
        reply: Reply<Term>,
    },
}
