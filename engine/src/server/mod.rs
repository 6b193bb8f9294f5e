//! The front door: serves a [`Node`] to clients, people and probes over gRPC.
//!
//! What lives here: serving requests, and passing on what only the leader can do. What may not: any decision
//! about consensus, storage or membership; and what messages mean, which is in `dengine_wire`.
//!
//! - [`kv`], [`watch`], [`admin`]: the services. [`messages`]: what a member tells of itself.
//! - [`gate`]: what every request passes: the bound on their number, and the measuring.
//! - [`aside`]: reads that take a while. [`forward`]: to the leader, once.
//! - [`health`], [`monitor`]: the truth for probes and Prometheus. [`oversize`]: messages beyond any limit.

mod admin;
mod aside;
mod forward;
mod gate;
mod health;
mod kv;
mod messages;
mod monitor;
mod oversize;
mod watch;

use std::{io, net::SocketAddr, time::Duration};

use dengine_api::{
    FRAME_BYTES_MAX,
    v1::{admin_server::AdminServer, kv_server::KvServer, watch_server::WatchServer},
};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Server as GrpcServer, server::TcpIncoming};

use self::{
    admin::AdminService, forward::Forwarder, gate::Gate, health::HealthReport, kv::KvService,
    oversize::OversizeLayer, watch::WatchService,
};
use crate::{config::Config, node::Node};

/// A lone stream may have so much in flight; above HTTP/2's 64 KiB a large value needs fewer round trips.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
/// All streams of a connection together.
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// Requests in flight on one connection; a client beyond it waits on its own side.
const STREAMS_PER_CONNECTION_MAX: u32 = 4096;
/// Two keys and some flags; see [`config::Limits::max_key_bytes`](crate::config::Limits::max_key_bytes).
const WATCH_REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024;
/// A connection whose client has silently gone is noticed after interval and timeout.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

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
    /// The gRPC server could not be built or failed.
    #[error("serving clients failed: {0}")]
    Clients(#[from] tonic::transport::Error),
    /// Reflection could not be built.
    #[error("the descriptors for reflection are broken: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The monitor port failed.
    #[error("serving health and metrics failed: {0}")]
    Monitor(#[source] io::Error),
}

/// The ports of a member, taken before its folder is opened, so that a port in use changes nothing.
#[derive(Debug)]
pub struct Listeners {
    client: TcpListener,
    monitor: TcpListener,
}

impl Listeners {
    /// Takes the client and the monitor port.
    ///
    /// # Errors
    /// One of them can't be listened on.
    pub async fn bind(config: &Config) -> Result<Self, ServeError> {
        Ok(Self {
            client: listen(config.listen_client, "listen_client").await?,
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

/// Serves `node` until `stop` is cancelled and the requests in flight are answered. Health turns to "not
/// serving" at once, new connections are refused, and who outlasts the caller's patience is cut off by
/// dropping this future.
///
/// # Errors
/// A port fails for good.
pub async fn serve(
    node: Node,
    config: &Config,
    listeners: Listeners,
    metrics: PrometheusHandle,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let health = HealthReport::start(&node, stop.clone()).await;
    let monitor = monitor::serve(
        listeners.monitor,
        node.clone(),
        health.service(),
        metrics,
        stop.clone(),
    );
    let clients = serve_clients(node, config, listeners.client, &health, stop.clone());
    let served = tokio::try_join!(clients, async {
        monitor.await.map_err(ServeError::Monitor)
    });
    stop.cancel();
    served.map(|_| ())
}

async fn serve_clients(
    node: Node,
    config: &Config,
    listener: TcpListener,
    health: &HealthReport,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let limits = &config.limits;
    let forwarder = Forwarder::new(limits.request_timeout());
    let gate = Gate::new(limits.max_concurrent_requests);
    let kv = KvService::new(
        node.clone(),
        limits.clone(),
        forwarder.clone(),
        gate,
        stop.clone(),
    );
    let message_bytes = limits.max_write_bytes().max(FRAME_BYTES_MAX);
    let kv = KvServer::new(kv).max_decoding_message_size(message_bytes);
    let watch = WatchService::new(node.clone(), limits.clone(), stop.clone());
    let admin = AdminService::new(node, config.clone(), forwarder, watch.count());
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(dengine_api::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()?;
    GrpcServer::builder()
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .layer(OversizeLayer::new(limits))
        .add_service(kv)
        .add_service(WatchServer::new(watch).max_decoding_message_size(WATCH_REQUEST_BYTES_MAX))
        .add_service(AdminServer::new(admin))
        .add_service(health.service())
        .add_service(reflection)
        .serve_with_incoming_shutdown(
            TcpIncoming::from(listener).with_nodelay(Some(true)),
            stop.cancelled_owned(),
        )
        .await?;
    Ok(())
}
