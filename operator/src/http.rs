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

/// Serves until `stop` resolves. A process that waits for the lease is healthy and ready: it would take over. One that works
/// is ready once it has seen everything that it looks after and may see.
///
/// # Errors
/// If the address can not be listened on.
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

/// Who waits for the lease is ready.
fn readyz() -> (StatusCode, String) {
    let lacking = telemetry::is_leading().then(readiness::lacking).flatten();
    match lacking {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(words) => (StatusCode::SERVICE_UNAVAILABLE, format!("{words}\n")),
    }
}
