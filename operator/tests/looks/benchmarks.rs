//! Looks at one benchmark.

use dengine_crds::DEngineBenchmark;
use dengine_crds::benchmark::Leg;
use dengine_crds::conditions;
use dengine_operator::benchmark;
use dengine_operator::benchmark::turns::{Others, Turns};
use k8s_openapi::api::batch::v1::Job;
use serde_json::{Value, json};

use crate::{CLUSTER, World};

const BENCHMARK: &str = "/apis/dengine.io/v1alpha1/namespaces/test/denginebenchmarks/versus";
const JOB: &str = "/apis/batch/v1/namespaces/test/jobs/a-job";
const EVENTS: &str = "/api/v1/namespaces/test/events";

/// A benchmark under way whose status says that `a-job` is its Job.
fn under_way(world: &World, status: &Value) {
    let mut recorded = json!({"runId": "1", "phase": "Running", "jobName": "a-job", "jobUid": "u"});
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

/// The Job `a-job` of whoever has this UID.
fn job_of(world: &World, uid: &str) {
    let owner = json!({
        "apiVersion": "dengine.io/v1alpha1", "kind": "DEngineBenchmark", "name": "any", "uid": uid, "controller": true,
    });
    let job =
        json!({"metadata": {"name": "a-job", "namespace": "test", "ownerReferences": [owner]}});
    world.api.put(JOB, job);
}

async fn look(world: &World) -> DEngineBenchmark {
    let (jobs, turns) = (world.cached::<Job>("/jobs/"), Turns::default());
    let others = Others {
        jobs: &jobs,
        turns: &turns,
    };
    let seen = world.api.list::<DEngineBenchmark>(BENCHMARK).remove(0);
    benchmark::reconcile(&seen, &world.context, &others)
        .await
        .unwrap();
    world.api.list::<DEngineBenchmark>(BENCHMARK).remove(0)
}

/// Numbers with which the first Job of a comparison is done.
fn results() -> Value {
    json!({"runs": {"1": {"command": [], "results": [{
        "name": "put", "protocol": "etcd",
        "shape": {
            "workload": "put", "connections": 1, "clients": 1, "total": 1, "keySize": 8, "keyFolderSize": 0,
            "valueSize": 8, "keySpace": 1, "sequentialKeys": false,
        },
        "requests": 1, "errors": 0, "totalSeconds": 1.0, "opsPerSecond": 1.0,
        "latencyUs": {"min": 1, "avg": 1.0, "p50": 1, "p90": 1, "p99": 1, "p999": 1, "max": 1},
        "toolVersion": "0.1.0", "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:01Z",
        "targetLeader": false, "seed": 1, "warmUp": 0,
    }]}}})
}

/// A benchmark's Job may write the status of its benchmark, the Job's name in it too. That makes no other Job its own.
#[tokio::test]
async fn a_status_that_names_anothers_job_changes_nothing_of_it() {
    for (owner, expected) in [("uid-of-versus", 1), ("uid-of-another", 0)] {
        let world = World::new().await;
        under_way(&world, &results());
        job_of(&world, owner);
        let before = world.api.requests().len();
        let seen = look(&world).await;
        let status = seen.status.unwrap();
        assert_eq!(status.leg, Some(Leg::Rival), "{owner}: {status:#?}");
        let requests = world.api.requests().split_off(before);
        let touched = requests
            .iter()
            .filter(|request| request.contains("/jobs/") && !request.starts_with("GET"));
        assert_eq!(touched.count(), expected, "{owner}: {requests:#?}");
    }
}

/// A run whose results are all there, beside one of a run that there never was.
#[tokio::test]
async fn results_that_can_not_be_removed_keep_no_run_from_its_end() {
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
        look(&world).await;
    }
    let requests = world.api.requests().split_off(before);
    let told = requests
        .iter()
        .filter(|request| request.starts_with("POST /apis/events.k8s.io"));
    // That it ended, and that the results stay.
    assert_eq!(told.count(), 2, "{requests:#?}");
}

#[tokio::test]
async fn why_kubernetes_refuses_a_jobs_pod_is_in_the_status() {
    let world = World::new().await;
    under_way(&world, &json!({}));
    job_of(&world, "uid-of-versus");
    let now = k8s_openapi::jiff::Timestamp::now().to_string();
    let event = json!({
        "metadata": {"name": "e", "namespace": "test"}, "involvedObject": {}, "reason": "FailedCreate",
        "message": "Error creating: pods \"a-job-x\" is forbidden: exceeded quota: small", "lastTimestamp": now,
    });
    let events = json!({"kind": "EventList", "apiVersion": "v1", "metadata": {}, "items": [event]});
    world.api.put(EVENTS, events);
    let seen = look(&world).await;
    let conditions = seen.status.unwrap().conditions;
    let complete = conditions.iter().find(|c| c.type_ == "Complete").unwrap();
    assert_eq!(complete.reason, "JobStuck");
    assert!(
        complete.message.contains("exceeded quota: small"),
        "{complete:?}"
    );
}

/// It is told of once, and not tried again every two seconds as if it could be read then.
#[tokio::test]
async fn a_target_that_can_not_be_read_is_waited_for_and_told_of() {
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
        look(&world).await;
    }
    let status = look(&world).await.status.unwrap();
    let mut said = status.conditions.iter();
    let target = said.find(|c| c.type_ == conditions::TARGET_READY);
    let words = &target.unwrap().message;
    assert!(words.contains("cluster demo can not be read"), "{words}");
    assert!(words.contains("many"), "{words}");
}
