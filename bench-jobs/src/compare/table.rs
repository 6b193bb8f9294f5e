//! The comparison as text.

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};

use super::columns::{self, Column};
use super::{Cell, Named, Row, goals, latency, rows};
use crate::summary::{self, grouped, heading};

/// One table for each number that at least one report has.
pub(super) fn render(reports: &[Named]) -> String {
    let rows = rows(reports);
    let mut out = String::new();
    for named in reports {
        out += &format!("{}: {}\n", named.label, heading(&named.report));
    }
    let [throughput, others @ ..] = &columns::ALL;
    out += &section(throughput, reports, &rows);
    if rows
        .iter()
        .flat_map(|row| &row.cells)
        .any(|cell| cell.result().is_some())
    {
        out += &format!("\nLatency, µs\n{}\n", latency::table(reports, &rows));
        out += &goals::of_p99(reports, &rows);
    }
    for column in others {
        out += &section(column, reports, &rows);
    }
    out += &idle(reports);
    out += &notes(reports);
    out + &footnote(&rows)
}

fn section(column: &Column, reports: &[Named], rows: &[Row<'_>]) -> String {
    let known = |row: &Row<'_>| row.cells.iter().any(|cell| value(column, cell).is_some());
    if rows.iter().any(known) {
        format!("\n{}\n{}\n", column.name, table(column, reports, rows))
    } else {
        String::new()
    }
}

fn value(column: &Column, cell: &Cell<'_>) -> Option<f64> {
    cell.result().and_then(column.of)
}

fn table(column: &Column, reports: &[Named], rows: &[Row<'_>]) -> Table {
    let goals = times_better(column, reports, rows);
    let mut header = vec!["workload".to_owned(), "conns/clients".to_owned()];
    header.extend(reports.iter().map(|named| named.label.clone()));
    let others = reports.iter().skip(1);
    header.extend(others.map(|named| format!("better than {}", named.label)));
    if goals.is_some() {
        header.push("goal".to_owned());
    }
    let tool = beside(column, rows);
    if tool.is_some() {
        let labels = reports
            .iter()
            .map(|named| format!("tool µs: {}", named.label));
        header.extend(labels);
    }
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(header);
    for (place, row) in rows.iter().enumerate() {
        let mut line = line(column, row);
        if let Some(goals) = &goals {
            line.push(goals[place].map(columns::times).unwrap_or_default());
        }
        if let Some(tool) = tool {
            line.extend(row.cells.iter().map(|cell| {
                let spent = value(tool, cell).map(columns::number);
                spent.unwrap_or_default()
            }));
        }
        table.add_row(line);
    }
    table
        .column_iter_mut()
        .skip(1)
        .for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

/// What bounds a throughput, beside it, if any report tells it.
fn beside(column: &Column, rows: &[Row<'_>]) -> Option<&'static Column> {
    let mut cells = rows.iter().flat_map(|row| &row.cells);
    let known = cells.any(|cell| value(&columns::TOOL_CPU, cell).is_some());
    (column.name == columns::THROUGHPUT.name && known).then_some(&columns::TOOL_CPU)
}

/// Goals are about being beside etcd.
fn times_better(column: &Column, reports: &[Named], rows: &[Row<'_>]) -> Option<Vec<Option<f64>>> {
    if !reports.iter().skip(1).any(columns::is_of_etcd) {
        return None;
    }
    let goal = |row| columns::goal(column, reports, row);
    let goals: Vec<_> = rows.iter().map(goal).collect();
    goals.iter().any(Option::is_some).then_some(goals)
}

/// How many clients share how many connections.
pub(super) fn clients(row: &Row<'_>) -> String {
    let shape = row.shape;
    format!("{}/{}", shape.connections, grouped(shape.clients.into()))
}

fn line(column: &Column, row: &Row<'_>) -> Vec<String> {
    let mut line = vec![row.name.to_owned(), clients(row)];
    line.extend(row.cells.iter().map(|cell| shown(column, cell)));
    let own = row.cells.first().and_then(|cell| value(column, cell));
    for other in row.cells.iter().skip(1) {
        let ratio = own
            .zip(value(column, other))
            .and_then(|(own, other)| columns::times_better(column, own, other));
        line.push(ratio.map(columns::times).unwrap_or_default());
    }
    line
}

fn shown(column: &Column, cell: &Cell<'_>) -> String {
    let number = value(column, cell).map(columns::number).unwrap_or_default();
    instead(cell, number)
}

/// A number, or what stands in its place.
pub(super) fn instead(cell: &Cell<'_>, number: String) -> String {
    match cell {
        Cell::Measured(_) => number,
        Cell::Substitute(_) => format!("{number} ¹"),
        Cell::Unsupported => "unsupported".to_owned(),
        Cell::OtherLoad(_) => "other load".to_owned(),
        Cell::Failed => "FAILED".to_owned(),
        Cell::Absent => String::new(),
    }
}

fn idle(reports: &[Named]) -> String {
    let mut out = String::new();
    for named in reports {
        if let Some(idle) = &named.report.idle {
            let megabytes = idle.resident_bytes_max as f64 / 1e6;
            out += &format!(
                "\nMemory of a server before the load: {}: {megabytes:.0} MB",
                named.label
            );
        }
    }
    if out.is_empty() { out } else { out + "\n" }
}

/// What there is to say of single results beside their numbers.
fn notes(reports: &[Named]) -> String {
    let mut out = String::new();
    for named in reports {
        for result in &named.report.results {
            let note = summary::note(result);
            if !note.is_empty() {
                out += &format!("\n{}, {}: {note}", named.label, result.name);
            }
        }
    }
    if out.is_empty() { out } else { out + "\n" }
}

fn footnote(rows: &[Row<'_>]) -> String {
    let substituted = rows
        .iter()
        .flat_map(|row| &row.cells)
        .any(|cell| matches!(cell, Cell::Substitute(_)));
    if substituted {
        "\n¹ unsupported there: it has no lease reads, and this is its linearizable read of the \
         same load\n"
            .to_owned()
    } else {
        String::new()
    }
}
