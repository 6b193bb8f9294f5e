//! Watches for a call that waits for something to happen to some keys: what they find is not sent
//! to anybody.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use dengine_kv::watch::{Addressed, Delivery, WatchSet, WatchSpec, Work};
use dengine_kv::{ChangesQuery, Event};
use dengine_types::Revision;
use futures::{Stream, StreamExt as _, stream};
use metrics::counter;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::backlog::{Backlog, Held};
use super::hub::{Listener, PageError};
use super::{OPEN_BYTES, WatchService, WatchShared, no_stream};
use crate::connections::{Connection, give_way};
use crate::server::bodies::CountedBy;
use crate::server::places::{self, Place};
use crate::server::turns::Whose;
use crate::telemetry::metrics as names;

/// Messages that wait for the client besides the one that is sent.
const QUEUED_MESSAGES: usize = 1;

/// A few watches of one call. It counts as a stream of watches.
pub(in crate::server) struct Tail {
    shared: Arc<WatchShared>,
    /// Whose turns it reads history in.
    whose: Whose,
    watches: WatchSet,
    /// How many watches there were.
    begun: u64,
    /// Says that there may be new history.
    listener: Listener,
    backlog: Arc<Backlog>,
    _place: Place,
}

/// History was not read: it is gone, or this member is given another state. What it made is in the
/// state.
#[derive(Debug)]
pub(in crate::server) struct Lost;

impl WatchService {
    /// Watches for a call over a connection, which is counted by its address and port.
    ///
    /// # Errors
    /// There is no place for another stream of watches.
    pub(in crate::server) fn tail(
        &self,
        on: &Arc<Connection>,
        connection: places::Connection,
    ) -> Result<Tail, Status> {
        let shared = Arc::clone(&self.shared);
        let place = shared.streams.take(connection);
        let place = place.map_err(|full| Status::resource_exhausted(no_stream(full)))?;
        let listener = shared.hub.listen();
        Ok(Tail {
            whose: Some(on.source().address()),
            watches: WatchSet::new(listener.stream(), OPEN_BYTES),
            begun: 0,
            listener,
            backlog: shared.backlogs.begin(on),
            shared,
            _place: place,
        })
    }
}

/// Tells the client of a call what its watches found, as far as it reads.
pub(in crate::server) struct Teller<T> {
    out: mpsc::Sender<(T, Held)>,
    backlog: Arc<Backlog>,
    patience: Duration,
}

/// What the client of a call is told.
pub(in crate::server) struct Told<T>(mpsc::Receiver<(T, Held)>);

impl<T> Teller<T> {
    /// Queues a message that takes so many bytes, as soon as there is room.
    ///
    /// # Errors
    /// The client reads nothing, or is gone.
    pub(in crate::server) async fn tell(&self, message: T, bytes: usize) -> Result<(), Status> {
        let held = self.backlog.unread(bytes);
        tokio::select! {
            biased;
            sent = self.out.send((message, held)) => return sent.map_err(|_| gone()),
            () = self.backlog.given_up() => {}
            () = self.backlog.overdue(self.patience) => {}
        }
        counter!(names::WATCH_STREAMS_SHED_TOTAL).increment(1);
        Err(Status::unavailable(
            "the client of this stream does not read what it is told; begin again",
        ))
    }
}

/// Nobody reads it.
fn gone() -> Status {
    Status::cancelled("the client is gone")
}

impl<T: Send + 'static> Told<T> {
    /// A stream of it that ends with what `telling` returns. That is done on the thread of the
    /// connection, and no longer than the client listens.
    pub(in crate::server) fn until(
        self,
        on: &Connection,
        telling: impl Future<Output = Status> + Send + 'static,
    ) -> impl Stream<Item = Result<T, Status>> + Send + 'static {
        let (mut last, words) = oneshot::channel();
        on.spawn(async move {
            let status = tokio::select! {
                status = telling => status,
                () = last.closed() => return,
            };
            // Nobody listens any more: nothing is left to say.
            let _ = last.send(status);
        });
        let last_words = stream::once(words).flat_map(|it| stream::iter(it.ok().map(Err)));
        let told = ReceiverStream::new(self.0).map(|(message, _held)| Ok(message));
        told.chain(last_words)
    }
}

impl Tail {
    /// By what the messages count that wait in the connection.
    pub(in crate::server) fn counted_by(&self) -> CountedBy {
        CountedBy(Arc::clone(&self.backlog) as _)
    }

    /// A way to tell the client.
    pub(in crate::server) fn teller<T>(&self) -> (Teller<T>, Told<T>) {
        let (out, told) = mpsc::channel(QUEUED_MESSAGES);
        let teller = Teller {
            out,
            backlog: Arc::clone(&self.backlog),
            patience: self.shared.limits.stream_stall_timeout(),
        };
        (teller, Told(told))
    }

    /// Watches something else from now on: these, each from its first revision on.
    pub(in crate::server) fn turn_to(
        &mut self,
        watches: impl IntoIterator<Item = (WatchSpec, Revision)>,
    ) {
        let mut wanted = self.shared.hub.wanted();
        self.watches.clear(&mut wanted);
        for (spec, first) in watches {
            self.begun += 1;
            self.watches.insert(self.begun, spec, first, &mut wanted);
        }
    }

    /// Waits for the next events, in the order in which they happened. Nothing is lost if it is
    /// dropped meanwhile.
    ///
    /// # Errors
    /// The watches cannot go on from where they are.
    pub(in crate::server) async fn next(&mut self) -> Result<Vec<Event>, Lost> {
        loop {
            let hub = &self.shared.hub;
            if !hub.has_work(&mut self.watches) {
                hub.news(&self.listener, &mut self.watches, false).await;
            }
            // What it is, is looked at again once there is room.
            let _room = self.backlog.room().await;
            let Some(work) = self.shared.hub.work(&mut self.watches) else {
                continue;
            };
            let events = self.work(work).await.map_err(|_| Lost)?;
            if !events.is_empty() {
                return Ok(events);
            }
            poll_fn(|context| give_way(context)).await;
        }
    }

    async fn work(&mut self, work: Work) -> Result<Vec<Event>, PageError> {
        let delivery = match work {
            Work::Deliver(page) => self.watches.deliver(page),
            Work::ReadPast(at, mark) => {
                let page = self.shared.hub.past(self.whose, at, mark).await?;
                self.watches.deliver(page)
            }
            Work::ReadAlone(id, query) => self.read_alone(id, query).await?,
        };
        Ok(self.events(delivery))
    }

    async fn read_alone(&mut self, id: u64, query: ChangesQuery) -> Result<Delivery, PageError> {
        let from = query.from;
        let changes = self.shared.hub.alone(self.whose, query).await?;
        Ok(self.watches.deliver_alone(id, from, changes))
    }

    /// What a part of history holds for the watches.
    fn events(&mut self, mut delivery: Delivery) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(slice) = self.watches.slice(&mut delivery) {
            for Addressed { ids, messages } in slice {
                // Revisions of any size come in parts.
                for message in messages.into_iter().flatten() {
                    let reached = message.reached();
                    for id in &ids {
                        self.watches.delivered(*id, reached);
                    }
                    events.extend(message.events);
                }
            }
        }
        self.watches.finish(delivery, &mut self.shared.hub.wanted());
        events
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.watches.clear(&mut self.shared.hub.wanted());
    }
}
