//! What a connection to the peer port may send before it has said whose it is: little. A Hello is short, and what a peer
//! may send afterwards is not for anybody.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::Frame;
use tonic::{Status, body::Body, codegen::http::Request};
use tower::{Layer, Service};

use crate::connections::{Connection, OnConnection};

/// A Hello is some hundred bytes; what arrives with it is part of this.
const STRANGER_BYTES_MAX: usize = 64 << 10;

/// Wraps the services of the peer port.
#[derive(Clone, Copy)]
pub(super) struct StrangersLayer;

impl<S> Layer<S> for StrangersLayer {
    type Service = Strangers<S>;

    fn layer(&self, inner: S) -> Strangers<S> {
        Strangers(inner)
    }
}

/// A service behind [`StrangersLayer`].
#[derive(Clone)]
pub(super) struct Strangers<S>(S);

impl<S: Service<Request<Body>>> Service<Request<Body>> for Strangers<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> S::Future {
        let connection = request.extensions().get::<OnConnection>();
        let connection = connection.map(|it| Arc::clone(&it.connection));
        self.0.call(request.map(|body| match connection {
            Some(connection) => Body::new(Bounded {
                body,
                connection,
                bytes: 0,
            }),
            None => body,
        }))
    }
}

/// The body of a request, of whoever it is.
struct Bounded<B> {
    body: B,
    connection: Arc<Connection>,
    bytes: usize,
}

impl<B> http_body::Body for Bounded<B>
where
    B: http_body::Body<Data = Bytes, Error = Status> + Unpin,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if !self.connection.is_proven()
            && let Some(Ok(frame)) = &frame
        {
            self.bytes += frame.data_ref().map_or(0, Bytes::len);
            if self.bytes > STRANGER_BYTES_MAX {
                let told = format!("no Hello in the first {STRANGER_BYTES_MAX} bytes");
                return Poll::Ready(Some(Err(Status::resource_exhausted(told))));
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, Full};

    use super::*;

    async fn taken(connection: &Arc<Connection>, bytes: usize) -> Result<usize, Status> {
        let body = Full::from(vec![7; bytes]).map_err(|never| match never {});
        let bounded = Bounded {
            body: Body::new(body),
            connection: Arc::clone(connection),
            bytes: 0,
        };
        bounded.collect().await.map(|it| it.to_bytes().len())
    }

    /// It would otherwise be gathered, up to the size of the largest message, for each of many streams.
    #[tokio::test]
    async fn a_stranger_sends_no_more_than_a_hello() {
        let connection = Arc::new(Connection::alone());
        let short = taken(&connection, STRANGER_BYTES_MAX).await;
        assert_eq!(short.unwrap(), STRANGER_BYTES_MAX);
        let long = taken(&connection, STRANGER_BYTES_MAX + 1).await;
        assert_eq!(long.unwrap_err().code(), tonic::Code::ResourceExhausted);
        connection.prove();
        let known = taken(&connection, 2 * STRANGER_BYTES_MAX).await;
        assert_eq!(known.unwrap(), 2 * STRANGER_BYTES_MAX);
    }
}
