//! Decides the next step of one benchmark. Pure.
//!
//! A run is recorded before its Job is created and, once it ended, never repeated. A run that was
//! started is brought to its end before the next one starts, so that two loads never distort each
//! other's numbers.

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
    /// The spec names it, and there are results of a run with this id.
    pub was_run: bool,
    /// Thresholds of the run.
    pub thresholds: Vec<Threshold>,
    /// It is compared with an etcd, which has a Job of its own after the first.
    pub compares: bool,
    /// Why the spec cannot be carried out.
    pub invalid: Option<String>,
    /// No run may start.
    pub suspended: bool,
    /// The benchmark that loads the same target now.
    pub busy: Option<String>,
    /// The time of the scheduled run that is due; it was not started.
    pub due: Option<Timestamp>,
    /// When the schedule starts another run.
    pub next: Option<Timestamp>,
    /// A scheduled run is due, and may cancel the one before.
    pub replaces: bool,
    /// The recorded run is a scheduled one that was not started and is too late.
    pub overdue: bool,
    /// The recorded run was asked for by an earlier `spec.runId`.
    pub moved_on: bool,
    /// Seconds until the next try of a refused Job.
    pub retry_in: Option<u64>,
    /// The cluster's current members, when they matter.
    pub members: Option<Vec<String>>,
    /// Scheduled runs that did not start in time.
    pub skipped: Option<Skipped>,
    pub trouble: Option<String>,
    /// What became of the first of several pods, if it cannot report any more.
    pub lost: Option<String>,
    /// The same, as the status says it.
    pub was_stuck: Option<String>,
    /// The run ended so long ago that the resource is to be deleted.
    pub expired: bool,
    /// The run that was started last, from the status.
    pub recorded: Option<Recorded>,
    pub target: Target,
    pub job: Option<Job>,
    /// Where the Job's pod ran.
    pub placement: Option<String>,
    /// Results of the recorded run's target.
    pub result: Option<Report>,
    /// Results of the etcd that it is compared with.
    pub rival: Option<Report>,
}

/// Scheduled runs that did not start in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skipped {
    pub runs: u32,
    /// What they waited for.
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub run_id: String,
    /// Which system its Job measures.
    pub leg: Leg,
    pub job_made: bool,
    /// The cluster's members when it started.
    pub members: Vec<String>,
    /// It has ended.
    pub is_final: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Target {
    #[default]
    Ready,
    NotFound(String),
    /// The cluster is not Ready; why.
    NotReady(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub uid: String,
    pub state: JobState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobState {
    /// It runs, or is about to.
    Running,
    Succeeded,
    /// With the reason.
    Failed(String),
}

/// The next step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum BenchmarkStep {
    /// The run cannot start now.
    Refuse {
        reason: &'static str,
        message: String,
    },
    /// Write the wanted run into the status.
    Record,
    /// Record that the etcd is measured next.
    NextLeg,
    /// Create the Job of the recorded run.
    MakeJob,
    /// Record that the Job was created.
    NoteJob {
        uid: String,
    },
    /// Wait for the Job.
    Wait,
    /// The Job was refused, and is tried again after a pause.
    BackOff {
        seconds: u64,
    },
    /// Cancel the recorded run and delete its Job.
    Cancel(Ending),
    /// The recorded run has ended.
    Finish(Ending),
    /// Delete the resource: its TTL has passed.
    Expire,
    Done,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ending {
    pub phase: BenchmarkPhase,
    pub reason: &'static str,
    pub message: String,
}

pub(super) fn plan(observed: &Observed) -> BenchmarkStep {
    match &observed.recorded {
        Some(recorded) if !recorded.is_final => run(observed, recorded),
        Some(recorded) if recorded.run_id == observed.wanted_run => {
            if observed.expired {
                return BenchmarkStep::Expire;
            }
            invalid(observed).unwrap_or(BenchmarkStep::Done)
        }
        _ => begin(observed),
    }
}

/// Results of an earlier run with the same id would be taken for the new one's, whatever its spec
/// says.
fn begin(observed: &Observed) -> BenchmarkStep {
    if observed.was_run {
        return BenchmarkStep::Refuse {
            reason: reasons::INVALID_SPEC,
            message: format!(
                "run {} was already run; choose another runId",
                observed.wanted_run
            ),
        };
    }
    if observed.suspended {
        return suspended(&observed.wanted_run);
    }
    // A scheduled run waits unrecorded: it may be skipped, and then the run before is still the
    // last one.
    let waits = || busy(observed).filter(|_| observed.due.is_some());
    refusal(observed)
        .or_else(waits)
        .unwrap_or(BenchmarkStep::Record)
}

fn suspended(run: &str) -> BenchmarkStep {
    BenchmarkStep::Refuse {
        reason: reasons::SUSPENDED,
        message: format!("spec.suspend is set; run {run} starts once it is unset"),
    }
}

fn invalid(observed: &Observed) -> Option<BenchmarkStep> {
    let message = observed.invalid.clone()?;
    Some(BenchmarkStep::Refuse {
        reason: reasons::INVALID_SPEC,
        message,
    })
}

fn refusal(observed: &Observed) -> Option<BenchmarkStep> {
    if let Some(step) = invalid(observed) {
        return Some(step);
    }
    let (reason, message) = match &observed.target {
        Target::Ready => return None,
        Target::NotFound(name) => (
            reasons::TARGET_NOT_FOUND,
            format!("there is no DEngineCluster {name} in this namespace"),
        ),
        Target::NotReady(message) => (reasons::TARGET_NOT_READY, message.clone()),
    };
    Some(BenchmarkStep::Refuse { reason, message })
}

fn run(observed: &Observed, recorded: &Recorded) -> BenchmarkStep {
    match (recorded.leg, &observed.result, &observed.rival) {
        (Leg::Target, Some(result), _) => {
            let ending = verdict::judge(result, None, &observed.thresholds);
            let ending = under_changed_members(observed, recorded, &ending).unwrap_or(ending);
            // Numbers that do not count are not compared.
            return if observed.compares && counts(ending.phase) {
                BenchmarkStep::NextLeg
            } else {
                BenchmarkStep::Finish(ending)
            };
        }
        (Leg::Rival, Some(result), Some(rival)) => {
            return BenchmarkStep::Finish(verdict::judge(
                result,
                Some(rival),
                &observed.thresholds,
            ));
        }
        (Leg::Target, None, _) | (Leg::Rival, None, _) | (Leg::Rival, _, None) => {}
    }
    if let Some(skipped) = observed.skipped.as_ref().filter(|_| observed.overdue) {
        return ending(
            BenchmarkPhase::Failed,
            reasons::RUN_SKIPPED,
            &skipped.message,
        );
    }
    if observed.replaces && recorded.run_id != observed.wanted_run {
        return BenchmarkStep::Cancel(Ending {
            phase: BenchmarkPhase::Failed,
            reason: reasons::REPLACED,
            message: format!("scheduled run {} replaces it", observed.wanted_run),
        });
    }
    match (&observed.job, recorded.job_made) {
        (Some(job), false) => BenchmarkStep::NoteJob {
            uid: job.uid.clone(),
        },
        (Some(job), true) => match &job.state {
            JobState::Running => BenchmarkStep::Wait,
            JobState::Failed(message) => failed(observed, message),
            JobState::Succeeded => ending(
                BenchmarkPhase::ResultMissing,
                reasons::RESULT_MISSING,
                "the Job succeeded, but its result never arrived",
            ),
        },
        (None, true) => ending(
            BenchmarkPhase::ResultMissing,
            reasons::RESULT_MISSING,
            "the Job was deleted before its result arrived; change runId to run again",
        ),
        // The spec may have changed before the Job was created; then there is nothing to bring to
        // an end.
        (None, false) if observed.moved_on => begin(observed),
        (None, false) if observed.suspended && recorded.leg == Leg::Target => {
            suspended(&recorded.run_id)
        }
        (None, false) => refusal(observed)
            .or_else(|| busy(observed))
            .or_else(|| back_off(observed))
            .unwrap_or(BenchmarkStep::MakeJob),
    }
}

/// The Job failed without a result.
fn failed(observed: &Observed, message: &str) -> BenchmarkStep {
    let stuck = observed.was_stuck.as_ref();
    let cause = stuck.map(|stuck| format!("; before that, {stuck}"));
    let cause = cause.unwrap_or_default();
    match &observed.lost {
        Some(lost) => ending(
            BenchmarkPhase::Invalid,
            reasons::POD_LATE_OR_LOST,
            &format!("{lost} ({message}{cause})"),
        ),
        None => {
            let message = format!("{message}{cause}");
            ending(BenchmarkPhase::Failed, reasons::JOB_FAILED, &message)
        }
    }
}

fn busy(observed: &Observed) -> Option<BenchmarkStep> {
    let other = observed.busy.as_ref()?;
    Some(BenchmarkStep::Refuse {
        reason: reasons::TARGET_BUSY,
        message: format!(
            "waiting for {other}: two runs at once would distort each other's numbers"
        ),
    })
}

fn back_off(observed: &Observed) -> Option<BenchmarkStep> {
    let seconds = observed.retry_in.filter(|seconds| *seconds > 0)?;
    Some(BenchmarkStep::BackOff { seconds })
}

/// If members restarted meanwhile, the numbers include the restart.
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
            "{} restarted or changed during the run, so the result does not count",
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

fn ending(phase: BenchmarkPhase, reason: &'static str, message: &str) -> BenchmarkStep {
    BenchmarkStep::Finish(Ending {
        phase,
        reason,
        message: message.to_owned(),
    })
}

#[cfg(test)]
pub(crate) mod tests;
