//! HTTP on the connections that come in: whatever is done for one source in its own
//! [lanes](super::lanes).

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt as _;
use hyper::body;
use hyper::rt::Executor;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::transport::server::Connected as _;
use tower::{Service, ServiceExt as _};

use super::incoming::Guarded;
use super::{Connection, Incoming};
use crate::preemption;

/// Of a request: tokens of proxies fit. They are held before anybody has looked at the call.
const HEADER_BYTES_MAX: u32 = 8 * 1024;

/// What a port's connections may speak and have in flight, and how it is noticed that one has
/// silently gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Http {
    /// HTTP/1.1 besides HTTP/2: for people, probes and scrapes.
    pub(crate) version_1: bool,
    pub(crate) stream_window_bytes: u32,
    /// All streams of a connection together.
    pub(crate) connection_window_bytes: u32,
    /// On one connection; a client beyond it waits on its own side.
    pub(crate) streams_max: u32,
    pub(crate) keepalive_interval: Duration,
    pub(crate) keepalive_timeout: Duration,
    /// Streams that may end early on one connection before it is closed as an attack: that its
    /// client gave up and that were not taken in yet, and that were reset for what it did, over its
    /// whole life. `None`: as hyper has it, 20 and 1,024.
    pub(crate) resets_max: Option<usize>,
}

/// Serves `services` to all who come, until `stop` is cancelled and the calls in flight are
/// answered.
pub(crate) async fn serve<S>(incoming: Incoming, http: Http, services: S, stop: CancellationToken)
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send,
{
    let by_http = |connection| serve_http(connection, http, services.clone(), stop.clone());
    serve_by(incoming, by_http, &stop).await;
}

/// The same by whatever protocol.
pub(crate) async fn serve_by<F>(
    mut incoming: Incoming,
    serve_one: impl Fn(Guarded) -> F,
    stop: &CancellationToken,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let connections = TaskTracker::new();
    while let Some(Some(arrived)) = stop.run_until_cancelled(incoming.next()).await {
        // One that could not be accepted was told by `incoming`.
        let Ok(connection) = arrived else {
            continue;
        };
        if let Err(error) = connection.settle() {
            tracing::debug!(%error, "a connection was not accepted");
            continue;
        }
        let counted = connection.counted();
        counted.spawn(connections.track_future(serve_one(connection)));
    }
    // So that the port is free, and nobody waits at it.
    drop(incoming);
    connections.close();
    connections.wait().await;
}

/// Serves one connection by HTTP.
pub(crate) async fn serve_http<S>(
    connection: Guarded,
    http: Http,
    services: S,
    stop: CancellationToken,
) where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send,
{
    let on = connection.connect_info();
    let connected = Arc::clone(&on.connection);
    let services = services.map_request(move |request: Request<body::Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(on.clone());
        request
    });
    let (io, services) = (TokioIo::new(connection), TowerToHyperService::new(services));
    let builder = http.of(Arc::clone(&connected));
    let mut serving = pin!(builder.serve_connection(io, services));
    let ended = tokio::select! {
        ended = &mut serving => ended,
        // HTTP/1.1 neither reads nor writes while an answer without an end has nothing to say.
        () = connected.closed.cancelled() => return,
        () = stop.cancelled() => {
            // Who has not begun has nothing to lose, and may never begin.
            if !connected.speaks.load(Ordering::Relaxed) {
                return;
            }
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended");
    }
}

impl Http {
    fn of(self, connection: Arc<Connection>) -> auto::Builder<OfConnection> {
        let mut builder = auto::Builder::new(OfConnection(connection));
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.keepalive_interval)
            .max_buf_size(2 * HEADER_BYTES_MAX as usize);
        builder
            .http2()
            .timer(TokioTimer::new())
            .initial_stream_window_size(self.stream_window_bytes)
            .initial_connection_window_size(self.connection_window_bytes)
            .max_concurrent_streams(self.streams_max)
            .max_header_list_size(HEADER_BYTES_MAX)
            .keep_alive_interval(self.keepalive_interval)
            .keep_alive_timeout(self.keepalive_timeout);
        if let Some(most) = self.resets_max {
            builder
                .http2()
                .max_pending_accept_reset_streams(most)
                .max_local_error_reset_streams(most);
        }
        match self.version_1 {
            true => builder,
            false => builder.http2_only(),
        }
    }
}

/// Does what hyper does for each call where it serves the connection.
#[derive(Clone)]
struct OfConnection(Arc<Connection>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for OfConnection {
    fn execute(&self, call: F) {
        self.0.spawn(preemption::timed(1, call));
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::JoinHandle;
    use tokio::time::timeout;

    use super::super::incoming::AT_ONCE;
    use super::super::{Connections, Sources, WhenFull};
    use super::*;

    /// Longer than anybody is waited for.
    const LONG: Duration = Duration::from_secs(60);
    const HTTP: Http = Http {
        version_1: false,
        stream_window_bytes: 64 << 10,
        connection_window_bytes: 64 << 10,
        streams_max: 8,
        keepalive_interval: LONG,
        keepalive_timeout: LONG,
        resets_max: None,
    };

    async fn connected(
        stop: &CancellationToken,
        patience: Duration,
    ) -> (TcpStream, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let incoming = Incoming::new(
            listener,
            Connections::new(4, WhenFull::Refuse, &Sources::default()),
        );
        let incoming = incoming.patient_for(patience);
        let services = tower::service_fn(async |_| Ok(Response::new(Body::empty())));
        let served = tokio::spawn(serve(incoming, HTTP, services, stop.clone()));
        (TcpStream::connect(address).await.unwrap(), served)
    }

    /// A hundred were taken in or refused at one go, and whoever else wanted the thread waited for
    /// milliseconds.
    #[tokio::test]
    async fn others_have_the_thread_between_some_connections() {
        const MANY: usize = 64;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // Half of these places are for one address, so half of those who come are refused.
        let connections = Connections::new(MANY, WhenFull::Refuse, &Sources::default());
        let come = |_| std::net::TcpStream::connect(address).unwrap();
        let _clients: Vec<_> = (0..MANY).map(come).collect();
        let services = tower::service_fn(async |_| Ok(Response::new(Body::empty())));
        let incoming = Incoming::new(listener, connections.clone());
        tokio::spawn(serve(incoming, HTTP, services, CancellationToken::new()));
        // Somebody else who always has something to do.
        let other = tokio::spawn(async move {
            let (mut seen, mut most_at_once, mut begun) = (0, 0, false);
            while seen < MANY as u64 {
                std::future::poll_fn(|context| {
                    context.waker().wake_by_ref();
                    begun = !begun;
                    if begun {
                        Poll::Pending
                    } else {
                        Poll::Ready(())
                    }
                })
                .await;
                let open = connections.open();
                let now = open.last + open.refused;
                drop(open);
                most_at_once = most_at_once.max(now - seen);
                seen = now;
            }
            most_at_once
        });
        let most_at_once = other.await.unwrap();
        assert!(most_at_once <= u64::from(AT_ONCE), "{most_at_once}");
    }

    /// One byte of it kept a place forever.
    #[tokio::test]
    async fn who_says_half_a_word_is_not_waited_for() {
        let stop = CancellationToken::new();
        let (mut client, _served) = connected(&stop, LONG / 200).await;
        client.write_all(b"P").await.unwrap();
        let closed = timeout(LONG / 6, client.read_to_end(&mut Vec::new())).await;
        assert!(closed.is_ok(), "it is kept");
    }

    /// So that it is known how many are under way.
    #[tokio::test]
    async fn the_time_of_calls_is_taken() {
        let (tell, told) = tokio::sync::oneshot::channel();
        let call = Duration::from_millis(5);
        OfConnection(Arc::new(Connection::alone())).execute(async move {
            tokio::time::sleep(call).await;
            let _ = tell.send(());
        });
        told.await.unwrap();
        let (calls, took) = preemption::ended();
        assert!(calls == 1 && took >= call, "{calls} took {took:?}");
    }

    /// What waits for a first word, whether it comes or not, waited for it while the member was to
    /// stop.
    #[tokio::test]
    async fn who_says_nothing_holds_up_no_end() {
        let stop = CancellationToken::new();
        let (mut client, served) = connected(&stop, LONG).await;
        client.write_all(b"PRI * ").await.unwrap();
        // It is served: the server says first what it takes.
        client.read_exact(&mut [0; 9]).await.unwrap();
        stop.cancel();
        timeout(LONG / 6, served).await.unwrap().unwrap();
    }
}
