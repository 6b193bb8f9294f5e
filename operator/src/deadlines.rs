//! Deadlines of requests to the Kubernetes API. The client has none but for connecting: an API
//! server that takes a request and never answers, as one behind a lost connection, would hold a
//! reconciliation, and with it its cluster, until the operator restarts.

use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::{Request, Response};
use futures::future::BoxFuture;
use tokio::time::timeout;
use tower::{BoxError, Layer, Service};
use tower_http::timeout::TimeoutBody;

use crate::telemetry;

/// Until the head of an answer, and between two pieces of its body. An API server gives up by
/// itself after 60 seconds; what took half of it is asked again.
const ANSWER: Duration = Duration::from_secs(30);
/// Between two events of a watch, whose end the API server is asked for after 290 seconds.
const EVENT: Duration = Duration::from_secs(360);

/// Adds deadlines to a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines;

#[derive(Clone, Debug)]
pub(crate) struct WithDeadlines<S> {
    inner: S,
}

/// What a request runs into.
#[derive(Debug, thiserror::Error)]
#[error(
    "the Kubernetes API did not answer {verb} {path} within {} seconds",
    ANSWER.as_secs()
)]
struct NoAnswer {
    verb: &'static str,
    path: String,
}

impl<S> Layer<S> for Deadlines {
    type Service = WithDeadlines<S>;

    fn layer(&self, inner: S) -> WithDeadlines<S> {
        WithDeadlines { inner }
    }
}

impl<S, B, C> Service<Request<B>> for WithDeadlines<S>
where
    S: Service<Request<B>, Response = Response<C>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<TimeoutBody<C>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let verb = telemetry::verb(request.method(), request.uri());
        let path = request.uri().path().to_owned();
        let piece = match verb {
            "watch" => EVENT,
            _ => ANSWER,
        };
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = timeout(ANSWER, answer)
                .await
                .map_err(|_| NoAnswer { verb, path })?;
            Ok(answer
                .map_err(Into::into)?
                .map(|body| TimeoutBody::new(piece, body)))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::pending;

    use axum::body::{Body, Bytes};
    use futures::{StreamExt as _, stream};
    use k8s_openapi::api::core::v1::Pod;
    use kube::api::{Api, ListParams, WatchEvent, WatchParams};
    use kube::client::{Body as KubeBody, ClientBuilder};
    use kube::{Client, Error};
    use tokio::time::Instant;
    use tower::service_fn;

    use super::*;

    /// A client of an API server that answers so.
    fn pods<F>(answer: impl Fn() -> F + Clone + Send + 'static) -> Api<Pod>
    where
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        let server = service_fn(move |_: Request<KubeBody>| {
            let answered = answer();
            async move { Ok::<_, Infallible>(answered.await) }
        });
        let server = ClientBuilder::new(server, "default").with_layer(&Deadlines);
        let client: Client = server.build();
        Api::default_namespaced(client)
    }

    fn text(error: &Error) -> String {
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(one) = cause {
            text = format!("{text}: {one}");
            cause = one.source();
        }
        text
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_never_answers_fails_the_request() {
        let begun = Instant::now();
        let error = pods(pending).get("demo-0").await.unwrap_err();
        assert_eq!(begun.elapsed().as_secs(), ANSWER.as_secs());
        let text = text(&error);
        assert!(
            text.contains("did not answer get /api/v1/namespaces/default/pods/demo-0"),
            "{text}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn so_does_one_that_stops_within_its_answer() {
        let cut = || async {
            let begun = stream::iter([Ok::<_, Infallible>(Bytes::from("{\"items\": ["))]);
            Response::new(Body::from_stream(begun.chain(stream::pending())))
        };
        let begun = Instant::now();
        pods(cut).list(&ListParams::default()).await.unwrap_err();
        assert_eq!(begun.elapsed().as_secs(), ANSWER.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_may_be_silent_for_longer() {
        let late = || async {
            let event = async {
                tokio::time::sleep(4 * ANSWER).await;
                let bookmark = r#"{"type": "BOOKMARK", "object": {"apiVersion": "v1",
                    "kind": "Pod", "metadata": {"resourceVersion": "7"}}}"#;
                Ok::<_, Infallible>(Bytes::from(bookmark.replace('\n', " ") + "\n"))
            };
            Response::new(Body::from_stream(stream::once(event)))
        };
        let pods = pods(late);
        let events = pods.watch(&WatchParams::default(), "0").await.unwrap();
        let event = Box::pin(events).next().await.unwrap().unwrap();
        assert!(matches!(event, WatchEvent::Bookmark(_)), "{event:?}");
    }
}
