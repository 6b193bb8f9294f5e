//! A client that does not read its answers. What its calls hold (places at the gate, permits of writes, the state) is given
//! back after a while; otherwise a few such streams would keep everybody else from being served.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, Weak},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use dengine_api::v1::PipelineResponse;
use futures::{Stream, StreamExt};
use tonic::Status;

use super::Pipeline;
use crate::connections::PipelinePlace;

/// A stream of answers that ends if nobody reads it.
pub(in crate::server) struct Supervised(Arc<Slot>);

/// Where the stream lies between two polls, so that it can be taken away.
struct Slot {
    state: Mutex<State>,
    place: PipelinePlace,
}

enum State {
    Open {
        // Moved when it is taken away, and large.
        pipeline: Box<Pipeline>,
        /// Since when the connection has not asked for what follows a frame.
        unread_since: Option<Instant>,
    },
    /// How its client is told.
    Ended(Option<Status>),
}

impl Supervised {
    /// Ends `pipeline` once its client has read nothing for `patience`, although there is something to read.
    pub(in crate::server) fn new(
        pipeline: Pipeline,
        place: PipelinePlace,
        patience: Duration,
    ) -> Self {
        let state = Mutex::new(State::Open {
            pipeline: Box::new(pipeline),
            unread_since: None,
        });
        let slot = Arc::new(Slot { state, place });
        tokio::spawn(supervise(Arc::downgrade(&slot), patience));
        Self(slot)
    }
}

impl Slot {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// Whether the stream ended for it.
    fn end_if_unread(&self, patience: Duration) -> bool {
        let mut state = self.state();
        let connection = self.place.connection();
        let overdue = match &*state {
            State::Open {
                pipeline,
                unread_since,
            } => unread_since
                .is_some_and(|since| connection.is_overdue(since, pipeline.sent_bytes(), patience)),
            State::Ended(_) => return true,
        };
        if !overdue {
            return false;
        }
        let told =
            format!("this client has read no answer for {patience:?}: its calls were given up");
        let ended = std::mem::replace(
            &mut *state,
            State::Ended(Some(Status::resource_exhausted(told))),
        );
        // What it holds may take a while to go.
        drop(state);
        if let State::Open { mut pipeline, .. } = ended {
            let (bytes, held) = pipeline.take_sending();
            connection.keeps(bytes, held);
        }
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
            State::Open {
                pipeline,
                unread_since,
            } => {
                let polled = pipeline.poll_next_unpin(context);
                // A connection that has room asks again at once.
                *unread_since = polled.is_ready().then(Instant::now);
                polled
            }
            State::Ended(told) => Poll::Ready(told.take().map(Err)),
        }
    }
}
