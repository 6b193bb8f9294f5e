//! `/metrics`, `/healthz` and `/readyz` of the operator, in plain text.

use std::future::Future;
use std::net::SocketAddr;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use dengine_listen::listen;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;

use crate::telemetry;

/// Serves until `stop` resolves. A process that waits for the lease is healthy and ready: it would take over. One that works
/// is ready once it has seen everything that it looks after.
///
/// # Errors
/// If the address can not be listened on.
pub async fn serve(
    address: SocketAddr,
    metrics: PrometheusHandle,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let listener = TcpListener::from_std(listen(address)?)?;
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(|| async { readiness() }))
        .route(
            "/metrics",
            get(move || std::future::ready(telemetry::render(&metrics))),
        );
    axum::serve(listener, router)
        .with_graceful_shutdown(stop)
        .await
}

fn readiness() -> (StatusCode, &'static str) {
    if telemetry::is_ready() {
        (StatusCode::OK, "ok\n")
    } else {
        let words =
            "the Kubernetes API has not listed everything yet; the log says what it answers\n";
        (StatusCode::SERVICE_UNAVAILABLE, words)
    }
}
