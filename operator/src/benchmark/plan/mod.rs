//! Decides what to do about one benchmark. Pure.
//!
//! A run is recorded before its Job is made and, once final, never repeated. A run that was started
//! is brought to its end before the next begins, so that two loads never spoil each other.

use dengine_bench_model::results::Report;
use dengine_crds::benchmark::{BenchmarkPhase, Leg};
use dengine_crds::reasons::benchmark as reasons;
use k8s_openapi::jiff::Timestamp;

use super::thresholds::Threshold;
use super::verdict;

/// What is known about one benchmark.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
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
    /// The moment of the schedule whose run that is; it has not begun.
    pub due: Option<Timestamp>,
    /// When the schedule asks for another run.
    pub next: Option<Timestamp>,
    /// A run of the schedule is due, and may end the one before.
    pub replaces: bool,
    /// The recorded run is one of the schedule that has not begun, and that may not any more.
    pub overdue: bool,
    /// The recorded run is one that the spec asked for, and does not any more.
    pub moved_on: bool,
    /// Seconds until a Job that was refused may be asked for again.
    pub retry_in: Option<u64>,
    /// The cluster's members as they are, where that matters now.
    pub members: Option<Vec<String>>,
    /// Runs of the schedule that did not begin in time.
    pub skipped: Option<Skipped>,
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

/// Runs of the schedule that did not begin, and do not any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skipped {
    /// How many.
    pub runs: u32,
    /// What they waited for.
    pub words: String,
}

/// A run in the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
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
pub(crate) enum Target {
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
pub(crate) struct Job {
    /// Kubernetes' identity of it.
    pub uid: String,
    /// How it stands.
    pub state: JobState,
}

/// How a Job stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobState {
    /// It runs, or is about to.
    Running,
    /// It ended well.
    Succeeded,
    /// It ended badly; in Kubernetes' words.
    Failed(String),
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
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
    /// The recorded run is over.
    Finish(Ending),
    /// Delete the resource: its time is over.
    Expire,
    /// Nothing.
    Done,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ending {
    /// One word.
    pub phase: BenchmarkPhase,
    /// Why.
    pub reason: &'static str,
    /// In words.
    pub message: String,
}

/// The next step for this benchmark.
pub(super) fn plan(observed: &Observed) -> Step {
    match &observed.recorded {
        Some(recorded) if !recorded.is_final => run(observed, recorded),
        Some(recorded) if recorded.run_id == observed.wanted_run => {
            if observed.expired {
                return Step::Expire;
            }
            invalid(observed).unwrap_or(Step::Done)
        }
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
    // One of the schedule waits unrecorded, for it may be skipped, and then the run before is still the last one.
    let waits = || busy(observed).filter(|_| observed.due.is_some());
    refusal(observed).or_else(waits).unwrap_or(Step::Record)
}

fn suspended(run: &str) -> Step {
    Step::Refuse {
        reason: reasons::SUSPENDED,
        message: format!("spec.suspend is set: run {run} begins once it is not"),
    }
}

fn invalid(observed: &Observed) -> Option<Step> {
    let message = observed.invalid.clone()?;
    Some(Step::Refuse {
        reason: reasons::INVALID_SPEC,
        message,
    })
}

fn refusal(observed: &Observed) -> Option<Step> {
    if let Some(step) = invalid(observed) {
        return Some(step);
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
        (Leg::Target, None, _) | (Leg::Rival, None, _) | (Leg::Rival, _, None) => {}
    }
    if let Some(skipped) = observed.skipped.as_ref().filter(|_| observed.overdue) {
        return ending(BenchmarkPhase::Failed, reasons::RUN_SKIPPED, &skipped.words);
    }
    if observed.replaces && recorded.run_id != observed.wanted_run {
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
        (None, false) if observed.moved_on => begin(observed),
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
pub(crate) mod tests;
