//! The echo: a server of tonic as it comes, whose handler of `Kv.Get` answers at once with the same
//! value. What unary calls of gRPC cost by themselves, with nothing behind them.
//!
//! No service that was generated: it would have to have every RPC, and be touched for each new one.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use clap::Args;
use dengine_protocol::v1::kv_server::SERVICE_NAME;
use dengine_protocol::v1::{GetRequest, GetResponse, KeyValue, ResponseHeader};
use futures::FutureExt as _;
use futures::future::{BoxFuture, Ready, ready};
use http::{Request, Response};
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::Server;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;
use tower::Service;

/// The one RPC that it has.
const GET: &str = "/dengine.v1.Kv/Get";

/// What `echo` takes.
#[derive(Args, Debug)]
pub(crate) struct EchoArgs {
    /// Where it listens
    #[arg(long, value_name = "IP:PORT")]
    listen: SocketAddr,
    /// Bytes of the value that it answers with
    #[arg(long, default_value_t = 256)]
    value_size: usize,
}

/// Serves until it is killed, with as many threads as tokio takes by itself.
///
/// # Errors
/// If it cannot listen.
pub(crate) fn serve(args: &EchoArgs) -> Result<()> {
    let echo = Echo {
        value: vec![b'v'; args.value_size].into(),
    };
    let serving = Server::builder().add_service(echo).serve(args.listen);
    let served = tokio::runtime::Runtime::new()?.block_on(serving);
    served.with_context(|| format!("listening on {}", args.listen))
}

/// The service, and the handler in it.
#[derive(Clone)]
struct Echo {
    value: Bytes,
}

impl NamedService for Echo {
    const NAME: &'static str = SERVICE_NAME;
}

impl Service<Request<Body>> for Echo {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if request.uri().path() != GET {
            let refused = Status::new(Code::Unimplemented, "an echo has Kv.Get alone");
            return ready(Ok(refused.into_http())).boxed();
        }
        let handler = self.clone();
        let answered = async move {
            let mut grpc = Grpc::new(ProstCodec::default());
            Ok(grpc.unary(handler, request).await)
        };
        answered.boxed()
    }
}

impl UnaryService<GetRequest> for Echo {
    type Response = GetResponse;
    type Future = Ready<Result<tonic::Response<GetResponse>, Status>>;

    fn call(&mut self, request: tonic::Request<GetRequest>) -> Self::Future {
        let kv = KeyValue {
            key: request.into_inner().key,
            value: self.value.clone(),
            create_revision: 1,
            mod_revision: 1,
            version: 1,
            ttl_ms: 0,
        };
        let header = ResponseHeader {
            cluster_id: 1,
            member_id: 1,
            revision: 1,
            term: 1,
            trimmed: false,
        };
        ready(Ok(tonic::Response::new(GetResponse {
            header: Some(header),
            kv: Some(kv),
        })))
    }
}
