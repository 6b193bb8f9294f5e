//! Whether the 99th percentiles that DEngine sets out to stay within were kept.

use dengine_bench_model::profiles::P99Goal;

use super::columns::{self, P99};
use super::{Cell, Named, Row};
use crate::summary::whole;

/// A line for each row of the first report that has such a goal, and that can be judged by what was
/// measured.
pub(super) fn of_p99(reports: &[Named], rows: &[Row<'_>]) -> String {
    let lines: Vec<String> = rows
        .iter()
        .filter_map(|row| line(reports, rows, row))
        .collect();
    if lines.is_empty() {
        return String::new();
    }
    format!("\nGoals of the latency, p99\n{}\n", lines.join("\n"))
}

fn line(reports: &[Named], rows: &[Row<'_>], row: &Row<'_>) -> Option<String> {
    let goal = columns::promised(reports, row)?.p99_goal?;
    let own = p99(row.cells.first()?)?;
    let (limit, words) = match goal {
        P99Goal::Times(times, name) => {
            let other = rows.iter().find(|row| row.name == name)?;
            let other = p99(other.cells.first()?)?;
            let words = format!("{times} times the {} of {name}", whole(other));
            (times * other, words)
        }
        P99Goal::EtcdAndUs(more) => {
            let etcd = reports.iter().skip(1).position(columns::is_of_etcd)? + 1;
            let etcd = p99(row.cells.get(etcd)?)?;
            let words = format!("etcd's {} and {} µs more", whole(etcd), whole(more as f64));
            (etcd + more as f64, words)
        }
    };
    let verdict = if own <= limit { "reached" } else { "missed" };
    Some(format!(
        "{}: {} µs, at most {words}: {verdict}",
        row.name,
        whole(own)
    ))
}

fn p99(cell: &Cell<'_>) -> Option<f64> {
    cell.result().and_then(P99.of)
}
