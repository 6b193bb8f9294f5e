//! Results of earlier runs: the newest are kept, as many as the spec asks for.

use std::collections::BTreeMap;

use dengine_crds::DEngineBenchmark;
use dengine_crds::benchmark::Report;
use dengine_crds::names;
use kube::api::{Api, Patch};
use kube::{Resource, ResourceExt};
use serde_json::{Map, Value, json};

use crate::apply::by_us;
use crate::context::Context;

/// Removes the results of the oldest runs that are too many.
///
/// # Errors
/// If the API server does not answer.
pub(super) async fn prune(
    context: &Context,
    resource: &DEngineBenchmark,
) -> Result<(), kube::Error> {
    let Some(status) = &resource.status else {
        return Ok(());
    };
    let kept = resource.spec.runs_history_limit as usize;
    let surplus = surplus(&status.runs, kept, status.run_id.as_deref());
    if surplus.is_empty() {
        return Ok(());
    }
    let gone: Map<String, Value> = surplus.into_iter().map(|run| (run, Value::Null)).collect();
    let patch = json!({"status": {"runs": gone}});
    let namespace = resource.namespace().unwrap_or_default();
    let api: Api<DEngineBenchmark> = Api::namespaced(context.client.clone(), &namespace);
    let (name, parameters) = (resource.name_any(), by_us());
    let patch = Patch::Merge(patch);
    let removed = api.patch_status(&name, &parameters, &patch);
    let attempt = format!("prune {}", resource.uid().unwrap_or_default());
    let what_fails = "the results of old runs can not be removed";
    let about = resource.object_ref(&());
    context.beside(&about, &attempt, what_fails, removed).await
}

/// What the oldest runs posted, with what was posted about the system that each was compared with; and that of runs which
/// there never were.
fn surplus(runs: &BTreeMap<String, Report>, kept: usize, current: Option<&str>) -> Vec<String> {
    let began = |report: &Report| report.results.first().map(|first| first.started_at.clone());
    let mut of_targets: Vec<(Option<String>, &String)> = runs
        .iter()
        .filter(|(run, _)| !run.contains('@'))
        .map(|(run, report)| (began(report), run))
        .collect();
    of_targets.sort();
    let surplus = of_targets.len().saturating_sub(kept);
    let oldest = of_targets
        .into_iter()
        .take(surplus)
        .flat_map(|(_, run)| [run.clone(), names::benchmark::rival(run)]);
    let orphans = runs.keys().filter(|run| {
        let of = run.split_once('@').map(|(of, _)| of);
        of.is_some_and(|of| !runs.contains_key(of) && current != Some(of))
    });
    let mut gone: Vec<String> = oldest.chain(orphans.cloned()).collect();
    gone.retain(|run| runs.contains_key(run));
    gone.sort();
    gone.dedup();
    gone
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
        let gone = |runs: &_, kept| surplus(runs, kept, Some("now"));
        assert_eq!(gone(&runs, 10), ["run-98", "run-99", "run-99@etcd"]);
        runs.remove("run-99");
        runs.remove("run-98");
        assert_eq!(gone(&runs, 10), ["run-99@etcd"], "it belongs to no run");
        runs.remove("run-99@etcd");
        assert!(gone(&runs, 10).is_empty());
        assert_eq!(gone(&runs, 2).len(), 8);
        runs.insert("now@etcd".to_owned(), report(result(0)));
        assert!(gone(&runs, 10).is_empty(), "its run is under way");
    }
}
