//! The truth for probes, as the gRPC health protocol tells it.
//!
//! `ready` (and the empty name) serves while this member could answer a linearizable read; `live`
//! serves as long as the node's own threads run, whatever the rest of the cluster does.

use dengine_protocol::health::{LIVE, READY};
use tokio_util::sync::CancellationToken;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::server::{HealthReporter, HealthService};

use crate::node::Node;

/// Keeps the health services in step with a node.
pub(super) struct HealthReport {
    service: HealthServer<HealthService>,
}

impl HealthReport {
    /// Follows `node` until it ends or `stop` is cancelled; from then on nothing is ready.
    pub(super) async fn start(node: &Node, stop: CancellationToken) -> Self {
        let reporter = HealthReporter::new();
        let service = HealthServer::new(HealthService::from_health_reporter(reporter.clone()));
        report_ready(&reporter, false).await;
        reporter
            .set_service_status(LIVE, ServingStatus::Serving)
            .await;
        tokio::spawn(follow(node.clone(), reporter, stop));
        Self { service }
    }

    /// The service, for any number of ports.
    pub(super) fn service(&self) -> HealthServer<impl Health + use<>> {
        self.service.clone()
    }
}

async fn follow(node: Node, reporter: HealthReporter, stop: CancellationToken) {
    let mut changes = node.status_changes();
    let mut reported = false;
    loop {
        let ready = changes.borrow_and_update().ready;
        if ready != reported {
            report_ready(&reporter, ready).await;
            tracing::info!(ready, "readiness changed");
            reported = ready;
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return report_ready(&reporter, false).await,
            changed = changes.changed() => if changed.is_err() {
                // The node has ended, and the process is about to.
                report_ready(&reporter, false).await;
                return reporter.set_service_status(LIVE, ServingStatus::NotServing).await;
            },
        }
    }
}

async fn report_ready(reporter: &HealthReporter, ready: bool) {
    let status = if ready {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    };
    reporter.set_service_status(READY, status).await;
    reporter.set_service_status("", status).await;
}
