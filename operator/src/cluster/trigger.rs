//! `kubectl annotate denginecluster/demo dengine.io/benchmark=quick`: makes the benchmark `demo-quick`, or runs it again, and then
//! removes the annotation. A crash in between repeats the same run, not another one: its id says when the annotation was set.

use dengine_crds::names::{annotations, managers};
use dengine_crds::profiles;
use dengine_crds::reasons::events;
use dengine_crds::{DEngineBenchmark, DEngineCluster};
use kube::api::{Api, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use crate::apply::is_code;
use crate::context::{Context, Happening};

/// Does what the annotation asks for, if there is one.
///
/// # Errors
/// If the API server does not answer; a benchmark that it refuses is told of, and not asked for again.
pub(super) async fn pull(context: &Context, cluster: &DEngineCluster) -> Result<(), kube::Error> {
    let Some(profile) = cluster.annotations().get(annotations::BENCHMARK) else {
        return Ok(());
    };
    let namespace = cluster.namespace().unwrap_or_default();
    let happening = match unknown(profile) {
        Some(words) => Happening::warning(events::STEP_FAILED, words),
        None => ask(context, cluster, &namespace, profile).await?,
    };
    context.wrote();
    context.tell(&cluster.object_ref(&()), &happening).await;
    let clusters: Api<DEngineCluster> = Api::namespaced(context.client.clone(), &namespace);
    // The version makes sure that it is not another annotation, set meanwhile.
    let done = json!({"metadata": {
        "resourceVersion": cluster.metadata.resource_version,
        "annotations": { annotations::BENCHMARK: Value::Null },
    }});
    let parameters = PatchParams {
        field_manager: Some(managers::OPERATOR.to_owned()),
        ..PatchParams::default()
    };
    let name = cluster.name_any();
    match clusters
        .patch(&name, &parameters, &Patch::Merge(done))
        .await
    {
        Err(error) if !is_code(&error, 409) => Err(error),
        _ => Ok(()),
    }
}

/// Why no benchmark can be made of what the annotation says. Not any text makes the name of an object, or a path of the
/// API server's, so it is looked up before anything is asked of that.
fn unknown(profile: &str) -> Option<String> {
    let is_known = profiles::profile(profile).is_some();
    (!is_known).then(|| {
        let words = profiles::unknown(profile);
        format!("the benchmark that the annotation asks for is refused: {words}")
    })
}

async fn ask(
    context: &Context,
    cluster: &DEngineCluster,
    namespace: &str,
    profile: &str,
) -> Result<Happening, kube::Error> {
    let name = format!("{}-{profile}", cluster.name_any());
    let run = run_id(cluster);
    let benchmarks: Api<DEngineBenchmark> = Api::namespaced(context.client.clone(), namespace);
    let parameters = PatchParams::apply(managers::OPERATOR).force();
    let wanted = Patch::Apply(benchmark(cluster, &name, profile, &run));
    match benchmarks.patch(&name, &parameters, &wanted).await {
        Ok(_) => {
            let note = format!("the annotation asks for benchmark {name}, run {run}");
            Ok(Happening::normal(events::BENCHMARK_ASKED, note))
        }
        Err(error) if is_refusal(&error) => {
            let note =
                format!("the benchmark {name} that the annotation asks for is refused: {error}");
            Ok(Happening::warning(events::STEP_FAILED, note))
        }
        Err(error) => Err(error),
    }
}

/// The API server looked at it and will not have it, also for want of quota; asking again does not help.
fn is_refusal(error: &kube::Error) -> bool {
    [400, 403, 422].into_iter().any(|code| is_code(error, code))
}

fn benchmark(cluster: &DEngineCluster, name: &str, profile: &str, run: &str) -> Value {
    json!({
        "apiVersion": DEngineBenchmark::api_version(&()),
        "kind": DEngineBenchmark::kind(&()),
        "metadata": { "name": name, "ownerReferences": cluster.owner_ref(&()).map(|owner| vec![owner]) },
        "spec": {
            "target": { "clusterRef": { "name": cluster.name_any() } },
            "profile": profile,
            "runId": run,
        },
    })
}

/// When the annotation was set, as the API server noted it. The generation is the next best that stays the same.
fn run_id(cluster: &DEngineCluster) -> String {
    let path = format!(
        "/f:metadata/f:annotations/f:{}",
        annotations::BENCHMARK.replace('~', "~0").replace('/', "~1")
    );
    let set = cluster.managed_fields().iter().filter(|entry| {
        let fields = entry.fields_v1.as_ref();
        fields.is_some_and(|fields| fields.0.pointer(&path).is_some())
    });
    let when = set
        .filter_map(|entry| entry.time.as_ref())
        .map(|time| time.0)
        .max();
    when.map_or_else(
        || format!("generation-{}", cluster.metadata.generation.unwrap_or(0)),
        |when| when.strftime("%Y%m%dT%H%M%SZ").to_string(),
    )
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, Time};

    use kube::core::Status;

    use super::*;
    use crate::cluster::validate::tests::resource_with;

    #[test]
    fn only_profiles_are_asked_for() {
        assert_eq!(unknown("quick"), None);
        for other in ["quick ", "a/b", "", "Quick", "../c"] {
            let words = unknown(other).unwrap();
            assert!(words.contains("there are standard, quick"), "{words}");
        }
    }

    #[test]
    fn what_is_refused_is_not_asked_for_again() {
        let failed = |code| kube::Error::Api(Box::new(Status::failure("no", "No").with_code(code)));
        for code in [400, 403, 422] {
            assert!(is_refusal(&failed(code)), "{code}");
        }
        for code in [404, 409, 429, 500, 503] {
            assert!(!is_refusal(&failed(code)), "{code}");
        }
    }

    #[test]
    fn a_run_is_named_after_the_moment_in_which_it_was_asked_for() {
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
