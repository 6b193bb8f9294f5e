//! The fast path to the service that nearly all calls of a port are for.
//!
//! tonic's router decodes the path into parameters, and puts the call, its body and the answer's
//! into boxes of their own, before the service does so again.

use std::convert::Infallible;
use std::task::{Context, Poll, ready};

use futures::future::Either;
use tonic::body::Body;
use tonic::codegen::http::{Method, Request, Response};
use tonic::server::NamedService;
use tonic::service::Routes;
use tower::Service;

/// A port with one service that nearly all calls are for, and others.
#[derive(Clone, Debug)]
pub(super) struct FastPath<S> {
    service: S,
    others: Routes,
}

impl<S> FastPath<S> {
    pub(super) fn new(service: S, others: Routes) -> Self {
        let others = others.prepare();
        Self { service, others }
    }
}

impl<S> Service<Request<Body>> for FastPath<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + NamedService,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<S::Future, <Routes as Service<Request<Body>>>::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        ready!(self.service.poll_ready(context))?;
        Service::<Request<Body>>::poll_ready(&mut self.others, context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // As all calls of gRPC are.
        let posts = request.method() == Method::POST;
        match posts && is_of(S::NAME, request.uri().path()) {
            true => Either::Left(self.service.call(request)),
            false => Either::Right(self.others.call(request)),
        }
    }
}

/// Whether this is the path of a method of that service.
fn is_of(service: &str, path: &str) -> bool {
    let method = path
        .strip_prefix('/')
        .and_then(|it| it.strip_prefix(service));
    method.is_some_and(|it| it.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_of_the_service_of_exactly_that_name() {
        assert!(is_of("a.Kv", "/a.Kv/Put") && is_of("a.Kv", "/a.Kv/"));
        for other in [
            "",
            "/",
            "/a.Kv",
            "a.Kv/Put",
            "/a.Kvs/Put",
            "/a.K/Put",
            "//a.Kv/Put",
        ] {
            assert!(!is_of("a.Kv", other), "{other}");
        }
    }
}
