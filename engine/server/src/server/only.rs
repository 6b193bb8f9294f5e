//! A service of which a port serves only some methods. Those are named; every other one is refused,
//! so that a method that is added later is closed until somebody opens it.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::{Either, Ready, ready};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::server::NamedService;
use tower::Service;

/// Passes on the calls of some methods, and refuses all others by their path, whatever they say.
#[derive(Clone)]
pub(super) struct Only<S> {
    inner: S,
    methods: &'static [&'static str],
    refusal: Arc<Status>,
}

impl<S> Only<S> {
    /// Of `inner` only `methods`; everything else is answered with `refusal`.
    pub(super) fn new(inner: S, methods: &'static [&'static str], refusal: Status) -> Self {
        Self {
            inner,
            methods,
            refusal: Arc::new(refusal),
        }
    }
}

impl<S: NamedService> Only<S> {
    fn serves(&self, path: &str) -> bool {
        let path = path.strip_prefix('/');
        let method = path.and_then(|it| it.strip_prefix(S::NAME)?.strip_prefix('/'));
        method.is_some_and(|it| self.methods.contains(&it))
    }
}

impl<S: NamedService> NamedService for Only<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, B> Service<Request<B>> for Only<S>
where
    S: Service<Request<B>, Response = Response<Body>, Error = Infallible> + NamedService,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<Response<Body>, Infallible>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if self.serves(request.uri().path()) {
            return Either::Left(self.inner.call(request));
        }
        Either::Right(ready(Ok(Status::clone(&self.refusal).into_http())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone)]
    struct Named;

    impl NamedService for Named {
        const NAME: &'static str = "package.Service";
    }

    #[test]
    fn only_the_whole_path_of_a_named_method_is_served() {
        let only = Only::new(Named, &["Get"], Status::permission_denied("no"));
        assert!(only.serves("/package.Service/Get"));
        for path in [
            "",
            "/",
            "/package.Service",
            "/package.Service/",
            "/package.Service/get",
            "/package.Service/Get/",
            "/package.Service/GetAll",
            "/package.Service//Get",
            "/package.Service/x/Get",
            "/package.Service/%47et",
            "/package.ServiceGet",
            "/package.Other/Get",
            "package.Service/Get",
        ] {
            assert!(!only.serves(path), "{path}");
        }
    }
}
