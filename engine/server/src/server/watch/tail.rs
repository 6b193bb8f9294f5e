//! Watches for a call that waits for something to happen to some keys: what they find is not sent
//! to anybody.

use std::future::poll_fn;
use std::sync::Arc;

use dengine_kv::watch::{Addressed, Delivery, WatchSet, WatchSpec, Work};
use dengine_kv::{ChangesQuery, Event};
use dengine_types::Revision;
use tokio::sync::watch;
use tonic::Status;

use super::backlog::Backlog;
use super::hub::PageError;
use super::{OPEN_BYTES, WatchService, WatchShared, no_stream};
use crate::connections::{Connection, give_way};
use crate::server::places::{self, Place};
use crate::server::turns::Whose;

/// A few watches of one call. It counts as a stream of watches.
pub(in crate::server) struct Tail {
    shared: Arc<WatchShared>,
    /// Whose turns it reads history in.
    whose: Whose,
    watches: WatchSet,
    /// How many watches there were.
    begun: u64,
    /// Says that there may be new history.
    changed: watch::Receiver<()>,
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
        Ok(Tail {
            whose: Some(on.source().address()),
            watches: WatchSet::new(OPEN_BYTES),
            begun: 0,
            changed: shared.hub.subscribe(),
            backlog: shared.backlogs.begin(on),
            shared,
            _place: place,
        })
    }
}

impl Tail {
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
            if self.shared.hub.work(&mut self.watches).is_none() {
                // The hub, which says so, lives as long as this.
                self.changed.changed().await.map_err(|_| Lost)?;
                continue;
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
