//! The latencies of all systems: a line for each of them, and below it how many times better the
//! first one is.

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use dengine_bench_model::results::RunResult;

use super::columns::{self, P99};
use super::table::{clients, instead};
use super::{Cell, Named, Row};
use crate::summary;

/// A line for each system that has numbers, and for each that has a reason to have none.
pub(super) fn table(reports: &[Named], rows: &[Row<'_>]) -> Table {
    let mut header = vec!["workload", "conns/clients", "system"];
    header.extend(summary::LATENCY);
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(header);
    for row in rows {
        let lines = of_workload(reports, row);
        for (place, line) in lines.into_iter().enumerate() {
            let head = match place {
                0 => [row.name.to_owned(), clients(row)],
                _ => [String::new(), String::new()],
            };
            table.add_row(head.into_iter().chain(line));
        }
    }
    table
        .column_iter_mut()
        .enumerate()
        .filter(|(place, _)| ![0, 2].contains(place))
        .for_each(|(_, column)| column.set_cell_alignment(CellAlignment::Right));
    table
}

fn of_workload(reports: &[Named], row: &Row<'_>) -> Vec<Vec<String>> {
    let own = row.cells.first().and_then(Cell::result);
    let mut lines = Vec::new();
    for (place, (named, cell)) in reports.iter().zip(&row.cells).enumerate() {
        if matches!(cell, Cell::Absent) {
            continue;
        }
        let mut line = vec![named.label.clone()];
        match cell.result() {
            Some(result) => {
                let numbers = summary::latency(&result.latency_us).map(summary::whole);
                line.extend(numbers.map(|number| instead(cell, number)));
            }
            None => line.push(instead(cell, String::new())),
        }
        lines.push(line);
        if let (Some(own), Some(other), 1..) = (own, cell.result(), place) {
            lines.push(ratios(&named.label, own, other));
        }
    }
    lines
}

fn ratios(label: &str, own: &RunResult, other: &RunResult) -> Vec<String> {
    let both = summary::latency(&own.latency_us)
        .into_iter()
        .zip(summary::latency(&other.latency_us));
    // Less is better of each of them, as of this one.
    let ratio = |(own, other)| columns::times_better(&P99, own, other).map(columns::times);
    let mut line = vec![format!("better than {label}")];
    line.extend(both.map(|both| ratio(both).unwrap_or_default()));
    line
}
