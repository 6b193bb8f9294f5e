//! The front door: serves a [`Node`] to clients, people and probes over gRPC.
//!
//! What lives here: serving requests, and passing on what only the leader can do. What may not: any
//! decision about consensus, storage or membership; and what messages mean, which is in
//! `dengine_protocol::checks`.
//!
//! - [`kv`], [`watch`], [`admin`]: our own services. The last has a port of its own. [`only`]: as
//!   much of it as that of clients serves. [`messages`]: what a member tells of itself.
//! - [`etcd`]: the door for clients of etcd. [`serving`]: what both doors need to serve keys.
//! - [`gate`]: what every request passes: the bound on their number, and the measuring.
//! - [`bodies`]: requests that arrive, and answers that leave. [`streams`]: those of many messages.
//! - [`calls`]: how many calls are open.
//! - [`slow`]: log lines for requests that took long.
//! - [`turns`]: fair turns for long operations.
//! - [`aside`]: long reads.
//! - [`forward`]: forwards a request to the leader, once.
//! - [`threads`]: those that serve clients, and those of lower priority.
//! - [`health`], [`monitor`]: the state of this member for probes and Prometheus.
//! - [`oversize`]: messages beyond any limit.

mod admin;
mod aside;
mod bodies;
mod calls;
mod etcd;
mod fast_path;
mod forward;
mod gate;
mod health;
mod kv;
mod messages;
mod monitor;
mod only;
mod oversize;
mod places;
mod serving;
mod slow;
mod streams;
mod threads;
mod turns;
mod watch;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use dengine_protocol::FRAME_BYTES_MAX;
use dengine_protocol::checks::status::marked;
use dengine_protocol::v1::admin_server::AdminServer;
use dengine_protocol::v1::kv_server::KvServer;
use dengine_protocol::v1::watch_server::WatchServer;
use futures::future::BoxFuture;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::service::Routes;
use tower::ServiceBuilder;

use self::admin::AdminService;
use self::aside::Aside;
use self::bodies::BodiesLayer;
use self::calls::Calls;
use self::fast_path::FastPath;
use self::forward::Forwarder;
use self::health::HealthReport;
use self::kv::KvService;
use self::serving::Serving;
use self::serving::openers::Openers;
use self::watch::WatchService;
use crate::config::{Config, Limits};
use crate::connections::{self, Connections, Http, Incoming, Sources, WhenFull};
use crate::files::{self, Use};
use crate::memory;
use crate::node::Node;
use crate::single_thread::SingleThread;
use crate::telemetry::traces::Tracer;

pub use self::threads::ServerThreads;
pub use crate::connections::TASKS_BETWEEN_EVENTS;

/// For clients, people and operators. What has arrived and is not taken is not counted while it
/// lies in a stream's window, which carries 128 MB/s over a round trip of a millisecond, and 6 over
/// one of twenty. A connection's window bounds nothing more: h2 takes half of it as leave for small
/// frames that wait, at 256 bytes each, before it ends the connection, and streams of calls may
/// fill theirs with frames of 15 bytes.
const HTTP: Http = Http {
    version_1: false,
    stream_window_bytes: 128 << 10,
    connection_window_bytes: CONNECTION_WINDOW_BYTES,
    streams_max: 1024,
    keepalive_interval: Duration::from_secs(20),
    keepalive_timeout: Duration::from_secs(10),
    resets_max: None,
};
/// See [`HTTP`].
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// Of a frame with the shortest call there is, a get.
const SMALLEST_FRAME_BYTES: usize = 15;
/// What h2 lets a small frame cost, less its bytes.
const FRAME_COST_BYTES: usize = 256;
const _: () = assert!(
    HTTP.connection_window_bytes as usize / 2
        >= connections::PIPELINES_MAX * HTTP.stream_window_bytes as usize / SMALLEST_FRAME_BYTES
            * (FRAME_COST_BYTES - SMALLEST_FRAME_BYTES)
);
/// What a connection takes besides, about.
const CONNECTION_BYTES: usize = 64 << 10;
/// Names, addresses and numbers.
const ADMIN_REQUEST_BYTES_MAX: usize = 64 << 10;
/// People and operators on the admin port.
const ADMIN_CONNECTIONS_MAX: usize = 64;
/// Probes and scrapes. Each takes a moment, so that the oldest makes room.
const MONITOR_CONNECTIONS_MAX: usize = 64;
/// Two keys and some flags; see
/// [`config::Limits::max_key_bytes`](crate::config::Limits::max_key_bytes).
const WATCH_REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Longest that a request on the admin port takes to arrive.
const ADMIN_PATIENCE: Duration = Duration::from_secs(10);

/// Longest that a member that stops waits for the collector of its spans.
const LAST_SPANS: Duration = Duration::from_millis(500);

/// Why serving could not begin, or ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// An address can't be listened on.
    #[error("can't listen on {address} ({setting}): {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The setting that names it.
        setting: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// Reflection could not be built.
    #[error("the descriptors for reflection are broken: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// A thread could not be made.
    #[error("starting the threads that serve failed: {0}")]
    Threads(#[source] io::Error),
}

impl ServeError {
    /// The machine lacks something, or another program has it.
    #[must_use]
    pub fn is_of_the_environment(&self) -> bool {
        matches!(self, Self::Listen { .. } | Self::Threads(_))
    }
}

/// The ports of a member, bound before its data directory is opened, so that a port in use changes
/// nothing.
#[derive(Debug)]
pub struct Listeners {
    client: TcpListener,
    admin: TcpListener,
    monitor: TcpListener,
    /// If clients of etcd are served.
    etcd: Option<TcpListener>,
}

impl Listeners {
    /// Takes the ports for clients, people, probes and clients of etcd.
    ///
    /// # Errors
    /// One of them can't be listened on.
    pub async fn bind(config: &Config) -> Result<Self, ServeError> {
        let etcd = match config.etcd_address() {
            Some(address) => Some(listen(address, "listen_etcd").await?),
            None => None,
        };
        Ok(Self {
            etcd,
            client: listen(config.listen_client, "listen_client").await?,
            admin: listen(config.listen_admin, "listen_admin").await?,
            monitor: listen(config.listen_monitor, "listen_monitor").await?,
        })
    }
}

async fn listen(address: SocketAddr, setting: &'static str) -> Result<TcpListener, ServeError> {
    dengine_listen::listen(address)
        .and_then(TcpListener::from_std)
        .map_err(|source| ServeError::Listen {
            address,
            setting,
            source,
        })
}

/// Serves `node` with the threads of this runtime and `threads` until `stop` is cancelled and the
/// requests in flight are answered. Health turns to "not serving" at once, new connections are
/// refused, and who outlasts the caller's patience is cut off by dropping this future.
///
/// While memory is scarce, `give_back` is called, again and again: it has the process's allocator
/// give back to the system what is free.
///
/// # Errors
/// A port fails for good, or the system gives no more threads.
pub fn serve<'a>(
    node: Node,
    config: &'a Config,
    listeners: Listeners,
    metrics: PrometheusHandle,
    give_back: fn(),
    threads: &'a ServerThreads,
    stop: CancellationToken,
) -> BoxFuture<'a, Result<(), ServeError>> {
    // In a box, so that it is compiled with this crate: what only others await would be compiled
    // again with each program and test of theirs, for minutes.
    Box::pin(serve_all(
        node, config, listeners, metrics, give_back, threads, stop,
    ))
}

async fn serve_all(
    node: Node,
    config: &Config,
    listeners: Listeners,
    metrics: PrometheusHandle,
    give_back: fn(),
    threads: &ServerThreads,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let health = HealthReport::start(&node, stop.clone()).await;
    let sources = Sources::start(&threads.clients, &threads.heavy);
    let heaviest = sources.clone();
    let remedies = memory::Remedies {
        give_back,
        shed: Box::new(move || heaviest.shed()),
    };
    memory::watch_over(remedies, stop.clone()).map_err(ServeError::Threads)?;
    let monitor_port = (listeners.monitor, &sources);
    let monitor = serve_monitor(node.clone(), monitor_port, &health, metrics, stop.clone());
    let forwarder = {
        let _thread = threads.forward.handle().enter();
        Forwarder::new(&config.limits)
    };
    let leader = {
        let node = node.clone();
        move || node.leader()
    };
    let deposed = forwarder.clone().give_up_deposed(leader);
    let tracer = tracer(&node, config);
    let with = (forwarder, tracer.clone());
    let aside = Aside::new(&threads.aside);
    let doors = Doors::new(node, config, with, (aside, &threads.history), &stop);
    sources.holds(doors.serving.held());
    sources.holds(doors.watch.held());
    let calls = Calls::new();
    let admin_port = (listeners.admin, &sources);
    let admin = doors.admin.clone().in_full();
    let admins = serve_admin(admin, admin_port, &health, calls.clone(), stop.clone());
    let client_port = (listeners.client, &sources);
    let clients = doors.clone();
    let clients = serve_clients(clients, client_port, &health, calls.clone(), stop.clone());
    let etcd_port = (listeners.etcd, &sources);
    let etcds = etcd::serve(doors, etcd_port, &health, calls, stop.clone());
    let served = async { tokio::try_join!(clients, etcds, admins, monitor) };
    let served = tokio::select! {
        served = served => served,
        never = deposed => match never {},
    };
    stop.cancel();
    tracer.end(LAST_SPANS).await;
    served.map(|_| ())
}

/// What traces writes, and names this member in their spans.
fn tracer(node: &Node, config: &Config) -> Tracer {
    let status = node.status_changes();
    Tracer::start(config, move || {
        let status = status.borrow();
        (status.cluster_id, status.member_id)
    })
}

/// What the doors of clients serve. Clones share it.
#[derive(Clone)]
struct Doors {
    serving: Arc<Serving>,
    watch: WatchService,
    admin: AdminService,
}

impl Doors {
    fn new(
        node: Node,
        config: &Config,
        (forwarder, tracer): (Forwarder, Tracer),
        (aside, history): (Aside, &SingleThread),
        stop: &CancellationToken,
    ) -> Self {
        let (limits, history) = (config.limits.clone(), history.handle());
        let watch = WatchService::new(node.clone(), limits.clone(), history, stop.clone());
        let openers = Openers::default();
        let admin = AdminService::new(
            node.clone(),
            config.clone(),
            forwarder.clone(),
            watch.count(),
            openers.clone(),
            aside.clone(),
        );
        let stop = stop.clone();
        Self {
            serving: Serving::new(node, limits, forwarder, tracer, openers, aside, stop),
            watch,
            admin,
        }
    }
}

async fn serve_clients(
    doors: Doors,
    (listener, sources): (TcpListener, &Sources),
    health: &HealthReport,
    calls: Calls,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let limits = &doors.serving.limits.clone();
    let message_bytes = limits.max_write_bytes().max(FRAME_BYTES_MAX);
    let kv = KvServer::new(KvService::new(doors.serving)).max_decoding_message_size(message_bytes);
    let watch = WatchServer::new(doors.watch).max_decoding_message_size(WATCH_REQUEST_BYTES_MAX);
    let patience = limits.stream_stall_timeout();
    let most = files::most(Use::Clients, connections_max(limits));
    let connections = Connections::new(most, WhenFull::Refuse, sources);
    tokio::spawn(connections.clone().watch_over(patience, stop.clone()));
    let others = Routes::new(watch)
        .add_service(doors.admin.for_clients())
        .add_service(health.service())
        .add_service(reflection()?);
    let bodies = BodiesLayer::new(memory::Use::Requests, message_bytes, calls, patience);
    sources.holds(bodies.held());
    let services = ServiceBuilder::new()
        .map_response(marked::<Body>)
        .layer(bodies)
        .map_response(oversize::answering(oversize::too_large(limits)))
        .service(FastPath::new(kv, others));
    let incoming = Incoming::new(listener, connections);
    connections::serve(incoming, HTTP, services, stop).await;
    Ok(())
}

/// As many connections of clients as there is memory for.
fn connections_max(limits: &Limits) -> usize {
    let wanted = limits.max_connections.saturating_mul(CONNECTION_BYTES);
    memory::most(memory::Use::Connections, wanted, CONNECTION_BYTES) / CONNECTION_BYTES
}

async fn serve_monitor(
    node: Node,
    (listener, sources): (TcpListener, &Sources),
    health: &HealthReport,
    metrics: PrometheusHandle,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let most = files::most(Use::SidePort, MONITOR_CONNECTIONS_MAX);
    let connections = Connections::new(most, WhenFull::MakeRoom, &sources.for_probes());
    let incoming = Incoming::new(listener, connections);
    monitor::serve(incoming, node, health.service(), metrics, stop).await;
    Ok(())
}

async fn serve_admin(
    admin: AdminServer<AdminService>,
    (listener, sources): (TcpListener, &Sources),
    health: &HealthReport,
    calls: Calls,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let most = files::most(Use::SidePort, ADMIN_CONNECTIONS_MAX);
    let connections = Connections::new(most, WhenFull::MakeRoom, sources);
    let incoming = Incoming::new(listener, connections);
    let routes = Routes::new(admin)
        .add_service(health.service())
        .add_service(reflection()?);
    let (of, largest) = (memory::Use::AdminRequests, ADMIN_REQUEST_BYTES_MAX);
    let bodies = BodiesLayer::new(of, largest, calls, ADMIN_PATIENCE);
    sources.holds(bodies.held());
    let services = ServiceBuilder::new()
        .layer(bodies)
        .service(routes.prepare());
    connections::serve(incoming, HTTP, services, stop).await;
    Ok(())
}

fn reflection() -> Result<
    tonic_reflection::server::v1::ServerReflectionServer<
        impl tonic_reflection::server::v1::ServerReflection,
    >,
    tonic_reflection::server::Error,
> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(dengine_protocol::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
}
