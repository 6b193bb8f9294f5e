//! Observes one benchmark: its Job, the posted results, its target, its schedule. I/O, no
//! decisions.

use std::collections::BTreeSet;
use std::time::Duration;

use dengine_bench_model::profiles;
use dengine_bench_model::results::Wire;
use dengine_crds::benchmark::{BenchmarkPhase, ConcurrencyPolicy, Leg};
use dengine_crds::names::{self, labels};
use dengine_crds::reasons::benchmark as reasons;
use dengine_crds::{DEngineBenchmark, DEngineBenchmarkStatus, DEngineCluster, conditions as types};
use k8s_openapi::api::batch::v1;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::tz::TimeZone;
use kube::ResourceExt;
use kube::api::{Api, ListParams};

use super::plan::{Job, JobState, Observed, Recorded, Skipped, Target};
use super::pods;
use super::resources::Benchmark;
use super::schedule::{self, Clock, Due};
use super::thresholds::Threshold;
use super::turns::Turns;
use crate::conditions::is_true;
use crate::context::Context;
use crate::guard::Guarded;

pub(super) async fn observe(
    context: &Context,
    benchmark: &Benchmark,
    resource: &DEngineBenchmark,
    job: Option<v1::Job>,
    turns: &Turns,
    now: &Time,
) -> Result<Observed, kube::Error> {
    let status = resource.status.clone().unwrap_or_default();
    let job = job.filter(|job| {
        job.owner_references()
            .iter()
            .any(|owner| owner.uid == benchmark.owner.uid)
    });
    let (asked, invalid) = asked(resource, now);
    let posted = |run_id: &str| status.runs.get(run_id).cloned();
    let overdue = job.is_none() && overdue(resource, &status, now);
    // Of the run that there is: what the next one wants may be said already.
    let of_job = job.as_ref().and_then(|job| job.spec.as_ref()?.completions);
    let of_job = of_job.and_then(|pods| u32::try_from(pods).ok());
    let wanted = of_job.unwrap_or(benchmark.spec.pods);
    let pods = match &job {
        Some(job) => pods_of(context, benchmark, &job.name_any()).await?,
        None => Vec::new(),
    };
    let is_short_of_pods = pods.len() < wanted as usize;
    let trouble = match &job {
        Some(job) if is_short_of_pods && view(job).state == JobState::Running => {
            let refused = context.refusals.of(&context.client, job).await;
            let refused = refused.map(|message| format!("Kubernetes refuses its pod: {message}"));
            refused.or_else(|| pods::trouble(&pods, wanted))
        }
        _ => pods::trouble(&pods, wanted),
    };
    let replace = benchmark.spec.concurrency_policy == ConcurrencyPolicy::Replace;
    Ok(Observed {
        suspended: benchmark.spec.suspend,
        busy: turns.busy(benchmark),
        replaces: replace && asked.due.at.is_some(),
        due: asked.due.at,
        next: asked.due.next,
        overdue,
        moved_on: moved_on(resource, &status),
        retry_in: retry_in(&status, now),
        members: members(context, benchmark, &status).await?,
        skipped: skipped(&status, asked.due.skipped + u32::from(overdue)),
        trouble,
        lost: (wanted > 1).then(|| pods::lost(&pods, wanted)).flatten(),
        was_stuck: was_stuck(&status),
        wanted_run: wanted_run(resource, &status, asked.due.at),
        was_run: was_run(resource, &status, asked.due.at),
        thresholds: asked.thresholds,
        compares: benchmark.spec.compare_with.is_some(),
        invalid,
        expired: expires_in(resource, now).is_some_and(|left| left.is_zero()),
        placement: match &job {
            Some(_) => placement(context, benchmark, &pods).await?,
            None => status.placement.clone(),
        },
        recorded: recorded(&status),
        target: target(context, benchmark).await?,
        job: job.as_ref().map(view),
        result: posted(&benchmark.run_id),
        rival: posted(&names::benchmark::rival(&benchmark.run_id)),
    })
}

/// The run that the status is about.
pub(super) fn recorded(status: &DEngineBenchmarkStatus) -> Option<Recorded> {
    Some(Recorded {
        run_id: status.run_id.clone()?,
        leg: status.leg.unwrap_or(Leg::Target),
        job_made: status.job_uid.is_some(),
        members: status.members.clone(),
        // An unknown phase was written by a newer version.
        is_final: status
            .phase
            .map_or(status.finished_at.is_some(), BenchmarkPhase::is_final),
    })
}

/// Seconds until the next try of a refused Job.
fn retry_in(status: &DEngineBenchmarkStatus, now: &Time) -> Option<u64> {
    let at: Timestamp = status.retry_at.as_ref()?.parse().ok()?;
    Some(u64::try_from(at.as_second() - now.0.as_second()).unwrap_or(0))
}

/// Scheduled runs that did not start, and what they waited for as far as the status says.
fn skipped(status: &DEngineBenchmarkStatus, runs: u32) -> Option<Skipped> {
    let which = match runs {
        0 => return None,
        1 => "a scheduled run was skipped because it could not start in time".to_owned(),
        more => format!("{more} scheduled runs were skipped because they could not start in time"),
    };
    let why = waited_for(status);
    let message = format!("{which}: {why}");
    Some(Skipped { runs, message })
}

fn waited_for(status: &DEngineBenchmarkStatus) -> String {
    let under_way = recorded(status).filter(|run| !run.is_final);
    if let Some(run) = under_way.as_ref().filter(|run| run.job_made) {
        return format!("run {} was still in progress", run.run_id);
    }
    let said = |type_: &str, reasons: &[&str]| {
        let mut conditions = status.conditions.iter();
        let said = conditions.find(|condition| condition.type_ == type_)?;
        let waits = said.status == "False" && reasons.contains(&&*said.reason);
        waits.then(|| said.message.clone())
    };
    let target = said(types::TARGET_READY, &WAITS);
    let refused = || said(types::FAILED, &[reasons::JOB_REFUSED, reasons::NAME_TAKEN]);
    let unseen = || "the operator did not see it in time".to_owned();
    target.or_else(refused).unwrap_or_else(unseen)
}

/// Reasons for which a run that is due waits.
const WAITS: [&str; 4] = [
    reasons::TARGET_NOT_READY,
    reasons::TARGET_NOT_FOUND,
    reasons::TARGET_BUSY,
    reasons::INVALID_SPEC,
];

/// Whether the recorded run is a scheduled one that did not start and is too late to start.
fn overdue(resource: &DEngineBenchmark, status: &DEngineBenchmarkStatus, now: &Time) -> bool {
    let late = resource.spec.starting_deadline_seconds;
    let waits = |run: &Recorded| !run.is_final && !run.job_made && run.leg == Leg::Target;
    let waiting = recorded(status).filter(waits);
    let moment = waiting.and_then(|run| moment_of(status, &run.run_id));
    moment.is_some_and(|moment| schedule::is_late(moment, late, now.0))
}

/// The time of a scheduled run. A `spec.runId` may look like the id of one.
fn moment_of(status: &DEngineBenchmarkStatus, run_id: &str) -> Option<Timestamp> {
    let of_spec = status.spec_run_id.as_deref() == Some(run_id);
    schedule::moment(run_id).filter(|_| !of_spec)
}

/// Whether the recorded run was asked for by an earlier `spec.runId`.
fn moved_on(resource: &DEngineBenchmark, status: &DEngineBenchmarkStatus) -> bool {
    let recorded = status.run_id.as_ref();
    let of_spec = recorded.filter(|run| moment_of(status, run).is_none());
    of_spec.is_some_and(|run| *run != resource.spec.run_id)
}

/// What kept the Job's pod from running at the last observation: when the Job exceeds its deadline,
/// its pod is deleted.
pub(super) fn was_stuck(status: &DEngineBenchmarkStatus) -> Option<String> {
    let mut conditions = status.conditions.iter();
    let complete = conditions.find(|condition| condition.type_ == types::COMPLETE)?;
    (complete.reason == reasons::JOB_STUCK).then(|| complete.message.clone())
}

/// The members of the measured cluster: their pods' identity, and how often each server was
/// restarted. Only queried when a load is about to begin or has ended.
async fn members(
    context: &Context,
    benchmark: &Benchmark,
    status: &DEngineBenchmarkStatus,
) -> Result<Option<Vec<String>>, kube::Error> {
    let Some(cluster) = &benchmark.spec.target.cluster_ref else {
        return Ok(None);
    };
    let begins = status.job_uid.is_none();
    let ended = status.runs.contains_key(&benchmark.run_id);
    let under_way = recorded(status).is_some_and(|run| !run.is_final && run.leg == Leg::Target);
    if !under_way || !(begins || ended) {
        return Ok(None);
    }
    let selector = format!(
        "{}={},{}={}",
        labels::CLUSTER,
        cluster.name,
        labels::COMPONENT,
        labels::COMPONENT_MEMBER
    );
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &benchmark.namespace);
    let pods = api.list(&ListParams::default().labels(&selector)).await?;
    let mut members: Vec<String> = pods.items.iter().map(member).collect();
    members.sort();
    members.truncate(MEMBERS_MAX);
    Ok(Some(members))
}

/// As many as a status has room for.
const MEMBERS_MAX: usize = 16;

fn member(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let containers = status.and_then(|status| status.container_statuses.as_ref());
    let mut containers = containers.into_iter().flatten();
    let server = containers.find(|container| container.name == names::cluster::CONTAINER);
    let restarts = server.map_or(0, |server| server.restart_count);
    let uid = pod.uid().unwrap_or_default();
    format!("{} {uid}/{restarts}", pod.name_any())
}

/// Parts of the spec that have to be parsed.
struct Asked {
    thresholds: Vec<Threshold>,
    due: Due,
}

/// Parses them. Invalid parts are left out and reported.
fn asked(resource: &DEngineBenchmark, now: &Time) -> (Asked, Option<String>) {
    let (spec, mut wrong) = (&resource.spec, Vec::new());
    let mut thresholds = Vec::new();
    for text in &spec.thresholds {
        match text.parse() {
            Ok(threshold) => thresholds.push(threshold),
            Err(error) => wrong.push(format!("{error}")),
        }
    }
    let zone = schedule::time_zone(spec.time_zone.as_deref());
    let zone = zone.unwrap_or_else(|error| {
        wrong.push(error.to_string());
        TimeZone::UTC
    });
    let text = spec.schedule.as_deref().filter(|_| !spec.suspend);
    let late = spec.starting_deadline_seconds;
    let due = match text.map(|text| schedule::due(text, &zone, late, clock(resource, now))) {
        None => Due::default(),
        Some(Ok(due)) => due,
        Some(Err(error)) => {
            wrong.push(error.to_string());
            Due::default()
        }
    };
    let due = Due {
        at: due.at.filter(|moment| !has_begun(resource, *moment)),
        ..due
    };
    if let Some(profile) = spec
        .profile
        .as_deref()
        .filter(|name| profiles::profile(name).is_none())
    {
        wrong.push(profiles::unknown(profile));
    }
    let profile = spec.profile.as_deref().and_then(profiles::profile);
    wrong
        .extend(profile.and_then(|profile| dengine_bench_model::pods::refusal(spec.pods, profile)));
    let invalid = (!wrong.is_empty()).then(|| wrong.join("; "));
    (Asked { thresholds, due }, invalid)
}

fn clock(resource: &DEngineBenchmark, now: &Time) -> Clock {
    let created = resource.metadata.creation_timestamp.as_ref();
    let status = resource.status.as_ref();
    let awaited = status.and_then(|status| status.next_run_at.as_ref());
    Clock {
        created: created.map_or(now.0, |created| created.0),
        awaited: awaited.and_then(|awaited| awaited.parse().ok()),
        now: now.0,
    }
}

fn has_begun(resource: &DEngineBenchmark, moment: Timestamp) -> bool {
    let run = schedule::run_id(moment);
    let begun = |status: &DEngineBenchmarkStatus| {
        status.run_id.as_ref() == Some(&run) || status.runs.contains_key(&run)
    };
    resource.status.as_ref().is_some_and(begun)
}

/// The run that is due by the schedule, else the one that the spec names, unless that was run.
fn wanted_run(
    resource: &DEngineBenchmark,
    status: &DEngineBenchmarkStatus,
    due: Option<Timestamp>,
) -> String {
    let spec_run = &resource.spec.run_id;
    let was_run = status.spec_run_id.as_ref() == Some(spec_run);
    let recorded = status.run_id.clone().filter(|_| was_run);
    let due = due.map(schedule::run_id);
    due.or(recorded).unwrap_or_else(|| spec_run.clone())
}

/// Whether the run that only the spec names has posted results before. Ids of scheduled runs name a
/// time, so they never repeat.
fn was_run(
    resource: &DEngineBenchmark,
    status: &DEngineBenchmarkStatus,
    due: Option<Timestamp>,
) -> bool {
    due.is_none() && status.runs.contains_key(&resource.spec.run_id)
}

/// Time until the resource is deleted; `None` if it stays.
fn expires_in(resource: &DEngineBenchmark, now: &Time) -> Option<Duration> {
    let ttl = i64::from(resource.spec.ttl_seconds_after_finished?);
    let status = resource.status.as_ref()?;
    let finished: Timestamp = status.finished_at.as_ref()?.parse().ok()?;
    let left = finished.as_second() + ttl - now.0.as_second();
    Some(Duration::from_secs(u64::try_from(left).unwrap_or(0)))
}

/// Time until the next scheduled run or the deletion of the resource.
pub(super) fn due_in(
    resource: &DEngineBenchmark,
    next: Option<Timestamp>,
    now: &Time,
) -> Option<Duration> {
    let until = |next: Timestamp| {
        let seconds = next.as_second() - now.0.as_second();
        Duration::from_secs(u64::try_from(seconds).unwrap_or(0) + 1)
    };
    let expires = expires_in(resource, now).filter(|left| !left.is_zero());
    let expires = expires.map(|left| left + Duration::from_secs(1));
    [next.map(until), expires].into_iter().flatten().min()
}

/// Nodes of the load, and the members on them. Load beside a member takes CPU from it, so two
/// results are comparable only if both did or both did not.
async fn placement(
    context: &Context,
    benchmark: &Benchmark,
    loading: &[Pod],
) -> Result<Option<String>, kube::Error> {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &benchmark.namespace);
    let nodes = async |selector: String| -> Result<Vec<(String, String)>, kube::Error> {
        let found = pods.list(&ListParams::default().labels(&selector)).await?;
        let on = |pod: Pod| Some((pod.name_any(), pod.spec?.node_name?));
        Ok(found.items.into_iter().filter_map(on).collect())
    };
    let on = |pod: &Pod| pod.spec.as_ref()?.node_name.clone();
    let of_load: BTreeSet<String> = loading.iter().filter_map(on).collect();
    if of_load.is_empty() {
        return Ok(None);
    }
    let node = of_load.iter().cloned().collect::<Vec<_>>().join(", ");
    let Some(cluster) = &benchmark.spec.target.cluster_ref else {
        return Ok(Some(format!("load on {node}")));
    };
    let members = nodes(format!("{}={}", labels::CLUSTER, cluster.name)).await?;
    let beside: Vec<String> = members
        .into_iter()
        .filter(|(_, its)| of_load.contains(its))
        .map(|(name, _)| name)
        .collect();
    Ok(Some(if beside.is_empty() {
        format!("load on {node}, away from every member")
    } else {
        format!("load on {node}, beside {}", beside.join(", "))
    }))
}

async fn pods_of(
    context: &Context,
    benchmark: &Benchmark,
    job: &str,
) -> Result<Vec<Pod>, kube::Error> {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &benchmark.namespace);
    let selector = format!("batch.kubernetes.io/job-name={job}");
    let found = pods.list(&ListParams::default().labels(&selector)).await?;
    Ok(found.items)
}

async fn target(context: &Context, benchmark: &Benchmark) -> Result<Target, kube::Error> {
    let Some(cluster) = &benchmark.spec.target.cluster_ref else {
        return Ok(Target::Ready);
    };
    let client = context.client.clone();
    let api: Api<Guarded<DEngineCluster>> = Api::namespaced(client, &benchmark.namespace);
    let Some(found) = api.get_opt(&cluster.name).await? else {
        return Ok(Target::NotFound(cluster.name.clone()));
    };
    let found = match found.0 {
        Ok(found) => found,
        Err(unreadable) => {
            return Ok(Target::NotReady(format!(
                "cluster {} cannot be read by this version of the operator: {}",
                cluster.name, unreadable.error
            )));
        }
    };
    Ok(readiness(found, benchmark.spec.wire))
}

/// Whether a cluster can be measured, with calls that travel so.
fn readiness(cluster: DEngineCluster, wire: Option<Wire>) -> Target {
    let name = cluster.name_any();
    let asks_for_etcd = wire == Some(Wire::Etcd);
    let serves_etcd = cluster.spec.etcd.is_some_and(|etcd| etcd.enabled);
    if asks_for_etcd && !serves_etcd {
        return Target::NotReady(format!(
            "cluster {name} does not serve etcd's API, which spec.wire asks for: set \
             spec.etcd.enabled of the cluster to true, or take another wire"
        ));
    }
    let status = cluster.status.unwrap_or_default();
    if !is_true(&status.conditions, types::READY) {
        let mut conditions = status.conditions.into_iter();
        let ready = conditions.find(|condition| condition.type_ == types::READY);
        let message = ready.map_or_else(|| "its status is not known yet".to_owned(), |c| c.message);
        return Target::NotReady(format!("cluster {name} is not Ready: {message}"));
    }
    // Ready may have been said of the spec before this one, and members of that one serve.
    let is_as_specified = status.observed_generation == cluster.metadata.generation
        && is_true(&status.conditions, types::MEMBERS_UPDATED);
    if asks_for_etcd && !is_as_specified {
        return Target::NotReady(format!(
            "not every member of cluster {name} is known to run what its spec says now, so that \
             some may not serve etcd's API"
        ));
    }
    Target::Ready
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
    }
}

#[cfg(test)]
mod tests {
    use dengine_bench_model::results::Report;

    use super::*;

    #[test]
    fn a_restarted_server_counts_as_another_member() {
        let mut pod: Pod = serde_saphyr::from_str(
            "{metadata: {name: d-0, uid: u}, status: {containerStatuses: [
              {name: proxy, restartCount: 9, image: '', imageID: '', ready: true},
              {name: dengine, restartCount: 2, image: '', imageID: '', ready: true}]}}",
        )
        .unwrap();
        assert_eq!(member(&pod), "d-0 u/2");
        pod.status = None;
        assert_eq!(member(&pod), "d-0 u/0");
    }

    #[test]
    fn etcds_api_is_measured_where_it_is_served() {
        let target = |spec, wire| readiness(ready_cluster(spec, "True", 2), wire);
        assert_eq!(target(SERVES_ETCD, Some(Wire::Etcd)), Target::Ready);
        for wire in [None, Some(Wire::Pipelined), Some(Wire::Unary)] {
            assert_eq!(target("{}", wire), Target::Ready, "{wire:?}");
        }
        for spec in ["{}", "{etcd: {enabled: false}}"] {
            let Target::NotReady(why) = target(spec, Some(Wire::Etcd)) else {
                panic!("{spec}")
            };
            assert!(why.contains("set spec.etcd.enabled"), "{why}");
        }
    }

    /// One apply may turn it on and make the benchmark, and members serve all the while.
    #[test]
    fn etcds_api_is_not_measured_before_every_member_was_told_to_serve_it() {
        for (updated, observed) in [("True", 1), ("False", 2), ("Unknown", 2)] {
            let cluster = || ready_cluster(SERVES_ETCD, updated, observed);
            let Target::NotReady(why) = readiness(cluster(), Some(Wire::Etcd)) else {
                panic!("{updated} of {observed}")
            };
            assert!(why.contains("what its spec says now"), "{why}");
            assert_eq!(readiness(cluster(), None), Target::Ready, "by any other");
        }
    }

    const SERVES_ETCD: &str = "{etcd: {enabled: true}}";

    /// A cluster of generation 2 whose status is that of `observed`.
    fn ready_cluster(spec: &str, updated: &str, observed: i64) -> DEngineCluster {
        let condition = |type_: &str, status: &str| {
            format!(
                "{{type: {type_}, status: '{status}', reason: Told, message: '', \
                 lastTransitionTime: '2026-05-02T03:00:00Z'}}"
            )
        };
        let status = format!(
            "{{observedGeneration: {observed}, conditions: [{}, {}]}}",
            condition(types::READY, "True"),
            condition(types::MEMBERS_UPDATED, updated)
        );
        let mut cluster = DEngineCluster::new("demo", serde_saphyr::from_str(spec).unwrap());
        cluster.metadata.generation = Some(2);
        cluster.status = serde_saphyr::from_str(&status).unwrap();
        cluster
    }

    #[test]
    fn a_profile_has_connections_for_every_pod() {
        let wrong = |pods: u32| {
            let spec =
                format!("{{profile: small, pods: {pods}, target: {{clusterRef: {{name: d}}}}}}");
            let spec = serde_saphyr::from_str(&spec).unwrap();
            asked(
                &DEngineBenchmark::new("b", spec),
                &Time(Timestamp::UNIX_EPOCH),
            )
            .1
        };
        assert_eq!(wrong(10), None);
        assert!(wrong(11).unwrap().contains("for 11 pods, only for 10"));
    }

    #[test]
    fn a_suspended_schedule_starts_no_run() {
        let spec = "{workload: put, schedule: '* * * * *', target: {clusterRef: {name: demo}}}";
        let mut resource = DEngineBenchmark::new("b", serde_saphyr::from_str(spec).unwrap());
        let created: Timestamp = "2026-05-02T03:00:00Z".parse().unwrap();
        resource.metadata.creation_timestamp = Some(Time(created));
        let now = Time("2026-05-02T03:10:30Z".parse().unwrap());
        let (due, _) = asked(&resource, &now);
        let moment: Timestamp = "2026-05-02T03:10:00Z".parse().unwrap();
        assert_eq!(due.due.at, Some(moment));
        resource.spec.suspend = true;
        let (due, wrong) = asked(&resource, &now);
        assert_eq!((due.due, wrong), (Due::default(), None));
    }

    #[test]
    fn only_a_run_of_the_spec_with_results_counts_as_done() {
        let spec = "{workload: put, target: {clusterRef: {name: demo}}, runId: one}";
        let resource = DEngineBenchmark::new("b", serde_saphyr::from_str(spec).unwrap());
        let mut status = DEngineBenchmarkStatus::default();
        assert!(!was_run(&resource, &status, None));
        status.runs.insert("two".to_owned(), Report::default());
        assert!(!was_run(&resource, &status, None));
        status.runs.insert("one".to_owned(), Report::default());
        assert!(was_run(&resource, &status, None));
        let due = Some(Timestamp::UNIX_EPOCH);
        assert!(!was_run(&resource, &status, due), "by the clock");
    }
}
