//! `/metrics`, `/healthz` and `/readyz` of the operator, in plain text.

use std::future::Future;
use std::net::SocketAddr;

use axum::Router;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;

use crate::telemetry;

/// Serves until `stop` resolves. A process that waits for the lease is healthy: it would take over.
///
/// # Errors
/// If the address can not be listened on.
pub async fn serve(
    address: SocketAddr,
    metrics: PrometheusHandle,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(|| async { "ok\n" }))
        .route(
            "/metrics",
            get(move || std::future::ready(telemetry::render(&metrics))),
        );
    axum::serve(listener, router)
        .with_graceful_shutdown(stop)
        .await
}
