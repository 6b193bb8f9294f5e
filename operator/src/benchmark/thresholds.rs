//! Thresholds that a run has to meet. `[WORKLOAD.]METRIC OPERATOR VALUE`, such as `p99 < 5ms` or
//! `write.timesEtcd >= 4`. One without a workload applies to every workload. Pure.

use std::fmt;
use std::str::FromStr;

use dengine_bench_model::results::{Report, RunResult};

use super::compare::Row;

/// One line of `spec.thresholds`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Threshold {
    workload: Option<String>,
    metric: Metric,
    operator: Operator,
    value: f64,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metric {
    OpsPerSecond,
    Errors,
    TimesEtcd,
    /// In microseconds.
    Latency(Latency),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Latency {
    Avg,
    P50,
    P90,
    P99,
    P999,
    Max,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// An invalid threshold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the threshold {0:?} cannot be read; it must be [WORKLOAD.]METRIC OPERATOR VALUE, such as \
     p99 < 5ms or opsPerSecond >= 10000"
)]
pub(crate) struct NoThreshold(String);

impl FromStr for Threshold {
    type Err = NoThreshold;

    fn from_str(text: &str) -> Result<Self, NoThreshold> {
        parse(text).ok_or_else(|| NoThreshold(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Threshold> {
    let at = text.find(['<', '>'])?;
    let (name, rest) = text.split_at(at);
    let (operator, value) = match rest.as_bytes() {
        [b'<', b'=', ..] => (Operator::LessOrEqual, &rest[2..]),
        [b'>', b'=', ..] => (Operator::GreaterOrEqual, &rest[2..]),
        [b'<', ..] => (Operator::Less, &rest[1..]),
        _ => (Operator::Greater, &rest[1..]),
    };
    let (workload, metric) = match name.trim().rsplit_once('.') {
        Some((workload, metric)) => (Some(workload.to_owned()), metric),
        None => (None, name.trim()),
    };
    let metric = metric_of(metric)?;
    Some(Threshold {
        workload,
        metric,
        operator,
        value: value_of(metric, value.trim())?,
        text: text.to_owned(),
    })
}

fn metric_of(name: &str) -> Option<Metric> {
    Some(match name {
        "opsPerSecond" => Metric::OpsPerSecond,
        "errors" => Metric::Errors,
        "timesEtcd" => Metric::TimesEtcd,
        "avg" => Metric::Latency(Latency::Avg),
        "p50" => Metric::Latency(Latency::P50),
        "p90" => Metric::Latency(Latency::P90),
        "p99" => Metric::Latency(Latency::P99),
        "p999" => Metric::Latency(Latency::P999),
        "max" => Metric::Latency(Latency::Max),
        _ => return None,
    })
}

/// Latencies have a unit; other metrics have none.
fn value_of(metric: Metric, text: &str) -> Option<f64> {
    if !matches!(metric, Metric::Latency(_)) {
        return text.parse().ok();
    }
    let units = [("us", 1.0), ("ms", 1_000.0), ("s", 1_000_000.0)];
    let (number, factor) = units
        .iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    Some(number.trim().parse::<f64>().ok()? * factor)
}

impl Threshold {
    /// Messages for each workload that missed it.
    pub(crate) fn misses(&self, report: &Report, rows: &[Row]) -> Vec<String> {
        let of = self.workload.as_deref();
        let mut judged = 0;
        let mut missed = Vec::new();
        for result in &report.results {
            if of.is_some_and(|name| name != result.name) || result.unsupported.is_some() {
                continue;
            }
            judged += 1;
            match self.measured(result, rows) {
                Some(measured) if self.holds(measured) => {}
                Some(measured) => missed.push(self.message(result, measured)),
                None => missed.push(format!("{}: {} was not measured", self.text, result.name)),
            }
        }
        if judged == 0 {
            missed.push(format!("{}: no such workload was measured", self.text));
        }
        missed
    }

    fn measured(&self, result: &RunResult, rows: &[Row]) -> Option<f64> {
        let latency = &result.latency_us;
        #[expect(
            clippy::cast_precision_loss,
            reason = "counts and latencies are far below 2^53"
        )]
        let whole = |number: u64| number as f64;
        Some(match self.metric {
            Metric::OpsPerSecond => result.ops_per_second,
            Metric::Errors => whole(result.errors),
            Metric::TimesEtcd => rows.iter().find(|row| row.workload == result.name)?.times,
            Metric::Latency(Latency::Avg) => latency.avg,
            Metric::Latency(Latency::P50) => whole(latency.p50),
            Metric::Latency(Latency::P90) => whole(latency.p90),
            Metric::Latency(Latency::P99) => whole(latency.p99),
            Metric::Latency(Latency::P999) => whole(latency.p999),
            Metric::Latency(Latency::Max) => whole(latency.max),
        })
    }

    fn holds(&self, measured: f64) -> bool {
        match self.operator {
            Operator::Less => measured < self.value,
            Operator::LessOrEqual => measured <= self.value,
            Operator::Greater => measured > self.value,
            Operator::GreaterOrEqual => measured >= self.value,
        }
    }

    fn message(&self, result: &RunResult, measured: f64) -> String {
        let measured = match self.metric {
            Metric::OpsPerSecond | Metric::Errors => format!("{measured:.0}"),
            Metric::TimesEtcd => format!("{measured:.2}"),
            Metric::Latency(_) => format!("{:.3}ms", measured / 1_000.0),
        };
        format!("{}: {} had {measured}", self.text, result.name)
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark::plan::tests::result;

    fn missed(threshold: &str) -> Vec<String> {
        let mut write = result(0);
        (write.name, write.ops_per_second) = ("write".to_owned(), 12_000.0);
        write.latency_us.p99 = 4_200;
        let report = Report {
            results: vec![write],
            ..Report::default()
        };
        let rows = [Row {
            workload: "write".to_owned(),
            times: 3.5,
            ..Row::default()
        }];
        threshold
            .parse::<Threshold>()
            .unwrap()
            .misses(&report, &rows)
    }

    #[test]
    fn thresholds_that_are_met_are_not_missed() {
        for reached in [
            "opsPerSecond >= 12000",
            "p99 < 5ms",
            "p99<=4200us",
            "write.timesEtcd > 3",
            "errors <= 0",
        ] {
            assert_eq!(missed(reached), Vec::<String>::new(), "{reached}");
        }
    }

    #[test]
    fn a_missed_threshold_says_by_how_much() {
        assert_eq!(missed("p99 < 4ms"), ["p99 < 4ms: write had 4.200ms"]);
        assert_eq!(missed("timesEtcd >= 4"), ["timesEtcd >= 4: write had 3.50"]);
        assert_eq!(
            missed("read.p99 < 1s"),
            ["read.p99 < 1s: no such workload was measured"]
        );
    }

    #[test]
    fn invalid_thresholds_are_refused() {
        for bad in [
            "",
            "p99",
            "p99 < 5",
            "p98 < 5ms",
            "opsPerSecond > 5ms",
            "p99 = 5ms",
            "< 5",
        ] {
            assert!(bad.parse::<Threshold>().is_err(), "{bad}");
        }
    }
}
