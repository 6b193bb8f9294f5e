//! Gathers what is known about one benchmark: its Job, what that posted, its target, its schedule. I/O, no decisions.

use std::time::Duration;

use dengine_crds::benchmark::{BenchmarkPhase, Leg};
use dengine_crds::names::{self, labels};
use dengine_crds::profiles;
use dengine_crds::{DEngineBenchmark, DEngineBenchmarkStatus, DEngineCluster, conditions as types};
use k8s_openapi::api::batch::v1;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, ListParams};

use super::ReconcileError;
use super::plan::{Job, JobState, Observed, Recorded, Target};
use super::resources::Benchmark;
use super::schedule::{self, Due};
use super::thresholds::Threshold;
use crate::conditions::is_true;
use crate::context::Context;

/// What is known, and when the schedule asks for the next run.
pub(super) async fn observe(
    context: &Context,
    benchmark: &Benchmark,
    resource: &DEngineBenchmark,
    job: Option<v1::Job>,
    now: &Time,
) -> Result<(Observed, Option<Timestamp>), ReconcileError> {
    let status = resource.status.clone().unwrap_or_default();
    let job = job.filter(|job| {
        job.owner_references()
            .iter()
            .any(|owner| owner.uid == benchmark.owner.uid)
    });
    let (asked, invalid) = asked(resource, now);
    let posted = |run_id: &str| status.runs.get(run_id).cloned();
    let had_its_turn = had_its_turn(resource, &status, asked.due.run_id.as_deref());
    let observed = Observed {
        wanted_run: wanted_run(resource, &status, asked.due.run_id),
        had_its_turn,
        thresholds: asked.thresholds,
        compares: benchmark.spec.compare_with.is_some(),
        invalid,
        expired: expires_in(resource, now).is_some_and(|left| left.is_zero()),
        placement: match &job {
            Some(job) => placement(context, benchmark, &job.name_any()).await?,
            None => status.placement.clone(),
        },
        recorded: recorded(&status),
        target: target(context, benchmark).await?,
        job: job.as_ref().map(view),
        result: posted(&benchmark.run_id),
        rival: posted(&names::benchmark::rival(&benchmark.run_id)),
    };
    Ok((observed, asked.due.next))
}

/// The run that this status speaks of.
pub(super) fn recorded(status: &DEngineBenchmarkStatus) -> Option<Recorded> {
    Some(Recorded {
        run_id: status.run_id.clone()?,
        leg: status.leg.unwrap_or(Leg::Target),
        job_made: status.job_uid.is_some(),
        is_final: status.phase.is_some_and(BenchmarkPhase::is_final),
    })
}

/// What the spec says in texts that have to be understood first.
struct Asked {
    thresholds: Vec<Threshold>,
    due: Due,
}

/// What could not be understood is left out, and said.
fn asked(resource: &DEngineBenchmark, now: &Time) -> (Asked, Option<String>) {
    let (spec, mut wrong) = (&resource.spec, Vec::new());
    let mut thresholds = Vec::new();
    for text in &spec.thresholds {
        match text.parse() {
            Ok(threshold) => thresholds.push(threshold),
            Err(error) => wrong.push(format!("{error}")),
        }
    }
    let created = resource.metadata.creation_timestamp.as_ref();
    let since = created.map_or(now.0, |created| created.0);
    let nothing = Due {
        run_id: None,
        next: None,
    };
    let due = match spec
        .schedule
        .as_deref()
        .map(|text| schedule::due(text, since, now.0))
    {
        None => nothing,
        Some(Ok(due)) => due,
        Some(Err(error)) => {
            wrong.push(error.to_string());
            nothing
        }
    };
    if let Some(profile) = spec
        .profile
        .as_deref()
        .filter(|name| profiles::profile(name).is_none())
    {
        wrong.push(profiles::unknown(profile));
    }
    let invalid = (!wrong.is_empty()).then(|| wrong.join("; "));
    (Asked { thresholds, due }, invalid)
}

/// The run that is due by the clock, else the one that the spec names, unless that one had its turn.
fn wanted_run(
    resource: &DEngineBenchmark,
    status: &DEngineBenchmarkStatus,
    due: Option<String>,
) -> String {
    let spec_run = &resource.spec.run_id;
    let had_its_turn = status.spec_run_id.as_ref() == Some(spec_run);
    let recorded = status.run_id.clone().filter(|_| had_its_turn);
    due.or(recorded).unwrap_or_else(|| spec_run.clone())
}

/// Whether the run that the spec names, and nothing else does, posted results before. Those of a schedule name a moment,
/// so they never come back.
fn had_its_turn(
    resource: &DEngineBenchmark,
    status: &DEngineBenchmarkStatus,
    due: Option<&str>,
) -> bool {
    due.is_none() && status.runs.contains_key(&resource.spec.run_id)
}

/// Time until the resource is to go; `None` if it stays.
fn expires_in(resource: &DEngineBenchmark, now: &Time) -> Option<Duration> {
    let ttl = i64::from(resource.spec.ttl_seconds_after_finished?);
    let status = resource.status.as_ref()?;
    let finished: Timestamp = status.finished_at.as_ref()?.parse().ok()?;
    let left = finished.as_second() + ttl - now.0.as_second();
    Some(Duration::from_secs(u64::try_from(left).unwrap_or(0)))
}

/// Time until the clock asks for something.
pub(super) fn due_in(
    resource: &DEngineBenchmark,
    next: Option<Timestamp>,
    now: &Time,
) -> Option<Duration> {
    let until = |next: Timestamp| {
        let seconds = next.as_second() - now.0.as_second();
        Duration::from_secs(u64::try_from(seconds).unwrap_or(0) + 1)
    };
    let expires = expires_in(resource, now).map(|left| left + Duration::from_secs(1));
    [next.map(until), expires].into_iter().flatten().min()
}

/// On which node the load ran, and which members run there too. Load beside a member takes CPU from it, so two results
/// compare only if both did or both did not.
async fn placement(
    context: &Context,
    benchmark: &Benchmark,
    job: &str,
) -> Result<Option<String>, kube::Error> {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &benchmark.namespace);
    let nodes = async |selector: String| -> Result<Vec<(String, String)>, kube::Error> {
        let found = pods.list(&ListParams::default().labels(&selector)).await?;
        let on = |pod: Pod| Some((pod.name_any(), pod.spec?.node_name?));
        Ok(found.items.into_iter().filter_map(on).collect())
    };
    let load = nodes(format!("batch.kubernetes.io/job-name={job}")).await?;
    let Some((_, node)) = load.into_iter().next() else {
        return Ok(None);
    };
    let Some(cluster) = &benchmark.spec.target.cluster_ref else {
        return Ok(Some(format!("load on {node}")));
    };
    let members = nodes(format!("{}={}", labels::CLUSTER, cluster.name)).await?;
    let beside: Vec<String> = members
        .into_iter()
        .filter(|(_, its)| *its == node)
        .map(|(name, _)| name)
        .collect();
    Ok(Some(if beside.is_empty() {
        format!("load on {node}, away from every member")
    } else {
        format!("load on {node}, beside {}", beside.join(", "))
    }))
}

async fn target(context: &Context, benchmark: &Benchmark) -> Result<Target, kube::Error> {
    let Some(cluster) = &benchmark.spec.target.cluster_ref else {
        return Ok(Target::Ready);
    };
    let api: Api<DEngineCluster> = Api::namespaced(context.client.clone(), &benchmark.namespace);
    let Some(found) = api.get_opt(&cluster.name).await? else {
        return Ok(Target::NotFound(cluster.name.clone()));
    };
    let conditions = found.status.unwrap_or_default().conditions;
    if is_true(&conditions, types::READY) {
        return Ok(Target::Ready);
    }
    let ready = conditions
        .into_iter()
        .find(|condition| condition.type_ == types::READY);
    let words = ready.map_or_else(|| "its status is not known yet".to_owned(), |c| c.message);
    Ok(Target::NotReady(format!(
        "cluster {} is not Ready: {words}",
        cluster.name
    )))
}

fn view(job: &v1::Job) -> Job {
    let conditions = job
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let ended = conditions
        .filter(|condition| condition.status == "True")
        .find_map(|condition| match condition.type_.as_str() {
            "Complete" | "SuccessCriteriaMet" => Some(JobState::Succeeded),
            "Failed" | "FailureTarget" => Some(JobState::Failed(format!(
                "{}: {}",
                condition.reason.as_deref().unwrap_or("failed"),
                condition.message.as_deref().unwrap_or("no message")
            ))),
            _ => None,
        });
    Job {
        uid: job.uid().unwrap_or_default(),
        state: ended.unwrap_or(JobState::Running),
        has_ttl: job
            .spec
            .as_ref()
            .is_some_and(|spec| spec.ttl_seconds_after_finished.is_some()),
    }
}

#[cfg(test)]
mod tests {
    use dengine_crds::benchmark::Report;

    use super::*;

    #[test]
    fn only_a_run_of_the_spec_with_results_had_its_turn() {
        let spec = "{workload: put, target: {clusterRef: {name: demo}}, runId: one}";
        let resource = DEngineBenchmark::new("b", serde_yaml::from_str(spec).unwrap());
        let mut status = DEngineBenchmarkStatus::default();
        assert!(!had_its_turn(&resource, &status, None));
        status.runs.insert("two".to_owned(), Report::default());
        assert!(!had_its_turn(&resource, &status, None));
        status.runs.insert("one".to_owned(), Report::default());
        assert!(had_its_turn(&resource, &status, None));
        let due = Some("20260502T0300Z");
        assert!(!had_its_turn(&resource, &status, due), "by the clock");
    }
}
