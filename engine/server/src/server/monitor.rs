//! The monitor port: health over gRPC and HTTP (`/healthz`, `/readyz`) and metrics over HTTP, in
//! plain text, holding no data.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use dengine_kv::KeyCacheUsage;
use metrics::{counter, gauge};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic_health::pb::health_server::{Health, HealthServer};

use crate::connections::{self, Http, Incoming};
use crate::node::{Node, NodeStatus, Role};
use crate::preemption;
use crate::storage::{Lookups, StoreStatistics};
use crate::telemetry::{self, metrics as names};

/// The format of Prometheus' text exposition.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// How often the recorder folds what was recorded into its histograms, scraped or not; bounds its
/// memory.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(1);
/// So long a scrape waits for what the store tells.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone)]
struct Source {
    node: Node,
    metrics: PrometheusHandle,
    stop: CancellationToken,
    /// One scrape at a time asks the store.
    asks_store: Arc<Semaphore>,
    /// As of the last scrape.
    key_cache: Arc<Mutex<KeyCacheUsage>>,
}

/// Questions of a line, and answers of some kilobytes. Those that are not read are kept until their
/// connection ends, so there are few on each.
const HTTP: Http = Http {
    version_1: true,
    stream_window_bytes: 64 << 10,
    connection_window_bytes: 64 << 10,
    streams_max: 4,
    keepalive_interval: Duration::from_secs(20),
    keepalive_timeout: Duration::from_secs(10),
    resets_max: None,
};
/// Of the name of a service.
const HEALTH_REQUEST_BYTES_MAX: usize = 4 * 1024;

/// Serves until `stop` is cancelled.
pub(super) async fn serve(
    listener: Incoming,
    node: Node,
    health: HealthServer<impl Health>,
    metrics: PrometheusHandle,
    stop: CancellationToken,
) {
    let upkeep = tokio::spawn(keep_up(metrics.clone(), stop.clone()));
    let health = health.max_decoding_message_size(HEALTH_REQUEST_BYTES_MAX);
    let routes: Router = Routes::new(health).into_axum_router();
    let scrape = Router::new()
        .route("/metrics", get(render))
        .route("/healthz", get(live))
        .route("/readyz", get(ready))
        .with_state(Source {
            node,
            metrics,
            stop: stop.clone(),
            asks_store: Arc::new(Semaphore::new(1)),
            key_cache: Arc::default(),
        });
    let routes = Routes::from(routes.merge(scrape)).prepare();
    connections::serve(listener, HTTP, routes, stop).await;
    upkeep.abort();
}

async fn keep_up(metrics: PrometheusHandle, stop: CancellationToken) {
    while !stop.is_cancelled() {
        metrics.run_upkeep();
        tokio::time::sleep(UPKEEP_INTERVAL).await;
    }
}

/// As the health service's `live`.
async fn live(State(source): State<Source>) -> (StatusCode, &'static str) {
    match source.node.is_live() {
        true => (StatusCode::OK, "ok\n"),
        false => (
            StatusCode::SERVICE_UNAVAILABLE,
            "a thread of the member has failed; its log says which\n",
        ),
    }
}

/// As the health service's `ready`.
async fn ready(State(source): State<Source>) -> (StatusCode, &'static str) {
    let unready = |why| (StatusCode::SERVICE_UNAVAILABLE, why);
    if source.stop.is_cancelled() {
        return unready("the member is stopping\n");
    }
    let status = source.node.status();
    match status.ready {
        true => (StatusCode::OK, "ok\n"),
        false if status.removed => unready("the member was removed from its cluster\n"),
        false => unready(
            "no linearizable read can be answered now: the member waits for a cluster, has no \
             contact with a leader, or is catching up\n",
        ),
    }
}

async fn render(State(source): State<Source>) -> impl IntoResponse {
    record_status(&source.node.status());
    if let Ok(reader) = source.node.reader() {
        gauge!(names::SESSIONS).set(reader.open_sessions() as f64);
        gauge!(names::SESSIONS_MAX).set(dengine_kv::SESSIONS_MAX as f64);
        source.record_key_cache(reader.key_cache_usage());
    }
    source.record_store().await;
    gauge!(names::BATCH_SCHEDULING).set(u8::from(preemption::all_are_batch()));
    if let Some(lost) = telemetry::lines_lost() {
        counter!(names::LOG_LINES_LOST_TOTAL).absolute(lost as u64);
    }
    if let Some(bytes) = resident_bytes() {
        gauge!(names::RESIDENT_MEMORY_BYTES).set(bytes as f64);
    }
    gauge!(names::BUILD_INFO, names::VERSION => env!("CARGO_PKG_VERSION")).set(1);
    (
        [(header::CONTENT_TYPE, CONTENT_TYPE)],
        source.metrics.render(),
    )
}

impl Source {
    fn record_key_cache(&self, now: KeyCacheUsage) {
        let mut last = self
            .key_cache
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (hits, misses) = counted_since(*last, now);
        *last = now;
        gauge!(names::KEY_CACHE_BYTES).set(now.bytes as f64);
        gauge!(names::KEY_CACHE_CAPACITY_BYTES).set(now.capacity_bytes as f64);
        counter!(names::KEY_CACHE_HITS_TOTAL).increment(hits);
        counter!(names::KEY_CACHE_MISSES_TOTAL).increment(misses);
    }

    /// Asks the store, but not for long: all other metrics are wanted also while it hangs. Its own
    /// stay as they were then.
    async fn record_store(&self) {
        let node = self.node.clone();
        let places = Arc::clone(&self.asks_store);
        let asked = timeout(STORE_TIMEOUT, async move {
            let place = places.acquire_owned().await;
            // Aside, for it may wait for the store's own threads, and probes must not.
            let ask = move || {
                let _place = place;
                let store = node.store_statistics();
                store.map(|store| record_store(&store)).is_ok()
            };
            tokio::task::spawn_blocking(ask).await.unwrap_or(false)
        });
        let answers = asked.await.unwrap_or(false);
        gauge!(names::STORE_ANSWERS).set(f64::from(u8::from(answers)));
    }
}

/// The node's state is shown as of the scrape; recording each change would cost every write.
fn record_status(status: &NodeStatus) {
    gauge!(names::READY).set(f64::from(u8::from(status.ready)));
    gauge!(names::LEADER).set(f64::from(u8::from(status.role == Role::Leader)));
    gauge!(names::TERM).set(status.term.0 as f64);
    gauge!(names::LAST_INDEX).set(status.last_index.0 as f64);
    gauge!(names::COMMIT_INDEX).set(status.commit_index.0 as f64);
    gauge!(names::APPLIED_INDEX).set(status.applied_index.0 as f64);
    gauge!(names::REVISION).set(status.revision.0 as f64);
    gauge!(names::LOG_SIZE_BYTES).set(status.log_bytes as f64);
    gauge!(names::STATE_SIZE_BYTES).set(status.state_bytes as f64);
}

fn record_store(store: &StoreStatistics) {
    gauge!(names::STORE_CACHE_CAPACITY_BYTES).set(store.cache_capacity_bytes as f64);
    gauge!(names::STORE_CACHE_USED_BYTES).set(store.cache_used_bytes as f64);
    gauge!(names::STORE_MEMTABLE_BYTES).set(store.memtable_bytes as f64);
    gauge!(names::STORE_TABLE_BYTES).set(store.table_bytes as f64);
    gauge!(names::STORE_PENDING_MERGE_BYTES).set(store.pending_merge_bytes as f64);
    gauge!(names::STORE_RUNNING_FLUSHES).set(store.running_flushes as f64);
    gauge!(names::STORE_RUNNING_MERGES).set(store.running_merges as f64);
    gauge!(names::STORE_WRITES_SLOWED).set(f64::from(u8::from(store.are_writes_slowed)));
    gauge!(names::STORE_WRITES_STOPPED).set(f64::from(u8::from(store.are_writes_stopped)));
    record_lookups("data", store.data);
    record_lookups("index", store.index);
    record_lookups("filter", store.filter);
    counter!(names::STORE_FILTER_CHECKS_TOTAL).absolute(store.filter_checks);
    counter!(names::STORE_FILTER_SKIPS_TOTAL).absolute(store.filter_skips);
    counter!(names::STORE_FLUSH_WRITTEN_BYTES_TOTAL).absolute(store.flush_written_bytes);
    counter!(names::STORE_MERGE_READ_BYTES_TOTAL).absolute(store.merge_read_bytes);
    counter!(names::STORE_MERGE_WRITTEN_BYTES_TOTAL).absolute(store.merge_written_bytes);
    let stalled_ms = u64::try_from(store.stalled.as_millis()).unwrap_or(u64::MAX);
    counter!(names::STORE_WRITES_STALLED_MILLISECONDS_TOTAL).absolute(stalled_ms);
}

/// Hits and misses since then. A member that has taken over a snapshot has a new cache, which
/// counts from 0.
fn counted_since(then: KeyCacheUsage, now: KeyCacheUsage) -> (u64, u64) {
    let is_new = now.hits < then.hits || now.misses < then.misses;
    let then = if is_new {
        KeyCacheUsage::default()
    } else {
        then
    };
    (now.hits - then.hits, now.misses - then.misses)
}

fn record_lookups(blocks: &'static str, of: Lookups) {
    counter!(names::STORE_CACHE_HITS_TOTAL, names::BLOCKS => blocks).absolute(of.hits);
    counter!(names::STORE_CACHE_MISSES_TOTAL, names::BLOCKS => blocks).absolute(of.misses);
}

/// From Linux' `/proc`; elsewhere it is not known.
fn resident_bytes() -> Option<u64> {
    let statm = fs_err::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(hits: u64, misses: u64) -> KeyCacheUsage {
        KeyCacheUsage {
            hits,
            misses,
            ..KeyCacheUsage::default()
        }
    }

    #[test]
    fn a_new_cache_takes_nothing_off_its_counters() {
        assert_eq!(counted_since(usage(0, 0), usage(5, 2)), (5, 2));
        assert_eq!(counted_since(usage(5, 2), usage(6, 2)), (1, 0));
        assert_eq!(counted_since(usage(6, 2), usage(4, 3)), (4, 3));
    }
}
