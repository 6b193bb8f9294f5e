//! All workloads of a run in a table, and each repetition in another.

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use dengine_bench_model::results::{LatencyUs, Repetition, Report, RunResult, Workload};

use super::{grouped, heading, load_in_words, machine_in_words, notes, whole};
use crate::outcome::Verdict;

/// All workloads of a report in a table, with what did not succeed above it, and each repetition
/// below it.
#[must_use]
pub fn table(report: &Report) -> String {
    let mut out = String::new();
    for result in &report.results {
        match Verdict::of(result) {
            Verdict::Succeeded | Verdict::Unsupported(_) => {}
            Verdict::Failed(why) => out += &format!("FAILED: {}: {why}\n", result.name),
            Verdict::Invalid(why) => out += &format!("INVALID: {}: {why}\n", result.name),
        }
    }
    if let Some(system) = &report.system {
        out += &format!("{system}: ");
    }
    out += &format!("{}\n", heading(report));
    if let Some(machine) = &report.machine {
        out += &format!("Load from: {}\n", machine_in_words(machine));
    }
    // A profile's name says what its loads are.
    if report.profile.is_none() {
        for result in &report.results {
            out += &format!("{}: {}\n", result.name, load_in_words(&result.shape));
        }
    }
    out += &format!("{}\n", results(&report.results));
    out += &notes::lines(&report.results);
    if let Some(repetitions) = repetitions(&report.results) {
        out += &format!("\nEach repetition (the median is above)\n{repetitions}\n");
    }
    out
}

/// The percentiles and extremes that every table shows, as headings.
pub(crate) const LATENCY: [&str; 7] = ["avg", "min", "p50", "p90", "p99", "p99.9", "max"];

/// The numbers below them, µs.
pub(crate) fn latency(us: &LatencyUs) -> [f64; 7] {
    let [min, p50, p90, p99, p999, max] =
        [us.min, us.p50, us.p90, us.p99, us.p999, us.max].map(|us| us as f64);
    [us.avg, min, p50, p90, p99, p999, max]
}

fn results(results: &[RunResult]) -> Table {
    let mut header = words(["workload", "conns/clients", "pods", "requests/s", "spread"]);
    header.extend(latency_header());
    header.extend(words([
        "CPU µs: servers",
        "tool",
        "log syncs",
        "writes/sync",
    ]));
    filled(&header, results.iter().map(row).collect())
}

fn row(result: &RunResult) -> Vec<String> {
    let shape = &result.shape;
    let mut row = vec![
        result.name.clone(),
        format!("{}/{}", shape.connections, grouped(shape.clients.into())),
    ];
    let pods = result.pods.as_ref().map(|pods| pods.loading.to_string());
    row.push(pods.unwrap_or_default());
    if result.unsupported.is_some() {
        row.push("unsupported".to_owned());
        return row;
    }
    let spread = result.spread.map(|spread| {
        let (min, max) = (spread.ops_per_second_min, spread.ops_per_second_max);
        format!("{}–{}", whole(min), whole(max))
    });
    row.extend([whole(result.ops_per_second), spread.unwrap_or_default()]);
    row.extend(latency(&result.latency_us).map(whole));
    row.extend(spent(&Repetition::of(result)));
    row.push(writes_per_sync(result).unwrap_or_default());
    row
}

/// How many writes share a sync of one member's log.
fn writes_per_sync(result: &RunResult) -> Option<String> {
    let syncs = result.log_syncs.filter(|syncs| *syncs > 0)?;
    let of_one = syncs as f64 / result.members.len().max(1) as f64;
    let writes = matches!(result.shape.workload, Workload::Put | Workload::Swap);
    writes.then(|| format!("{:.1}", result.requests as f64 / of_one))
}

/// Each repetition of the workloads that have any.
pub(super) fn repetitions(results: &[RunResult]) -> Option<Table> {
    let mut rows = Vec::new();
    for result in results {
        for (place, one) in result.repetitions.iter().enumerate() {
            let mut row = vec![result.name.clone(), (place + 1).to_string()];
            row.push(whole(one.ops_per_second));
            row.extend(latency(&one.latency_us).map(whole));
            row.extend(spent(one));
            rows.push(row);
        }
    }
    let mut header = words(["workload", "run", "requests/s"]);
    header.extend(latency_header());
    header.extend(words(["CPU µs: servers", "tool", "log syncs"]));
    (!rows.is_empty()).then(|| filled(&header, rows))
}

fn spent(one: &Repetition) -> [String; 3] {
    let micros = |us: f64| format!("{us:.1}");
    [
        one.servers.map(|servers| micros(servers.cpu_us)),
        one.client_cpu_us.map(micros),
        one.log_syncs.map(grouped),
    ]
    .map(Option::unwrap_or_default)
}

fn latency_header() -> impl Iterator<Item = String> {
    LATENCY.into_iter().map(|name| format!("{name} µs"))
}

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

/// A table without the columns that have nothing in any row.
fn filled(header: &[String], mut rows: Vec<Vec<String>>) -> Table {
    for row in &mut rows {
        row.resize(header.len(), String::new());
    }
    let has = |column: usize| rows.iter().any(|row| !row[column].is_empty());
    let kept: Vec<usize> = (0..header.len()).filter(|column| has(*column)).collect();
    let only = |row: &[String]| kept.iter().map(|column| row[*column].clone()).collect();
    let mut table = Table::new();
    let header: Vec<String> = only(header);
    table.load_style(ASCII_MARKDOWN).set_header(header);
    for row in &rows {
        let row: Vec<String> = only(row);
        table.add_row(row);
    }
    table
        .column_iter_mut()
        .skip(1)
        .for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

#[cfg(test)]
mod tests {
    use dengine_bench_model::results::Settling;
    use expect_test::expect;

    use super::*;
    use crate::outcome::{self, tests as sample};

    #[test]
    fn every_row_has_all_latencies_and_each_repetition_has_its_own() {
        let of = |ops_per_second| RunResult {
            ops_per_second,
            ..sample::report().results.remove(0)
        };
        let report = Report {
            results: vec![outcome::of_repetitions(vec![of(30.0), of(10.0), of(20.0)])],
            ..sample::report()
        };
        expect![[r#"
            DEngine: DEngine 0.1.0, durability fsync, wire pipelined, profile standard
            | workload | conns/clients | requests/s | spread | avg µs | min µs | p50 µs | p90 µs | p99 µs | p99.9 µs | max µs |
            |----------|---------------|------------|--------|--------|--------|--------|--------|--------|----------|--------|
            | range-l  |        10/100 |         20 |  10–30 |    501 |      1 |    500 |    900 |    990 |      999 |  1,000 |

            Each repetition (the median is above)
            | workload | run | requests/s | avg µs | min µs | p50 µs | p90 µs | p99 µs | p99.9 µs | max µs |
            |----------|-----|------------|--------|--------|--------|--------|--------|----------|--------|
            | range-l  |   1 |         30 |    501 |      1 |    500 |    900 |    990 |      999 |  1,000 |
            | range-l  |   2 |         10 |    501 |      1 |    500 |    900 |    990 |      999 |  1,000 |
            | range-l  |   3 |         20 |    501 |      1 |    500 |    900 |    990 |      999 |  1,000 |
        "#]].assert_eq(&table(&report));
    }

    #[test]
    fn a_wait_that_was_given_up_is_told_below_the_table() {
        let mut report = sample::report();
        report.results[0].settling = Some(Settling {
            total_seconds: 300.02,
            idle: false,
        });
        let shown = table(&report);
        let last = "range-l: servers were still busy after 300 s, when the wait was given up\n";
        assert!(shown.ends_with(last), "{shown}");
    }

    #[test]
    fn writes_that_share_a_sync_are_told() {
        let mut report = sample::report();
        let result = &mut report.results[0];
        (result.shape.workload, result.log_syncs) = (Workload::Put, Some(300));
        expect![[r#"
            DEngine: DEngine 0.1.0, durability fsync, wire pipelined, profile standard
            | workload | conns/clients | requests/s | avg µs | min µs | p50 µs | p90 µs | p99 µs | p99.9 µs | max µs | log syncs | writes/sync |
            |----------|---------------|------------|--------|--------|--------|--------|--------|----------|--------|-----------|-------------|
            | range-l  |        10/100 |        500 |    501 |      1 |    500 |    900 |    990 |      999 |  1,000 |       300 |        10.0 |
        "#]].assert_eq(&table(&report));
    }
}
