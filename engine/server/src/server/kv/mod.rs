//! The `Kv` service.
//!
//! - [`reads`]: what its reads ask for, and the answers.
//! - [`pipeline`]: many calls over one stream.
//!
//! What serving a call takes is in [`serving`](super::serving). What requests mean as commands and
//! queries, and outcomes as answers, is in `dengine_protocol::checks`.

mod pipeline;
mod reads;

use std::sync::Arc;
use std::time::Instant;

use dengine_protocol::checks::Mutation;
use dengine_protocol::trace::TraceParent;
use dengine_protocol::v1::kv_server::Kv;
use dengine_protocol::v1::{
    self, AskLeaseRequest, AskLeaseResponse, OpenSessionRequest, OpenSessionResponse,
    PipelineRequest, PipelineResponse,
};
use dengine_protocol::{KvCall, LEADER_HINT_METADATA, TRACEPARENT_METADATA, kv_calls};
use tonic::{Code, Request, Response, Status, Streaming};

use self::pipeline::Pipeline;
use self::reads::Read;
use super::bodies::too_many_streams;
use super::forward::Origin;
use super::gate::Kind;
use super::serving::leases::ASK_LEASE;
use super::serving::{Caller, Serving, connection, counted};
use super::streams::{Beside, streamed};
use crate::telemetry::traces::{Begun, Parent};

/// Serves `Kv` from a node.
pub(super) struct KvService {
    serving: Arc<Serving>,
}

/// What a call of the service returns.
type Answer<T> = Result<Response<T>, Status>;

impl KvService {
    /// Serves with what serving takes.
    pub(super) fn new(serving: Arc<Serving>) -> Self {
        Self { serving }
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

    /// Has the leader say what it knows of a lease.
    async fn ask(&self, request: Request<AskLeaseRequest>) -> Answer<AskLeaseResponse> {
        let source = Arc::clone(connection(&request).source());
        let origin = Origin::of(&request);
        let asked = self.serving.ask_lease(request.into_inner(), origin);
        let Serving { gate, .. } = &*self.serving;
        let passed = gate.pass(ASK_LEASE, Kind::Read, &source, asked);
        passed.await.map(Response::new)
    }

    /// A client whose call the leader would have answered with less work is told who that is.
    fn names_leader<M: KvCall>(&self, request: &Request<M>) -> Named {
        let is_concerned =
            request.get_ref().is_for_leader() && Origin::of(request) == Origin::Client;
        let leader = is_concerned.then(|| self.serving.node.other_leader());
        Named(leader.flatten().map(|it| it.client_address))
    }

    /// Serves a stream of calls.
    fn stream(
        &self,
        request: Request<Streaming<PipelineRequest>>,
    ) -> Answer<Beside<PipelineResponse>> {
        let caller = Caller::of(&request);
        let place = connection(&request)
            .pipeline()
            .ok_or_else(too_many_streams)?;
        let pipeline = Pipeline::new(Arc::clone(&self.serving), caller, request.into_inner());
        let patience = self.serving.node.config().limits.stream_stall_timeout();
        let supervised = pipeline::Supervised::new(pipeline, place, patience);
        let counted = supervised.counted_by();
        Ok(streamed(supervised, counted))
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

            async fn ask_lease(
                &self,
                request: Request<AskLeaseRequest>,
            ) -> Answer<AskLeaseResponse> {
                self.ask(request).await
            }

            type PipelineStream = Beside<PipelineResponse>;

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
