//! The numbers that are compared, and how a ratio of two of them reads.

use dengine_bench_model::profiles::{self, NamedWorkload};
use dengine_bench_model::results::{Protocol, RunResult};

use super::{Named, Row};

/// A number of a result.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Heading, with the unit.
    pub name: &'static str,
    /// More of it is better.
    pub more_is_better: bool,
    /// Where it stands.
    pub of: fn(&RunResult) -> Option<f64>,
    /// How many times better than etcd it is meant to be.
    goal: fn(&NamedWorkload) -> Option<f64>,
}

/// Successful requests per second.
pub const THROUGHPUT: Column = Column {
    name: "Throughput, requests/s",
    more_is_better: true,
    of: |result| Some(result.ops_per_second),
    goal: |workload| workload.goal,
};
/// 99th percentile of the latency.
pub const P99: Column = Column {
    name: "Latency p99, µs",
    more_is_better: false,
    of: |result| Some(result.latency_us.p99 as f64),
    goal: |_| None,
};
/// CPU time of all servers together.
pub const SERVER_CPU: Column = Column {
    name: "CPU of all servers, µs per request",
    more_is_better: false,
    of: |result| Some(result.servers?.cpu_us),
    goal: |workload| workload.goal.map(|_| profiles::SERVER_CPU_GOAL),
};
/// Memory of the largest server.
pub const MEMORY: Column = Column {
    name: "Memory of a server under load, MB",
    more_is_better: false,
    of: |result| Some(result.servers?.resident_bytes_max as f64 / 1e6),
    goal: |_| None,
};
/// CPU time of the load generator: where it has used what it was given, it is what bounds a
/// throughput, and the ratio of two.
pub const TOOL_CPU: Column = Column {
    name: "CPU of the tool, µs per request",
    more_is_better: false,
    of: |result| result.client_cpu_us,
    goal: |_| None,
};
/// What has a table of its own; latencies share one.
pub const ALL: [Column; 3] = [THROUGHPUT, SERVER_CPU, MEMORY];

/// How many times better `own` is than `other`: above 1 is better, whichever way the column counts.
#[must_use]
pub fn times_better(column: &Column, own: f64, other: f64) -> Option<f64> {
    let ratio = if column.more_is_better {
        own / other
    } else {
        other / own
    };
    ratio.is_finite().then_some(ratio)
}

/// A number with as many digits as mean something.
#[must_use]
pub fn number(value: f64) -> String {
    if value < 100.0 {
        format!("{value:.1}")
    } else {
        crate::summary::whole(value)
    }
}

/// A ratio.
#[must_use]
pub fn times(ratio: f64) -> String {
    // What two digits would round up to 10.00 is 10.0.
    if ratio < 9.995 {
        format!("{ratio:.2}×")
    } else {
        format!("{ratio:.1}×")
    }
}

/// Whether a report is about etcd: goals are about being beside it, and beside nothing else.
#[must_use]
pub fn is_of_etcd(named: &Named) -> bool {
    let mut results = named.report.results.iter();
    results.all(|result| result.protocol == Protocol::Etcd)
}

/// How many times better than etcd a row is meant to be: known where [`promised`] is.
#[must_use]
pub fn goal(column: &Column, reports: &[Named], row: &Row<'_>) -> Option<f64> {
    (column.goal)(promised(reports, row)?)
}

/// The workload of a row with its goals, if they are about these reports: all of them are of one
/// profile, and of clusters.
#[must_use]
pub fn promised(reports: &[Named], row: &Row<'_>) -> Option<&'static NamedWorkload> {
    let mut names = reports.iter().map(|named| named.report.profile.as_deref());
    let first = names.next()??;
    let mut scenarios = reports.iter().map(|named| named.report.scenario.as_deref());
    // Goals are about clusters: a member alone has nobody to replicate to.
    if names.any(|name| name != Some(first))
        || scenarios.any(|name| matches!(name, Some("single" | "embedded")))
    {
        return None;
    }
    // And about writes that are on disk when they are acknowledged.
    let mut results = reports.iter().flat_map(|named| &named.report.results);
    if results.any(|result| result.durability.as_deref() == Some("memory-first")) {
        return None;
    }
    profiles::profile(first)?.workload(row.name)
}
