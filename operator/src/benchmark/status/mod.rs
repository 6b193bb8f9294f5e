//! The status of a benchmark but for `runs`, which belongs to the Jobs. Pure.

use dengine_crds::benchmark::{BenchmarkPhase, Leg};
use dengine_crds::reasons::benchmark as reasons;
use dengine_crds::{DEngineBenchmark, DEngineBenchmarkStatus, conditions as types, names};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::compare::{self, Row};
use super::plan::{BenchmarkStep, Ending, Observed, Target};
use super::{schedule, verdict};
use crate::conditions::{ConditionState, Conditions};
use crate::limits::within_limits;

/// Outcome of a step: the only thing a status can be made from.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Taken(BenchmarkStep),
    Failed {
        reason: &'static str,
        message: String,
    },
    /// The Job was refused. Without another try the run has failed.
    JobRefused {
        reason: &'static str,
        message: String,
        /// Seconds until the next try.
        retry_in: Option<u64>,
    },
}

/// The new status. `runs` is left out: writing it would take it from the Jobs.
pub(crate) fn derive(
    resource: &DEngineBenchmark,
    outcome: &Outcome,
    observed: &Observed,
    now: &Time,
) -> DEngineBenchmarkStatus {
    let previous = resource.status.clone().unwrap_or_default();
    let generation = resource.metadata.generation;
    let mut conditions = Conditions::new(&previous.conditions, generation, now.clone());
    let mut status = DEngineBenchmarkStatus {
        observed_generation: generation,
        runs: Default::default(),
        conditions: Vec::new(),
        ..previous
    };
    if let Some(skipped) = &observed.skipped {
        let before = status.skipped_runs.unwrap_or(0);
        status.skipped_runs = Some(before.saturating_add(skipped.runs));
        // The step may set the same condition after it.
        let state = ConditionState::no(reasons::RUN_SKIPPED, &skipped.message);
        conditions.set(types::TARGET_READY, state);
    }
    // It may appear or end after the run has ended, when the conditions no longer change.
    status.left_over = left_over(observed);
    match outcome {
        Outcome::Taken(step) => take(&mut status, &mut conditions, resource, step, observed, now),
        Outcome::Failed { reason, message } => {
            conditions.set(types::FAILED, ConditionState::no(reason, message));
        }
        Outcome::JobRefused {
            reason,
            message,
            retry_in,
        } => {
            let tries = status.tries.unwrap_or(0) + 1;
            status.tries = Some(tries);
            status.retry_at = retry_in.and_then(|seconds| later(now, seconds));
            if retry_in.is_some() {
                let message = format!("try {tries}: {message}");
                conditions.set(types::FAILED, ConditionState::no(reason, &message));
            } else {
                let ending = given_up(reason, message);
                finish(&mut status, &mut conditions, &ending, observed, now);
            }
        }
    }
    status.next_run_at = awaited(&status, observed).map(|moment| moment.to_string());
    conditions.keep_only(&types::OF_BENCHMARK);
    status.conditions = conditions.into_vec();
    within_limits(status)
}

/// Keys that the recorded run's Jobs could not delete.
fn left_over(observed: &Observed) -> Option<String> {
    let reports = [&observed.result, &observed.rival];
    let told = reports.into_iter().flatten();
    let all: Vec<&str> = told.filter_map(|one| one.left_over.as_deref()).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// The next time of the schedule; the one that is due, until its run is recorded.
fn awaited(status: &DEngineBenchmarkStatus, observed: &Observed) -> Option<Timestamp> {
    let waits = |due: &Timestamp| status.run_id != Some(schedule::run_id(*due));
    observed.due.filter(waits).or(observed.next)
}

/// How a run ends whose Job the API server refused each time.
pub(crate) fn given_up(reason: &'static str, message: &str) -> Ending {
    Ending {
        phase: BenchmarkPhase::Failed,
        reason,
        message: format!("the Job was refused and is not retried: {message}"),
    }
}

fn later(now: &Time, seconds: u64) -> Option<String> {
    let seconds = i64::try_from(seconds).ok()?;
    let at = Timestamp::from_second(now.0.as_second() + seconds).ok()?;
    Some(at.to_string())
}

fn take(
    status: &mut DEngineBenchmarkStatus,
    conditions: &mut Conditions,
    resource: &DEngineBenchmark,
    step: &BenchmarkStep,
    observed: &Observed,
    now: &Time,
) {
    match step {
        BenchmarkStep::Refuse { reason, message } => {
            conditions.set(types::TARGET_READY, ConditionState::no(reason, message));
            // The rest of the status is about the recorded run: if that counted as not ended, it
            // would end again.
            if observed.recorded.as_ref().is_none_or(|run| !run.is_final) {
                status.phase = Some(BenchmarkPhase::Pending);
                conditions.set(
                    types::COMPLETE,
                    ConditionState::no(reason, "waiting for the target"),
                );
            }
        }
        BenchmarkStep::Record => record(status, conditions, resource, observed),
        BenchmarkStep::NextLeg => {
            let run_id = status.run_id.clone().unwrap_or_default();
            let rival = names::benchmark::rival(&run_id);
            status.leg = Some(Leg::Rival);
            status.job_name = Some(names::benchmark::job(&resource.name_any(), &rival));
            (status.job_uid, status.tries, status.retry_at) = (None, None, None);
        }
        BenchmarkStep::MakeJob => begin_with(status, observed),
        BenchmarkStep::NoteJob { uid } => {
            begin_with(status, observed);
            status.job_uid = Some(uid.clone());
            status.retry_at = None;
            conditions.set(types::TARGET_READY, target_is_ready());
            status.started_at.get_or_insert_with(|| now.0.to_string());
            status.phase = Some(BenchmarkPhase::Running);
            let what = runs(status);
            conditions.set(types::COMPLETE, ConditionState::no(reasons::RUNNING, &what));
            conditions.set(types::FAILED, ConditionState::no(reasons::RUNNING, &what));
        }
        BenchmarkStep::Finish(ending) | BenchmarkStep::Cancel(ending) => {
            finish(status, conditions, ending, observed, now);
        }
        BenchmarkStep::Wait => show_trouble(status, conditions, observed),
        BenchmarkStep::Done => end_of_waiting(conditions, observed),
        BenchmarkStep::BackOff { .. } | BenchmarkStep::Expire => {}
    }
}

/// The status of a run that is about to start. Nothing is left in it of the run before.
fn record(
    status: &mut DEngineBenchmarkStatus,
    conditions: &mut Conditions,
    resource: &DEngineBenchmark,
    observed: &Observed,
) {
    let run_id = observed.wanted_run.clone();
    let of_spec = run_id == resource.spec.run_id;
    *status = DEngineBenchmarkStatus {
        spec_run_id: if of_spec {
            Some(run_id.clone())
        } else {
            status.spec_run_id.take()
        },
        observed_generation: status.observed_generation,
        phase: Some(BenchmarkPhase::Pending),
        measures: Some(measures(resource)),
        leg: Some(Leg::Target),
        job_name: Some(names::benchmark::job(&resource.name_any(), &run_id)),
        run_id: Some(run_id),
        skipped_runs: status.skipped_runs,
        ..DEngineBenchmarkStatus::default()
    };
    conditions.set(types::TARGET_READY, target_is_ready());
    let starting = || ConditionState::no(reasons::STARTING, "the Job is about to be created");
    conditions.set(types::COMPLETE, starting());
    conditions.set(types::FAILED, starting());
}

/// The edit that a run waited for was reverted. That a run was skipped stays true.
fn end_of_waiting(conditions: &mut Conditions, observed: &Observed) {
    let said = conditions.get(types::TARGET_READY);
    if said.is_none_or(|said| said.status != "False" || said.reason == reasons::RUN_SKIPPED) {
        return;
    }
    conditions.keep_only(&[types::COMPLETE, types::FAILED]);
    if observed.target == Target::Ready {
        conditions.set(types::TARGET_READY, target_is_ready());
    }
}

fn target_is_ready() -> ConditionState {
    ConditionState::yes(reasons::TARGET_READY, "the target can be measured")
}

/// Once: a crash may repeat the step, but the load starts only once.
fn begin_with(status: &mut DEngineBenchmarkStatus, observed: &Observed) {
    if status.members.is_empty() {
        status.members = observed.members.clone().unwrap_or_default();
    }
}

/// Sets why the Job's pod does not run, or that it does.
fn show_trouble(status: &DEngineBenchmarkStatus, conditions: &mut Conditions, observed: &Observed) {
    let state = match &observed.trouble {
        Some(trouble) => {
            let message = format!("{} cannot run: {trouble}", the_job(status));
            ConditionState::no(reasons::JOB_STUCK, &message)
        }
        None => ConditionState::no(reasons::RUNNING, &runs(status)),
    };
    conditions.set(types::COMPLETE, state);
}

fn runs(status: &DEngineBenchmarkStatus) -> String {
    format!("{} is running", the_job(status))
}

fn the_job(status: &DEngineBenchmarkStatus) -> &'static str {
    match status.leg {
        Some(Leg::Rival) => "the Job that measures etcd",
        Some(Leg::Target) | None => "the Job",
    }
}

fn finish(
    status: &mut DEngineBenchmarkStatus,
    conditions: &mut Conditions,
    ending: &Ending,
    observed: &Observed,
    now: &Time,
) {
    status.phase = Some(ending.phase);
    status.finished_at = Some(now.0.to_string());
    if let Some(report) = &observed.result {
        let headline = verdict::headline(report);
        status.ops_per_second = headline.map(|result| rounded(result.ops_per_second));
        status.p99 = headline.map(|result| microseconds(result.latency_us.p99));
        status.durability = headline.and_then(|result| result.durability.clone());
        status.leader_changes = verdict::leader_changes(report);
        let rival = observed.rival.as_ref();
        let rows = rival
            .map(|rival| compare::rows(report, rival))
            .unwrap_or_default();
        if ending.phase == BenchmarkPhase::ThresholdsMissed {
            status.missed = verdict::missed(report, &rows, &observed.thresholds);
        }
        status.score = rival.map(|_| compare::score(&rows));
        status.comparison = rows.iter().map(Row::shown).collect();
    }
    status.placement.clone_from(&observed.placement);
    let (yes, no) = (
        ConditionState::yes(ending.reason, &ending.message),
        ConditionState::no(ending.reason, &ending.message),
    );
    let (complete, failed) = match ending.phase {
        BenchmarkPhase::Succeeded => (yes, no),
        BenchmarkPhase::Pending
        | BenchmarkPhase::Running
        | BenchmarkPhase::Failed
        | BenchmarkPhase::ResultMissing
        | BenchmarkPhase::ThresholdsMissed
        | BenchmarkPhase::Invalid => (no, yes),
    };
    conditions.set(types::COMPLETE, complete);
    conditions.set(types::FAILED, failed);
}

/// What a run measures: the profile or workload.
pub(crate) fn measures(resource: &DEngineBenchmark) -> String {
    let spec = &resource.spec;
    let workload = spec.workload.map(|workload| workload.as_str().to_owned());
    spec.profile.clone().or(workload).unwrap_or_default()
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a rate is far below 2^53, and `as` saturates"
)]
pub(crate) fn rounded(rate: f64) -> i64 {
    rate.round() as i64
}

/// A latency for people.
pub(crate) fn microseconds(us: u64) -> String {
    match us {
        0..1_000 => format!("{us}µs"),
        1_000..1_000_000 => format!("{}.{:02}ms", us / 1_000, us % 1_000 / 10),
        _ => format!("{}.{:02}s", us / 1_000_000, us % 1_000_000 / 10_000),
    }
}

#[cfg(test)]
mod tests;
