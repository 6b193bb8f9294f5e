//! Everything that the page shows, as text and numbers; the template only places it.

use askama::Template;
use dengine_bench_model::results::RunResult;

use super::chart::{self, Axes, Tick};
use crate::compare::columns::{self, SERVER_CPU, THROUGHPUT};
use crate::compare::{Cell, Named, Row, rows};
use crate::summary::{
    self, counted, engine, load_in_words, machine_in_words, requests_in_words, whole,
};

#[derive(Template)]
#[template(path = "report.html")]
pub(super) struct Page<'a> {
    title: &'a str,
    subtitle: String,
    systems: Vec<System>,
    cards: Vec<Card>,
    workloads: Vec<Workload>,
    machines: Vec<String>,
    has_substitute: bool,
    width: f64,
    height: f64,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

/// One of the reports.
struct System {
    label: String,
    facts: Vec<(&'static str, String)>,
    command: String,
}

/// What a reader should see first.
struct Card {
    name: String,
    number: String,
    under: String,
    reached: Option<bool>,
}

/// A workload in all reports.
struct Workload {
    name: String,
    load: String,
    measured: Vec<Measured>,
    percentiles: Vec<Tick>,
    latencies: Vec<Tick>,
}

/// A workload in one report.
struct Measured {
    /// Which of the systems; its colour.
    place: usize,
    label: String,
    /// Why there are no numbers.
    missing: String,
    /// The numbers are those of another, stronger read.
    substitute: bool,
    throughput: String,
    /// Of the widest bar of this workload, in percent.
    share: f64,
    times: String,
    avg: String,
    min: String,
    p50: String,
    p90: String,
    p99: String,
    p999: String,
    max: String,
    spread: String,
    server_cpu: String,
    client_cpu: String,
    memory: String,
    note: String,
    points: String,
}

impl<'a> Page<'a> {
    pub(super) fn of(title: &'a str, reports: &[Named]) -> Self {
        let rows = rows(reports);
        let mut machines: Vec<String> = reports
            .iter()
            .filter_map(|named| named.report.machine.as_ref().map(machine_in_words))
            .collect();
        machines.dedup();
        let substitute = |row: &Row<'_>| {
            row.cells
                .iter()
                .any(|cell| matches!(cell, Cell::Substitute(_)))
        };
        Page {
            title,
            subtitle: subtitle(reports),
            systems: reports.iter().map(system).collect(),
            cards: rows.iter().filter_map(|row| card(reports, row)).collect(),
            has_substitute: rows.iter().any(substitute),
            workloads: rows.iter().map(|row| workload(reports, row)).collect(),
            machines,
            width: chart::WIDTH,
            height: chart::HEIGHT,
            left: chart::LEFT,
            right: chart::RIGHT,
            top: chart::TOP,
            bottom: chart::BOTTOM,
        }
    }
}

fn subtitle(reports: &[Named]) -> String {
    let labels: Vec<&str> = reports.iter().map(|named| named.label.as_str()).collect();
    let mut parts = vec![labels.join(" and ")];
    let Some(first) = reports.first() else {
        return String::new();
    };
    parts.extend(
        first
            .report
            .profile
            .as_ref()
            .map(|profile| format!("profile {profile}")),
    );
    parts.extend(
        first
            .report
            .scenario
            .as_ref()
            .map(|scenario| format!("scenario {scenario}")),
    );
    let started = first
        .report
        .results
        .first()
        .map(|result| &result.started_at);
    parts.extend(started.and_then(|at| at.get(..10)).map(str::to_owned));
    parts.join(" · ")
}

fn system(named: &Named) -> System {
    let report = &named.report;
    let mut facts = Vec::new();
    if let Some(first) = report.results.first() {
        facts.push(("Engine", engine(first)));
        let durability = first
            .durability
            .as_deref()
            .unwrap_or("not told by the target");
        facts.push(("Durability", durability.to_owned()));
        if !first.members.is_empty() {
            let leader = first.leader.as_deref().unwrap_or("unknown");
            facts.push((
                "Members",
                format!("{} (leader {leader})", first.members.join(", ")),
            ));
        }
        facts.push((
            "Measured",
            format!(
                "{} with dengine-bench {}",
                first.started_at, first.tool_version
            ),
        ));
    }
    if let Some(idle) = &report.idle {
        facts.push(("Memory before the load", megabytes(idle.resident_bytes_max)));
    }
    System {
        label: named.label.clone(),
        facts,
        command: report.command.join(" "),
    }
}

/// How many times better the first report is than the second, or how fast it is if it is alone.
fn card(reports: &[Named], row: &Row<'_>) -> Option<Card> {
    let own = row.cells.first()?.result()?;
    let rate = format!("{} requests/s", whole(own.ops_per_second));
    let Some(other) = row.cells.get(1).and_then(Cell::result) else {
        return Some(Card {
            name: row.name.to_owned(),
            number: whole(own.ops_per_second),
            under: format!("requests/s, p99 {}", chart::time(own.latency_us.p99 as f64)),
            reached: None,
        });
    };
    let ratio = columns::times_better(&THROUGHPUT, own.ops_per_second, other.ops_per_second)?;
    let is_beside_etcd = reports.get(1).is_some_and(columns::is_of_etcd);
    let goal = columns::goal(&THROUGHPUT, reports, row).filter(|_| is_beside_etcd);
    Some(Card {
        name: row.name.to_owned(),
        number: columns::times(ratio),
        under: match goal {
            Some(goal) => format!("{rate}; goal {goal}×"),
            None => rate,
        },
        reached: goal.map(|goal| ratio >= goal),
    })
}

fn workload(reports: &[Named], row: &Row<'_>) -> Workload {
    let shape = row.shape;
    let best = row
        .cells
        .iter()
        .filter_map(Cell::result)
        .map(|result| result.ops_per_second);
    let best = best.fold(0.0, f64::max);
    let own = row.cells.first().and_then(Cell::result);
    let curves = row
        .cells
        .iter()
        .filter_map(Cell::result)
        .map(|result| &result.curve[..]);
    let axes = Axes::around(curves);
    let measured = row.cells.iter().enumerate().map(|(place, cell)| {
        let label = reports[place].label.clone();
        let compared = if place == 0 { None } else { own };
        measured(place, label, cell, compared, best, &axes)
    });
    let rate = shape
        .rate
        .map(|rate| format!(", {rate} wanted per second"))
        .unwrap_or_default();
    Workload {
        name: row.name.to_owned(),
        load: format!(
            "{}, {} over {}{rate}: {}",
            requests_in_words(shape),
            counted(shape.clients, "client"),
            counted(shape.connections, "connection"),
            load_in_words(shape)
        ),
        measured: measured.collect(),
        percentiles: axes.percentiles(),
        latencies: axes.latencies(),
    }
}

fn measured(
    place: usize,
    label: String,
    cell: &Cell<'_>,
    own: Option<&RunResult>,
    best: f64,
    axes: &Axes,
) -> Measured {
    let Some(result) = cell.result() else {
        return Measured {
            place,
            label,
            missing: missing(cell).to_owned(),
            ..Measured::nothing()
        };
    };
    let us = &result.latency_us;
    let times = own.and_then(|own| {
        columns::times_better(&THROUGHPUT, own.ops_per_second, result.ops_per_second)
    });
    let spread = |spread: dengine_bench_model::results::Spread| {
        format!(
            "{} to {} in {} runs",
            whole(spread.ops_per_second_min),
            whole(spread.ops_per_second_max),
            spread.runs
        )
    };
    Measured {
        place,
        label,
        missing: String::new(),
        substitute: matches!(cell, Cell::Substitute(_)),
        throughput: whole(result.ops_per_second),
        share: if best > 0.0 {
            100.0 * result.ops_per_second / best
        } else {
            0.0
        },
        times: times.map(columns::times).unwrap_or_default(),
        avg: chart::time(us.avg),
        min: chart::time(us.min as f64),
        p50: chart::time(us.p50 as f64),
        p90: chart::time(us.p90 as f64),
        p99: chart::time(us.p99 as f64),
        p999: chart::time(us.p999 as f64),
        max: chart::time(us.max as f64),
        spread: result.spread.map(spread).unwrap_or_default(),
        server_cpu: (SERVER_CPU.of)(result)
            .map(|us| format!("{us:.1} µs"))
            .unwrap_or_default(),
        client_cpu: result
            .client_cpu_us
            .map(|us| format!("{us:.1} µs"))
            .unwrap_or_default(),
        memory: result
            .servers
            .map(|servers| megabytes(servers.resident_bytes_max))
            .unwrap_or_default(),
        note: summary::note(result),
        points: axes.points(&result.curve),
    }
}

fn missing(cell: &Cell<'_>) -> &'static str {
    match cell {
        Cell::Measured(_) | Cell::Substitute(_) => "",
        Cell::Unsupported => "unsupported",
        Cell::OtherLoad(_) => "measured with another load",
        Cell::Failed => "failed",
        Cell::Absent => "not measured",
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.0} MB", bytes as f64 / 1e6)
}

impl Measured {
    fn nothing() -> Self {
        let text = String::new;
        Measured {
            place: 0,
            label: text(),
            missing: text(),
            substitute: false,
            throughput: text(),
            share: 0.0,
            times: text(),
            avg: text(),
            min: text(),
            p50: text(),
            p90: text(),
            p99: text(),
            p999: text(),
            max: text(),
            spread: text(),
            server_cpu: text(),
            client_cpu: text(),
            memory: text(),
            note: text(),
            points: text(),
        }
    }
}
