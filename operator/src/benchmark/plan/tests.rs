use dengine_bench_model::results::{LatencyUs, Protocol, RunResult, Shape, Workload};

use super::*;

pub(crate) fn result(errors: u64) -> RunResult {
    RunResult {
        name: "put".to_owned(),
        protocol: Protocol::Dengine,
        wire: None,
        shape: Shape {
            workload: Workload::Put,
            consistency: None,
            connections: 1,
            clients: 1,
            total: 10,
            at_least_seconds: None,
            key_size: 8,
            key_folder_size: 0,
            value_size: 8,
            key_space: 0,
            sequential_keys: false,
            read_percent: None,
            watchers: None,
            listers: None,
            scan_keys: None,
            rate: None,
        },
        unsupported: None,
        requests: 10,
        errors,
        first_error: (errors > 0).then(|| "unavailable".to_owned()),
        total_seconds: 1.0,
        ops_per_second: 10.0,
        latency_us: LatencyUs::default(),
        curve: Vec::new(),
        spread: None,
        repetitions: Vec::new(),
        client_cpu_us: None,
        pods: None,
        servers: None,
        log_syncs: None,
        durability: Some("fsync".to_owned()),
        engine_version: None,
        tool_version: "0".to_owned(),
        started_at: String::new(),
        finished_at: String::new(),
        term_before: Some(2),
        term_after: Some(2),
        leader: None,
        members: Vec::new(),
        target_leader: false,
        seed: 0,
        warm_up: 0,
        warm_up_seconds: None,
        preload: None,
        settling: None,
        listing: None,
        node: None,
    }
}

pub(crate) fn report(result: RunResult) -> Report {
    Report {
        results: vec![result],
        ..Report::default()
    }
}

fn recorded(run_id: &str, job_made: bool, is_final: bool) -> Option<Recorded> {
    Some(Recorded {
        run_id: run_id.to_owned(),
        leg: Leg::Target,
        job_made,
        members: Vec::new(),
        is_final,
    })
}

fn job(state: JobState) -> Option<Job> {
    Some(Job {
        uid: "u".to_owned(),
        state,
    })
}

fn new() -> Observed {
    Observed {
        wanted_run: "1".to_owned(),
        ..Observed::default()
    }
}

fn phase(step: &BenchmarkStep) -> Option<BenchmarkPhase> {
    match step {
        BenchmarkStep::Finish(ending) => Some(ending.phase),
        _ => None,
    }
}

#[test]
fn a_run_is_recorded_and_its_job_created_and_awaited() {
    let mut observed = new();
    assert_eq!(plan(&observed), BenchmarkStep::Record);
    observed.recorded = recorded("1", false, false);
    assert_eq!(plan(&observed), BenchmarkStep::MakeJob);
    observed.job = job(JobState::Running);
    assert_eq!(
        plan(&observed),
        BenchmarkStep::NoteJob {
            uid: "u".to_owned()
        }
    );
    observed.recorded = recorded("1", true, false);
    assert_eq!(plan(&observed), BenchmarkStep::Wait);
}

#[test]
fn a_finished_run_is_not_repeated_because_its_job_is_gone() {
    let mut observed = new();
    observed.recorded = recorded("1", true, true);
    assert_eq!(plan(&observed), BenchmarkStep::Done);
    observed.wanted_run = "2".to_owned();
    assert_eq!(plan(&observed), BenchmarkStep::Record);
}

#[test]
fn a_run_id_is_never_used_twice() {
    let mut observed = new();
    observed.was_run = true;
    observed.recorded = recorded("1", true, true);
    assert_eq!(plan(&observed), BenchmarkStep::Done, "its result is there");
    observed.recorded = recorded("2", true, true);
    let BenchmarkStep::Refuse { reason, message } = plan(&observed) else {
        panic!("the old numbers would be the new spec's");
    };
    assert_eq!(reason, reasons::INVALID_SPEC);
    assert!(message.contains("run 1 was already run"), "{message}");
    observed.recorded = recorded("2", false, false);
    observed.moved_on = true;
    assert!(matches!(plan(&observed), BenchmarkStep::Refuse { .. }));
}

#[test]
fn failed_and_missing_results_have_different_reasons() {
    let mut observed = new();
    observed.recorded = recorded("1", true, false);
    assert_eq!(
        phase(&plan(&observed)),
        Some(BenchmarkPhase::ResultMissing),
        "the Job is gone"
    );
    observed.job = job(JobState::Succeeded);
    assert_eq!(phase(&plan(&observed)), Some(BenchmarkPhase::ResultMissing));
    observed.job = job(JobState::Failed("DeadlineExceeded".to_owned()));
    assert_eq!(phase(&plan(&observed)), Some(BenchmarkPhase::Failed));
    observed.result = Some(report(result(1)));
    assert_eq!(phase(&plan(&observed)), Some(BenchmarkPhase::Failed));
    observed.result = Some(report(result(0)));
    assert_eq!(phase(&plan(&observed)), Some(BenchmarkPhase::Succeeded));
    observed.result = Some(report(RunResult {
        term_after: Some(3),
        ..result(0)
    }));
    assert_eq!(phase(&plan(&observed)), Some(BenchmarkPhase::Invalid));
}

/// The first pod reports for all, so without it there is no result that could say who was lost.
#[test]
fn a_run_without_a_word_of_its_first_pod_is_invalid() {
    let mut observed = new();
    observed.recorded = recorded("1", true, false);
    observed.job = job(JobState::Failed("BackoffLimitExceeded".to_owned()));
    observed.lost = Some("pod 0 of 3 was lost: Evicted".to_owned());
    let step = plan(&observed);
    assert_eq!(phase(&step), Some(BenchmarkPhase::Invalid));
    assert_eq!(reason(&step), reasons::POD_LATE_OR_LOST);
    let BenchmarkStep::Finish(ending) = step else {
        panic!("{step:?}")
    };
    assert!(ending.message.contains("Evicted"), "{}", ending.message);
    assert!(
        ending.message.contains("BackoffLimitExceeded"),
        "{}",
        ending.message
    );
    observed.job = job(JobState::Running);
    assert_eq!(plan(&observed), BenchmarkStep::Wait);
}

fn reason(step: &BenchmarkStep) -> &'static str {
    match step {
        BenchmarkStep::Refuse { reason, .. } => reason,
        BenchmarkStep::Finish(ending) | BenchmarkStep::Cancel(ending) => ending.reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_run_waits_for_others_on_its_target() {
    let mut observed = new();
    observed.busy = Some("benchmark other".to_owned());
    assert_eq!(
        plan(&observed),
        BenchmarkStep::Record,
        "so that its turn comes"
    );
    observed.recorded = recorded("1", false, false);
    let waits = plan(&observed);
    assert_eq!(reason(&waits), reasons::TARGET_BUSY);
    let BenchmarkStep::Refuse { message, .. } = waits else {
        unreachable!()
    };
    assert!(message.contains("benchmark other"), "{message}");
    observed.busy = None;
    assert_eq!(plan(&observed), BenchmarkStep::MakeJob);
    observed.busy = Some("benchmark other".to_owned());
    observed.recorded = recorded("1", true, false);
    observed.job = job(JobState::Running);
    assert_eq!(plan(&observed), BenchmarkStep::Wait, "it runs already");
}

#[test]
fn a_suspended_benchmark_starts_nothing_but_finishes_its_run() {
    let mut observed = new();
    observed.suspended = true;
    assert_eq!(reason(&plan(&observed)), reasons::SUSPENDED);
    observed.recorded = recorded("1", false, false);
    assert_eq!(reason(&plan(&observed)), reasons::SUSPENDED);
    observed.recorded = recorded("1", true, false);
    observed.job = job(JobState::Running);
    assert_eq!(plan(&observed), BenchmarkStep::Wait);
    observed.result = Some(report(result(0)));
    assert_eq!(phase(&plan(&observed)), Some(BenchmarkPhase::Succeeded));
}

#[test]
fn a_run_during_a_member_restart_does_not_count() {
    let mut observed = new();
    let before = ["d-0 a/0", "d-1 b/0", "d-2 c/0"]
        .map(str::to_owned)
        .to_vec();
    observed.recorded = recorded("1", true, false);
    observed.recorded.as_mut().unwrap().members = before.clone();
    observed.result = Some(report(result(0)));
    observed.members = Some(before.clone());
    assert_eq!(phase(&plan(&observed)), Some(BenchmarkPhase::Succeeded));
    for (changed, name) in [
        ("d-1 b/1", "d-1"),
        ("d-1 x/0", "d-1"),
        ("d-3 b/0", "d-1, d-3"),
    ] {
        let mut now = before.clone();
        now[1] = changed.to_owned();
        observed.members = Some(now);
        let BenchmarkStep::Finish(ending) = plan(&observed) else {
            panic!("{changed}");
        };
        assert_eq!(ending.phase, BenchmarkPhase::Invalid);
        assert_eq!(ending.reason, reasons::MEMBERS_CHANGED);
        let message = format!("{name} restarted or changed");
        assert!(ending.message.starts_with(&message), "{}", ending.message);
    }
    observed.compares = true;
    assert_eq!(phase(&plan(&observed)), Some(BenchmarkPhase::Invalid));
    observed.result = Some(report(result(1)));
    assert_eq!(
        phase(&plan(&observed)),
        Some(BenchmarkPhase::Failed),
        "worse"
    );
}

#[test]
fn a_refused_job_is_retried_after_a_pause() {
    let mut observed = new();
    observed.recorded = recorded("1", false, false);
    observed.retry_in = Some(7);
    assert_eq!(plan(&observed), BenchmarkStep::BackOff { seconds: 7 });
    observed.retry_in = Some(0);
    assert_eq!(plan(&observed), BenchmarkStep::MakeJob);
}

#[test]
fn only_replace_cancels_the_run_in_progress() {
    let mut observed = new();
    observed.wanted_run = "20260502T0300Z".to_owned();
    observed.recorded = recorded("1", true, false);
    observed.job = job(JobState::Running);
    assert_eq!(plan(&observed), BenchmarkStep::Wait);
    observed.replaces = true;
    let step = plan(&observed);
    assert!(matches!(step, BenchmarkStep::Cancel(_)), "{step:?}");
    assert_eq!(reason(&step), reasons::REPLACED);
    observed.wanted_run = "1".to_owned();
    assert_eq!(
        plan(&observed),
        BenchmarkStep::Wait,
        "it is the one that is due"
    );
}

#[test]
fn a_result_without_a_workload_does_not_succeed() {
    let mut observed = new();
    observed.recorded = recorded("1", true, false);
    observed.result = Some(Report::default());
    assert_eq!(phase(&plan(&observed)), Some(BenchmarkPhase::ResultMissing));
}

#[test]
fn a_started_run_ends_before_the_next_starts() {
    let mut observed = new();
    observed.wanted_run = "2".to_owned();
    observed.recorded = recorded("1", true, false);
    observed.job = job(JobState::Running);
    assert_eq!(plan(&observed), BenchmarkStep::Wait);
    observed.recorded = recorded("1", false, false);
    observed.job = None;
    observed.moved_on = true;
    assert_eq!(
        plan(&observed),
        BenchmarkStep::Record,
        "nothing had been started"
    );
}

#[test]
fn a_cluster_that_is_not_ready_is_not_measured() {
    let mut observed = new();
    observed.target = Target::NotReady("1 of 3 members serve".to_owned());
    assert!(matches!(plan(&observed), BenchmarkStep::Refuse { .. }));
    observed.recorded = recorded("1", false, false);
    assert!(matches!(plan(&observed), BenchmarkStep::Refuse { .. }));
}

#[test]
fn etcd_is_measured_only_after_a_result_that_counts() {
    let mut observed = new();
    observed.compares = true;
    observed.recorded = recorded("1", true, false);
    observed.result = Some(report(result(1)));
    assert_eq!(phase(&plan(&observed)), Some(BenchmarkPhase::Failed));
    observed.result = Some(report(result(0)));
    assert_eq!(plan(&observed), BenchmarkStep::NextLeg);

    let rival = Recorded {
        leg: Leg::Rival,
        job_made: false,
        ..observed.recorded.clone().unwrap()
    };
    observed.recorded = Some(rival.clone());
    assert_eq!(plan(&observed), BenchmarkStep::MakeJob);
    observed.recorded = Some(Recorded {
        job_made: true,
        ..rival
    });
    observed.job = job(JobState::Running);
    assert_eq!(plan(&observed), BenchmarkStep::Wait);
    observed.rival = Some(report(result(0)));
    assert_eq!(phase(&plan(&observed)), Some(BenchmarkPhase::Succeeded));
}

#[test]
fn a_missed_threshold_has_its_own_phase() {
    let mut observed = new();
    observed.recorded = recorded("1", true, false);
    observed.result = Some(report(result(0)));
    observed.thresholds = vec!["opsPerSecond >= 10".parse().unwrap()];
    assert_eq!(phase(&plan(&observed)), Some(BenchmarkPhase::Succeeded));
    observed.thresholds = vec!["opsPerSecond >= 11".parse().unwrap()];
    assert_eq!(
        phase(&plan(&observed)),
        Some(BenchmarkPhase::ThresholdsMissed)
    );
}

#[test]
fn an_expired_resource_is_deleted_after_its_run() {
    let mut observed = new();
    (observed.recorded, observed.expired) = (recorded("1", true, false), true);
    observed.job = job(JobState::Running);
    assert_eq!(plan(&observed), BenchmarkStep::Wait);
    observed.recorded = recorded("1", true, true);
    assert_eq!(plan(&observed), BenchmarkStep::Expire);
}

#[test]
fn a_scheduled_run_waits_without_being_recorded() {
    let mut observed = new();
    observed.wanted_run = "20260502T0300Z".to_owned();
    observed.due = Some(Timestamp::UNIX_EPOCH);
    observed.busy = Some("benchmark other".to_owned());
    observed.recorded = recorded("1", true, true);
    assert_eq!(reason(&plan(&observed)), reasons::TARGET_BUSY);
    observed.recorded = recorded("2", false, false);
    assert_eq!(reason(&plan(&observed)), reasons::TARGET_BUSY);
    observed.busy = None;
    assert_eq!(
        plan(&observed),
        BenchmarkStep::MakeJob,
        "first the one that waits"
    );
    observed.replaces = true;
    assert_eq!(reason(&plan(&observed)), reasons::REPLACED);
    observed.recorded = recorded("1", true, true);
    assert_eq!(plan(&observed), BenchmarkStep::Record);
}

#[test]
fn a_recorded_scheduled_run_does_not_start_late() {
    let mut observed = new();
    observed.recorded = recorded("20260502T0300Z", false, false);
    observed.overdue = true;
    observed.skipped = Some(Skipped {
        runs: 1,
        message: "1 of 3".to_owned(),
    });
    let step = plan(&observed);
    assert_eq!(phase(&step), Some(BenchmarkPhase::Failed));
    assert_eq!(reason(&step), reasons::RUN_SKIPPED);
}
