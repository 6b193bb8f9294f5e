//! Services of etcd's API that are not served, with the reason.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::marker::PhantomData;
use std::task::{Context, Poll};

use dengine_etcd::EtcdError;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::server::NamedService;
use tower::Service;

/// A service of which no method is served.
pub(super) trait Absent: 'static {
    /// With its package.
    const NAME: &'static str;

    /// What a method answers.
    fn answer(method: &str) -> EtcdError;
}

/// Users, roles and tokens.
pub(super) struct Auth;

impl Absent for Auth {
    const NAME: &'static str = "etcdserverpb.Auth";

    /// A client with a password goes on without a token where authentication is off.
    fn answer(method: &str) -> EtcdError {
        match method {
            "Authenticate" => EtcdError::AuthNotEnabled,
            _ => EtcdError::NotServed("users and roles: who reaches this port may do all"),
        }
    }
}

/// Answers every method of a service without a look at what it says.
pub(super) struct Refuses<A>(PhantomData<fn() -> A>);

impl<A> Default for Refuses<A> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<A> Clone for Refuses<A> {
    fn clone(&self) -> Self {
        Self(PhantomData)
    }
}

impl<A: Absent> NamedService for Refuses<A> {
    const NAME: &'static str = A::NAME;
}

impl<A: Absent, B> Service<Request<B>> for Refuses<A> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let path = request.uri().path();
        let method = path.rsplit_once('/').map_or("", |(_, method)| method);
        ready(Ok(Status::from(A::answer(method)).into_http()))
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;
    use tower::ServiceExt as _;

    use super::*;

    async fn check<A: Absent>(method: &str, code: Code, says: &str) {
        let uri = format!("/{}/{method}", A::NAME);
        let request = Request::builder().uri(uri).body(Body::empty());
        let request = request.expect("it is a request");
        let answered = Refuses::<A>::default().oneshot(request).await;
        let answered = answered.expect("it is infallible");
        let status = Status::from_header_map(answered.headers()).expect("it has a status");
        assert_eq!(status.code(), code);
        assert!(status.message().contains(says), "{status}");
    }

    #[tokio::test]
    async fn what_is_not_served_says_why() {
        check::<Auth>("UserAdd", Code::Unimplemented, "users").await;
        let words = "etcdserver: authentication is not enabled";
        check::<Auth>("Authenticate", Code::FailedPrecondition, words).await;
    }
}
