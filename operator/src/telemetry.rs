//! Logs and metrics of the operator itself: their setup, and every name in one place.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::{Method, Uri};
use clap::ValueEnum;
use dengine_crds::{DEngineCluster, DEngineClusterStatus};
use futures::{Stream, StreamExt};
use kube::runtime::{controller, watcher};
use kube::{Resource, ResourceExt};
use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_util::MetricKindMask;
use tracing_subscriber::EnvFilter;

use crate::apply::is_code;
use crate::readiness;
use crate::scope::Scope;

/// Value of the label `controller`.
pub(crate) const CLUSTER: &str = "cluster";
/// Value of the label `controller`.
pub(crate) const BENCHMARK: &str = "benchmark";

const RECONCILE_SECONDS: &str = "dengine_operator_reconcile_seconds";
const RECONCILE_ERRORS: &str = "dengine_operator_reconcile_errors_total";
const WATCH_ERRORS: &str = "dengine_operator_watch_errors_total";
const LEADER: &str = "dengine_operator_leader";
const CLUSTER_CONDITION: &str = "dengine_operator_cluster_condition";
const CLUSTER_READY_MEMBERS: &str = "dengine_operator_cluster_ready_members";
const CLUSTER_WANTED_MEMBERS: &str = "dengine_operator_cluster_wanted_members";
const STEPS: &str = "dengine_operator_steps_total";
const UNREADABLE: &str = "dengine_operator_unreadable_object";
const REQUESTS: &str = "dengine_operator_kubernetes_requests_total";

pub const NAMES: [&str; 10] = [
    RECONCILE_SECONDS,
    RECONCILE_ERRORS,
    WATCH_ERRORS,
    LEADER,
    CLUSTER_CONDITION,
    CLUSTER_READY_MEMBERS,
    CLUSTER_WANTED_MEMBERS,
    STEPS,
    UNREADABLE,
    REQUESTS,
];

/// Every reconciliation sets a cluster's gauges again; those of a deleted cluster expire.
const FORGET_AFTER: Duration = Duration::from_secs(300);

const RECONCILE_SECONDS_BUCKETS: &[f64] =
    &[0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// Format of log lines.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LogFormat {
    /// For machines.
    Json,
    /// For people.
    Text,
}

/// Sends log lines to standard error.
///
/// # Errors
/// If the filter is invalid, or logging was set up before.
pub fn log(format: LogFormat, filter: &str) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter)?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let installed = match format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Text => builder.try_init(),
    };
    installed.map_err(|error| anyhow::anyhow!(error))
}

/// Starts to collect metrics; the handle renders them.
pub(crate) fn metrics() -> Result<PrometheusHandle, BuildError> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(
            Matcher::Full(RECONCILE_SECONDS.to_owned()),
            RECONCILE_SECONDS_BUCKETS,
        )?
        .idle_timeout(MetricKindMask::GAUGE, Some(FORGET_AFTER))
        .install_recorder()?;
    describe_histogram!(RECONCILE_SECONDS, "Duration of a reconciliation.");
    describe_counter!(RECONCILE_ERRORS, "Reconciliations that failed.");
    describe_counter!(WATCH_ERRORS, "Watches that failed and were restarted.");
    describe_gauge!(LEADER, "1 while this process holds the lease, else 0.");
    describe_gauge!(
        CLUSTER_CONDITION,
        "1 if the condition in the cluster's status is True, 0 if it is False."
    );
    describe_gauge!(
        CLUSTER_READY_MEMBERS,
        "Voters that are caught up and serve."
    );
    describe_gauge!(CLUSTER_WANTED_MEMBERS, "Members that the spec asks for.");
    describe_counter!(STEPS, "Steps taken, by the reason of their event.");
    describe_gauge!(
        UNREADABLE,
        "1 for each object that this version cannot read; nothing is done for it."
    );
    describe_counter!(
        REQUESTS,
        "Requests to the Kubernetes API, by verb: get, list, watch, create, patch, delete."
    );
    Ok(handle)
}

/// Counts a request to the Kubernetes API.
pub(crate) fn count_request(method: &Method, uri: &Uri) {
    counter!(REQUESTS, "verb" => verb(method, uri)).increment(1);
}

/// The verb as in RBAC rules. A list is a `get` of a path that ends in a kind: the operator reads
/// no subresources.
pub(crate) fn verb(method: &Method, uri: &Uri) -> &'static str {
    let watches = uri.query().is_some_and(|query| {
        let mut parameters = query.split('&');
        parameters.any(|one| one == "watch=true" || one == "watch=1")
    });
    match method.as_str() {
        "GET" if watches => "watch",
        "GET" if is_of_many(uri.path()) => "list",
        "GET" => "get",
        "POST" => "create",
        "PATCH" | "PUT" => "patch",
        "DELETE" => "delete",
        _ => "other",
    }
}

/// After `/api/v1` or `/apis/GROUP/VERSION` comes a kind, or `namespaces/NAME` and a kind.
fn is_of_many(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let behind = if parts.first() == Some(&"api") { 2 } else { 3 };
    match parts.get(behind..) {
        Some(["namespaces", _, rest @ ..]) => rest.len() == 1,
        Some(rest) => rest.len() == 1,
        None => false,
    }
}

/// Whether this process holds the lease.
static LEADS: AtomicBool = AtomicBool::new(false);

pub(crate) fn set_leader(is_leader: bool) {
    LEADS.store(is_leader, Ordering::Relaxed);
}

/// Whether this process holds the lease.
pub(crate) fn is_leading() -> bool {
    LEADS.load(Ordering::Relaxed)
}

/// The metrics as text. The leader gauge is set on each scrape: it changes rarely, and would
/// expire.
pub(crate) fn render(handle: &PrometheusHandle) -> String {
    gauge!(LEADER).set(if is_leading() { 1.0 } else { 0.0 });
    handle.render()
}

/// Records the conditions and members of a cluster.
pub(crate) fn record_status(cluster: &DEngineCluster, status: &DEngineClusterStatus) {
    let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name_any());
    for condition in &status.conditions {
        let labels = [
            ("namespace", namespace.clone()),
            ("cluster", name.clone()),
            ("type", condition.type_.clone()),
        ];
        // Unknown conditions, as of a cluster that is being created, must not trigger alerts.
        let holds = match condition.status.as_str() {
            "True" => true,
            "False" => false,
            _ => continue,
        };
        gauge!(CLUSTER_CONDITION, &labels).set(if holds { 1.0 } else { 0.0 });
    }
    let labels = [("namespace", namespace), ("cluster", name)];
    gauge!(CLUSTER_READY_MEMBERS, &labels).set(f64::from(status.ready_replicas));
    gauge!(CLUSTER_WANTED_MEMBERS, &labels).set(f64::from(cluster.spec.replicas));
}

/// Counts a step that was taken.
pub(crate) fn count_step(reason: &'static str) {
    counter!(STEPS, "reason" => reason).increment(1);
}

/// Records an object that cannot be read.
pub(crate) fn record_unreadable(kind: &str, namespace: &str, name: &str) {
    let labels = [
        ("kind", kind.to_owned()),
        ("namespace", namespace.to_owned()),
        ("name", name.to_owned()),
    ];
    gauge!(UNREADABLE, &labels).set(1.0);
}

pub(crate) fn record_reconciliation(controller: &'static str, took: Duration) {
    histogram!(RECONCILE_SECONDS, "controller" => controller).record(took.as_secs_f64());
}

/// Logs and counts a reconciliation that failed. `ObjectNotFound` is no failure: an owned object
/// changed after its owner was deleted.
pub(crate) fn reconcile_failed<E>(
    controller: &'static str,
    error: &controller::Error<E, watcher::Error>,
) where
    E: std::error::Error + 'static,
{
    if let controller::Error::ObjectNotFound(object) = error {
        tracing::debug!(%object, "gone");
        return;
    }
    counter!(RECONCILE_ERRORS, "controller" => controller).increment(1);
    tracing::warn!(controller, %error, "a reconciliation failed");
}

/// Logs and counts the errors of a watch, and notes whether its scope can be listed; the stream
/// goes on.
pub(crate) fn observe_watch<T, S>(
    scope: &Scope,
    stream: S,
) -> impl Stream<Item = watcher::Result<watcher::Event<T>>> + Send + 'static + use<T, S>
where
    T: Resource<DynamicType = ()>,
    S: Stream<Item = watcher::Result<watcher::Event<T>>> + Send + 'static,
{
    let scope = scope.clone();
    let mut said = LastError::default();
    stream.inspect(move |item| {
        readiness::watched(&scope, item);
        let is_news = said.is_news(item);
        let (of, within) = (std::any::type_name::<T>(), scope.description());
        let Err(error) = item else { return };
        counter!(WATCH_ERRORS).increment(1);
        if !is_news {
            tracing::debug!(%error, of, within, "a watch failed again");
        } else if is_forbidden(error) {
            tracing::warn!(
                %error, of, within,
                "the operator may not watch these objects and keeps trying: grant the permissions \
                 in docs/rbac.md, or restrict it to some namespaces"
            );
        } else {
            tracing::warn!(%error, of, within, "a watch failed and is restarted");
        }
    })
}

/// The last error of a watch. The same error on each retry, as while a permission is missing, is
/// logged once.
#[derive(Debug, Default)]
struct LastError(Option<String>);

impl LastError {
    fn is_news<T>(&mut self, item: &watcher::Result<watcher::Event<T>>) -> bool {
        let now = match item {
            Err(error) => Some(error.to_string()),
            // Every retry begins with it.
            Ok(watcher::Event::Init) => return false,
            Ok(_) => None,
        };
        let is_news = now.is_some() && now != self.0;
        self.0 = now;
        is_news
    }
}

fn is_forbidden(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error) => {
            is_code(error, 403)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use dengine_crds::conditions as types;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    /// The alert DEngineQuorumLost compares this series with 0, so it must be absent while the
    /// condition is unknown.
    #[test]
    fn unknown_conditions_have_no_series() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let text = metrics::with_local_recorder(&recorder, || {
            let cluster = DEngineCluster::new("demo", serde_saphyr::from_str("{}").unwrap());
            let condition = |type_: &str, status: &str| Condition {
                type_: type_.to_owned(),
                status: status.to_owned(),
                reason: "NotBootstrapped".to_owned(),
                message: String::new(),
                observed_generation: None,
                last_transition_time: Time(Timestamp::UNIX_EPOCH),
            };
            let status = DEngineClusterStatus {
                conditions: vec![
                    condition(types::QUORUM_AVAILABLE, "Unknown"),
                    condition(types::READY, "False"),
                ],
                ..DEngineClusterStatus::default()
            };
            record_status(&cluster, &status);
            recorder.handle().render()
        });
        assert!(!text.contains("type=\"QuorumAvailable\""), "{text}");
        assert!(text.contains("type=\"Ready\""), "{text}");
    }

    #[test]
    fn a_watch_error_is_logged_once_until_it_changes() {
        type Event = watcher::Result<watcher::Event<()>>;
        let broke = |code, message: &str| -> Event {
            let status = kube::core::Status::failure(message, "Refused").with_code(code);
            let error = kube::Error::Api(status.boxed());
            Err(watcher::Error::InitialListFailed(error))
        };
        let mut said = LastError::default();
        let mut is_news = |item: Event| said.is_news(&item);
        assert!(is_news(broke(403, "not you")));
        assert!(!is_news(Ok(watcher::Event::Init)));
        assert!(!is_news(broke(403, "not you")), "the next try");
        assert!(is_news(broke(500, "not now")), "something else");
        assert!(!is_news(Ok(watcher::Event::InitDone)));
        assert!(is_news(broke(500, "not now")), "it worked meanwhile");
        assert!(is_forbidden(&broke(403, "").unwrap_err()));
        assert!(!is_forbidden(&broke(500, "").unwrap_err()));
    }

    #[test]
    fn requests_are_counted_by_verb() {
        for (method, path, expected) in [
            (Method::GET, "/api/v1/pods?limit=50", "list"),
            (
                Method::GET,
                "/api/v1/pods?watch=true&resourceVersion=1",
                "watch",
            ),
            (Method::GET, "/api/v1/namespaces/n/pods", "list"),
            (Method::GET, "/api/v1/namespaces/n/pods/p", "get"),
            (Method::GET, "/apis/apps/v1/statefulsets", "list"),
            (
                Method::GET,
                "/apis/apps/v1/namespaces/n/statefulsets/s",
                "get",
            ),
            (
                Method::PATCH,
                "/apis/apps/v1/namespaces/n/statefulsets/s",
                "patch",
            ),
            (Method::POST, "/apis/batch/v1/namespaces/n/jobs", "create"),
            (Method::DELETE, "/api/v1/namespaces/n/pods/p", "delete"),
        ] {
            let uri: Uri = path.parse().unwrap();
            assert_eq!(verb(&method, &uri), expected, "{method} {path}");
        }
    }
}
