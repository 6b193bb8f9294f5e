//! Decides what to do about one benchmark. Pure.
//!
//! A run is recorded before its Job is made and, once final, never repeated. A run that was started
//! is brought to its end before the next begins, so that two loads never spoil each other.

use dengine_crds::benchmark::{BenchmarkPhase, Leg, Report};
use dengine_crds::reasons::benchmark as reasons;

use super::thresholds::Threshold;
use super::verdict;

/// What is known about one benchmark.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The run that the spec, or its schedule, asks for.
    pub wanted_run: String,
    /// The spec names it, and the results of a run of this id are there already.
    pub had_its_turn: bool,
    /// What the run has to reach.
    pub thresholds: Vec<Threshold>,
    /// It is compared with another system, which has a Job of its own after the first.
    pub compares: bool,
    /// The spec can not be carried out; why.
    pub invalid: Option<String>,
    /// No run is to begin.
    pub suspended: bool,
    /// What loads the same target now, in words.
    pub busy: Option<String>,
    /// A run of the schedule is due, and may end the one before.
    pub replaces: bool,
    /// Seconds until a Job that was refused may be asked for again.
    pub retry_in: Option<u64>,
    /// The cluster's members as they are, where that matters now.
    pub members: Option<Vec<String>>,
    /// A run of the schedule was waited for that is not due any more: what it waited for.
    pub skipped: Option<String>,
    /// Why the Job's pod does not run.
    pub trouble: Option<String>,
    /// What the status says about that.
    pub was_stuck: Option<String>,
    /// The run ended so long ago that the resource is to go.
    pub expired: bool,
    /// The run that the status says was started last.
    pub recorded: Option<Recorded>,
    /// Whether what is to be measured can be.
    pub target: Target,
    /// The Job of the recorded run.
    pub job: Option<Job>,
    /// Where the Job's pod ran, in words.
    pub placement: Option<String>,
    /// What the recorded run's Job about the target posted.
    pub result: Option<Report>,
    /// What its Job about the other system posted.
    pub rival: Option<Report>,
}

/// A run in the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Its id.
    pub run_id: String,
    /// Which system its Job measures.
    pub leg: Leg,
    /// The Job was made.
    pub job_made: bool,
    /// The cluster's members when it began.
    pub members: Vec<String>,
    /// It is over.
    pub is_final: bool,
}

/// Whether the target can be measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// It can.
    #[default]
    Ready,
    /// There is no such cluster.
    NotFound(String),
    /// The cluster is not Ready; in its own words.
    NotReady(String),
}

/// The Job of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Kubernetes' identity of it.
    pub uid: String,
    /// How it stands.
    pub state: JobState,
    /// It is set to be cleaned away.
    pub has_ttl: bool,
}

/// How a Job stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobState {
    /// It runs, or is about to.
    Running,
    /// It ended well.
    Succeeded,
    /// It ended badly; in Kubernetes' words.
    Failed(String),
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names of the fields say what they are")]
pub enum Step {
    /// The target can not be measured now.
    Refuse {
        reason: &'static str,
        message: String,
    },
    /// Write the wanted run into the status.
    Record,
    /// Record that the other system is next.
    NextLeg,
    /// Make the Job of the recorded run.
    MakeJob,
    /// Note that the recorded run's Job was made.
    NoteJob { uid: String },
    /// The Job runs.
    Wait,
    /// The Job was refused, and is asked for again after a pause.
    BackOff { seconds: u64 },
    /// The recorded run is ended, and its Job deleted.
    Cancel(Ending),
    /// A run of the schedule was skipped.
    Skip { words: String },
    /// The recorded run is over.
    Finish(Ending),
    /// Let Kubernetes clean the Job away.
    SetTtl,
    /// Delete the resource: its time is over.
    Expire,
    /// Nothing.
    Done,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Ending {
    /// One word.
    pub phase: BenchmarkPhase,
    /// Why.
    pub reason: &'static str,
    /// In words.
    pub message: String,
}

/// The next step for this benchmark.
pub fn plan(observed: &Observed) -> Step {
    match &observed.recorded {
        Some(recorded) if !recorded.is_final => run(observed, recorded),
        Some(recorded) if recorded.run_id == observed.wanted_run => match &observed.job {
            Some(job) if !job.has_ttl => Step::SetTtl,
            _ if observed.expired => Step::Expire,
            _ => skipped(observed).unwrap_or(Step::Done),
        },
        _ => begin(observed),
    }
}

/// What an earlier run of the same id posted would be taken for the new one's result, whatever that one's spec says.
fn begin(observed: &Observed) -> Step {
    if observed.had_its_turn {
        return Step::Refuse {
            reason: reasons::INVALID_SPEC,
            message: format!(
                "run {} had its turn; choose another runId",
                observed.wanted_run
            ),
        };
    }
    if observed.suspended {
        return suspended(&observed.wanted_run);
    }
    refusal(observed).unwrap_or(Step::Record)
}

fn suspended(run: &str) -> Step {
    Step::Refuse {
        reason: reasons::SUSPENDED,
        message: format!("spec.suspend is set: run {run} begins once it is not"),
    }
}

fn skipped(observed: &Observed) -> Option<Step> {
    let words = observed.skipped.clone()?;
    Some(Step::Skip { words })
}

fn refusal(observed: &Observed) -> Option<Step> {
    if let Some(words) = &observed.invalid {
        return Some(Step::Refuse {
            reason: reasons::INVALID_SPEC,
            message: words.clone(),
        });
    }
    let (reason, message) = match &observed.target {
        Target::Ready => return None,
        Target::NotFound(name) => (
            reasons::TARGET_NOT_FOUND,
            format!("there is no DEngineCluster {name} in this namespace"),
        ),
        Target::NotReady(words) => (reasons::TARGET_NOT_READY, words.clone()),
    };
    Some(Step::Refuse { reason, message })
}

fn run(observed: &Observed, recorded: &Recorded) -> Step {
    match (recorded.leg, &observed.result, &observed.rival) {
        (Leg::Target, Some(result), _) => {
            let ending = verdict::judge(result, None, &observed.thresholds);
            let ending = under_changed_members(observed, recorded, &ending).unwrap_or(ending);
            // Numbers that do not count are not compared with anything.
            return if observed.compares && counts(ending.phase) {
                Step::NextLeg
            } else {
                Step::Finish(ending)
            };
        }
        (Leg::Rival, Some(result), Some(rival)) => {
            return Step::Finish(verdict::judge(result, Some(rival), &observed.thresholds));
        }
        _ => {}
    }
    if observed.replaces && recorded.run_id != observed.wanted_run && recorded.job_made {
        return Step::Cancel(Ending {
            phase: BenchmarkPhase::Failed,
            reason: reasons::REPLACED,
            message: format!("run {} of the schedule replaces it", observed.wanted_run),
        });
    }
    match (&observed.job, recorded.job_made) {
        (Some(job), false) => Step::NoteJob {
            uid: job.uid.clone(),
        },
        (Some(job), true) => match &job.state {
            JobState::Running => Step::Wait,
            JobState::Failed(words) => {
                let stuck = observed.was_stuck.as_ref();
                let cause = stuck.map(|stuck| format!("; until then {stuck}"));
                let words = format!("{words}{}", cause.unwrap_or_default());
                ending(BenchmarkPhase::Failed, reasons::JOB_FAILED, &words)
            }
            JobState::Succeeded => ending(
                BenchmarkPhase::ResultMissing,
                reasons::RESULT_MISSING,
                "the Job ended well and its result never arrived",
            ),
        },
        (None, true) => ending(
            BenchmarkPhase::ResultMissing,
            reasons::RESULT_MISSING,
            "the Job is gone and its result never arrived; change runId to run again",
        ),
        // The spec may have moved on before the Job was made; then there is nothing to bring to an end.
        (None, false) if recorded.run_id != observed.wanted_run => begin(observed),
        (None, false) if observed.suspended && recorded.leg == Leg::Target => {
            suspended(&recorded.run_id)
        }
        (None, false) => refusal(observed)
            .or_else(|| busy(observed))
            .or_else(|| back_off(observed))
            .unwrap_or(Step::MakeJob),
    }
}

fn busy(observed: &Observed) -> Option<Step> {
    let words = observed.busy.as_ref()?;
    Some(Step::Refuse {
        reason: reasons::TARGET_BUSY,
        message: format!("waiting for {words}: two loads at once would spoil each other"),
    })
}

fn back_off(observed: &Observed) -> Option<Step> {
    let seconds = observed.retry_in.filter(|seconds| *seconds > 0)?;
    Some(Step::BackOff { seconds })
}

/// Numbers of a cluster whose members restarted meanwhile are those of the restart too.
fn under_changed_members(
    observed: &Observed,
    recorded: &Recorded,
    ending: &Ending,
) -> Option<Ending> {
    let now = observed.members.as_ref()?;
    if recorded.members.is_empty() || !counts(ending.phase) || *now == recorded.members {
        return None;
    }
    let others = |of: &[String], than: &[String]| -> Vec<String> {
        let changed = of.iter().filter(|member| !than.contains(member));
        let name = |member: &String| member.split(' ').next().unwrap_or_default().to_owned();
        changed.map(name).collect()
    };
    let mut changed = others(&recorded.members, now);
    changed.extend(others(now, &recorded.members));
    changed.sort();
    changed.dedup();
    Some(Ending {
        phase: BenchmarkPhase::Invalid,
        reason: reasons::MEMBERS_CHANGED,
        message: format!(
            "{} restarted, came or went during the run, so it measured that too",
            changed.join(", ")
        ),
    })
}

fn counts(phase: BenchmarkPhase) -> bool {
    matches!(
        phase,
        BenchmarkPhase::Succeeded | BenchmarkPhase::ThresholdsMissed
    )
}

fn ending(phase: BenchmarkPhase, reason: &'static str, message: &str) -> Step {
    Step::Finish(Ending {
        phase,
        reason,
        message: message.to_owned(),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use dengine_crds::benchmark::{LatencyUs, Protocol, RunResult, Shape, Workload};

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
                key_size: 8,
                key_folder_size: 0,
                value_size: 8,
                key_space: 0,
                sequential_keys: false,
                read_percent: None,
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
            client_cpu_us: None,
            servers: None,
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
            preload: None,
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
            has_ttl: false,
        })
    }

    fn new() -> Observed {
        Observed {
            wanted_run: "1".to_owned(),
            ..Observed::default()
        }
    }

    fn phase(step: &Step) -> Option<BenchmarkPhase> {
        match step {
            Step::Finish(ending) => Some(ending.phase),
            _ => None,
        }
    }

    #[test]
    fn a_run_is_recorded_then_made_then_noted_then_awaited() {
        let mut observed = new();
        assert_eq!(plan(&observed), Step::Record);
        observed.recorded = recorded("1", false, false);
        assert_eq!(plan(&observed), Step::MakeJob);
        observed.job = job(JobState::Running);
        assert_eq!(
            plan(&observed),
            Step::NoteJob {
                uid: "u".to_owned()
            }
        );
        observed.recorded = recorded("1", true, false);
        assert_eq!(plan(&observed), Step::Wait);
    }

    #[test]
    fn a_finished_run_is_not_repeated_because_its_job_is_gone() {
        let mut observed = new();
        observed.recorded = recorded("1", true, true);
        assert_eq!(plan(&observed), Step::Done);
        observed.wanted_run = "2".to_owned();
        assert_eq!(plan(&observed), Step::Record);
    }

    #[test]
    fn a_run_id_that_had_its_turn_does_not_begin_again() {
        let mut observed = new();
        observed.had_its_turn = true;
        observed.recorded = recorded("1", true, true);
        assert_eq!(plan(&observed), Step::Done, "its result is there");
        observed.recorded = recorded("2", true, true);
        let Step::Refuse { reason, message } = plan(&observed) else {
            panic!("the old numbers would be the new spec's");
        };
        assert_eq!(reason, reasons::INVALID_SPEC);
        assert!(message.contains("run 1 had its turn"), "{message}");
        observed.recorded = recorded("2", false, false);
        assert!(matches!(plan(&observed), Step::Refuse { .. }));
    }

    #[test]
    fn failed_and_missing_results_are_different_ends() {
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

    fn reason(step: &Step) -> &'static str {
        match step {
            Step::Refuse { reason, .. } => reason,
            Step::Finish(ending) | Step::Cancel(ending) => ending.reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_run_waits_for_others_on_its_target_and_is_not_lost_meanwhile() {
        let mut observed = new();
        observed.busy = Some("benchmark other".to_owned());
        assert_eq!(plan(&observed), Step::Record, "so that its turn comes");
        observed.recorded = recorded("1", false, false);
        let waits = plan(&observed);
        assert_eq!(reason(&waits), reasons::TARGET_BUSY);
        let Step::Refuse { message, .. } = waits else {
            unreachable!()
        };
        assert!(message.contains("benchmark other"), "{message}");
        observed.busy = None;
        assert_eq!(plan(&observed), Step::MakeJob);
        observed.busy = Some("benchmark other".to_owned());
        observed.recorded = recorded("1", true, false);
        observed.job = job(JobState::Running);
        assert_eq!(plan(&observed), Step::Wait, "it runs already");
    }

    #[test]
    fn a_suspended_benchmark_begins_nothing_and_ends_what_it_began() {
        let mut observed = new();
        observed.suspended = true;
        assert_eq!(reason(&plan(&observed)), reasons::SUSPENDED);
        observed.recorded = recorded("1", false, false);
        assert_eq!(reason(&plan(&observed)), reasons::SUSPENDED);
        observed.recorded = recorded("1", true, false);
        observed.job = job(JobState::Running);
        assert_eq!(plan(&observed), Step::Wait);
        observed.result = Some(report(result(0)));
        assert_eq!(phase(&plan(&observed)), Some(BenchmarkPhase::Succeeded));
    }

    #[test]
    fn a_run_under_members_that_restarted_does_not_count() {
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
            let Step::Finish(ending) = plan(&observed) else {
                panic!("{changed}");
            };
            assert_eq!(ending.phase, BenchmarkPhase::Invalid);
            assert_eq!(ending.reason, reasons::MEMBERS_CHANGED);
            let words = format!("{name} restarted, came or went");
            assert!(ending.message.starts_with(&words), "{}", ending.message);
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
    fn a_refused_job_is_asked_for_again_after_a_pause() {
        let mut observed = new();
        observed.recorded = recorded("1", false, false);
        observed.retry_in = Some(7);
        assert_eq!(plan(&observed), Step::BackOff { seconds: 7 });
        observed.retry_in = Some(0);
        assert_eq!(plan(&observed), Step::MakeJob);
    }

    #[test]
    fn only_with_replace_does_a_run_end_the_one_before() {
        let mut observed = new();
        observed.wanted_run = "20260502T0300Z".to_owned();
        observed.recorded = recorded("1", true, false);
        observed.job = job(JobState::Running);
        assert_eq!(plan(&observed), Step::Wait);
        observed.replaces = true;
        let step = plan(&observed);
        assert!(matches!(step, Step::Cancel(_)), "{step:?}");
        assert_eq!(reason(&step), reasons::REPLACED);
        observed.wanted_run = "1".to_owned();
        assert_eq!(plan(&observed), Step::Wait, "it is the one that is due");
    }

    #[test]
    fn a_result_without_a_workload_is_no_success() {
        let mut observed = new();
        observed.recorded = recorded("1", true, false);
        observed.result = Some(Report::default());
        assert_eq!(phase(&plan(&observed)), Some(BenchmarkPhase::ResultMissing));
    }

    #[test]
    fn the_job_may_be_cleaned_away_only_after_the_end() {
        let mut observed = new();
        observed.recorded = recorded("1", true, false);
        observed.job = job(JobState::Running);
        assert_eq!(plan(&observed), Step::Wait);
        observed.recorded = recorded("1", true, true);
        assert_eq!(plan(&observed), Step::SetTtl);
    }

    #[test]
    fn a_started_run_ends_before_the_next_begins() {
        let mut observed = new();
        observed.wanted_run = "2".to_owned();
        observed.recorded = recorded("1", true, false);
        observed.job = job(JobState::Running);
        assert_eq!(plan(&observed), Step::Wait);
        observed.recorded = recorded("1", false, false);
        observed.job = None;
        assert_eq!(plan(&observed), Step::Record, "nothing had been started");
    }

    #[test]
    fn a_cluster_that_is_not_ready_is_not_measured() {
        let mut observed = new();
        observed.target = Target::NotReady("1 of 3 members serve".to_owned());
        assert!(matches!(plan(&observed), Step::Refuse { .. }));
        observed.recorded = recorded("1", false, false);
        assert!(matches!(plan(&observed), Step::Refuse { .. }));
    }

    #[test]
    fn the_other_system_is_measured_after_the_target_and_only_if_that_counts() {
        let mut observed = new();
        observed.compares = true;
        observed.recorded = recorded("1", true, false);
        observed.result = Some(report(result(1)));
        assert_eq!(phase(&plan(&observed)), Some(BenchmarkPhase::Failed));
        observed.result = Some(report(result(0)));
        assert_eq!(plan(&observed), Step::NextLeg);

        let rival = Recorded {
            leg: Leg::Rival,
            job_made: false,
            ..observed.recorded.clone().unwrap()
        };
        observed.recorded = Some(rival.clone());
        assert_eq!(plan(&observed), Step::MakeJob);
        observed.recorded = Some(Recorded {
            job_made: true,
            ..rival
        });
        observed.job = job(JobState::Running);
        assert_eq!(plan(&observed), Step::Wait);
        observed.rival = Some(report(result(0)));
        assert_eq!(phase(&plan(&observed)), Some(BenchmarkPhase::Succeeded));
    }

    #[test]
    fn a_missed_threshold_is_an_end_of_its_own() {
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
    fn an_expired_resource_goes_after_its_job_may() {
        let mut observed = new();
        (observed.recorded, observed.expired) = (recorded("1", true, true), true);
        observed.job = job(JobState::Succeeded);
        assert_eq!(plan(&observed), Step::SetTtl);
        observed.job = None;
        assert_eq!(plan(&observed), Step::Expire);
    }
}
