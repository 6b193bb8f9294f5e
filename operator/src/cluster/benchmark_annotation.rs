//! The annotation `dengine.io/benchmark=quick` of a cluster creates the benchmark `demo-quick`, or
//! runs it again, and is then removed. A crash in between repeats the same run, not another one:
//! its id is the time at which the annotation was set.
//!
//! An annotation in a manifest (`kubectl apply`, Argo CD, Flux) would be restored each time, and
//! run again and again. So it stays, and its value names the run: `quick` runs once, and `quick/2`
//! once more. The runs that were started are recorded on the cluster, for the benchmark may be
//! deleted, or run again by hand.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use dengine_bench_model::profiles;
use dengine_crds::names::{self, annotations, managers};
use dengine_crds::reasons::events;
use dengine_crds::{DEngineBenchmark, DEngineCluster};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, OwnerReference};
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use crate::apply::{by_us, is_code};
use crate::context::{Context, Event};
use crate::guard::Guarded;
use crate::hash;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Asked {
    profile: String,
    name: String,
    run: String,
    /// A manifest declares the annotation, so that removing it would not last.
    declared: bool,
}

/// Handles the annotation, if there is one and the cluster is not paused.
///
/// # Errors
/// If the API server does not answer. A benchmark that it refuses is reported, and not created
/// again.
pub(super) async fn handle(
    context: &Context,
    cluster: &DEngineCluster,
    benchmarks: &Store<Guarded<DEngineBenchmark>>,
) -> Result<(), kube::Error> {
    let Some(asked) = asked(cluster).filter(|_| !cluster.spec.paused) else {
        return Ok(());
    };
    let namespace = cluster.namespace().unwrap_or_default();
    let is_done = was_run(benchmarks, &namespace, &asked);
    if asked.declared && (is_done || is_kept(cluster, &asked.run)) {
        return keep(context, cluster, &namespace, &asked.run).await;
    }
    // An annotation that cannot be removed must not start another run.
    let removal = removal(cluster, &asked);
    if !asked.declared && (is_done || context.retries.not_yet(&removal).is_some()) {
        return remove(context, cluster, &namespace, &removal).await;
    }
    let event = match unknown(&asked.profile) {
        Some(message) => Event::warning(events::STEP_FAILED, message),
        None => ask(context, cluster, &namespace, &asked).await?,
    };
    if !asked.declared || is_news(cluster, &event) {
        context.crash_point();
        context.publish(&cluster.object_ref(&()), &event).await;
    }
    if asked.declared && event.reason == events::BENCHMARK_ASKED {
        return keep(context, cluster, &namespace, &asked.run).await;
    }
    if asked.declared {
        return Ok(());
    }
    remove(context, cluster, &namespace, &removal).await
}

/// Declared runs that are recorded; an older one may start again.
const KEPT_MAX: usize = 64;

/// Declared runs that were started, the newest last.
fn kept(cluster: &DEngineCluster) -> impl Iterator<Item = &str> {
    let kept = cluster.annotations().get(annotations::BENCHMARKS_DECLARED);
    kept.into_iter().flat_map(|runs| runs.split_whitespace())
}

fn is_kept(cluster: &DEngineCluster, run: &str) -> bool {
    kept(cluster).any(|kept| kept == run)
}

/// Records that a declared run was started.
async fn keep(
    context: &Context,
    cluster: &DEngineCluster,
    namespace: &str,
    run: &str,
) -> Result<(), kube::Error> {
    if is_kept(cluster, run) {
        return Ok(());
    }
    let mut runs: Vec<&str> = kept(cluster).collect();
    runs.push(run);
    let newest = &runs[runs.len().saturating_sub(KEPT_MAX)..];
    let noted = json!({"metadata": {
        "uid": cluster.metadata.uid,
        "annotations": { annotations::BENCHMARKS_DECLARED: newest.join(" ") },
    }});
    let clusters: Api<DEngineCluster> = Api::namespaced(context.client.clone(), namespace);
    let (name, parameters, noted) = (cluster.name_any(), by_us(), Patch::Merge(noted));
    let written = clusters.patch(&name, &parameters, &noted);
    let attempt = format!("note {run} of {}", cluster.uid().unwrap_or_default());
    let what_fails = "the run of a declared benchmark cannot be recorded";
    let about = cluster.object_ref(&());
    context
        .best_effort(&about, &attempt, what_fails, written)
        .await
}

/// Key of the attempt: one for each time that the annotation was set.
fn removal(cluster: &DEngineCluster, asked: &Asked) -> String {
    let uid = cluster.uid().unwrap_or_default();
    format!("annotation of {uid}: {} {}", asked.profile, asked.run)
}

async fn remove(
    context: &Context,
    cluster: &DEngineCluster,
    namespace: &str,
    attempt: &str,
) -> Result<(), kube::Error> {
    let clusters: Api<DEngineCluster> = Api::namespaced(context.client.clone(), namespace);
    // The resource version ensures that it is not another annotation, set meanwhile.
    let done = json!({"metadata": {
        "resourceVersion": cluster.metadata.resource_version,
        "annotations": { annotations::BENCHMARK: Value::Null },
    }});
    let (name, parameters, done) = (cluster.name_any(), by_us(), Patch::Merge(done));
    let removed = clusters.patch(&name, &parameters, &done);
    let what_fails = "the benchmark annotation cannot be removed";
    let about = cluster.object_ref(&());
    context
        .best_effort(&about, attempt, what_fails, removed)
        .await
}

fn asked(cluster: &DEngineCluster) -> Option<Asked> {
    let value = cluster.annotations().get(annotations::BENCHMARK)?;
    let profile = value.split('/').next().unwrap_or_default();
    let declared = is_declared(cluster);
    Some(Asked {
        profile: profile.to_owned(),
        name: names::benchmark::asked_for(&cluster.name_any(), profile),
        run: if declared {
            format!("declared-{}", hash::of(&value.as_str().into()))
        } else {
            run_id(cluster)
        },
        declared,
    })
}

/// Whether the annotation was applied as part of a manifest: server-side, or with client-side
/// `kubectl apply`.
fn is_declared(cluster: &DEngineCluster) -> bool {
    let applied = cluster
        .annotations()
        .get("kubectl.kubernetes.io/last-applied-configuration")
        .and_then(|text| serde_json::from_str::<Value>(text).ok());
    let client_side = applied
        .is_some_and(|text| !text["metadata"]["annotations"][annotations::BENCHMARK].is_null());
    client_side || holders(cluster).any(|entry| entry.operation.as_deref() == Some("Apply"))
}

/// Whether the benchmark exists with this run.
fn was_run(benchmarks: &Store<Guarded<DEngineBenchmark>>, namespace: &str, asked: &Asked) -> bool {
    let found = benchmarks.get(&ObjectRef::new(&asked.name).within(namespace));
    let found = found.as_ref().and_then(|found| found.0.as_ref().ok());
    found.is_some_and(|found| found.spec.run_id == asked.run)
}

/// Published events of declared annotations, which would come again with each reconciliation.
static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
const TOLD_MAX: usize = 1024;

fn is_news(cluster: &DEngineCluster, event: &Event) -> bool {
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if told.len() >= TOLD_MAX {
        told.clear();
    }
    let uid = cluster.uid().unwrap_or_default();
    told.insert(format!("{uid} {}", event.note))
}

/// Why the annotation's profile is unknown. It is looked up before the API server is called, for
/// not every text can be part of an object's name or path.
fn unknown(profile: &str) -> Option<String> {
    let is_known = profiles::profile(profile).is_some();
    (!is_known).then(|| {
        let message = profiles::unknown(profile);
        format!("the benchmark annotation is refused: {message}")
    })
}

async fn ask(
    context: &Context,
    cluster: &DEngineCluster,
    namespace: &str,
    asked: &Asked,
) -> Result<Event, kube::Error> {
    let Asked { name, run, .. } = asked;
    let benchmarks: Api<DEngineBenchmark> = Api::namespaced(context.client.clone(), namespace);
    if let Some(there) = benchmarks.get_metadata_opt(name).await?
        && !is_owned_by(there.owner_references(), cluster)
    {
        let note = format!(
            "the benchmark annotation is refused: DEngineBenchmark {name} exists and was not \
             created for it; run that one by its spec.runId, or rename it"
        );
        return Ok(Event::warning(events::STEP_FAILED, note));
    }
    let parameters = PatchParams::apply(managers::OPERATOR).force();
    let wanted = Patch::Apply(benchmark(cluster, name, &asked.profile, run));
    match benchmarks.patch(name, &parameters, &wanted).await {
        Ok(_) => {
            let note = format!("the annotation starts benchmark {name}, run {run}");
            Ok(Event::normal(events::BENCHMARK_ASKED, note))
        }
        Err(error) if is_refusal(&error) => {
            let note = format!("benchmark {name} of the annotation is refused: {error}");
            Ok(Event::warning(events::STEP_FAILED, note))
        }
        Err(error) => Err(error),
    }
}

fn is_owned_by(owners: &[OwnerReference], cluster: &DEngineCluster) -> bool {
    let uid = cluster.metadata.uid.as_deref();
    owners.iter().any(|owner| Some(owner.uid.as_str()) == uid)
}

/// Whether the API server refuses it, also for lack of quota; retrying does not help.
fn is_refusal(error: &kube::Error) -> bool {
    [400, 403, 422].into_iter().any(|code| is_code(error, code))
}

fn benchmark(cluster: &DEngineCluster, name: &str, profile: &str, run: &str) -> Value {
    json!({
        "apiVersion": DEngineBenchmark::api_version(&()),
        "kind": DEngineBenchmark::kind(&()),
        "metadata": { "name": name,
                     "ownerReferences": cluster.owner_ref(&()).map(|owner| vec![owner]) },
        "spec": {
            "target": { "clusterRef": { "name": cluster.name_any() } },
            "profile": profile,
            "runId": run,
        },
    })
}

/// When the annotation was set, as recorded by the API server; without that, the generation.
fn run_id(cluster: &DEngineCluster) -> String {
    let when = holders(cluster)
        .filter_map(|entry| entry.time.as_ref())
        .map(|time| time.0)
        .max();
    when.map_or_else(
        || format!("generation-{}", cluster.metadata.generation.unwrap_or(0)),
        |when| when.strftime("%Y%m%dT%H%M%SZ").to_string(),
    )
}

/// Field managers of the annotation, as recorded by the API server.
fn holders(cluster: &DEngineCluster) -> impl Iterator<Item = &ManagedFieldsEntry> {
    let path = format!(
        "/f:metadata/f:annotations/f:{}",
        annotations::BENCHMARK.replace('~', "~0").replace('/', "~1")
    );
    cluster.managed_fields().iter().filter(move |entry| {
        let fields = entry.fields_v1.as_ref();
        fields.is_some_and(|fields| fields.0.pointer(&path).is_some())
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, Time};
    use kube::core::Status;

    use super::*;
    use crate::cluster::validate::tests::resource_with;

    #[test]
    fn only_known_profiles_are_accepted() {
        assert_eq!(unknown("quick"), None);
        for other in ["quick ", "a/b", "", "Quick", "../c"] {
            let message = unknown(other).unwrap();
            assert!(message.contains("there are standard, quick"), "{message}");
        }
    }

    #[test]
    fn a_refusal_is_not_retried() {
        let failed = |code| kube::Error::Api(Box::new(Status::failure("no", "No").with_code(code)));
        for code in [400, 403, 422] {
            assert!(is_refusal(&failed(code)), "{code}");
        }
        for code in [404, 409, 429, 500, 503] {
            assert!(!is_refusal(&failed(code)), "{code}");
        }
    }

    fn annotated(value: &str) -> DEngineCluster {
        let mut cluster = resource_with("demo", "{}");
        let key = annotations::BENCHMARK.to_owned();
        cluster.annotations_mut().insert(key, value.to_owned());
        cluster
    }

    #[test]
    fn a_declared_annotation_runs_once_for_each_value() {
        let mut cluster = annotated("quick");
        assert!(!asked(&cluster).unwrap().declared);
        let applied = json!({"metadata": {"annotations": {annotations::BENCHMARK: "quick"}}});
        cluster.annotations_mut().insert(
            "kubectl.kubernetes.io/last-applied-configuration".to_owned(),
            applied.to_string(),
        );
        let first = asked(&cluster).unwrap();
        assert!(first.declared);
        // Restored by GitOps: another time, the same run.
        let fields = json!({"f:metadata": {"f:annotations": {"f:dengine.io/benchmark": {}}}});
        cluster.metadata.managed_fields = Some(vec![ManagedFieldsEntry {
            fields_v1: Some(FieldsV1(fields)),
            time: Some(Time("2026-03-03T00:00:00Z".parse().unwrap())),
            ..ManagedFieldsEntry::default()
        }]);
        assert_eq!(asked(&cluster).unwrap(), first);
        let key = annotations::BENCHMARK.to_owned();
        cluster.annotations_mut().insert(key, "quick/2".to_owned());
        let second = asked(&cluster).unwrap();
        assert_eq!(
            (&second.profile, &second.name),
            (&first.profile, &first.name)
        );
        assert_ne!(second.run, first.run);
    }

    #[test]
    fn server_side_apply_counts_as_declared() {
        let mut cluster = annotated("quick");
        let fields = json!({"f:metadata": {"f:annotations": {"f:dengine.io/benchmark": {}}}});
        let entry = |operation: &str| ManagedFieldsEntry {
            fields_v1: Some(FieldsV1(fields.clone())),
            operation: Some(operation.to_owned()),
            ..ManagedFieldsEntry::default()
        };
        cluster.metadata.managed_fields = Some(vec![entry("Update")]);
        assert!(!is_declared(&cluster));
        cluster.metadata.managed_fields = Some(vec![entry("Apply")]);
        assert!(is_declared(&cluster));
    }

    #[test]
    fn a_benchmark_of_another_owner_is_not_adopted() {
        let mut cluster = resource_with("demo", "{}");
        cluster.metadata.uid = Some("ours".to_owned());
        let owner = |uid: &str| OwnerReference {
            uid: uid.to_owned(),
            ..OwnerReference::default()
        };
        assert!(is_owned_by(&[owner("ours")], &cluster));
        assert!(!is_owned_by(&[owner("another")], &cluster));
        assert!(!is_owned_by(&[], &cluster));
    }

    #[test]
    fn a_repeated_event_is_published_once() {
        let cluster = resource_with("told", "{}");
        let event = Event::warning(events::STEP_FAILED, "told once");
        assert!(is_news(&cluster, &event));
        assert!(!is_news(&cluster, &event));
    }

    #[test]
    fn a_run_is_named_after_the_time_of_its_annotation() {
        let mut cluster = resource_with("demo", "{}");
        assert_eq!(run_id(&cluster), "generation-1");
        let owner = |fields: Value, time: &str| ManagedFieldsEntry {
            fields_v1: Some(FieldsV1(fields)),
            time: Some(Time(time.parse().unwrap())),
            ..ManagedFieldsEntry::default()
        };
        cluster.metadata.managed_fields = Some(vec![
            owner(json!({"f:spec": {}}), "2026-02-02T00:00:00Z"),
            owner(
                json!({"f:metadata": {"f:annotations": {"f:dengine.io/benchmark": {}}}}),
                "2026-01-01T02:03:04Z",
            ),
        ]);
        assert_eq!(run_id(&cluster), "20260101T020304Z");
    }
}
