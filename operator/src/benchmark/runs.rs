//! Results of earlier runs: the newest ten are kept.

use std::collections::BTreeMap;

use dengine_crds::DEngineBenchmark;
use dengine_crds::benchmark::Report;
use dengine_crds::names::{self, managers};
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Map, Value, json};

use crate::context::Context;

/// Runs whose results stay in the status.
const KEPT: usize = 10;

/// Removes the results of the oldest runs that are too many.
///
/// # Errors
/// If the API server refuses or does not answer.
pub(super) async fn prune(
    context: &Context,
    resource: &DEngineBenchmark,
) -> Result<(), kube::Error> {
    let Some(status) = &resource.status else {
        return Ok(());
    };
    let surplus = surplus(&status.runs);
    if surplus.is_empty() {
        return Ok(());
    }
    let gone: Map<String, Value> = surplus.into_iter().map(|run| (run, Value::Null)).collect();
    let patch = json!({"status": {"runs": gone}});
    let namespace = resource.namespace().unwrap_or_default();
    let api: Api<DEngineBenchmark> = Api::namespaced(context.client.clone(), &namespace);
    let parameters = PatchParams {
        field_manager: Some(managers::OPERATOR.to_owned()),
        ..PatchParams::default()
    };
    api.patch_status(&resource.name_any(), &parameters, &Patch::Merge(patch))
        .await?;
    Ok(())
}

/// What the oldest runs posted, with what was posted about the system that each was compared with.
fn surplus(runs: &BTreeMap<String, Report>) -> Vec<String> {
    let began = |report: &Report| report.results.first().map(|first| first.started_at.clone());
    let mut of_targets: Vec<(Option<String>, &String)> = runs
        .iter()
        .filter(|(run, _)| !run.contains('@'))
        .map(|(run, report)| (began(report), run))
        .collect();
    of_targets.sort();
    let surplus = of_targets.len().saturating_sub(KEPT);
    of_targets
        .into_iter()
        .take(surplus)
        .flat_map(|(_, run)| [run.clone(), names::benchmark::rival(run)])
        .filter(|run| runs.contains_key(run))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark::plan::tests::{report, result};

    #[test]
    fn the_oldest_go_with_what_they_were_compared_with() {
        let mut runs = BTreeMap::new();
        for number in 0..12 {
            let mut result = result(0);
            result.started_at = format!("2026-01-{:02}T00:00:00Z", number + 1);
            // The order of the ids is not that of the runs.
            runs.insert(format!("run-{}", 99 - number), report(result));
        }
        runs.insert("run-99@etcd".to_owned(), report(result(0)));
        assert_eq!(surplus(&runs), ["run-99", "run-99@etcd", "run-98"]);
        runs.remove("run-99");
        runs.remove("run-98");
        assert!(surplus(&runs).is_empty());
    }
}
