//! Watches benchmarks and their Jobs, and runs the reconciliations.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dengine_crds::DEngineBenchmark;
use dengine_crds::names::labels;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use kube::runtime::controller::{self, Action, Controller};
use kube::runtime::reflector::{self, ObjectRef};
use kube::runtime::{WatchStreamExt, watcher};

use super::turns::Turns;
use crate::cluster::controller::{cached, few, labelled, slim};
use crate::context::Context;
use crate::guard::{self, Guarded};
use crate::scope::Scope;
use crate::telemetry;

/// Changes within this time are reconciled together.
const DEBOUNCE: Duration = Duration::from_millis(50);

struct BenchmarkShared {
    context: Context,
    turns: Arc<Turns>,
}

/// Runs until `stop` resolves and the reconciliations in progress have ended.
pub async fn run(
    context: Context,
    scope: Scope,
    concurrency: u16,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let (reader, writer) = reflector::store();
    // Not only changes of the spec: the Job's result arrives in the status.
    let benchmarks = telemetry::observe_watch(
        &scope,
        watcher(
            scope.api::<Guarded<DEngineBenchmark>>(&context.client),
            few(),
        ),
    )
    .default_backoff()
    .modify(slim)
    .reflect(writer)
    .applied_objects();
    let selector = format!("{}={}", labels::COMPONENT, labels::COMPONENT_BENCHMARK);
    let (jobs, changed) = cached(
        &scope,
        scope.api(&context.client),
        labelled(&selector),
        |_| {},
    );
    let turns = Arc::new(Turns::new(jobs, Arc::clone(&context.targets)));
    let noted = Arc::clone(&turns);
    let changed = changed.inspect_ok(move |job| noted.note(job));
    let shared = BenchmarkShared { context, turns };
    Controller::for_stream(benchmarks, reader)
        .with_config(
            controller::Config::default()
                .debounce(DEBOUNCE)
                .concurrency(concurrency),
        )
        .watches_stream(changed, by_label)
        .graceful_shutdown_on(stop)
        .run(reconcile, on_error, Arc::new(shared))
        .for_each(|result| async move {
            if let Err(error) = result {
                telemetry::reconcile_failed(telemetry::BENCHMARK, &error);
            }
        })
        .await;
}

async fn reconcile(
    benchmark: Arc<Guarded<DEngineBenchmark>>,
    shared: Arc<BenchmarkShared>,
) -> Result<Action, kube::Error> {
    let benchmark = match &benchmark.0 {
        Ok(benchmark) => benchmark,
        Err(object) => {
            return Ok(guard::unreadable::<DEngineBenchmark>(&shared.context, object).await);
        }
    };
    shared.turns.wait_until_ready().await;
    let started = Instant::now();
    let result = super::reconcile(benchmark, &shared.context, &shared.turns).await;
    telemetry::record_reconciliation(telemetry::BENCHMARK, started.elapsed());
    result
}

fn on_error(_: Arc<Guarded<DEngineBenchmark>>, _: &kube::Error, _: Arc<BenchmarkShared>) -> Action {
    Action::requeue(Duration::from_secs(2))
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "what `watches_stream` calls it with"
)]
fn by_label(job: Job) -> Option<ObjectRef<Guarded<DEngineBenchmark>>> {
    let benchmark = job.labels().get(labels::BENCHMARK)?;
    Some(ObjectRef::new(benchmark).within(&job.namespace()?))
}
