//! Everything that reaches the replica thread, through one queue.
//!
//! The queue itself has no bound; what enters it has. A request or a peer's message carries permits of a
//! semaphore that it gives back when it was handled, and the log writer and the applier answer once for
//! what they were given. So the replica never waits for the threads that it feeds, and they never for it.

use super::snapshots::Made;
use super::status::MembersView;
use super::waiters::Awaited;
use crate::error::{Fatal, RequestError};
use bytes::Bytes;
use dengine_raft::replica::{self, Caller, Env};
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
}

impl<T> Caller<T> for Reply<T> {
    fn is_gone(&self) -> bool {
        self.0.is_closed()
    }

    fn answer(self, answer: Result<T, RequestError>) {
        // Whoever asked may have given up.
        let _ = self.0.send(answer);
    }
}

/// The callers of a real member wait on channels.
pub(crate) enum Channels {}

impl Env for Channels {
    type Write = Awaited;
    type Read = Reply<()>;
    type Transfer = Reply<Term>;
}

/// A stream of a peer's messages, as the replica sees it.
#[derive(Default)]
pub(crate) struct PeerStream {
    refused: AtomicBool,
    told: Notify,
}

impl PeerStream {
    /// A message was refused, which no member sends: there is no sense in reading more of them, for each costs the replica as
    /// much as one of a member.
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

pub(crate) type Request = replica::Request<Channels>;

pub(crate) enum Input {
    /// For the replica as it is.
    Replica(replica::Input<Channels>),
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

impl From<replica::Input<Channels>> for Input {
    fn from(input: replica::Input<Channels>) -> Self {
        Self::Replica(input)
    }
}

impl From<Request> for Input {
    fn from(request: Request) -> Self {
        Self::Replica(replica::Input::Request(request))
    }
}
