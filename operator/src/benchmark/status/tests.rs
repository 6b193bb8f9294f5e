use dengine_bench_model::results::{Report, RunResult};
use dengine_crds::benchmark::MISSED_MAX;

use super::*;
use crate::benchmark::observe::recorded;
use crate::benchmark::plan::tests::{report, result};
use crate::benchmark::plan::{Skipped, plan};
use crate::benchmark::thresholds::Threshold;

fn at(second: i64) -> Time {
    Time(Timestamp::from_second(second).unwrap())
}

fn resource() -> DEngineBenchmark {
    let spec = serde_saphyr::from_str("{workload: put, target: {clusterRef: {name: demo}}}");
    DEngineBenchmark::new("b", spec.unwrap())
}

fn wanted(run_id: &str) -> Observed {
    Observed {
        wanted_run: run_id.to_owned(),
        ..Observed::default()
    }
}

/// One reconciliation of what was observed, with the recorded run taken from the status.
fn reconcile(resource: &mut DEngineBenchmark, observed: &Observed, second: i64) -> BenchmarkStep {
    let observed = Observed {
        recorded: resource.status.as_ref().and_then(recorded),
        ..observed.clone()
    };
    let step = plan(&observed);
    let outcome = Outcome::Taken(step.clone());
    resource.status = Some(derive(resource, &outcome, &observed, &at(second)));
    step
}

#[test]
fn a_run_that_can_not_start_leaves_the_last_result() {
    for posted in [Some(report(result(0))), None] {
        let mut resource = resource();
        resource.status = Some(DEngineBenchmarkStatus {
            run_id: Some("1".to_owned()),
            job_uid: Some("u".to_owned()),
            phase: Some(BenchmarkPhase::Succeeded),
            finished_at: Some("then".to_owned()),
            ops_per_second: Some(5),
            ..DEngineBenchmarkStatus::default()
        });
        let observed = Observed {
            target: Target::NotReady("1 of 3".to_owned()),
            result: posted,
            ..wanted("2")
        };
        let step = reconcile(&mut resource, &observed, 1);
        assert!(matches!(step, BenchmarkStep::Refuse { .. }), "{step:?}");
        let first = resource.status.clone().unwrap();
        assert_eq!(first.phase, Some(BenchmarkPhase::Succeeded));
        assert_eq!(first.conditions.len(), 1, "only why it cannot begin");
        let step = reconcile(&mut resource, &observed, 2);
        assert!(matches!(step, BenchmarkStep::Refuse { .. }), "{step:?}");
        assert_eq!(resource.status, Some(first));
    }
}

#[test]
fn missed_thresholds_are_cut_to_the_limit() {
    let workload = |number: u32| RunResult {
        name: format!("w{number}"),
        ..result(0)
    };
    let report = Report {
        results: (0..6).map(workload).collect(),
        ..Report::default()
    };
    let threshold = "opsPerSecond >= 1000".parse::<Threshold>().unwrap();
    let mut resource = resource();
    resource.status = Some(DEngineBenchmarkStatus {
        run_id: Some("1".to_owned()),
        job_uid: Some("u".to_owned()),
        phase: Some(BenchmarkPhase::Running),
        ..DEngineBenchmarkStatus::default()
    });
    let observed = Observed {
        result: Some(report),
        thresholds: vec![threshold; 11],
        ..wanted("1")
    };
    reconcile(&mut resource, &observed, 1);
    let status = resource.status.unwrap();
    assert_eq!(status.phase, Some(BenchmarkPhase::ThresholdsMissed));
    assert_eq!(status.missed.len(), MISSED_MAX);
}

/// The API server would refuse a longer status as a whole, with every retry.
#[test]
fn a_status_is_cut_to_the_limits_of_its_schema() {
    let workload = |number: u32| RunResult {
        name: format!("w{number}"),
        durability: Some("fsync ".repeat(20)),
        ..result(0)
    };
    let report = Report {
        results: (0..40).map(workload).collect(),
        ..Report::default()
    };
    let observed = Observed {
        result: Some(report.clone()),
        rival: Some(report),
        placement: Some("é".repeat(2_000)),
        ..wanted("1")
    };
    let ending = Ending {
        phase: BenchmarkPhase::Succeeded,
        reason: reasons::JOB_FAILED,
        message: String::new(),
    };
    let outcome = Outcome::Taken(BenchmarkStep::Finish(ending));
    let status = derive(&resource(), &outcome, &observed, &at(1));
    let chars = |text: Option<String>| text.unwrap().chars().count();
    assert_eq!(status.comparison.len(), 32);
    assert_eq!(
        (chars(status.durability), chars(status.placement)),
        (32, 1024)
    );
    assert_eq!(status.score.as_deref(), Some("won 0 of 40"));
}

#[test]
fn latencies_have_readable_units() {
    assert_eq!(microseconds(812), "812µs");
    assert_eq!(microseconds(1_240), "1.24ms");
    assert_eq!(microseconds(2_310_000), "2.31s");
}

#[test]
fn a_new_run_clears_the_last_numbers() {
    let mut resource = resource();
    resource.status = Some(DEngineBenchmarkStatus {
        ops_per_second: Some(5),
        run_id: Some("0".to_owned()),
        job_uid: Some("old".to_owned()),
        ..DEngineBenchmarkStatus::default()
    });
    let status = derive(
        &resource,
        &Outcome::Taken(BenchmarkStep::Record),
        &wanted("1"),
        &at(1),
    );
    assert_eq!(status.run_id.as_deref(), Some("1"));
    assert_eq!((status.ops_per_second, status.job_uid), (None, None));
    assert_eq!(status.phase, Some(BenchmarkPhase::Pending));
}

fn condition(resource: &DEngineBenchmark, type_: &str) -> (String, String, String) {
    let conditions = &resource.status.as_ref().unwrap().conditions;
    let found = conditions.iter().find(|condition| condition.type_ == type_);
    let found = found.unwrap();
    (
        found.status.clone(),
        found.reason.clone(),
        found.message.clone(),
    )
}

#[test]
fn a_job_that_is_refused_every_time_ends_the_run() {
    let mut resource = resource();
    reconcile(&mut resource, &wanted("1"), 1);
    let mut refuse = |retry_in, second| {
        let outcome = Outcome::JobRefused {
            reason: reasons::JOB_REFUSED,
            message: "403: quota".to_owned(),
            retry_in,
        };
        resource.status = Some(derive(&resource, &outcome, &wanted("1"), &at(second)));
        condition(&resource, types::FAILED)
    };
    let (status, reason, message) = refuse(Some(4), 2);
    assert_eq!((&*status, &*reason), ("False", reasons::JOB_REFUSED));
    assert_eq!(message, "try 1: 403: quota");
    let (status, _, message) = refuse(None, 6);
    assert_eq!(status, "True", "{message}");
    assert!(message.contains("403: quota"), "{message}");
    let ended = resource.status.clone().unwrap();
    assert_eq!(
        (ended.phase, ended.tries),
        (Some(BenchmarkPhase::Failed), Some(2))
    );
    assert_eq!(ended.retry_at, None);
    assert_eq!(
        reconcile(&mut resource, &wanted("1"), 7),
        BenchmarkStep::Done
    );
    reconcile(&mut resource, &wanted("2"), 8);
    assert_eq!(resource.status.unwrap().tries, None, "another run");
}

#[test]
fn an_unknown_phase_does_not_end_a_run_again() {
    let mut resource = resource();
    resource.status = Some(DEngineBenchmarkStatus {
        run_id: Some("1".to_owned()),
        job_uid: Some("u".to_owned()),
        phase: None,
        finished_at: Some("then".to_owned()),
        ..DEngineBenchmarkStatus::default()
    });
    assert_eq!(
        reconcile(&mut resource, &wanted("1"), 1),
        BenchmarkStep::Done
    );
}

#[test]
fn the_members_at_the_start_of_the_load_are_recorded() {
    let mut resource = resource();
    reconcile(&mut resource, &wanted("1"), 1);
    let mut observed = wanted("1");
    observed.members = Some(vec!["d-0 a/0".to_owned()]);
    assert_eq!(
        reconcile(&mut resource, &observed, 2),
        BenchmarkStep::MakeJob
    );
    observed.members = Some(vec!["d-0 b/0".to_owned()]);
    reconcile(&mut resource, &observed, 3);
    assert_eq!(resource.status.unwrap().members, ["d-0 a/0"]);
}

#[test]
fn the_status_shows_why_a_jobs_pod_does_not_run() {
    let mut resource = resource();
    resource.status = Some(DEngineBenchmarkStatus {
        run_id: Some("1".to_owned()),
        job_uid: Some("u".to_owned()),
        phase: Some(BenchmarkPhase::Running),
        ..DEngineBenchmarkStatus::default()
    });
    let observed = Observed {
        job: Some(crate::benchmark::plan::Job {
            uid: "u".to_owned(),
            state: crate::benchmark::plan::JobState::Running,
        }),
        trouble: Some("Kubernetes refuses its pod: exceeded quota: small".to_owned()),
        ..wanted("1")
    };
    assert_eq!(reconcile(&mut resource, &observed, 1), BenchmarkStep::Wait);
    let (_, reason, message) = condition(&resource, types::COMPLETE);
    let stuck = "the Job cannot run: Kubernetes refuses its pod: exceeded quota: small";
    assert_eq!((&*reason, &*message), (reasons::JOB_STUCK, stuck));
    // After its deadline the Job has no pod that could show why.
    let over = Observed {
        job: Some(crate::benchmark::plan::Job {
            state: crate::benchmark::plan::JobState::Failed("DeadlineExceeded".to_owned()),
            ..observed.job.clone().unwrap()
        }),
        trouble: None,
        was_stuck: crate::benchmark::observe::was_stuck(resource.status.as_ref().unwrap()),
        ..observed
    };
    reconcile(&mut resource, &over, 2);
    let (_, _, message) = condition(&resource, types::FAILED);
    assert_eq!(message, format!("DeadlineExceeded; before that, {stuck}"));
}

#[test]
fn skipped_runs_are_counted_with_every_step() {
    let mut resource = resource();
    let running = DEngineBenchmarkStatus {
        run_id: Some("1".to_owned()),
        job_uid: Some("u".to_owned()),
        phase: Some(BenchmarkPhase::Running),
        skipped_runs: Some(1),
        ..DEngineBenchmarkStatus::default()
    };
    let observed = Observed {
        job: Some(crate::benchmark::plan::Job {
            uid: "u".to_owned(),
            state: crate::benchmark::plan::JobState::Running,
        }),
        skipped: Some(Skipped {
            runs: 2,
            message: "run 1 is under way".to_owned(),
        }),
        ..wanted("1")
    };
    for (phase, expected) in [
        (BenchmarkPhase::Running, BenchmarkStep::Wait),
        (BenchmarkPhase::Succeeded, BenchmarkStep::Done),
    ] {
        resource.status = Some(DEngineBenchmarkStatus {
            phase: Some(phase),
            ..running.clone()
        });
        assert_eq!(reconcile(&mut resource, &observed, 1), expected);
        assert_eq!(resource.status.as_ref().unwrap().skipped_runs, Some(3));
        let (status, reason, _) = condition(&resource, types::TARGET_READY);
        assert_eq!((&*status, &*reason), ("False", reasons::RUN_SKIPPED));
    }
    let after = resource.status.clone();
    reconcile(&mut resource, &wanted("1"), 2);
    assert_eq!(resource.status, after, "it stays true");
    assert_eq!(
        reconcile(&mut resource, &observed_run("2"), 3),
        BenchmarkStep::Record
    );
    let status = resource.status.unwrap();
    assert_eq!(
        status.skipped_runs,
        Some(4),
        "with the first look at the next"
    );
}

/// A run that is due while another one was skipped before it.
fn observed_run(run_id: &str) -> Observed {
    Observed {
        skipped: Some(Skipped {
            runs: 1,
            message: String::new(),
        }),
        ..wanted(run_id)
    }
}

#[test]
fn the_next_time_stays_until_its_run_is_recorded() {
    let mut resource = resource();
    let moment: Timestamp = "2026-05-02T03:00:00Z".parse().unwrap();
    let mut observed = Observed {
        due: Some(moment),
        next: "2026-05-03T03:00:00Z".parse().ok(),
        target: Target::NotReady("1 of 3".to_owned()),
        ..wanted("20260502T0300Z")
    };
    let next = |resource: &DEngineBenchmark| resource.status.as_ref()?.next_run_at.clone();
    reconcile(&mut resource, &observed, 1);
    assert_eq!(next(&resource).as_deref(), Some("2026-05-02T03:00:00Z"));
    observed.target = Target::Ready;
    assert_eq!(
        reconcile(&mut resource, &observed, 2),
        BenchmarkStep::Record
    );
    assert_eq!(next(&resource).as_deref(), Some("2026-05-03T03:00:00Z"));
}

#[test]
fn an_unchanged_status_is_not_written() {
    let mut resource = resource();
    let refuse = BenchmarkStep::Refuse {
        reason: "TargetNotReady",
        message: "1 of 3".to_owned(),
    };
    let outcome = Outcome::Taken(refuse);
    resource.status = Some(derive(&resource, &outcome, &wanted("1"), &at(1)));
    let again = derive(&resource, &outcome, &wanted("1"), &at(2));
    assert_eq!(resource.status, Some(again));
}

#[test]
fn a_reverted_edit_leaves_no_condition() {
    let ended = DEngineBenchmarkStatus {
        run_id: Some("1".to_owned()),
        phase: Some(BenchmarkPhase::Succeeded),
        ..DEngineBenchmarkStatus::default()
    };
    let refused: [fn(&mut Observed); 3] = [
        |edited| edited.suspended = true,
        |edited| edited.invalid = Some("spec.schedule is no schedule".to_owned()),
        |edited| edited.was_run = true,
    ];
    for refuses in refused {
        let mut resource = resource();
        resource.status = Some(ended.clone());
        let mut edited = wanted("2");
        refuses(&mut edited);
        reconcile(&mut resource, &edited, 1);
        assert_eq!(condition(&resource, types::TARGET_READY).0, "False");
        assert_eq!(
            reconcile(&mut resource, &wanted("1"), 2),
            BenchmarkStep::Done
        );
        let (status, reason, _) = condition(&resource, types::TARGET_READY);
        assert_eq!((&*status, &*reason), ("True", reasons::TARGET_READY));
        reconcile(&mut resource, &edited, 3);
        let gone = Observed {
            target: Target::NotFound("demo".to_owned()),
            ..wanted("1")
        };
        reconcile(&mut resource, &gone, 4);
        let conditions = resource.status.unwrap().conditions;
        assert_eq!(conditions, [], "nobody waits for it");
    }
}

#[test]
fn a_condition_of_another_version_is_removed() {
    let mut resource = resource();
    reconcile(&mut resource, &wanted("1"), 1);
    let status = resource.status.as_mut().unwrap();
    status.conditions[0].type_ = "OfAnotherVersion".to_owned();
    reconcile(&mut resource, &wanted("1"), 2);
    let conditions = resource.status.unwrap().conditions;
    let mut types = conditions.iter().map(|condition| &*condition.type_);
    assert!(!types.any(|type_| type_ == "OfAnotherVersion"));
}

/// An invalid schedule starts no run, so nothing else would show why.
#[test]
fn an_invalid_edit_is_reported_though_nothing_starts() {
    let mut resource = resource();
    resource.status = Some(DEngineBenchmarkStatus {
        run_id: Some("1".to_owned()),
        phase: Some(BenchmarkPhase::Succeeded),
        ..DEngineBenchmarkStatus::default()
    });
    let mut observed = wanted("1");
    observed.invalid = Some("spec.schedule is no schedule".to_owned());
    reconcile(&mut resource, &observed, 1);
    let (_, reason, message) = condition(&resource, types::TARGET_READY);
    assert_eq!(reason, reasons::INVALID_SPEC);
    assert_eq!(message, "spec.schedule is no schedule");
    let status = resource.status.unwrap();
    assert_eq!(status.phase, Some(BenchmarkPhase::Succeeded));
}

#[test]
fn keys_left_by_a_run_are_reported_after_its_end() {
    let mut resource = resource();
    resource.status = Some(DEngineBenchmarkStatus {
        run_id: Some("1".to_owned()),
        job_uid: Some("u".to_owned()),
        phase: Some(BenchmarkPhase::Running),
        ..DEngineBenchmarkStatus::default()
    });
    let left = |message: Option<&str>| Observed {
        result: Some(Report {
            left_over: message.map(str::to_owned),
            ..report(result(0))
        }),
        ..wanted("1")
    };
    let left_over = "5 of 10 keys below dengine-bench/x/ were not deleted";
    reconcile(&mut resource, &left(Some(left_over)), 1);
    let told = |resource: &DEngineBenchmark| resource.status.as_ref()?.left_over.clone();
    assert_eq!(told(&resource).as_deref(), Some(left_over));
    let (status, _, message) = condition(&resource, types::COMPLETE);
    assert_eq!(status, "True");
    assert!(!message.contains(left_over), "it would stay: {message}");
    assert_eq!(
        reconcile(&mut resource, &left(None), 2),
        BenchmarkStep::Done
    );
    assert_eq!(told(&resource), None, "deleted after all");
    reconcile(&mut resource, &left(Some(left_over)), 3);
    assert_eq!(told(&resource).as_deref(), Some(left_over));
    assert_eq!(
        reconcile(&mut resource, &wanted("2"), 4),
        BenchmarkStep::Record
    );
    assert_eq!(told(&resource), None, "another run");
}
