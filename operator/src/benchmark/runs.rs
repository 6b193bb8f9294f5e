//! What is kept of finished runs: results, as many as the spec asks for, and for a while the Jobs,
//! for their logs. A refusal by the API server holds up nothing here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dengine_bench_model::results::Report;
use dengine_crds::{DEngineBenchmark, DEngineBenchmarkStatus, names};
use k8s_openapi::api::batch::v1::Job;
use kube::api::{Api, Patch};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt};
use serde_json::{Map, Value, json};

use super::observe;
use crate::apply::by_us;
use crate::context::Context;

/// How long a Job stays after its run ended.
const JOB_TTL_SECONDS: i32 = 3600;

/// Lets Kubernetes delete the Jobs of finished runs later: they are only needed for their logs.
pub(super) async fn let_go(
    context: &Context,
    resource: &DEngineBenchmark,
    jobs: &Store<Job>,
) -> Result<(), kube::Error> {
    let api: Api<Job> = Api::namespaced(
        context.client.clone(),
        &resource.namespace().unwrap_or_default(),
    );
    for job in over(resource, jobs) {
        let (name, uid) = (job.name_any(), job.uid().unwrap_or_default());
        let patch = Patch::Merge(json!({
            "metadata": {"uid": uid},
            "spec": {"ttlSecondsAfterFinished": JOB_TTL_SECONDS},
        }));
        let parameters = by_us();
        let patched = api.patch(&name, &parameters, &patch);
        let attempt = format!("TTL of {uid}");
        let what_fails = "the Job of a finished run cannot be given a TTL";
        let about = resource.object_ref(&());
        context
            .best_effort(&about, &attempt, what_fails, patched)
            .await?;
    }
    Ok(())
}

/// Finds Jobs by their names and owner: a Job may write the status, which could name any other Job.
fn over(resource: &DEngineBenchmark, jobs: &Store<Job>) -> Vec<Arc<Job>> {
    let Some(status) = &resource.status else {
        return Vec::new();
    };
    let namespace = resource.namespace().unwrap_or_default();
    let of_run = |run: String| {
        let name = names::benchmark::job(&resource.name_any(), &run);
        jobs.get(&ObjectRef::new(&name).within(&namespace))
    };
    let is_over = |job: &Arc<Job>| {
        let mut owners = job.owner_references().iter();
        let ours = owners.any(|owner| Some(&owner.uid) == resource.metadata.uid.as_ref());
        let ttl = job.spec.as_ref().and_then(|s| s.ttl_seconds_after_finished);
        ours && ttl.is_none() && under_way(status) != Some(&*job.name_any())
    };
    let jobs = runs_of(status).into_iter().filter_map(of_run);
    jobs.filter(is_over).collect()
}

/// Runs that may have a Job.
fn runs_of(status: &DEngineBenchmarkStatus) -> BTreeSet<String> {
    let current = status.run_id.iter();
    let rival = current.clone().map(|run| names::benchmark::rival(run));
    let posted = status.runs.keys().cloned();
    current.cloned().chain(rival).chain(posted).collect()
}

/// The Job of the run in progress.
fn under_way(status: &DEngineBenchmarkStatus) -> Option<&str> {
    observe::recorded(status).filter(|run| !run.is_final)?;
    status.job_name.as_deref()
}

/// Removes the results of the oldest surplus runs.
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
    let what_fails = "the results of old runs cannot be removed";
    let about = resource.object_ref(&());
    context
        .best_effort(&about, &attempt, what_fails, removed)
        .await
}

/// Results of the oldest runs, with those of the etcd that each was compared with; and results
/// without a run.
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
    fn the_oldest_results_are_pruned_with_their_comparison() {
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
