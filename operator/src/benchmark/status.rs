//! The status of a benchmark but for `runs`, which belongs to the Jobs. Pure.

use dengine_crds::benchmark::{BenchmarkPhase, RunResult};
use dengine_crds::conditions as types;
use dengine_crds::reasons::benchmark as reasons;
use dengine_crds::{DEngineBenchmark, DEngineBenchmarkStatus, names};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::plan::{Ending, Step};
use crate::conditions::{Conditions, State};

/// What became of a step: the only thing a status can be made from.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It was taken.
    Taken(Step),
    /// It was refused.
    Failed {
        /// Reason for conditions.
        reason: &'static str,
        /// In words.
        message: String,
    },
}

/// The new status. `runs` is left out: writing it would take it from the Jobs.
pub fn derive(
    resource: &DEngineBenchmark,
    outcome: &Outcome,
    result: Option<&RunResult>,
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
    match outcome {
        Outcome::Taken(step) => take(&mut status, &mut conditions, resource, step, result, now),
        Outcome::Failed { reason, message } => {
            conditions.set(types::FAILED, State::no(reason, message));
        }
    }
    status.conditions = conditions.into_vec();
    status
}

fn take(
    status: &mut DEngineBenchmarkStatus,
    conditions: &mut Conditions,
    resource: &DEngineBenchmark,
    step: &Step,
    result: Option<&RunResult>,
    now: &Time,
) {
    match step {
        Step::Refuse { reason, message } => {
            status.phase = Some(BenchmarkPhase::Pending);
            conditions.set(types::TARGET_READY, State::no(reason, message));
            conditions.set(types::COMPLETE, State::no(reason, "waiting for the target"));
        }
        Step::Record => {
            let run_id = resource.spec.run_id.clone();
            *status = DEngineBenchmarkStatus {
                observed_generation: status.observed_generation,
                phase: Some(BenchmarkPhase::Pending),
                job_name: Some(names::benchmark::job(&resource.name_any(), &run_id)),
                run_id: Some(run_id),
                ..DEngineBenchmarkStatus::default()
            };
            conditions.set(
                types::TARGET_READY,
                State::yes(reasons::TARGET_READY, "the target can be measured"),
            );
            conditions.set(
                types::COMPLETE,
                State::no(reasons::STARTING, "the Job is about to be made"),
            );
            conditions.set(
                types::FAILED,
                State::no(reasons::STARTING, "the Job is about to be made"),
            );
        }
        Step::NoteJob { uid } => {
            status.job_uid = Some(uid.clone());
            status.started_at = Some(now.0.to_string());
            status.phase = Some(BenchmarkPhase::Running);
            conditions.set(types::COMPLETE, State::no(reasons::RUNNING, "the Job runs"));
            conditions.set(types::FAILED, State::no(reasons::RUNNING, "the Job runs"));
        }
        Step::Finish(ending) => finish(status, conditions, ending, result, now),
        Step::MakeJob | Step::Wait | Step::SetTtl | Step::Done => {}
    }
}

fn finish(
    status: &mut DEngineBenchmarkStatus,
    conditions: &mut Conditions,
    ending: &Ending,
    result: Option<&RunResult>,
    now: &Time,
) {
    status.phase = Some(ending.phase);
    let finished_at = result
        .map(|result| result.finished_at.clone())
        .filter(|at| !at.is_empty());
    status.finished_at = Some(finished_at.unwrap_or_else(|| now.0.to_string()));
    if let Some(result) = result {
        status.ops_per_second = Some(rounded(result.ops_per_second));
        status.p99 = Some(microseconds(result.latency_us.p99));
        status.durability.clone_from(&result.durability);
    }
    let succeeded = ending.phase == BenchmarkPhase::Succeeded;
    let (complete, failed) = if succeeded {
        (
            State::yes(ending.reason, &ending.message),
            State::no(ending.reason, &ending.message),
        )
    } else {
        (
            State::no(ending.reason, &ending.message),
            State::yes(ending.reason, &ending.message),
        )
    };
    conditions.set(types::COMPLETE, complete);
    conditions.set(types::FAILED, failed);
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a rate is far below 2^53, and `as` saturates"
)]
fn rounded(rate: f64) -> i64 {
    rate.round() as i64
}

/// A latency as people read it.
pub fn microseconds(us: u64) -> String {
    match us {
        0..1_000 => format!("{us}µs"),
        1_000..1_000_000 => format!("{}.{:02}ms", us / 1_000, us % 1_000 / 10),
        _ => format!("{}.{:02}s", us / 1_000_000, us % 1_000_000 / 10_000),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    fn resource() -> DEngineBenchmark {
        let spec = serde_yaml::from_str("{workload: put, target: {clusterRef: {name: demo}}}");
        DEngineBenchmark::new("b", spec.unwrap())
    }

    #[test]
    fn latencies_read_as_people_write_them() {
        assert_eq!(microseconds(812), "812µs");
        assert_eq!(microseconds(1_240), "1.24ms");
        assert_eq!(microseconds(2_310_000), "2.31s");
    }

    #[test]
    fn a_new_run_forgets_the_numbers_of_the_one_before() {
        let mut resource = resource();
        resource.status = Some(DEngineBenchmarkStatus {
            ops_per_second: Some(5),
            run_id: Some("0".to_owned()),
            job_uid: Some("old".to_owned()),
            ..DEngineBenchmarkStatus::default()
        });
        let status = derive(&resource, &Outcome::Taken(Step::Record), None, &at(1));
        assert_eq!(status.run_id.as_deref(), Some("1"));
        assert_eq!((status.ops_per_second, status.job_uid), (None, None));
        assert_eq!(status.phase, Some(BenchmarkPhase::Pending));
    }

    #[test]
    fn what_did_not_change_is_not_written() {
        let mut resource = resource();
        let refuse = Step::Refuse {
            reason: "TargetNotReady",
            message: "1 of 3".to_owned(),
        };
        let outcome = Outcome::Taken(refuse);
        resource.status = Some(derive(&resource, &outcome, None, &at(1)));
        let again = derive(&resource, &outcome, None, &at(2));
        assert_eq!(resource.status, Some(again));
    }
}
