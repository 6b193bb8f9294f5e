//! A client that does not read its answers. What its calls hold (places at the gate, permits of
//! writes, the state) is given back after a while; otherwise a few such streams would keep
//! everybody else from being served.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use dengine_protocol::v1::PipelineResponse;
use futures::{Stream, StreamExt};
use tonic::Status;

use super::Pipeline;
use super::flight::Flight;
use crate::connections::PipelinePlace;
use crate::server::bodies::CountedBy;

/// A stream of answers that ends if the client does not read it.
pub(in crate::server) struct Supervised(Arc<Slot>);

/// Where the stream lies between two polls, so that it can be taken away.
struct Slot {
    state: Mutex<StallState>,
    flight: Arc<Flight>,
    place: PipelinePlace,
}

enum StallState {
    // Moved when it is taken away, and large.
    Open(Box<Pipeline>),
    /// How its client is told.
    Ended(Option<Status>),
}

impl Supervised {
    /// Ends `pipeline` once its client has read nothing for `patience`, although there is something
    /// to read.
    pub(in crate::server) fn new(
        pipeline: Pipeline,
        place: PipelinePlace,
        patience: Duration,
    ) -> Self {
        let flight = Arc::clone(pipeline.flight());
        let state = Mutex::new(StallState::Open(Box::new(pipeline)));
        let slot = Arc::new(Slot {
            state,
            flight,
            place,
        });
        tokio::spawn(supervise(Arc::downgrade(&slot), patience));
        Self(slot)
    }
}

impl Supervised {
    /// What counts the parts of its body.
    pub(in crate::server) fn counted_by(&self) -> CountedBy {
        CountedBy(Arc::clone(&self.0.flight) as _)
    }
}

impl Slot {
    fn state(&self) -> MutexGuard<'_, StallState> {
        self.state.lock().expect("no holder panics")
    }

    fn state_if_free(&self) -> Option<MutexGuard<'_, StallState>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(_)) => panic!("no holder panics"),
        }
    }

    /// Whether the stream ended for it.
    fn end_if_unread(&self, patience: Duration) -> bool {
        // Its holder polls the stream, which may take milliseconds of a lane: it is looked at
        // again soon enough.
        let Some(mut state) = self.state_if_free() else {
            return false;
        };
        if matches!(*state, StallState::Ended(_)) {
            return true;
        }
        let connection = self.place.connection();
        let Some((since, bytes)) = self.flight.unread() else {
            return false;
        };
        if !connection.is_overdue(since, bytes, patience) {
            return false;
        }
        let told =
            format!("this client has read no answer for {patience:?}: its calls were given up");
        let ended = std::mem::replace(
            &mut *state,
            StallState::Ended(Some(Status::resource_exhausted(told))),
        );
        // What it holds may take a while to go.
        drop(state);
        drop(ended);
        self.flight.strand(connection);
        true
    }
}

async fn supervise(slot: Weak<Slot>, patience: Duration) {
    loop {
        tokio::time::sleep(patience / 4).await;
        match slot.upgrade() {
            Some(slot) if !slot.end_if_unread(patience) => {}
            _ => return,
        }
    }
}

impl Stream for Supervised {
    type Item = Result<PipelineResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match &mut *self.0.state() {
            StallState::Open(pipeline) => pipeline.poll_next_unpin(context),
            StallState::Ended(told) => Poll::Ready(told.take().map(Err)),
        }
    }
}
