//! Reconciliations of one benchmark.

use std::sync::Arc;

use dengine_crds::benchmark::{BenchmarkPhase, Leg};
use dengine_crds::names::{self, annotations};
use dengine_crds::{DEngineBenchmark, conditions};
use dengine_operator::benchmark;
use dengine_operator::benchmark::turns::Turns;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::{CLUSTER, World};

const BENCHMARK: &str = "/apis/dengine.io/v1alpha1/namespaces/test/denginebenchmarks/versus";
const JOBS: &str = "/apis/batch/v1/namespaces/test/jobs";
const EVENTS: &str = "/api/v1/namespaces/test/events";

/// A benchmark in progress.
fn under_way(world: &World, status: &Value) {
    let job = names::benchmark::job("versus", "1");
    let mut recorded = json!({"runId": "1", "phase": "Running", "jobName": job, "jobUid": "u"});
    recorded
        .as_object_mut()
        .unwrap()
        .extend(status.as_object().unwrap().clone());
    let object = json!({
        "apiVersion": "dengine.io/v1alpha1", "kind": "DEngineBenchmark",
        "metadata": {"name": "versus", "namespace": "test", "uid": "uid-of-versus"},
        "spec": {
            "target": {"etcd": {"endpoints": ["e:2379"]}}, "workload": "put", "runId": "1",
            "compareWith": {"etcd": {"endpoints": ["f:2379"]}},
        },
        "status": recorded,
    });
    world.api.put(BENCHMARK, object);
}

/// The Job that the status names, owned by this UID.
fn job_of(world: &World, uid: &str) {
    let owner = json!({
        "apiVersion": "dengine.io/v1alpha1", "kind": "DEngineBenchmark", "name": "any", "uid": uid,
        "controller": true,
    });
    let name = names::benchmark::job("versus", "1");
    let job = json!({"metadata": {"name": name, "namespace": "test", "ownerReferences": [owner]}});
    world.api.put(&format!("{JOBS}/{name}"), job);
}

async fn reconcile(world: &World) -> DEngineBenchmark {
    let turns = Turns::new(world.cached::<Job>("/jobs/"), Arc::default());
    let seen = world.api.list::<DEngineBenchmark>(BENCHMARK).remove(0);
    benchmark::reconcile(&seen, &world.context, &turns)
        .await
        .unwrap();
    world.api.list::<DEngineBenchmark>(BENCHMARK).remove(0)
}

/// Results that complete the first Job of a comparison.
fn results() -> Value {
    json!({"runs": {"1": {"command": [], "results": [{
        "name": "put", "protocol": "etcd",
        "shape": {
            "workload": "put", "connections": 1, "clients": 1, "total": 1, "keySize": 8,
            "keyFolderSize": 0,
            "valueSize": 8, "keySpace": 1, "sequentialKeys": false,
        },
        "requests": 1, "errors": 0, "totalSeconds": 1.0, "opsPerSecond": 1.0,
        "latencyUs": {"min": 1, "avg": 1.0, "p50": 1, "p90": 1, "p99": 1, "p999": 1, "max": 1},
        "toolVersion": "0.1.0", "startedAt": "2026-01-01T00:00:00Z",
        "finishedAt": "2026-01-01T00:00:01Z",
        "targetLeader": false, "seed": 1, "warmUp": 0,
    }]}}})
}

/// A Job may write its benchmark's status, even the name of the Job in it. That makes no other Job
/// its own.
#[tokio::test]
async fn a_status_that_names_anothers_job_does_not_change_it() {
    for (owner, expected) in [("uid-of-versus", 1), ("uid-of-another", 0)] {
        let world = World::new().await;
        under_way(&world, &results());
        job_of(&world, owner);
        let before = world.api.requests().len();
        let seen = reconcile(&world).await;
        let status = seen.status.unwrap();
        assert_eq!(status.leg, Some(Leg::Rival), "{owner}: {status:#?}");
        reconcile(&world).await;
        let requests = world.api.requests().split_off(before);
        let touched = requests
            .iter()
            .filter(|request| request.starts_with(&format!("PATCH {JOBS}/")));
        assert_eq!(touched.count(), expected, "{owner}: {requests:#?}");
    }
}

/// A run with all its results, and results without a run.
#[tokio::test]
async fn results_that_can_not_be_removed_do_not_block_the_end_of_a_run() {
    let world = World::new().await;
    let report = &results()["runs"]["1"];
    let runs = json!({"runs": {"1": report, "1@etcd": report, "0@etcd": report}, "leg": "Rival"});
    under_way(&world, &runs);
    job_of(&world, "uid-of-versus");
    world
        .api
        .refuse("denginebenchmarks/versus/status?fieldManager", "no");
    let before = world.api.requests().len();
    for _ in 0..5 {
        reconcile(&world).await;
    }
    let requests = world.api.requests().split_off(before);
    let told = requests
        .iter()
        .filter(|request| request.starts_with("POST /apis/events.k8s.io"));
    // One for the end of the run, one for the results that stay.
    assert_eq!(told.count(), 2, "{requests:#?}");
}

#[tokio::test]
async fn the_status_shows_why_a_jobs_pod_is_refused() {
    let world = World::new().await;
    under_way(&world, &json!({}));
    job_of(&world, "uid-of-versus");
    let now = k8s_openapi::jiff::Timestamp::now().to_string();
    let event = json!({
        "metadata": {"name": "e", "namespace": "test"}, "involvedObject": {},
        "reason": "FailedCreate",
        "message": "Error creating: pods \"a-job-x\" is forbidden: exceeded quota: small",
        "lastTimestamp": now,
    });
    let events = json!({"kind": "EventList", "apiVersion": "v1", "metadata": {}, "items": [event]});
    world.api.put(EVENTS, events);
    let seen = reconcile(&world).await;
    let conditions = seen.status.unwrap().conditions;
    let complete = conditions.iter().find(|c| c.type_ == "Complete").unwrap();
    assert_eq!(complete.reason, "JobStuck");
    assert!(
        complete.message.contains("exceeded quota: small"),
        "{complete:?}"
    );
}

/// With one pod everything is as it was before there could be several.
#[tokio::test]
async fn several_pods_of_a_job_have_a_service_to_meet_and_one_has_none() {
    for (pods, services) in [(1, 0), (3, 1)] {
        let world = World::new().await;
        under_way(&world, &json!({"jobUid": null, "phase": "Pending"}));
        world.api.put(BENCHMARK, json!({"spec": {"pods": pods}}));
        reconcile(&world).await;
        let made = world.api.requests();
        assert!(made.contains(&format!("POST {JOBS}")), "{made:#?}");
        let found = world.api.list::<Service>("/services/versus-pods");
        assert_eq!(found.len(), services, "{pods} pods: {made:#?}");
        for spec in found.into_iter().filter_map(|service| service.spec) {
            assert_eq!(spec.cluster_ip.as_deref(), Some("None"));
        }
    }
}

/// Only the first pod reports, so of its own end the operator has to tell.
#[tokio::test]
async fn a_run_whose_first_pod_is_lost_is_invalid_and_says_why() {
    let world = World::new().await;
    under_way(&world, &json!({}));
    world.api.put(BENCHMARK, json!({"spec": {"pods": 2}}));
    job_of(&world, "uid-of-versus");
    let failed = json!({
        "type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "no more",
    });
    let job = format!("{JOBS}/{}", names::benchmark::job("versus", "1"));
    world
        .api
        .put(&job, json!({"status": {"conditions": [failed]}}));
    let evicted = json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"});
    for (index, status) in [("0", evicted), ("1", json!({"phase": "Failed"}))] {
        let name = format!("p-{index}");
        let annotations = json!({"batch.kubernetes.io/job-completion-index": index});
        let pod = json!({
            "metadata": {"name": name, "namespace": "test", "annotations": annotations},
            "status": status,
        });
        world
            .api
            .put(&format!("/api/v1/namespaces/test/pods/{name}"), pod);
    }
    let status = reconcile(&world).await.status.unwrap();
    assert_eq!(status.phase, Some(BenchmarkPhase::Invalid), "{status:#?}");
    let mut said = status.conditions.iter();
    let ended = said.find(|it| it.type_ == conditions::FAILED).unwrap();
    assert_eq!(ended.reason, "PodLateOrLost");
    for words in ["pod 0 of 2", "Evicted: low on memory", "change runId"] {
        assert!(ended.message.contains(words), "{}", ended.message);
    }
}

/// Requests of five reconciliations that begin with this.
async fn five_reconciliations(world: &World, beginning: &str) -> usize {
    let before = world.api.requests().len();
    for _ in 0..5 {
        reconcile(world).await;
    }
    let requests = world.api.requests().split_off(before);
    let those = requests
        .iter()
        .filter(|request| request.starts_with(beginning));
    those.count()
}

/// As by a webhook that forbids changing Jobs.
#[tokio::test]
async fn a_job_that_can_not_be_patched_blocks_nothing() {
    let world = World::new().await;
    under_way(&world, &results());
    job_of(&world, "uid-of-versus");
    world.api.refuse(&format!("{JOBS}/"), "not on a Friday");
    reconcile(&world).await;
    // An apply removes missing fields; a merge patch does not.
    let not_made = json!({"status": {"jobUid": null}});
    world.api.put(BENCHMARK, not_made);
    let patches = five_reconciliations(&world, &format!("PATCH {JOBS}/")).await;
    assert_eq!(patches, 1, "once, then a pause");
    let seen = reconcile(&world).await;
    let rivals = names::benchmark::job("versus", "1@etcd");
    assert_eq!(seen.status.unwrap().job_name, Some(rivals));
    let made = world.api.requests().into_iter();
    let mut made = made.filter(|request| *request == format!("POST {JOBS}"));
    assert!(made.next().is_some(), "the other system is never measured");
}

fn holds(benchmark: &DEngineBenchmark, type_: &str) -> bool {
    let status = benchmark.status.as_ref().unwrap();
    let mut those = status.conditions.iter();
    those.any(|condition| condition.type_ == type_ && condition.status == "True")
}

/// Of a failed run: its Job, and the benchmark after its TTL.
#[tokio::test]
async fn a_failed_cleanup_changes_no_verdict_and_is_retried_slowly() {
    let world = World::new().await;
    under_way(&world, &json!({}));
    let failed = json!({
        "type": "Failed", "status": "True", "reason": "JobFailed", "message": "it did",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let ended = json!({
        "phase": "Failed", "conditions": [failed], "finishedAt": "2026-01-01T00:00:00Z",
    });
    world.api.put(BENCHMARK, json!({ "status": ended }));
    job_of(&world, "uid-of-versus");
    let expires = json!({"ttlSecondsAfterFinished": 1});
    for (refused, spec) in [
        (format!("{JOBS}/"), json!({})),
        ("/versus?".to_owned(), expires),
    ] {
        world.api.put(BENCHMARK, json!({ "spec": spec }));
        world.api.refuse(&refused, "not on a Friday");
        let told = five_reconciliations(&world, "POST /apis/events.k8s.io").await;
        assert_eq!(told, 1, "{refused}");
        let seen = reconcile(&world).await;
        assert!(holds(&seen, conditions::FAILED), "{:#?}", seen.status);
    }
    let requests = world.api.requests();
    let tries = |method: &str| {
        let those = requests
            .iter()
            .filter(|request| request.starts_with(method) && !request.ends_with("/status"));
        those.count()
    };
    assert_eq!((tries("PATCH"), tries("DELETE")), (1, 1), "{requests:#?}");
}

/// The whole minute this many minutes ago.
fn minutes_ago(minutes: i64) -> Timestamp {
    let minute = Timestamp::now().as_second() / 60 - minutes;
    Timestamp::from_second(minute * 60).unwrap()
}

/// A benchmark with a run every minute and this status.
fn every_minute(world: &World, status: &Value) {
    under_way(world, status);
    let spec = json!({"schedule": "* * * * *", "startingDeadlineSeconds": 600});
    let made = json!({"creationTimestamp": "2026-01-01T00:00:00Z"});
    world
        .api
        .put(BENCHMARK, json!({"spec": spec, "metadata": made}));
}

#[tokio::test]
async fn times_that_pass_during_a_run_are_counted_once() {
    let world = World::new().await;
    every_minute(
        &world,
        &json!({"specRunId": "1", "nextRunAt": minutes_ago(60)}),
    );
    job_of(&world, "uid-of-versus");
    for _ in 0..3 {
        let status = reconcile(&world).await.status.unwrap();
        let skipped = status.skipped_runs.unwrap_or(0);
        // The newest one may still start, unless a minute passed meanwhile.
        assert!((60..=61).contains(&skipped), "{status:#?}");
        assert_eq!(status.run_id.as_deref(), Some("1"));
    }
}

#[tokio::test]
async fn a_scheduled_run_that_could_not_start_for_an_hour_is_skipped() {
    let world = World::new().await;
    let run = minutes_ago(60).strftime("%Y%m%dT%H%MZ").to_string();
    let waits = json!({
        "specRunId": "1", "nextRunAt": minutes_ago(-1), "runId": run, "phase": "Pending",
        "jobUid": null,
    });
    every_minute(&world, &waits);
    let seen = reconcile(&world).await;
    let status = seen.status.as_ref().unwrap();
    assert_eq!(status.phase, Some(BenchmarkPhase::Failed), "{status:#?}");
    assert_eq!(status.skipped_runs, Some(1));
    let requests = world.api.requests();
    assert!(!requests.contains(&format!("POST {JOBS}")), "{requests:#?}");
}

/// The scheduled time passed, and the next `runId` is reverted while nothing can start.
#[tokio::test]
async fn a_reverted_run_id_skips_no_scheduled_run() {
    let world = World::new().await;
    let waits = json!({
        "type": "TargetReady", "status": "False", "reason": "TargetNotReady", "message": "1 of 3",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let ended = json!({"phase": "Succeeded", "specRunId": "1", "conditions": [waits]});
    under_way(&world, &ended);
    let status = reconcile(&world).await.status.unwrap();
    assert_eq!(status.skipped_runs, None, "{status:#?}");
}

/// A cluster whose manifest declares that the profile `quick` measures it.
async fn declared() -> World {
    let world = World::settled().await;
    let applied = json!({"metadata": {"annotations": {annotations::BENCHMARK: "quick"}}});
    let last = "kubectl.kubernetes.io/last-applied-configuration";
    let asks = json!({annotations::BENCHMARK: "quick", last: applied.to_string()});
    world
        .api
        .put(CLUSTER, json!({"metadata": {"annotations": asks}}));
    assert_eq!(world.costs(1, ASKED).await.len(), 1);
    world
}

const OF_DEMO: &str = "/apis/dengine.io/v1alpha1/namespaces/test/denginebenchmarks/demo-quick";
const ASKED: &str = "PATCH /apis/dengine.io/v1alpha1/namespaces/test/denginebenchmarks/demo-quick";

/// A declared annotation stays; deleting the benchmark does not ask for another load.
#[tokio::test]
async fn a_deleted_declared_benchmark_does_not_run_again() {
    let world = declared().await;
    world.api.remove(OF_DEMO);
    assert_eq!(world.costs(5, ASKED).await, Vec::<String>::new());
    let again = json!({annotations::BENCHMARK: "quick/2"});
    world
        .api
        .put(CLUSTER, json!({"metadata": {"annotations": again}}));
    assert_eq!(world.costs(5, ASKED).await.len(), 1, "another value");
    let back = json!({annotations::BENCHMARK: "quick"});
    world
        .api
        .put(CLUSTER, json!({"metadata": {"annotations": back}}));
    assert_eq!(world.costs(5, ASKED).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_declared_benchmark_that_is_run_by_hand_does_not_run_again() {
    let world = declared().await;
    world
        .api
        .put(OF_DEMO, json!({"spec": {"runId": "by-hand"}}));
    assert_eq!(world.costs(5, ASKED).await, Vec::<String>::new());
}

/// As for a cluster whose declared run an operator of an earlier version started.
#[tokio::test]
async fn a_declared_benchmark_that_can_not_be_recorded_does_not_run_again() {
    let world = declared().await;
    let notes = json!({annotations::BENCHMARKS_DECLARED: null});
    world
        .api
        .put(CLUSTER, json!({"metadata": {"annotations": notes}}));
    world.api.refuse("dengineclusters/demo?", "no");
    let requests = world.costs(5, "").await;
    let those = |beginning: &str| {
        let those = requests.iter().filter(|one| one.starts_with(beginning));
        those.count()
    };
    assert_eq!(those(ASKED), 0);
    assert_eq!(those(&format!("PATCH {CLUSTER}")), 1, "once, then a pause");
}

/// It is reported once, and not retried every two seconds.
#[tokio::test]
async fn an_unreadable_target_is_waited_for_and_reported() {
    let world = World::new().await;
    world
        .api
        .put(CLUSTER, json!({"spec": {"replicas": "many"}}));
    let object = json!({
        "apiVersion": "dengine.io/v1alpha1", "kind": "DEngineBenchmark",
        "metadata": {"name": "versus", "namespace": "test", "uid": "uid-of-versus"},
        "spec": {"target": {"clusterRef": {"name": "demo"}}, "workload": "put", "runId": "1"},
    });
    world.api.put(BENCHMARK, object);
    for _ in 0..2 {
        reconcile(&world).await;
    }
    let status = reconcile(&world).await.status.unwrap();
    let mut said = status.conditions.iter();
    let target = said.find(|c| c.type_ == conditions::TARGET_READY);
    let message = &target.unwrap().message;
    assert!(message.contains("cluster demo cannot be read"), "{message}");
    assert!(message.contains("many"), "{message}");
}
