//! Watches everything that may change what a cluster needs, and runs the reconciliations.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dengine_crds::names::labels;
use dengine_crds::{DEngineBenchmark, DEngineCluster};
use futures::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::core::NamespaceResourceScope;
use kube::runtime::controller::{self, Action, Controller};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{Predicate, WatchStreamExt, predicates, watcher};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use super::benchmarks::{Benchmarks, reports_to};
use super::observe::Caches;
use super::older_volumes;
use crate::context::Context;
use crate::guard::{self, Guarded};
use crate::scope::Scope;
use crate::telemetry;

/// Changes within this time are reconciled together.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// What every reconciliation of a cluster gets.
pub(crate) struct ClusterShared {
    pub context: Context,
    pub caches: Caches,
}

/// Runs until `stop` resolves and the reconciliations in progress have ended.
pub async fn run(
    context: Context,
    scope: Scope,
    concurrency: u16,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let predicate = predicates::generation.combine(predicates::annotations);
    let (reader, writer) = reflector::store();
    let clusters = telemetry::observe_watch(
        &scope,
        watcher(
            scope.api::<Guarded<DEngineCluster>>(&context.client),
            watcher::Config::default().page_size(PAGE),
        ),
    )
    .default_backoff()
    .reflect(writer)
    .applied_objects()
    .predicate_filter(predicate, Default::default());
    let controller = Controller::for_stream(clusters, reader).with_config(
        controller::Config::default()
            .debounce(DEBOUNCE)
            .concurrency(concurrency),
    );

    let (stateful_sets, controller) = feed(controller, &context, &scope, by_label);
    let (pods, controller) = feed(controller, &context, &scope, by_label);
    let (claims, controller) = feed(controller, &context, &scope, by_label);
    let (services, controller) = feed(controller, &context, &scope, by_label);
    let (accounts, controller) = feed(controller, &context, &scope, by_label);
    let (budgets, controller) = feed(controller, &context, &scope, by_label);
    let (volumes, controller) = kept_volumes(controller, &context, &scope);
    if scope.namespace.is_none() {
        tokio::spawn(label_older_volumes(context.clone()));
    }
    let (store, changed) = cached(&scope, scope.api(&context.client), few(), slim);
    let benchmarks = Benchmarks::new(store);
    let noted = benchmarks.clone();
    let changed = changed.inspect_ok(move |benchmark| noted.note(benchmark));
    let controller = controller.watches_stream(changed, by_target);
    let caches = Caches {
        stateful_sets,
        pods,
        claims,
        services,
        accounts,
        budgets,
        volumes,
        benchmarks,
    };

    let shared = Arc::new(ClusterShared { context, caches });
    controller
        .graceful_shutdown_on(stop)
        .run(reconcile, super::on_error, shared)
        .for_each(|result| async move {
            if let Err(error) = result {
                telemetry::reconcile_failed(telemetry::CLUSTER, &error);
            }
        })
        .await;
}

async fn reconcile(
    cluster: Arc<Guarded<DEngineCluster>>,
    shared: Arc<ClusterShared>,
) -> Result<Action, kube::Error> {
    let cluster = match &cluster.0 {
        Ok(cluster) => cluster,
        Err(object) => {
            return Ok(guard::unreadable::<DEngineCluster>(&shared.context, object).await);
        }
    };
    shared.caches.wait_until_ready().await;
    let started = Instant::now();
    let result = super::reconcile(cluster, &shared.context, &shared.caches).await;
    telemetry::record_reconciliation(telemetry::CLUSTER, started.elapsed());
    result
}

impl Caches {
    /// Waits for complete caches: nothing may be decided from a partial one. Benchmarks are
    /// excluded, since they decide nothing and anyone who may create one must not hold up clusters.
    /// So are volumes that are kept: they are released a little later.
    async fn wait_until_ready(&self) {
        // An error means that the watches ended, and with them this process.
        let _ = tokio::join!(
            self.stateful_sets.wait_until_ready(),
            self.pods.wait_until_ready(),
            self.claims.wait_until_ready(),
            self.services.wait_until_ready(),
            self.accounts.wait_until_ready(),
            self.budgets.wait_until_ready(),
        );
    }
}

/// Watches objects of a kind that the operator creates for members: they fill a cache and trigger
/// their cluster.
fn feed<K, M, I>(
    controller: Controller<Guarded<DEngineCluster>>,
    context: &Context,
    scope: &Scope,
    mapper: M,
) -> (Store<K>, Controller<Guarded<DEngineCluster>>)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    M: Fn(K) -> I + Send + Sync + 'static,
    I: IntoIterator<Item = ObjectRef<Guarded<DEngineCluster>>> + 'static,
    I::IntoIter: Send,
{
    let selector = format!(
        "{}={},{}={}",
        labels::MANAGED_BY,
        labels::MANAGED_BY_VALUE,
        labels::COMPONENT,
        labels::COMPONENT_MEMBER
    );
    let (store, stream) = cached(
        scope,
        scope.api(&context.client),
        labelled(&selector),
        |_| {},
    );
    (store, controller.watches_stream(stream, mapper))
}

/// Watches labelled volumes that are kept; they trigger their cluster. An operator for one
/// namespace may not watch volumes.
fn kept_volumes(
    controller: Controller<Guarded<DEngineCluster>>,
    context: &Context,
    scope: &Scope,
) -> (Store<PersistentVolume>, Controller<Guarded<DEngineCluster>>) {
    if scope.namespace.is_some() {
        return (reflector::store().0, controller);
    }
    let all = Api::all(context.client.clone());
    let (store, stream) = cached(scope, all, labelled(labels::KEPT_FOR), |_| {});
    (store, controller.watches_stream(stream, by_kept_for))
}

/// A failure is only logged: the next operator that starts tries again.
async fn label_older_volumes(context: Context) {
    if let Err(error) = older_volumes::label(&context).await {
        tracing::warn!(%error, "volumes that an older operator kept cannot be labelled");
    }
}

/// Page size of lists.
pub(crate) const PAGE: u32 = 50;
/// Page size of benchmarks: anyone who may write one can fill its status with more than a megabyte.
pub(crate) const BENCHMARKS_PAGE: u32 = 8;

/// Watches objects with these labels.
pub(crate) fn labelled(selector: &str) -> watcher::Config {
    watcher::Config::default().page_size(PAGE).labels(selector)
}

/// Watches benchmarks, a few at a time.
pub(crate) fn few() -> watcher::Config {
    watcher::Config::default().page_size(BENCHMARKS_PAGE)
}

/// A cache of the selected objects, each without what `slim` removes, and a stream of those that
/// changed or were deleted.
pub(crate) fn cached<K>(
    scope: &Scope,
    api: Api<K>,
    config: watcher::Config,
    slim: fn(&mut K),
) -> (
    Store<K>,
    impl Stream<Item = watcher::Result<K>> + Send + 'static + use<K>,
)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let (store, writer) = reflector::store();
    let stream = telemetry::observe_watch(scope, watcher(api, config))
        .default_backoff()
        .modify(move |object: &mut K| {
            object.managed_fields_mut().clear();
            slim(object);
        })
        .reflect(writer)
        .touched_objects();
    (store, stream)
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "what `watches_stream` calls it with"
)]
fn by_label<K: Resource>(object: K) -> Option<ObjectRef<Guarded<DEngineCluster>>> {
    let cluster = object.labels().get(labels::CLUSTER)?;
    Some(ObjectRef::new(cluster).within(&object.namespace()?))
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "what `watches_stream` calls it with"
)]
fn by_kept_for(volume: PersistentVolume) -> Option<ObjectRef<Guarded<DEngineCluster>>> {
    let cluster = volume.labels().get(labels::KEPT_FOR)?;
    let namespace = volume.labels().get(labels::KEPT_FOR_NAMESPACE)?;
    Some(ObjectRef::new(cluster).within(namespace))
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "what `watches_stream` calls it with"
)]
fn by_target(benchmark: Guarded<DEngineBenchmark>) -> Option<ObjectRef<Guarded<DEngineCluster>>> {
    let cluster = reports_to(benchmark.0.as_ref().ok()?)?;
    Some(ObjectRef::new(&cluster).within(&benchmark.namespace()?))
}

/// Removes the results of a benchmark; the judge of a run reads them from the API server.
pub(crate) fn slim(benchmark: &mut Guarded<DEngineBenchmark>) {
    if let Ok(benchmark) = &mut benchmark.0
        && let Some(status) = &mut benchmark.status
    {
        status.runs.clear();
        status.comparison.clear();
        status.missed.clear();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Anyone who may write a benchmark may fill its status, and there may be many.
    #[test]
    fn cached_benchmarks_have_no_results() {
        let report = json!({"command": ["x".repeat(1024)], "results": []});
        let benchmark = json!({
            "apiVersion": "dengine.io/v1alpha1", "kind": "DEngineBenchmark",
            "metadata": {"name": "b"},
            "spec": {"workload": "put", "target": {"clusterRef": {"name": "demo"}}},
            "status": {"runId": "1", "missed": ["p99 < 1ms"], "runs": {"1": report, "2": report}},
        });
        let mut benchmark: Guarded<DEngineBenchmark> = serde_json::from_value(benchmark).unwrap();
        slim(&mut benchmark);
        let status = benchmark.0.unwrap().status.unwrap();
        assert_eq!(status.run_id.as_deref(), Some("1"));
        let left = status.runs.len() + status.comparison.len() + status.missed.len();
        assert_eq!(left, 0, "{status:?}");
    }
}
