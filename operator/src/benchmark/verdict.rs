//! How a run ended, from the results of its Jobs. Pure.

use dengine_bench_model::results::{Report, RunResult};
use dengine_crds::benchmark::BenchmarkPhase;
use dengine_crds::reasons::benchmark as reasons;

use super::compare::{self, Row};
use super::plan::Ending;
use super::thresholds::Threshold;

/// A result with failed requests does not count, and neither does one with a change of leader, or
/// one of several pods of which one was late or lost. Only results that count are compared with the
/// thresholds.
pub(super) fn judge(ours: &Report, rival: Option<&Report>, thresholds: &[Threshold]) -> Ending {
    if let Some(ending) = does_not_count(ours, "").or_else(|| does_not_count(rival?, "etcd: ")) {
        return ending;
    }
    let rows = rival
        .map(|rival| compare::rows(ours, rival))
        .unwrap_or_default();
    let missed = missed(ours, &rows, thresholds);
    if !missed.is_empty() {
        return Ending {
            phase: BenchmarkPhase::ThresholdsMissed,
            reason: reasons::THRESHOLDS_MISSED,
            message: missed.join("; "),
        };
    }
    let mut message = summary(ours);
    if !rows.is_empty() {
        message = format!("{message}; {}", against_etcd(&rows));
    }
    Ending {
        phase: BenchmarkPhase::Succeeded,
        reason: reasons::SUCCEEDED,
        message,
    }
}

/// The thresholds that the run missed, and by how much.
pub(super) fn missed(ours: &Report, rows: &[Row], thresholds: &[Threshold]) -> Vec<String> {
    let missed = thresholds
        .iter()
        .flat_map(|threshold| threshold.misses(ours, rows));
    missed.collect()
}

fn does_not_count(report: &Report, whose: &str) -> Option<Ending> {
    if report.results.is_empty() {
        return Some(Ending {
            phase: BenchmarkPhase::ResultMissing,
            reason: reasons::RESULT_MISSING,
            message: format!(
                "{whose}the result has no workload that this version of the operator can read"
            ),
        });
    }
    let counted = || {
        report
            .results
            .iter()
            .filter(|result| result.unsupported.is_none())
    };
    let troubled = |result: &RunResult| result.pods.as_ref()?.trouble.clone();
    // What a lost pod was to send has failed, too.
    if let Some(trouble) = counted().find_map(troubled) {
        return Some(Ending {
            phase: BenchmarkPhase::Invalid,
            reason: reasons::POD_LATE_OR_LOST,
            message: format!("{whose}{trouble}"),
        });
    }
    if let Some(failed) = counted().find(|result| result.errors > 0) {
        return Some(Ending {
            phase: BenchmarkPhase::Failed,
            reason: reasons::REQUESTS_FAILED,
            message: format!("{whose}{}", failure(failed)),
        });
    }
    if let Some(unstable) = counted().find(|result| !result.leader_was_stable()) {
        return Some(Ending {
            phase: BenchmarkPhase::Invalid,
            reason: reasons::LEADER_CHANGED,
            message: format!(
                "{whose}the leader changed during {}, so the result does not count",
                unstable.name
            ),
        });
    }
    None
}

fn failure(result: &RunResult) -> String {
    let first = result.first_error.as_deref().unwrap_or("no details");
    format!(
        "{}: {} of {} requests failed, the first: {first}",
        result.name, result.errors, result.requests
    )
}

fn summary(report: &Report) -> String {
    let of = |result: &RunResult| {
        format!(
            "{}: {:.0} requests per second",
            result.name, result.ops_per_second
        )
    };
    let all: Vec<String> = report.results.iter().map(of).collect();
    all.join(", ")
}

fn against_etcd(rows: &[Row]) -> String {
    let times: Vec<String> = rows
        .iter()
        .map(|row| format!("{} {:.1}x", row.workload, row.times))
        .collect();
    format!(
        "{} against etcd ({})",
        compare::score(rows),
        times.join(", ")
    )
}

/// The workload whose numbers stand for the run where only one fits: the first of those with the
/// most clients.
pub(super) fn headline(report: &Report) -> Option<&RunResult> {
    let most = report
        .results
        .iter()
        .map(|result| result.shape.clients)
        .max()?;
    report
        .results
        .iter()
        .find(|result| result.shape.clients == most)
}

/// How often the leader changed during the run; `None` if the server does not report its term.
pub(super) fn leader_changes(report: &Report) -> Option<u64> {
    let changes = report.results.iter().map(|result| {
        let (before, after) = (result.term_before?, result.term_after?);
        Some(after.saturating_sub(before))
    });
    changes.sum()
}

#[cfg(test)]
mod tests {
    use dengine_bench_model::results::Pods;

    use super::*;
    use crate::benchmark::plan::tests::{report, result};

    #[test]
    fn a_failure_of_either_system_is_a_failure() {
        let (good, bad) = (report(result(0)), report(result(1)));
        assert_eq!(
            judge(&good, Some(&good), &[]).phase,
            BenchmarkPhase::Succeeded
        );
        let ending = judge(&good, Some(&bad), &[]);
        assert_eq!(ending.phase, BenchmarkPhase::Failed);
        assert!(ending.message.starts_with("etcd: "), "{}", ending.message);
    }

    #[test]
    fn a_lost_pod_makes_the_run_invalid_whatever_failed_because_of_it() {
        let mut lost = result(3);
        lost.pods = Some(Pods {
            count: 3,
            loading: 3,
            trouble: Some("pod 2 of 3 was lost: its connection ended".to_owned()),
            ..Pods::default()
        });
        let ending = judge(&report(result(0)), Some(&report(lost.clone())), &[]);
        assert_eq!(ending.phase, BenchmarkPhase::Invalid);
        assert_eq!(ending.reason, reasons::POD_LATE_OR_LOST);
        assert!(
            ending.message.starts_with("etcd: pod 2 of 3 was lost"),
            "{}",
            ending.message
        );
        lost.pods = lost.pods.map(|pods| Pods {
            trouble: None,
            ..pods
        });
        assert_eq!(
            judge(&report(lost), None, &[]).phase,
            BenchmarkPhase::Failed
        );
    }

    #[test]
    fn the_message_says_who_won_by_how_much() {
        let mut fast = result(0);
        fast.ops_per_second = 40.0;
        let ending = judge(&report(fast), Some(&report(result(0))), &[]);
        assert!(
            ending
                .message
                .contains("won 1 of 1 against etcd (put 4.0x)"),
            "{}",
            ending.message
        );
    }

    #[test]
    fn the_busiest_workload_stands_for_the_run() {
        let mut busy = result(0);
        (busy.name, busy.shape.clients) = ("write".to_owned(), 1_000);
        let report = Report {
            results: vec![result(0), busy, result(0)],
            ..Report::default()
        };
        assert_eq!(headline(&report).unwrap().name, "write");
        assert_eq!(leader_changes(&report), Some(0));
    }
}
