//! `kubectl annotate denginecluster/demo dengine.io/benchmark=quick`: makes the benchmark `demo-quick`, or runs it again, and then
//! removes the annotation. A crash in between repeats the same run, not another one: its id says when the annotation was set.

use dengine_crds::names::{annotations, managers};
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
    let name = format!("{}-{profile}", cluster.name_any());
    let run = run_id(cluster);
    let benchmarks: Api<DEngineBenchmark> = Api::namespaced(context.client.clone(), &namespace);
    let parameters = PatchParams::apply(managers::OPERATOR).force();
    let wanted = Patch::Apply(benchmark(cluster, &name, profile, &run));
    let happening = match benchmarks.patch(&name, &parameters, &wanted).await {
        Ok(_) => {
            let note = format!("the annotation asks for benchmark {name}, run {run}");
            Happening::normal(events::BENCHMARK_ASKED, note)
        }
        Err(error) if is_code(&error, 422) || is_code(&error, 400) => {
            let note =
                format!("the benchmark {name} that the annotation asks for is refused: {error}");
            Happening::warning(events::STEP_FAILED, note)
        }
        Err(error) => return Err(error),
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

    use super::*;
    use crate::cluster::validate::tests::resource_with;

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
