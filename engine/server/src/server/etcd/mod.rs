//! The door for clients of etcd: its v3 API over gRPC, on a port of its own, on the same state
//! machine as our own API.
//!
//! - [`door`]: what every call passes: who may be asked for what, and errors in etcd's words.
//! - [`writes`]: what changes something.
//! - [`kv`], [`watch`], [`lease`], [`cluster`], [`maintenance`]: the services. [`absent`]: those
//!   that are not served.
//! - [`reads`], [`range_stream`]: ranges, whole and in pieces.
//! - [`lock`], [`election`]: services on top of these. [`contests`]: what both do.
//!
//! What messages mean, and every error string, is in `dengine_etcd`; serving keys and watches is
//! shared with our own API ([`serving`](super::serving), [`watch`](super::watch)). `docs/etcd.md`
//! says what is the same as in etcd and what is not.

mod absent;
mod cluster;
mod contests;
mod door;
mod election;
mod kv;
mod lease;
mod lock;
mod maintenance;
mod range_stream;
mod reads;
mod watch;
mod writes;

use std::time::Duration;

use dengine_etcd::REQUEST_BYTES_MAX;
use dengine_etcd::etcdserverpb::cluster_server::ClusterServer;
use dengine_etcd::etcdserverpb::kv_server::KvServer;
use dengine_etcd::etcdserverpb::lease_server::LeaseServer;
use dengine_etcd::etcdserverpb::maintenance_server::MaintenanceServer;
use dengine_etcd::etcdserverpb::watch_server::WatchServer;
use dengine_etcd::v3electionpb::election_server::ElectionServer;
use dengine_etcd::v3lockpb::lock_server::LockServer;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::service::Routes;
use tower::ServiceBuilder;

use self::absent::{Auth, Refuses};
use self::cluster::ClusterService;
use self::contests::Contests;
use self::door::Door;
use self::election::ElectionService;
use self::kv::KvService;
use self::lease::LeaseService;
use self::lock::LockService;
use self::maintenance::MaintenanceService;
use self::watch::WatchService;
use super::bodies::BodiesLayer;
use super::calls::Calls;
use super::fast_path::FastPath;
use super::health::HealthReport;
use super::{CONNECTION_WINDOW_BYTES, Doors, ServeError, connections_max, oversize};
use crate::connections::{self, Connections, Http, Incoming, Sources, WhenFull};
use crate::files::{self, Use};
use crate::memory;

/// A client of etcd opens a stream of HTTP/2 for each call, and there is no bound in etcd itself. A
/// Go client that cancels many calls at once has reset as many streams: its connection must stay.
const HTTP: Http = Http {
    version_1: false,
    stream_window_bytes: 128 << 10,
    connection_window_bytes: CONNECTION_WINDOW_BYTES,
    streams_max: 1 << 16,
    keepalive_interval: Duration::from_secs(20),
    keepalive_timeout: Duration::from_secs(10),
    resets_max: Some(1 << 16),
};
/// What a message may have beyond the largest request: one that is a little too large is answered
/// with etcd's error for that, and a larger one with gRPC's.
const MESSAGE_BYTES_MAX: usize = REQUEST_BYTES_MAX + (512 << 10);

/// Serves clients of etcd, if they have a port, until `stop` is cancelled.
pub(super) async fn serve(
    doors: Doors,
    (listener, sources): (Option<TcpListener>, &Sources),
    health: &HealthReport,
    calls: Calls,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let Some(listener) = listener else {
        return Ok(());
    };
    let door = Door::new(doors.serving);
    let limits = door.limits().clone();
    let patience = limits.stream_stall_timeout();
    let kv = KvServer::new(KvService::new(door.clone()))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(usize::MAX);
    let contests = Contests::new(door.clone(), doors.watch.clone());
    let lock = LockServer::new(LockService::new(contests.clone()));
    let election = ElectionServer::new(ElectionService::new(contests))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(usize::MAX);
    let watch = WatchServer::new(WatchService::new(door.clone(), doors.watch))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(usize::MAX);
    let lease = LeaseServer::new(LeaseService::new(door.clone()))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(usize::MAX);
    let admin = doors.admin;
    let cluster = ClusterServer::new(ClusterService::new(door.clone(), admin.clone()));
    let others = Routes::new(watch)
        .add_service(lease)
        .add_service(cluster)
        .add_service(MaintenanceServer::new(MaintenanceService::new(door, admin)))
        .add_service(lock)
        .add_service(election)
        .add_service(Refuses::<Auth>::default())
        .add_service(health.service());
    let most = files::most(Use::EtcdClients, connections_max(&limits));
    let connections = Connections::new(most, WhenFull::Refuse, sources);
    tokio::spawn(connections.clone().watch_over(patience, stop.clone()));
    let of = memory::Use::Requests;
    let bodies = BodiesLayer::new(of, MESSAGE_BYTES_MAX, calls, patience).ending_late();
    sources.holds(bodies.held());
    let services = ServiceBuilder::new()
        .layer(bodies)
        .map_response(oversize::answering(too_large()))
        .service(FastPath::new(kv, others));
    let incoming = Incoming::new(listener, connections);
    connections::serve(incoming, HTTP, services, stop).await;
    Ok(())
}

/// What etcd's own gRPC says of such a message.
fn too_large() -> Status {
    Status::resource_exhausted(format!(
        "grpc: received message larger than max ({MESSAGE_BYTES_MAX})"
    ))
}
