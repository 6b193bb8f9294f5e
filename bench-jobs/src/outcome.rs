//! From what was measured to the result and the verdict on it. Pure.

use std::time::Duration;

use dengine_bench_model::results::{
    LatencyUs, Pods, Preload, Quantile, Repetition, Report, RunResult, ServerUse, Settling, Shape,
    Spread,
};
use hdrhistogram::Histogram;
use jiff::Timestamp;

use crate::load::Measured;
use crate::servers::{ServersSpent, Spent};
use crate::target::{Access, Facts};

/// The schema of the result allows no longer texts.
const ERROR_CHARS_MAX: usize = 1000;
const NAME_CHARS_MAX: usize = 63;
const MEMBERS_MAX: usize = 16;
/// The points of a latency curve, in percent; those that a result has too few requests for are left
/// out.
const PERCENTILES: [f64; 30] = [
    0.0, 1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 75.0, 80.0, 85.0, 90.0, 92.5, 95.0,
    96.0, 97.0, 98.0, 98.5, 99.0, 99.5, 99.7, 99.9, 99.95, 99.97, 99.99, 99.995, 99.999, 100.0,
];

/// Whether a result counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every request succeeded under one leader.
    Succeeded,
    /// The target cannot do it, and nothing was sent. The text says why.
    Unsupported(String),
    /// A request failed, or the run did not come to its end. The text says what and how often.
    Failed(String),
    /// The leader changed meanwhile, or one of several pods was late or lost.
    Invalid(String),
}

impl Verdict {
    /// The exit status that `--help` promises.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        match self {
            Verdict::Succeeded | Verdict::Unsupported(_) => 0,
            Verdict::Failed(_) => 1,
            Verdict::Invalid(_) => 3,
        }
    }

    /// Judges a result by itself alone, so that everyone who has it comes to the same verdict.
    #[must_use]
    pub fn of(result: &RunResult) -> Self {
        if let Some(why) = &result.unsupported {
            return Verdict::Unsupported(why.clone());
        }
        // What a lost pod was to send counts as failed, but was no fault of the target's.
        let trouble = result.pods.as_ref().and_then(|pods| pods.trouble.clone());
        if let Some(trouble) = trouble {
            return Verdict::Invalid(trouble);
        }
        if result.errors > 0 {
            let first = result
                .first_error
                .as_deref()
                .unwrap_or("no reason is known");
            let (errors, requests) = (result.errors, result.requests);
            return Verdict::Failed(if result.requests == result.errors && requests <= 1 {
                first.to_owned()
            } else {
                format!("{errors} of {requests} requests failed; the first: {first}")
            });
        }
        if result.requests < result.shape.total {
            let (requests, total) = (result.requests, result.shape.total);
            return Verdict::Failed(format!("only {requests} of {total} requests were sent"));
        }
        if !result.leader_was_stable() {
            let term = |term: Option<u64>| term.map_or("unknown".to_owned(), |t| t.to_string());
            let (before, after) = (term(result.term_before), term(result.term_after));
            return Verdict::Invalid(format!(
                "the leader changed during the run (term {before} before, {after} after); the \
                 numbers do not count"
            ));
        }
        Verdict::Succeeded
    }

    /// The worst of all workloads' verdicts: a failure, else a change of leaders.
    #[must_use]
    pub fn of_all(report: &Report) -> Self {
        let verdicts = report.results.iter().map(Verdict::of);
        let severity = |verdict: &Verdict| match verdict {
            Verdict::Failed(_) => 2,
            Verdict::Invalid(_) => 1,
            Verdict::Succeeded | Verdict::Unsupported(_) => 0,
        };
        verdicts.max_by_key(severity).unwrap_or(Verdict::Succeeded)
    }
}

/// What is known of a run before and apart from its load.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Name of the workload.
    pub name: String,
    /// The system, and how calls travel to it.
    pub access: Access,
    /// What was asked for.
    pub shape: Shape,
    /// Whether all load goes to the leader.
    pub target_leader: bool,
    /// Seed of keys and values.
    pub seed: u64,
    /// Requests before the first one that counts.
    pub warm_up: u64,
    /// How long they were sent, if a time was asked for.
    pub warm_up_seconds: Option<f64>,
    /// How the key space was filled, once it is.
    pub preload: Option<Preload>,
    /// How long the servers were given to finish what the filling left, if they were.
    pub settling: Option<Settling>,
    /// Node that the load came from.
    pub node: Option<String>,
    /// The pods that it came from, if there were several.
    pub pods: Option<Pods>,
    /// When the first request was wanted.
    pub started_at: Timestamp,
    /// When the last answer was there.
    pub finished_at: Timestamp,
    /// What the target said of itself before the load.
    pub before: Option<Facts>,
    /// The same after it.
    pub after: Option<Facts>,
}

/// The result of a load, and of what it cost as far as that is known.
#[must_use]
pub fn result(frame: &Frame, measured: &Measured, spent: Option<&Spent>) -> RunResult {
    let seconds = measured.elapsed.as_secs_f64();
    let succeeded = measured.latency_us.len();
    let facts = frame.after.as_ref().or(frame.before.as_ref());
    let leader = facts.and_then(|facts| facts.leader.as_ref());
    RunResult {
        name: frame.name.clone(),
        protocol: frame.access.protocol,
        wire: frame.access.wire,
        shape: frame.shape.clone(),
        unsupported: None,
        requests: measured.requests(),
        errors: measured.errors,
        first_error: measured
            .first_error
            .as_deref()
            .map(|error| shortened(error, ERROR_CHARS_MAX)),
        total_seconds: seconds,
        ops_per_second: if seconds > 0.0 {
            succeeded as f64 / seconds
        } else {
            0.0
        },
        latency_us: latency(&measured.latency_us),
        curve: curve(&measured.latency_us),
        spread: None,
        repetitions: Vec::new(),
        client_cpu_us: spent.and_then(|spent| micros_each(spent.client_cpu, succeeded)),
        pods: frame.pods.clone(),
        servers: spent.and_then(|spent| server_use(&spent.servers?, succeeded)),
        log_syncs: None,
        durability: facts.and_then(|facts| facts.durability.clone()),
        engine_version: facts.and_then(|facts| facts.version.clone()),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at: format!("{:.3}", frame.started_at),
        finished_at: format!("{:.3}", frame.finished_at),
        term_before: frame.before.as_ref().map(|facts| facts.term),
        term_after: frame.after.as_ref().map(|facts| facts.term),
        leader: leader.map(|leader| shortened(&leader.name, NAME_CHARS_MAX)),
        members: facts.map(names).unwrap_or_default(),
        target_leader: frame.target_leader,
        seed: frame.seed,
        warm_up: frame.warm_up,
        warm_up_seconds: frame.warm_up_seconds,
        preload: frame.preload,
        settling: frame.settling,
        listing: None,
        node: frame.node.clone(),
    }
}

/// The result of a run that could not measure: one request, which failed.
#[must_use]
pub fn failed(frame: &Frame, reason: &str) -> RunResult {
    let measured = Measured {
        latency_us: crate::load::histogram(),
        errors: 1,
        first_error: Some(reason.to_owned()),
        began: None,
        elapsed: Duration::ZERO,
        revision: 0,
    };
    result(frame, &measured, None)
}

/// The result of a workload that the target cannot do.
#[must_use]
pub fn unsupported(frame: &Frame, why: &str) -> RunResult {
    RunResult {
        requests: 0,
        errors: 0,
        first_error: None,
        unsupported: Some(why.to_owned()),
        ..failed(frame, why)
    }
}

/// Of several results of one workload: one that does not count, if there is any, else the one with
/// the median throughput (of two in the middle, the lower), with the spread of all and each of them
/// in a few numbers. A result that has repetitions itself counts as those.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn of_repetitions(mut results: Vec<RunResult>) -> RunResult {
    assert!(
        !results.is_empty(),
        "each workload is measured at least once"
    );
    let fails = |result: &RunResult| Verdict::of(result) != Verdict::Succeeded;
    if let Some(place) = results.iter().position(fails) {
        return results.swap_remove(place);
    }
    let repetitions: Vec<Repetition> = results.iter().flat_map(repetitions).collect();
    results.sort_by(|a, b| a.ops_per_second.total_cmp(&b.ops_per_second));
    let median = results.swap_remove((results.len() - 1) / 2);
    if repetitions.len() < 2 {
        return median;
    }
    RunResult {
        spread: Some(spread(&repetitions)),
        repetitions,
        ..median
    }
}

fn repetitions(result: &RunResult) -> Vec<Repetition> {
    if result.repetitions.is_empty() {
        vec![Repetition::of(result)]
    } else {
        result.repetitions.clone()
    }
}

fn spread(repetitions: &[Repetition]) -> Spread {
    let rates = || repetitions.iter().map(|one| one.ops_per_second);
    let p99 = || repetitions.iter().map(|one| one.latency_us.p99);
    Spread {
        runs: repetitions.len() as u32,
        ops_per_second_min: rates().fold(f64::INFINITY, f64::min),
        ops_per_second_max: rates().fold(0.0, f64::max),
        p99_us_min: p99().min().unwrap_or(0),
        p99_us_max: p99().max().unwrap_or(0),
    }
}

/// Time for each of so many, in microseconds, to a hundredth.
fn micros_each(time: Duration, requests: u64) -> Option<f64> {
    (requests > 0).then(|| (time.as_secs_f64() * 1e8 / requests as f64).round() / 100.0)
}

fn server_use(spent: &ServersSpent, requests: u64) -> Option<ServerUse> {
    Some(ServerUse {
        processes: spent.processes,
        cpu_us: micros_each(spent.cpu, requests)?,
        resident_bytes_max: spent.resident_bytes_max,
    })
}

fn curve(us: &Histogram<u64>) -> Vec<Quantile> {
    let requests = us.len() as f64;
    let known = |percentile: &f64| *percentile == 100.0 || requests * (100.0 - percentile) > 99.99;
    let point = |percentile| Quantile {
        percentile,
        us: us.value_at_quantile(percentile / 100.0),
    };
    if us.is_empty() {
        return Vec::new();
    }
    PERCENTILES.into_iter().filter(known).map(point).collect()
}

fn latency(us: &Histogram<u64>) -> LatencyUs {
    if us.is_empty() {
        return LatencyUs::default();
    }
    LatencyUs {
        avg: (us.mean() * 10.0).round() / 10.0,
        min: us.min(),
        max: us.max(),
        p50: us.value_at_quantile(0.5),
        p90: us.value_at_quantile(0.9),
        p99: us.value_at_quantile(0.99),
        p999: us.value_at_quantile(0.999),
    }
}

fn names(facts: &Facts) -> Vec<String> {
    let members = facts.members.iter().take(MEMBERS_MAX);
    members
        .map(|name| shortened(name, NAME_CHARS_MAX))
        .collect()
}

/// As much of a text as a result has room for.
#[must_use]
pub fn in_words(text: &str) -> String {
    shortened(text, ERROR_CHARS_MAX)
}

fn shortened(text: &str, chars_max: usize) -> String {
    text.chars().take(chars_max).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use dengine_bench_model::results::{Protocol, ReadConsistency, Wire, Workload};

    use super::*;
    use crate::target::Leader;

    pub(crate) fn facts(term: u64) -> Facts {
        let leader = Leader {
            name: "demo-1".to_owned(),
            address: "demo-1:4100".to_owned(),
        };
        Facts {
            version: Some("0.1.0".to_owned()),
            durability: Some("fsync".to_owned()),
            term,
            leader: Some(leader),
            followers: ["demo-0:4100", "demo-2:4100"].map(str::to_owned).to_vec(),
            members: ["demo-0", "demo-1", "demo-2"].map(str::to_owned).to_vec(),
        }
    }

    pub(crate) fn frame() -> Frame {
        Frame {
            name: "range-l".to_owned(),
            access: Access {
                protocol: Protocol::Dengine,
                wire: Some(Wire::Pipelined),
            },
            shape: Shape {
                workload: Workload::Range,
                consistency: Some(ReadConsistency::Linearizable),
                connections: 10,
                clients: 100,
                total: 1000,
                at_least_seconds: None,
                key_size: 8,
                key_folder_size: 0,
                value_size: 256,
                key_space: 0,
                sequential_keys: false,
                read_percent: None,
                watchers: None,
                listers: None,
                scan_keys: None,
                rate: None,
            },
            target_leader: false,
            seed: 1,
            warm_up: 100,
            warm_up_seconds: None,
            preload: None,
            settling: None,
            node: None,
            pods: None,
            started_at: "2026-01-01T00:00:00Z".parse().unwrap(),
            finished_at: "2026-01-01T00:00:02Z".parse().unwrap(),
            before: Some(facts(2)),
            after: Some(facts(2)),
        }
    }

    pub(crate) fn measured(errors: u64) -> Measured {
        let latency_us = histogram_of(1..=1000 - errors);
        let first_error = (errors > 0).then(|| "unavailable: no leader".to_owned());
        let elapsed = Duration::from_secs(2);
        Measured {
            latency_us,
            errors,
            first_error,
            began: None,
            elapsed,
            revision: 7,
        }
    }

    pub(crate) fn report() -> Report {
        Report {
            system: Some("DEngine".to_owned()),
            profile: Some("standard".to_owned()),
            command: vec!["dengine-bench".to_owned(), "run".to_owned()],
            results: vec![result(&frame(), &measured(0), None)],
            ..Report::default()
        }
    }

    fn histogram_of(values: impl Iterator<Item = u64>) -> Histogram<u64> {
        let mut histogram = crate::load::histogram();
        for value in values {
            histogram.record(value).unwrap();
        }
        histogram
    }

    #[test]
    fn numbers_come_from_the_histogram_and_the_clock() {
        let result = result(&frame(), &measured(0), None);
        assert_eq!((result.requests, result.errors), (1000, 0));
        assert!((result.ops_per_second - 500.0).abs() < 1e-9);
        let latency = result.latency_us;
        assert_eq!((latency.min, latency.p50, latency.p90), (1, 500, 900));
        assert_eq!((latency.p99, latency.p999, latency.max), (990, 999, 1000));
        assert_eq!(result.leader.as_deref(), Some("demo-1"));
        assert_eq!(result.members, ["demo-0", "demo-1", "demo-2"]);
        assert_eq!(result.finished_at, "2026-01-01T00:00:02.000Z");
        assert_eq!(Verdict::of(&result), Verdict::Succeeded);
    }

    #[test]
    fn a_single_failed_request_fails_the_run() {
        let result = result(&frame(), &measured(1), None);
        assert_eq!((result.requests, result.errors), (1000, 1));
        let verdict = Verdict::of(&result);
        let text = "1 of 1000 requests failed; the first: unavailable: no leader";
        assert_eq!(verdict, Verdict::Failed(text.to_owned()));
        assert_eq!(verdict.exit_status(), 1);
    }

    #[test]
    fn another_leader_makes_the_run_invalid_unless_it_failed_anyway() {
        let moved = Frame {
            after: Some(facts(3)),
            ..frame()
        };
        let verdict = Verdict::of(&result(&moved, &measured(0), None));
        assert!(matches!(verdict, Verdict::Invalid(_)), "{verdict:?}");
        assert_eq!(verdict.exit_status(), 3);
        assert_eq!(
            Verdict::of(&result(&moved, &measured(2), None)).exit_status(),
            1
        );
        let silent = Frame {
            after: None,
            ..frame()
        };
        assert_eq!(
            Verdict::of(&result(&silent, &measured(0), None)).exit_status(),
            3
        );
    }

    #[test]
    fn a_run_that_never_began_is_a_failed_result_with_its_reason() {
        let frame = Frame {
            before: None,
            after: None,
            ..frame()
        };
        let result = failed(&frame, &"x".repeat(5000));
        assert_eq!((result.requests, result.errors), (1, 1));
        assert_eq!(
            result.first_error.as_ref().map(String::len),
            Some(ERROR_CHARS_MAX)
        );
        assert_eq!(Verdict::of(&result).exit_status(), 1);
    }

    #[test]
    fn what_was_spent_is_told_for_each_request() {
        let servers = Some(ServersSpent {
            processes: 3,
            cpu: Duration::from_millis(30),
            resident_bytes_max: 7,
        });
        let client_cpu = Duration::from_millis(10);
        let spent = Spent {
            client_cpu,
            servers,
        };
        let result = result(&frame(), &measured(0), Some(&spent));
        assert_eq!(result.client_cpu_us, Some(10.0));
        assert_eq!(result.servers.map(|servers| servers.cpu_us), Some(30.0));
    }

    #[test]
    fn a_curve_ascends_and_ends_where_requests_are_too_few() {
        let curve = result(&frame(), &measured(0), None).curve;
        assert!(curve.is_sorted_by_key(|point| point.us));
        assert_eq!(
            curve.last().map(|point| (point.percentile, point.us)),
            Some((100.0, 1000))
        );
        let shown: Vec<_> = curve.iter().map(|point| point.percentile).collect();
        assert!(
            shown.contains(&99.9) && !shown.contains(&99.95),
            "{shown:?}"
        );
    }

    #[test]
    fn the_median_of_repetitions_counts_and_the_spread_is_told() {
        let of = |ops_per_second| RunResult {
            ops_per_second,
            ..result(&frame(), &measured(0), None)
        };
        let median = of_repetitions(vec![of(30.0), of(10.0), of(20.0)]);
        assert!((median.ops_per_second - 20.0).abs() < 1e-9);
        let spread = median.spread.unwrap();
        assert_eq!(
            (
                spread.runs,
                spread.ops_per_second_min,
                spread.ops_per_second_max
            ),
            (3, 10.0, 30.0)
        );
        let rates: Vec<_> = median
            .repetitions
            .iter()
            .map(|one| one.ops_per_second)
            .collect();
        assert_eq!(rates, [30.0, 10.0, 20.0], "each, in their order");
        let alone = of_repetitions(vec![of(5.0)]);
        assert_eq!((alone.spread, alone.repetitions.len()), (None, 0));
        let twice = of_repetitions(vec![median, of(5.0)]);
        assert_eq!(
            twice
                .spread
                .map(|spread| (spread.runs, spread.ops_per_second_min)),
            Some((4, 5.0))
        );
        assert_eq!(twice.repetitions.len(), 4);
        let failed = result(&frame(), &measured(1), None);
        assert_eq!(of_repetitions(vec![of(5.0), failed]).errors, 1);
    }

    #[test]
    fn what_the_target_cannot_do_is_neither_a_failure_nor_a_number() {
        let result = unsupported(&frame(), "etcd has no lease reads");
        assert_eq!((result.requests, result.errors), (0, 0));
        assert_eq!(Verdict::of(&result).exit_status(), 0);
        assert!(matches!(Verdict::of(&result), Verdict::Unsupported(_)));
    }

    #[test]
    fn the_worst_workload_decides() {
        let mut report = report();
        assert_eq!(Verdict::of_all(&report), Verdict::Succeeded);
        let moved = Frame {
            after: Some(facts(3)),
            ..frame()
        };
        report.results.push(result(&moved, &measured(0), None));
        assert_eq!(Verdict::of_all(&report).exit_status(), 3);
        report
            .results
            .insert(0, result(&frame(), &measured(1), None));
        assert_eq!(Verdict::of_all(&report).exit_status(), 1);
    }

    #[test]
    fn the_result_survives_its_json() {
        let result = result(&frame(), &measured(3), None);
        let json = serde_json::to_string_pretty(&result).unwrap();
        assert_eq!(serde_json::from_str::<RunResult>(&json).unwrap(), result);
        assert!(json.contains("\"opsPerSecond\": 498.5"), "{json}");
        assert!(json.contains("\"latencyUs\""), "{json}");
    }
}
