//! The `Watch` service.
//!
//! - [`hub`]: reads new history once for all. [`stream`]: the watches of one client, told in order, and ended
//!   when the client is too slow.
//!
//! Memory is bounded by the number of streams: each holds a few messages that its client has not read yet, and
//! nothing else of history. What a watch is told and how it is cut is decided in `dengine_core::watch`; what it
//! looks like as messages, in `dengine_wire::watch`.

mod hub;
mod stream;

use std::{pin::Pin, sync::Arc, time::Duration};

use dengine_api::v1::{WatchRequest, WatchResponse, watch_server::Watch};
use futures::Stream;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use self::{hub::Hub, stream::StreamTask};
use super::kv::header::Headers;
use crate::{config::Limits, node::Node};

/// How often a stream looks after itself: progress, and whether the member still takes part.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Serves `Watch` from a node.
pub(super) struct WatchService {
    shared: Arc<Shared>,
}

/// What all streams of a member share.
pub(super) struct Shared {
    node: Node,
    hub: Hub,
    headers: Headers,
    limits: Limits,
    /// Places for streams and for watches.
    streams: Arc<Semaphore>,
    watches: Arc<Semaphore>,
    stop: CancellationToken,
}

/// Tells how many watches there are.
#[derive(Clone)]
pub(super) struct WatchCount {
    watches: Arc<Semaphore>,
    limit: usize,
}

impl WatchCount {
    /// Watches that are open now.
    pub(super) fn now(&self) -> u64 {
        self.limit.saturating_sub(self.watches.available_permits()) as u64
    }
}

impl WatchService {
    /// Serves within `limits`, until `stop` is cancelled.
    pub(super) fn new(node: Node, limits: Limits, stop: CancellationToken) -> Self {
        let shared = Shared {
            hub: Hub::start(node.clone(), stop.clone()),
            headers: Headers::new(&node),
            streams: Arc::new(Semaphore::new(limits.max_watch_streams)),
            watches: Arc::new(Semaphore::new(limits.max_watches)),
            node,
            limits,
            stop,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Tells how many watches there are.
    pub(super) fn count(&self) -> WatchCount {
        WatchCount {
            watches: Arc::clone(&self.shared.watches),
            limit: self.shared.limits.max_watches,
        }
    }
}

#[tonic::async_trait]
impl Watch for WatchService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<Streaming<WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let shared = Arc::clone(&self.shared);
        let place = Arc::clone(&shared.streams).try_acquire_owned().map_err(|_| {
            Status::resource_exhausted(format!(
                "this member serves {} watch streams already; ask another, or raise --max-watch-streams",
                shared.limits.max_watch_streams
            ))
        })?;
        let responses = StreamTask::start(shared, place, request.into_inner());
        Ok(Response::new(Box::pin(responses)))
    }
}
