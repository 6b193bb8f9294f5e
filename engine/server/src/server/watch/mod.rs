//! The `Watch` service.
//!
//! - [`dialect`]: what differs between protocols. [`native`]: our own.
//! - [`hub`]: reads history once for all. [`stream`]: the watches of one client, told in order, and
//!   ended when the client is too slow. [`parts`]: what waits for the rest of its revision.
//!   [`places`](super::places): how many there may be.
//! - [`tail`]: a few watches for a call of another service.
//!
//! Memory is bounded for all streams together ([`backlog`]): the pages that are being told, and
//! what clients have not read yet, wherever it waits; each stream by less than one event more than
//! its bound, and one stream at a time by the parts of a revision that is sent whole. Besides, each
//! holds the beginnings of revisions whose rest is not read ([`OPEN_BYTES`]), and the hub a ring
//! and a few pages of the past. What a watch is told and how it is cut is decided in
//! `dengine_kv::watch`; what it looks like as messages, in `dengine_protocol::checks::watch`.

mod backlog;
pub(in crate::server) mod dialect;
mod hub;
mod native;
mod parts;
mod stream;
mod tail;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use dengine_protocol::v1::watch_server::Watch;
use dengine_protocol::v1::{WatchRequest, WatchResponse};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use self::backlog::Backlogs;
use self::dialect::Dialect;
use self::hub::Hub;
use self::native::Native;
use self::stream::StreamTask;
use super::bodies::CountedBy;
use super::places::{Full, Places};
use super::serving;
use super::serving::header::Headers;
use super::streams::{Beside, streamed};
use super::turns::Turns;
use crate::config::Limits;
use crate::connections::Share;
use crate::memory::{self, Use};
use crate::node::Node;

pub(super) use self::tail::{Lost, Tail, Teller};

/// How often a stream looks after itself: progress, and whether the member still takes part.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What the watches of a stream hold of revisions whose rest was not read yet, all together. A
/// watch for which there is no room reads its part of the revision for itself.
const OPEN_BYTES: usize = 1024 * 1024;

/// Serves `Watch` from a node. Clones share everything.
#[derive(Clone)]
pub(super) struct WatchService {
    shared: Arc<WatchShared>,
}

/// What all streams of a member share.
pub(super) struct WatchShared {
    node: Node,
    hub: Hub,
    headers: Headers,
    limits: Limits,
    streams: Places,
    watches: Places,
    backlogs: Backlogs,
    /// Who may hold more of a revision that is sent whole than there is room for.
    whole_turns: Turns,
    stop: CancellationToken,
}

/// Tells how many watches there are.
#[derive(Clone)]
pub(super) struct WatchCount(Places);

impl WatchCount {
    /// Watches that are open now.
    pub(super) fn now(&self) -> u64 {
        self.0.taken() as u64
    }
}

impl WatchService {
    /// Serves within `limits`, until `stop` is cancelled. `history`: a thread that does nothing
    /// else than to read new history.
    pub(super) fn new(
        node: Node,
        limits: Limits,
        history: &Handle,
        stop: CancellationToken,
    ) -> Self {
        let wanted = limits.max_answer_bytes / 2;
        let most = memory::most(Use::Watches, wanted, limits.largest_answer_bytes());
        let backlogs = Backlogs::new(most);
        tokio::spawn(backlogs.clone().watch_over(stop.clone()));
        let shared = WatchShared {
            backlogs,
            whole_turns: Turns::new(1, Share::HALF),
            hub: Hub::start(node.clone(), history, stop.clone()),
            headers: Headers::new(&node),
            streams: Places::new(
                limits.max_watch_streams,
                limits.max_watch_streams_per_connection,
            ),
            watches: Places::new(limits.max_watches, limits.max_watches_per_connection),
            node,
            limits,
            stop,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Serves a stream of watches in its protocol; `T` is what tonic says that its messages are.
    ///
    /// # Errors
    /// There is no place for it.
    pub(super) fn serve<D: Dialect, T>(
        &self,
        dialect: D,
        request: Request<Streaming<D::Request>>,
    ) -> Result<Response<Beside<T>>, Status> {
        let shared = Arc::clone(&self.shared);
        let connection = request.remote_addr();
        let place = shared.streams.take(connection);
        let place = place.map_err(|full| Status::resource_exhausted(no_stream(full)))?;
        let on = Arc::clone(serving::connection(&request));
        let backlog = shared.backlogs.begin(&on);
        let counted = CountedBy(Arc::clone(&backlog) as _);
        let requests = request.into_inner();
        let task = StreamTask::start(dialect, shared, &on, connection, place, backlog, requests);
        Ok(streamed(task, counted))
    }

    /// How many bytes are held for a client that has not read them.
    pub(super) fn held(&self) -> impl Fn(IpAddr) -> usize + Send + Sync + use<> {
        let backlogs = self.shared.backlogs.clone();
        move |from| backlogs.held_by(from) * memory::OF_A_WATCH
    }

    /// Tells how many watches there are.
    pub(super) fn count(&self) -> WatchCount {
        WatchCount(self.shared.watches.clone())
    }
}

#[tonic::async_trait]
impl Watch for WatchService {
    type WatchStream = Beside<WatchResponse>;

    async fn watch(
        &self,
        request: Request<Streaming<WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        self.serve(Native, request)
    }
}

fn no_stream(full: Full) -> String {
    match full {
        Full::Member(limit) => format!(
            "this member serves {limit} watch streams already; ask another, or raise \
             --max-watch-streams"
        ),
        Full::Connection(limit) => format!(
            "this connection has {limit} watch streams already; a stream holds many watches: use \
             one of them, or raise --max-watch-streams-per-connection"
        ),
        Full::Address(own) => format!(
            "your address has {own} watch streams already, as many as this member lets one have; a \
             stream holds many watches: use one of them, or raise --max-watch-streams"
        ),
    }
}

fn no_watch(full: Full) -> String {
    match full {
        Full::Member(limit) => {
            format!("this member has {limit} watches already; ask another, or raise --max-watches")
        }
        Full::Connection(limit) => format!(
            "this connection has {limit} watches already; watch ranges rather than single keys, \
             ask another member, or raise --max-watches-per-connection"
        ),
        Full::Address(own) => format!(
            "your address has {own} watches already, as many as this member lets one have; ask \
             another, or raise --max-watches"
        ),
    }
}
