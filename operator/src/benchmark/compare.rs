//! Compares two reports of the same workloads: which one won each, and by how much. Pure.

use std::cmp::Ordering;

use dengine_bench_model::results::{Report, RunResult};
use dengine_crds::benchmark::{Comparison, Winner};

/// A smaller difference, relative to the slower one, is a draw: two runs of the same system differ
/// by as much.
const DRAW_WITHIN: f64 = 0.03;

/// One workload that both measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Row {
    pub workload: String,
    /// Throughput of the first, in requests per second.
    pub ours: f64,
    /// Throughput of the other.
    pub theirs: f64,
    /// 99th percentile of the first's latency, in microseconds.
    pub our_p99_us: u64,
    /// That of the other.
    pub their_p99_us: u64,
    /// Throughput of the first divided by that of the other.
    pub times: f64,
    /// CPU time of the tool for one request of the first, in microseconds.
    pub our_tool_us: Option<f64>,
    /// That of the other.
    pub their_tool_us: Option<f64>,
}

/// The workloads that both measured without a failure, in the order of the first.
pub(super) fn rows(ours: &Report, theirs: &Report) -> Vec<Row> {
    let counts = |result: &&RunResult| {
        result.unsupported.is_none() && result.errors == 0 && result.ops_per_second > 0.0
    };
    let both = ours.results.iter().filter(counts).filter_map(|our| {
        let mut others = theirs.results.iter().filter(counts);
        // An operator that is replaced in between may start another tool.
        let is_same = |their: &&RunResult| their.name == our.name && their.shape == our.shape;
        Some((our, others.find(is_same)?))
    });
    both.map(|(our, their)| Row {
        workload: our.name.clone(),
        ours: our.ops_per_second,
        theirs: their.ops_per_second,
        our_p99_us: our.latency_us.p99,
        their_p99_us: their.latency_us.p99,
        times: our.ops_per_second / their.ops_per_second,
        our_tool_us: our.client_cpu_us,
        their_tool_us: their.client_cpu_us,
    })
    .collect()
}

impl Row {
    fn winner(&self) -> Winner {
        if (self.times - 1.0).abs() <= DRAW_WITHIN {
            return Winner::Draw;
        }
        match self.times.partial_cmp(&1.0) {
            Some(Ordering::Greater) => Winner::Dengine,
            Some(Ordering::Less | Ordering::Equal) | None => Winner::Etcd,
        }
    }

    /// The row as the status shows it.
    pub(crate) fn shown(&self) -> Comparison {
        Comparison {
            workload: self.workload.clone(),
            winner: self.winner(),
            times: format!("{:.2}", self.times),
            ops_per_second: super::status::rounded(self.ours),
            etcd_ops_per_second: super::status::rounded(self.theirs),
            p99: super::status::microseconds(self.our_p99_us),
            etcd_p99: super::status::microseconds(self.their_p99_us),
            tool_cpu: self.our_tool_us.map(|us| format!("{us:.1}µs")),
            etcd_tool_cpu: self.their_tool_us.map(|us| format!("{us:.1}µs")),
        }
    }
}

/// Score over all rows, such as `won 5 of 6`.
pub(super) fn score(rows: &[Row]) -> String {
    let won = rows.iter().filter(|row| row.winner() == Winner::Dengine);
    format!("won {} of {}", won.count(), rows.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark::plan::tests::result;

    fn report(results: &[(&str, f64)]) -> Report {
        let results = results.iter().map(|(name, ops)| RunResult {
            name: (*name).to_owned(),
            ops_per_second: *ops,
            ..result(0)
        });
        Report {
            results: results.collect(),
            ..Report::default()
        }
    }

    #[test]
    fn each_row_has_a_winner_and_by_how_much() {
        let ours = report(&[
            ("write", 8_000.0),
            ("read", 990.0),
            ("hot", 500.0),
            ("lease", 1.0),
        ]);
        let theirs = report(&[("hot", 1_000.0), ("read", 1_000.0), ("write", 1_000.0)]);
        let rows = rows(&ours, &theirs);
        let shown: Vec<(String, Winner, String)> = rows
            .iter()
            .map(Row::shown)
            .map(|row| (row.workload, row.winner, row.times))
            .collect();
        let row = |name: &str, winner, times: &str| (name.to_owned(), winner, times.to_owned());
        assert_eq!(
            shown,
            [
                row("write", Winner::Dengine, "8.00"),
                row("read", Winner::Draw, "0.99"),
                row("hot", Winner::Etcd, "0.50"),
            ]
        );
        assert_eq!(score(&rows), "won 1 of 3");
    }

    #[test]
    fn results_of_different_loads_are_not_compared() {
        let ours = report(&[("write", 8_000.0)]);
        let mut theirs = report(&[("write", 1_000.0)]);
        assert_eq!(rows(&ours, &theirs).len(), 1);
        theirs.results[0].shape.at_least_seconds = Some(5.0);
        assert!(rows(&ours, &theirs).is_empty());
    }

    #[test]
    fn unsupported_workloads_are_not_compared() {
        let ours = report(&[("lease-read", 8_000.0)]);
        let mut theirs = report(&[("lease-read", 0.0)]);
        theirs.results[0].unsupported = Some("etcd has no leases for reads".to_owned());
        assert!(rows(&ours, &theirs).is_empty());
    }
}
