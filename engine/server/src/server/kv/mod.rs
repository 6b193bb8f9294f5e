//! The `Kv` service.
//!
//! - [`writes`]: calls that change something.
//! - [`range_writes`]: writes that delay all others while they are applied.
//! - [`reads`]: how fresh a read is, and the reading.
//! - [`catch_up`]: session reads that wait.
//! - [`pipeline`]: many calls over one stream.
//! - [`header`]: where and when an answer was made.
//! - [`openers`]: the limit of sessions that one client may open.
//!
//! What requests mean as commands and queries, and outcomes as answers, is in
//! `dengine_protocol::checks`.

mod catch_up;
pub(super) mod header;
pub(super) mod openers;
mod pipeline;
mod range_writes;
mod reads;
#[cfg(test)]
mod tests;
mod writes;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use dengine_kv::RANGE_VISIT_KEYS_MAX;
use dengine_protocol::checks::{Mutation, RequestLimits};
use dengine_protocol::trace::TraceParent;
use dengine_protocol::v1::kv_server::Kv;
use dengine_protocol::v1::{self, OpenSessionRequest, OpenSessionResponse, PipelineRequest};
use dengine_protocol::{KvCall, LEADER_HINT_METADATA, TRACEPARENT_METADATA, kv_calls};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status, Streaming};

use self::catch_up::SessionReads;
use self::header::Headers;
use self::openers::Openers;
use self::pipeline::Pipeline;
use self::reads::Read;
use super::aside::Aside;
use super::bodies::{too_many_streams, waits_until};
use super::forward::{Forwarder, Origin};
use super::gate::{Gate, Kind};
use super::turns::Turns;
use crate::config::Limits;
use crate::connections::{Connection, OnConnection, Share, Source};
use crate::memory::{self, Use};
use crate::node::Node;
use crate::node::answers::{AnswerBudget, Held};
use crate::telemetry::traces::{Begun, Parent, TracedWrite, Tracer};

/// Writes that visit ranges, on their way at once. While one is applied every other write waits.
/// Half of them may be of one address.
const RANGE_WRITES_MAX: usize = 4;
/// One that visits more keys, or KiB of them, than this, which takes some 3 ms, has its address
/// rest before the next one while others write, too.
const RANGE_WRITE_KEYS: usize = 1 << 13;
/// One whose ranges hold more keys that are gone than this, and that no bound of commands counts,
/// is refused.
const GONE_KEYS_MAX: usize = RANGE_VISIT_KEYS_MAX;

/// Serves `Kv` from a node.
pub(super) struct KvService {
    serving: Arc<Serving>,
}

/// What serving a call takes.
struct Serving {
    node: Node,
    /// For what a client must not have done on its own threads, which may be of lower priority:
    /// while it holds what others wait for.
    threads: Handle,
    limits: Limits,
    request_limits: RequestLimits,
    forwarder: Forwarder,
    gate: Gate,
    answers: AnswerBudget,
    /// Where reads are made that take long, and places of those that wait for this member to catch
    /// up.
    aside: Aside,
    session_reads: Arc<SessionReads>,
    openers: Openers,
    /// Of writes that visit ranges.
    range_writes: Turns,
    headers: Headers,
    tracer: Tracer,
    stop: CancellationToken,
}

/// What a call of the service returns.
type Answer<T> = Result<Response<T>, Status>;

impl KvService {
    /// Serves within `limits`; once `stop` is cancelled, streams end as soon as their clients
    /// agree. Within the runtime whose threads serve no client alone.
    pub(super) fn new(
        node: Node,
        limits: Limits,
        forwarder: Forwarder,
        (gate, tracer): (Gate, Tracer),
        openers: Openers,
        aside: Aside,
        stop: CancellationToken,
    ) -> Self {
        let headers = Headers::new(&node);
        let max_concurrent = limits.max_concurrent_requests;
        let (wanted, largest) = (limits.max_answer_bytes, limits.largest_answer_bytes());
        let answer_bytes = memory::most(Use::Answers, wanted, largest);
        let serving = Serving {
            session_reads: SessionReads::start(
                max_concurrent.div_ceil(2),
                node.revision_changes(),
                node.status_changes(),
            ),
            node,
            threads: Handle::current(),
            request_limits: limits.of_requests(),
            limits,
            forwarder,
            gate,
            answers: AnswerBudget::new(answer_bytes, largest),
            aside,
            openers,
            range_writes: Turns::new(RANGE_WRITES_MAX, Share::HALF),
            headers,
            tracer,
            stop,
        };
        Self {
            serving: Arc::new(serving),
        }
    }

    /// How many bytes are held for a client: of its writes that wait, and of its answers that it
    /// has not read.
    pub(super) fn held(&self) -> impl Fn(IpAddr) -> usize + Send + Sync + use<> {
        // The caller must keep no member from ending.
        let serving = Arc::downgrade(&self.serving);
        move |from| {
            let Some(serving) = serving.upgrade() else {
                return 0;
            };
            let answers = serving.answers.held_by(from) * memory::OF_AN_ANSWER;
            answers + serving.node.write_bytes_of(from) + serving.forwarder.write_bytes_of(from)
        }
    }

    /// Serves a call that changes something.
    async fn write<M: Mutation>(&self, request: Request<M>) -> Answer<M::Answer> {
        let traced = self.trace(&request);
        let caller = Caller::of(&request).traced(traced.as_ref());
        let leader = self.names_leader(&request);
        let Serving { gate, .. } = &*self.serving;
        let proposed = self.serving.propose(request.into_inner(), &caller);
        let passed = gate.pass(M::METHOD, Kind::Write, &caller.source, proposed);
        let passed = passed.await;
        answered(traced, &passed);
        passed.map(|it| leader.to(counted((it.answer, it.held))))
    }

    /// Serves the call that opens a session.
    async fn open(&self, request: Request<OpenSessionRequest>) -> Answer<OpenSessionResponse> {
        let traced = self.trace(&request);
        let caller = Caller::of(&request).traced(traced.as_ref());
        let serving = Arc::clone(&self.serving);
        let opened = serving.open_session(request.into_inner(), caller, None);
        let opened = opened.await;
        answered(traced, &opened);
        opened.map(Response::new)
    }

    /// Begins to trace a call, if it is sampled.
    fn trace<M: KvCall>(&self, request: &Request<M>) -> Option<Begun> {
        let tracer = &self.serving.tracer;
        tracer.begin(M::METHOD, Instant::now(), || Parent {
            span: request
                .metadata()
                .get(TRACEPARENT_METADATA)
                .and_then(|it| TraceParent::parse(it.to_str().ok()?)),
            passed_on: Origin::of(request) == Origin::Member,
        })
    }

    /// Serves a call that changes nothing.
    async fn read<R: Read>(&self, request: Request<R>) -> Answer<R::Answer> {
        let leader = self.names_leader(&request);
        let source = Arc::clone(connection(&request).source());
        let Serving { gate, .. } = &*self.serving;
        let read = request.into_inner().read(&self.serving, &source);
        let passed = gate.pass(R::METHOD, Kind::Read, &source, read);
        passed.await.map(|it| leader.to(counted(it)))
    }

    /// A client whose call the leader would have answered with less work is told who that is.
    fn names_leader<M: KvCall>(&self, request: &Request<M>) -> Named {
        let is_concerned =
            request.get_ref().is_for_leader() && Origin::of(request) == Origin::Client;
        let leader = is_concerned.then(|| self.serving.node.other_leader());
        Named(leader.flatten().map(|it| it.client_address))
    }

    /// Serves a stream of calls.
    fn stream(&self, request: Request<Streaming<PipelineRequest>>) -> Answer<pipeline::Supervised> {
        let caller = Caller::of(&request);
        let place = connection(&request)
            .pipeline()
            .ok_or_else(too_many_streams)?;
        let pipeline = Pipeline::new(Arc::clone(&self.serving), caller, request.into_inner());
        let patience = self.serving.node.config().limits.stream_stall_timeout();
        let supervised = pipeline::Supervised::new(pipeline, place, patience);
        let counted = supervised.counted_by();
        let mut response = Response::new(supervised);
        response.extensions_mut().insert(counted);
        Ok(response)
    }
}

/// Who calls, as far as that matters.
#[derive(Clone)]
struct Caller {
    origin: Origin,
    source: Arc<Source>,
    /// Until when it waits, if it says so and it is to be told to the leader.
    until: Option<Instant>,
    /// If the call is traced.
    trace: Option<Arc<TracedWrite>>,
}

impl Caller {
    fn of<T>(request: &Request<T>) -> Self {
        Self {
            origin: Origin::of(request),
            source: Arc::clone(connection(request).source()),
            until: waits_until(request),
            trace: None,
        }
    }

    fn traced(mut self, traced: Option<&Begun>) -> Self {
        self.trace = traced.map(|it| Arc::clone(it.write()));
        self
    }
}

/// A call was answered, or refused, that may be traced.
fn answered<T>(traced: Option<Begun>, result: &Result<T, Status>) {
    if let Some(traced) = traced {
        traced.answered(result.as_ref().map_or_else(Status::code, |_| Code::Ok));
    }
}

/// The address of the leader, for a client that is to go there with its next calls.
struct Named(Option<String>);

impl Named {
    fn to<T>(self, mut response: Response<T>) -> Response<T> {
        if let Some(address) = self.0
            && let Ok(address) = address.try_into()
        {
            response
                .metadata_mut()
                .insert(LEADER_HINT_METADATA, address);
        }
        response
    }
}

fn connection<T>(request: &Request<T>) -> &Arc<Connection> {
    let connection = request.extensions().get::<OnConnection>();
    let connection = connection.expect("every connection of this port is counted");
    &connection.connection
}

/// A response that takes what counts its memory along, until it is sent.
fn counted<T>((answer, held): (T, Option<Held>)) -> Response<T> {
    let mut response = Response::new(answer);
    if let Some(held) = held {
        response.extensions_mut().insert(Arc::new(held));
    }
    response
}

/// A method for each row of the table, which calls the one above that its first word names.
macro_rules! serve_kv {
    ([] $(
        $serve:ident $variant:ident, $method:ident:
            $request:ident { $($filled_in:ident)? } => $answer:ident;
    )*) => {
        #[tonic::async_trait]
        impl Kv for KvService {
            $(async fn $method(&self, request: Request<v1::$request>) -> Answer<v1::$answer> {
                self.$serve(request).await
            })*

            type PipelineStream = pipeline::Supervised;

            async fn pipeline(
                &self,
                request: Request<Streaming<PipelineRequest>>,
            ) -> Answer<Self::PipelineStream> {
                self.stream(request)
            }
        }
    };
}

kv_calls!([serve_kv]);
