//! What serving a call of keys takes, whichever protocol its client speaks.
//!
//! - [`writes`]: calls that change something.
//! - [`range_writes`]: writes that delay all others while they are applied.
//! - [`reads`]: how fresh a read is, and the reading.
//! - [`leases`]: questions about leases, for the leader.
//! - [`catch_up`]: session reads that wait.
//! - [`header`]: where and when an answer was made.
//! - [`openers`], [`grants`]: the limits of sessions and leases that one client may have.
//!
//! The protocols are [`kv`](super::kv) and [`etcd`](super::etcd).

mod catch_up;
mod grants;
pub(in crate::server) mod header;
pub(in crate::server) mod leases;
pub(in crate::server) mod openers;
pub(in crate::server) mod range_writes;
pub(in crate::server) mod reads;
#[cfg(test)]
mod tests;
pub(in crate::server) mod writes;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use dengine_kv::RANGE_VISIT_KEYS_MAX;
use dengine_protocol::checks::RequestLimits;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response};

use self::catch_up::SessionReads;
use self::grants::Grants;
use self::header::Headers;
use self::openers::Openers;
use super::aside::Aside;
use super::bodies::waits_until;
use super::forward::{Forwarder, Origin};
use super::gate::Gate;
use super::turns::Turns;
use crate::config::Limits;
use crate::connections::{Connection, OnConnection, Share, Source};
use crate::memory::{self, Use};
use crate::node::Node;
use crate::node::answers::{AnswerBudget, Held};
use crate::telemetry::traces::{Begun, TracedWrite, Tracer};

/// Writes that visit ranges, on their way at once. While one is applied every other write waits.
/// Half of them may be of one address.
const RANGE_WRITES_MAX: usize = 4;
/// One that visits more keys, or KiB of them, than this, which takes some 3 ms, has its address
/// rest before the next one while others write, too.
const RANGE_WRITE_KEYS: usize = 1 << 13;
/// One whose ranges hold more keys that are gone than this, and that no bound of commands counts,
/// is refused.
const GONE_KEYS_MAX: usize = RANGE_VISIT_KEYS_MAX;

/// What serving a call takes.
pub(in crate::server) struct Serving {
    pub(in crate::server) node: Node,
    /// For what a client must not have done on its own threads, which may be of lower priority:
    /// while it holds what others wait for.
    threads: Handle,
    pub(in crate::server) limits: Limits,
    pub(in crate::server) request_limits: RequestLimits,
    forwarder: Forwarder,
    pub(in crate::server) gate: Gate,
    pub(in crate::server) answers: AnswerBudget,
    /// Where reads are made that take long, and places of those that wait for this member to catch
    /// up.
    pub(in crate::server) aside: Aside,
    session_reads: Arc<SessionReads>,
    openers: Openers,
    grants: Grants,
    /// Of writes that visit ranges.
    range_writes: Turns,
    pub(in crate::server) headers: Headers,
    pub(in crate::server) tracer: Tracer,
    pub(in crate::server) stop: CancellationToken,
}

impl Serving {
    /// Within `limits`; once `stop` is cancelled, streams end as soon as their clients agree.
    /// Within the runtime whose threads serve no client alone.
    pub(in crate::server) fn new(
        node: Node,
        limits: Limits,
        forwarder: Forwarder,
        tracer: Tracer,
        openers: Openers,
        aside: Aside,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let max_concurrent = limits.max_concurrent_requests;
        let (wanted, largest) = (limits.max_answer_bytes, limits.largest_answer_bytes());
        let answer_bytes = memory::most(Use::Answers, wanted, largest);
        Arc::new(Self {
            session_reads: SessionReads::start(
                max_concurrent.div_ceil(2),
                node.revision_changes(),
                node.status_changes(),
            ),
            headers: Headers::new(&node),
            gate: Gate::new(&limits),
            node,
            threads: Handle::current(),
            request_limits: limits.of_requests(),
            limits,
            forwarder,
            answers: AnswerBudget::new(answer_bytes, largest),
            aside,
            openers,
            grants: Grants::default(),
            range_writes: Turns::new(RANGE_WRITES_MAX, Share::HALF),
            tracer,
            stop,
        })
    }

    /// Does this even if its caller leaves, on threads that serve no client alone.
    pub(in crate::server) fn detach<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.threads.spawn(work)
    }

    /// How many bytes are held for a client: of its writes that wait, and of its answers that it
    /// has not read.
    pub(in crate::server) fn held(
        self: &Arc<Self>,
    ) -> impl Fn(IpAddr) -> usize + Send + Sync + use<> {
        // The caller must keep no member from ending.
        let serving = Arc::downgrade(self);
        move |from| {
            let Some(serving) = serving.upgrade() else {
                return 0;
            };
            let answers = serving.answers.held_by(from) * memory::OF_AN_ANSWER;
            answers + serving.node.write_bytes_of(from) + serving.forwarder.write_bytes_of(from)
        }
    }
}

/// Who calls, as far as that matters.
#[derive(Clone)]
pub(in crate::server) struct Caller {
    pub(in crate::server) origin: Origin,
    pub(in crate::server) source: Arc<Source>,
    /// Until when it waits, if it says so and it is to be told to the leader.
    pub(in crate::server) until: Option<Instant>,
    /// If the call is traced.
    pub(in crate::server) trace: Option<Arc<TracedWrite>>,
}

impl Caller {
    pub(in crate::server) fn of<T>(request: &Request<T>) -> Self {
        Self {
            origin: Origin::of(request),
            source: Arc::clone(connection(request).source()),
            until: waits_until(request),
            trace: None,
        }
    }

    pub(in crate::server) fn traced(mut self, traced: Option<&Begun>) -> Self {
        self.trace = traced.map(|it| Arc::clone(it.write()));
        self
    }
}

/// The connection that a call came over.
pub(in crate::server) fn connection<T>(request: &Request<T>) -> &Arc<Connection> {
    let connection = request.extensions().get::<OnConnection>();
    let connection = connection.expect("every connection of this port is counted");
    &connection.connection
}

/// A response that takes what counts its memory along, until it is sent.
pub(in crate::server) fn counted<T>((answer, held): (T, Option<Held>)) -> Response<T> {
    let mut response = Response::new(answer);
    if let Some(held) = held {
        response.extensions_mut().insert(Arc::new(held));
    }
    response
}
