//! `/metrics`, `/healthz` and `/readyz` of the operator, in plain text.

use std::future::Future;
use std::net::SocketAddr;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use dengine_listen::listen;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;

use crate::{readiness, telemetry};

/// Serves until `stop` resolves. A process that waits for the lease is healthy and ready: it would
/// take over. The leader is ready once it has listed every object that it manages.
pub(crate) async fn serve(
    address: SocketAddr,
    metrics: PrometheusHandle,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let listener = TcpListener::from_std(listen(address)?)?;
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(|| async { readyz() }))
        .route(
            "/metrics",
            get(move || std::future::ready(telemetry::render(&metrics))),
        );
    axum::serve(listener, router)
        .with_graceful_shutdown(stop)
        .await
}

/// A process that waits for the lease is ready.
fn readyz() -> (StatusCode, String) {
    let lacking = telemetry::is_leading().then(readiness::lacking).flatten();
    match lacking {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(message) => (StatusCode::SERVICE_UNAVAILABLE, format!("{message}\n")),
    }
}
