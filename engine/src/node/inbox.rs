//! Everything that reaches the replica, through one queue.
//!
//! The queue itself has no bound; what enters it has. A request or a peer's message carries permits
//! of a semaphore that it gives back when it was handled, and the log writer and the applier answer
//! once for what they were given. So the replica never waits for the threads that it feeds, and
//! they never for it.

use super::snapshots::Made;
use super::status::MembersView;
use super::waiters::Awaited;
use crate::error::{Fatal, RequestError};
use bytes::Bytes;
use dengine_raft::{Confirm, Input, Successor, Write};
use dengine_types::{MemberId, Term};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{Notify, OwnedSemaphorePermit, oneshot};

/// Answers one caller.
pub(crate) struct Reply<T>(oneshot::Sender<Result<T, RequestError>>);

/// Where the answer comes out.
pub(crate) type Answer<T> = oneshot::Receiver<Result<T, RequestError>>;

impl<T> Reply<T> {
    pub(super) fn channel() -> (Self, Answer<T>) {
        let (reply, answer) = oneshot::channel();
        (Self(reply), answer)
    }

    /// Whether nobody waits any more.
    pub(super) fn is_gone(&self) -> bool {
        self.0.is_closed()
    }

    pub(super) fn answer(self, answer: Result<T, RequestError>) {
        // Whoever asked may have given up.
        let _ = self.0.send(answer);
    }
}

/// A stream of a peer's messages, as the replica sees it.
#[derive(Default)]
pub(crate) struct PeerStream {
    refused: AtomicBool,
    told: Notify,
}

impl PeerStream {
    /// A message was refused, which no member sends: there is no sense in reading more of them, for
    /// each costs the replica as much as one of a member.
    pub(super) fn refuse(&self) {
        self.refused.store(true, Ordering::Relaxed);
        self.told.notify_one();
    }

    pub(super) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Until it is refused.
    pub(crate) async fn refused(&self) {
        self.told.notified().await;
    }
}

/// What reaches the replica thread: what its replica takes in, and what this shell adds to it,
/// which is who waits, and what a message holds while it is queued.
pub(crate) enum ToReplica {
    /// For the replica as it is.
    Input(Input),
    /// Replicate this, and answer once it is applied.
    Write(Write, Awaited),
    /// Answer once a read sees every write that was acknowledged before.
    Read(Confirm, Reply<()>),
    /// Hand leadership over, and answer once that is done.
    Transfer(Successor, Reply<Term>),
    /// From a peer's stream. The permit counts its bytes.
    Message {
        from: MemberId,
        bytes: Bytes,
        permit: OwnedSemaphorePermit,
        stream: Arc<PeerStream>,
    },
    /// Who the members are, as the leader sees them.
    Members(Reply<MembersView>),
    /// A snapshot was made for followers, or could not be.
    SnapshotMade(Option<Made>),
    /// A thread failed; nothing may be acknowledged any more.
    Failed(Fatal),
    /// End the thread.
    Stop,
}

impl From<Input> for ToReplica {
    fn from(input: Input) -> Self {
        Self::Input(input)
    }
}
