//! The status of a benchmark but for `runs`, which belongs to the Jobs. Pure.

use dengine_crds::benchmark::{BenchmarkPhase, Leg, MISSED_MAX};
use dengine_crds::conditions as types;
use dengine_crds::reasons::benchmark as reasons;
use dengine_crds::{DEngineBenchmark, DEngineBenchmarkStatus, names};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::compare::{self, Row};
use super::plan::{Ending, Observed, Step};
use super::verdict;
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
    /// The Job was refused. The run has failed if it is not asked for again.
    JobRefused {
        /// Reason for conditions.
        reason: &'static str,
        /// In words.
        message: String,
        /// Seconds until it is asked for again.
        retry_in: Option<u64>,
    },
}

/// The new status. `runs` is left out: writing it would take it from the Jobs.
pub fn derive(
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
    match outcome {
        Outcome::Taken(step) => take(&mut status, &mut conditions, resource, step, observed, now),
        Outcome::Failed { reason, message } => {
            conditions.set(types::FAILED, State::no(reason, message));
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
                let words = format!("try {tries}: {message}");
                conditions.set(types::FAILED, State::no(reason, &words));
            } else {
                let ending = given_up(reason, message);
                finish(&mut status, &mut conditions, &ending, observed, now);
            }
        }
    }
    status.conditions = conditions.into_vec();
    status
}

/// How a run ends whose Job the API server will not have.
pub fn given_up(reason: &'static str, message: &str) -> Ending {
    Ending {
        phase: BenchmarkPhase::Failed,
        reason,
        message: format!("the Job was refused, and is not asked for again: {message}"),
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
    step: &Step,
    observed: &Observed,
    now: &Time,
) {
    match step {
        Step::Refuse { reason, message } => {
            conditions.set(types::TARGET_READY, State::no(reason, message));
            // The rest of the status speaks of the run that is recorded: were it taken for unfinished, it would end again.
            if observed.recorded.as_ref().is_none_or(|run| !run.is_final) {
                status.phase = Some(BenchmarkPhase::Pending);
                conditions.set(types::COMPLETE, State::no(reason, "waiting for the target"));
            }
        }
        Step::Record => {
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
        Step::NextLeg => {
            let run_id = status.run_id.clone().unwrap_or_default();
            let rival = names::benchmark::rival(&run_id);
            status.leg = Some(Leg::Rival);
            status.job_name = Some(names::benchmark::job(&resource.name_any(), &rival));
            (status.job_uid, status.tries, status.retry_at) = (None, None, None);
        }
        Step::MakeJob => begin_with(status, observed),
        Step::NoteJob { uid } => {
            begin_with(status, observed);
            status.job_uid = Some(uid.clone());
            status.retry_at = None;
            conditions.set(
                types::TARGET_READY,
                State::yes(reasons::TARGET_READY, "the target can be measured"),
            );
            status.started_at.get_or_insert_with(|| now.0.to_string());
            status.phase = Some(BenchmarkPhase::Running);
            let what = runs(status);
            conditions.set(types::COMPLETE, State::no(reasons::RUNNING, &what));
            conditions.set(types::FAILED, State::no(reasons::RUNNING, &what));
        }
        Step::Finish(ending) | Step::Cancel(ending) => {
            finish(status, conditions, ending, observed, now);
        }
        Step::Wait => show_trouble(status, conditions, observed),
        Step::Skip { words } => {
            status.skipped_runs = Some(status.skipped_runs.unwrap_or(0).saturating_add(1));
            conditions.set(types::TARGET_READY, State::no(reasons::RUN_SKIPPED, words));
        }
        Step::BackOff { .. } | Step::SetTtl | Step::Expire | Step::Done => {}
    }
}

/// Once: a crash may repeat the step, and the load begins only once.
fn begin_with(status: &mut DEngineBenchmarkStatus, observed: &Observed) {
    if status.members.is_empty() {
        status.members = observed.members.clone().unwrap_or_default();
    }
}

/// Why the Job's pod does not run, or that it does.
fn show_trouble(status: &DEngineBenchmarkStatus, conditions: &mut Conditions, observed: &Observed) {
    let state = match &observed.trouble {
        Some(trouble) => {
            let words = format!("{} can not run: {trouble}", the_job(status));
            State::no(reasons::JOB_STUCK, &words)
        }
        None => State::no(reasons::RUNNING, &runs(status)),
    };
    conditions.set(types::COMPLETE, state);
}

fn runs(status: &DEngineBenchmarkStatus) -> String {
    format!("{} runs", the_job(status))
}

fn the_job(status: &DEngineBenchmarkStatus) -> &'static str {
    match status.leg {
        Some(Leg::Rival) => "the Job that measures etcd",
        _ => "the Job",
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
            status.missed.truncate(MISSED_MAX);
        }
        status.score = rival.map(|_| compare::score(&rows));
        status.comparison = rows.iter().map(Row::shown).collect();
    }
    status.placement.clone_from(&observed.placement);
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

/// What a run of the spec measures, in a word.
pub fn measures(resource: &DEngineBenchmark) -> String {
    let spec = &resource.spec;
    let workload = spec.workload.map(|workload| workload.as_str().to_owned());
    spec.profile.clone().or(workload).unwrap_or_default()
}

/// A rate as a whole number.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a rate is far below 2^53, and `as` saturates"
)]
pub fn rounded(rate: f64) -> i64 {
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
    use dengine_crds::benchmark::{Report, RunResult};

    use super::*;
    use crate::benchmark::observe::recorded;
    use crate::benchmark::plan::{Target, plan, tests::report, tests::result};
    use crate::benchmark::thresholds::Threshold;

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    fn resource() -> DEngineBenchmark {
        let spec = serde_yaml::from_str("{workload: put, target: {clusterRef: {name: demo}}}");
        DEngineBenchmark::new("b", spec.unwrap())
    }

    fn wanted(run_id: &str) -> Observed {
        Observed {
            wanted_run: run_id.to_owned(),
            ..Observed::default()
        }
    }

    /// One look at a world that is as `observed` says, but for the recorded run, which is read from the status.
    fn look(resource: &mut DEngineBenchmark, observed: &Observed, second: i64) -> Step {
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
    fn a_run_that_can_not_begin_leaves_the_one_that_ended_alone() {
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
            let step = look(&mut resource, &observed, 1);
            assert!(matches!(step, Step::Refuse { .. }), "{step:?}");
            let first = resource.status.clone().unwrap();
            assert_eq!(first.phase, Some(BenchmarkPhase::Succeeded));
            assert_eq!(first.conditions.len(), 1, "only why it can not begin");
            let step = look(&mut resource, &observed, 2);
            assert!(matches!(step, Step::Refuse { .. }), "{step:?}");
            assert_eq!(resource.status, Some(first));
        }
    }

    #[test]
    fn more_is_missed_than_a_status_has_room_for() {
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
        look(&mut resource, &observed, 1);
        let status = resource.status.unwrap();
        assert_eq!(status.phase, Some(BenchmarkPhase::ThresholdsMissed));
        assert_eq!(status.missed.len(), MISSED_MAX);
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
        let status = derive(
            &resource,
            &Outcome::Taken(Step::Record),
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
    fn a_job_that_is_refused_again_and_again_ends_the_run() {
        let mut resource = resource();
        look(&mut resource, &wanted("1"), 1);
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
        assert_eq!(look(&mut resource, &wanted("1"), 7), Step::Done);
        look(&mut resource, &wanted("2"), 8);
        assert_eq!(resource.status.unwrap().tries, None, "another run");
    }

    #[test]
    fn a_phase_of_a_newer_version_ends_nothing_again() {
        let mut resource = resource();
        resource.status = Some(DEngineBenchmarkStatus {
            run_id: Some("1".to_owned()),
            job_uid: Some("u".to_owned()),
            phase: None,
            finished_at: Some("then".to_owned()),
            ..DEngineBenchmarkStatus::default()
        });
        assert_eq!(look(&mut resource, &wanted("1"), 1), Step::Done);
    }

    #[test]
    fn the_members_that_the_load_began_with_are_kept() {
        let mut resource = resource();
        look(&mut resource, &wanted("1"), 1);
        let mut observed = wanted("1");
        observed.members = Some(vec!["d-0 a/0".to_owned()]);
        assert_eq!(look(&mut resource, &observed, 2), Step::MakeJob);
        observed.members = Some(vec!["d-0 b/0".to_owned()]);
        look(&mut resource, &observed, 3);
        assert_eq!(resource.status.unwrap().members, ["d-0 a/0"]);
    }

    #[test]
    fn why_a_jobs_pod_does_not_run_is_said() {
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
                has_ttl: false,
            }),
            trouble: Some("Kubernetes refuses its pod: exceeded quota: small".to_owned()),
            ..wanted("1")
        };
        assert_eq!(look(&mut resource, &observed, 1), Step::Wait);
        let (_, reason, message) = condition(&resource, types::COMPLETE);
        let stuck = "the Job can not run: Kubernetes refuses its pod: exceeded quota: small";
        assert_eq!((&*reason, &*message), (reasons::JOB_STUCK, stuck));
        // When its time is over there is no pod any more that could tell.
        let over = Observed {
            job: Some(crate::benchmark::plan::Job {
                state: crate::benchmark::plan::JobState::Failed("DeadlineExceeded".to_owned()),
                ..observed.job.clone().unwrap()
            }),
            trouble: None,
            was_stuck: crate::benchmark::observe::was_stuck(resource.status.as_ref().unwrap()),
            ..observed
        };
        look(&mut resource, &over, 2);
        let (_, _, message) = condition(&resource, types::FAILED);
        assert_eq!(message, format!("DeadlineExceeded; until then {stuck}"));
    }

    #[test]
    fn a_skipped_run_of_the_schedule_is_counted_once() {
        let mut resource = resource();
        resource.status = Some(DEngineBenchmarkStatus {
            run_id: Some("1".to_owned()),
            phase: Some(BenchmarkPhase::Succeeded),
            ..DEngineBenchmarkStatus::default()
        });
        let observed = Observed {
            skipped: Some("1 of 3".to_owned()),
            ..wanted("1")
        };
        let step = look(&mut resource, &observed, 1);
        assert!(matches!(step, Step::Skip { .. }), "{step:?}");
        assert_eq!(resource.status.as_ref().unwrap().skipped_runs, Some(1));
        let (status, reason, _) = condition(&resource, types::TARGET_READY);
        assert_eq!((&*status, &*reason), ("False", reasons::RUN_SKIPPED));
    }

    #[test]
    fn what_did_not_change_is_not_written() {
        let mut resource = resource();
        let refuse = Step::Refuse {
            reason: "TargetNotReady",
            message: "1 of 3".to_owned(),
        };
        let outcome = Outcome::Taken(refuse);
        resource.status = Some(derive(&resource, &outcome, &wanted("1"), &at(1)));
        let again = derive(&resource, &outcome, &wanted("1"), &at(2));
        assert_eq!(resource.status, Some(again));
    }
}
