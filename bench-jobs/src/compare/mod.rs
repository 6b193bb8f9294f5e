//! Results side by side: read from files, matched by the names of their workloads, shown as tables
//! with ratios, and held against a baseline.

mod budget;
pub mod columns;
mod goals;
mod latency;
mod table;

use std::collections::HashSet;
use std::path::Path;

use anyhow::bail;
use dengine_bench_model::results::{ReadConsistency, Report, RunResult, Shape};

use crate::cli::CompareArgs;
use crate::{files, summary};

/// What `compare` has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compared {
    /// For people.
    pub text: String,
    /// Something is worse than the budget allows.
    pub regressed: bool,
}

/// A report with what it is called beside others.
#[derive(Clone, Debug)]
pub struct Named {
    /// Short, and different from all others.
    pub label: String,
    /// What was measured.
    pub report: Report,
}

/// Compares as the command line says.
///
/// # Errors
/// If a file cannot be read, or is no result.
pub fn run(args: &CompareArgs) -> anyhow::Result<Compared> {
    let paths: Vec<&Path> = args.all().collect();
    let found = find(&paths)?;
    let mut compared = Compared {
        text: by_scenario(&found),
        regressed: false,
    };
    if let Some(path) = &args.baseline {
        let baseline = baseline(path)?;
        let budget = budget::Budget {
            throughput_and_cpu: args.budget,
            p99: args.p99_budget,
        };
        let verdict = budget::judge(&label(found), &baseline, &budget);
        compared.text += &verdict.text;
        compared.regressed = verdict.regressed;
    }
    Ok(compared)
}

/// What ran under different circumstances is not held against each other.
fn by_scenario(found: &[Found]) -> String {
    let mut scenarios: Vec<Option<&str>> = Vec::new();
    for one in found {
        let scenario = one.report.scenario.as_deref();
        if !scenarios.contains(&scenario) {
            scenarios.push(scenario);
        }
    }
    let of = |scenario: &Option<&str>| {
        let of = |one: &&Found| one.report.scenario.as_deref() == *scenario;
        table::render(&label(found.iter().filter(of).cloned().collect()))
    };
    scenarios.iter().map(of).collect::<Vec<_>>().join("\n\n")
}

/// Reads results and gives each its label.
///
/// # Errors
/// If one cannot be read, or is no result.
pub fn read_all<P: AsRef<Path>>(paths: &[P]) -> anyhow::Result<Vec<Named>> {
    Ok(label(find(paths)?))
}

/// A report, and the name of its file without the extension.
#[derive(Clone)]
struct Found {
    report: Report,
    stem: String,
}

fn find<P: AsRef<Path>>(paths: &[P]) -> anyhow::Result<Vec<Found>> {
    let mut found = Vec::new();
    for path in paths {
        let stem = stem(path.as_ref());
        let reports = files::read(path.as_ref())?.into_iter();
        found.extend(reports.map(|report| Found {
            report,
            stem: stem.clone(),
        }));
    }
    Ok(found)
}

fn baseline(path: &Path) -> anyhow::Result<Report> {
    let mut reports = files::read(path)?;
    match (reports.pop(), reports.len()) {
        (Some(report), 0) => Ok(report),
        (_, others) => bail!(
            "{} holds results of {} systems or scenarios, and --baseline takes one: give it a file \
             that one run wrote with --json",
            path.display(),
            others + 1
        ),
    }
}

fn stem(path: &Path) -> String {
    path.file_stem()
        .map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
}

/// A report is called what its maker called it, else by its engine. Where that is not enough, with
/// the first of these that tells it from the others.
fn label(found: Vec<Found>) -> Vec<Named> {
    let more: [fn(&Found) -> Option<String>; 5] = [
        |one| one.report.scenario.clone(),
        |one| Some(one.stem.clone()),
        |one| first(one)?.durability.clone(),
        |one| first(one)?.wire.map(|wire| wire.as_str().to_owned()),
        |one| first(one)?.engine_version.clone(),
    ];
    let alike = |one: &Found| {
        found
            .iter()
            .filter(|other| name(other) == name(one))
            .count()
    };
    let telling = |one: &Found| {
        let same = || found.iter().filter(|other| name(other) == name(one));
        let tells = |more: &&fn(&Found) -> Option<String>| {
            let all: HashSet<_> = same().map(more).collect();
            all.len() == same().count()
        };
        more.iter().find(tells).and_then(|more| more(one))
    };
    let label = |(place, one): (usize, &Found)| match alike(one) {
        1 => name(one),
        _ => {
            let more = telling(one).unwrap_or_else(|| format!("{}", place + 1));
            format!("{} ({more})", name(one))
        }
    };
    let labels: Vec<String> = found.iter().enumerate().map(label).collect();
    let named = |(label, one): (String, Found)| Named {
        label,
        report: one.report,
    };
    labels.into_iter().zip(found).map(named).collect()
}

fn name(found: &Found) -> String {
    let engine = || first(found).map(summary::engine);
    found
        .report
        .system
        .clone()
        .or_else(engine)
        .unwrap_or_default()
}

fn first(found: &Found) -> Option<&RunResult> {
    found.report.results.first()
}

/// One workload in all reports.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// Name of the workload.
    pub name: &'a str,
    /// The load of the first report that has it.
    pub shape: &'a Shape,
    /// What each report has to say, in their order.
    pub cells: Vec<Cell<'a>>,
}

/// What one report says of a workload.
#[derive(Clone, Copy, Debug)]
pub enum Cell<'a> {
    /// It was measured under the row's load.
    Measured(&'a RunResult),
    /// The target cannot do it; instead, and labelled so, its nearest stronger read of the same
    /// load.
    Substitute(&'a RunResult),
    /// The target cannot do it.
    Unsupported,
    /// The name is the same and the load is not: a ratio would say nothing.
    OtherLoad(&'a RunResult),
    /// It failed, or its leader changed.
    Failed,
    /// The report does not have it.
    Absent,
}

impl<'a> Cell<'a> {
    /// The result whose numbers stand in the row.
    #[must_use]
    pub fn result(&self) -> Option<&'a RunResult> {
        match self {
            Cell::Measured(result) | Cell::Substitute(result) => Some(result),
            Cell::Unsupported | Cell::OtherLoad(_) | Cell::Failed | Cell::Absent => None,
        }
    }
}

/// Every workload that any report has, in the order in which they appear.
#[must_use]
pub fn rows(reports: &[Named]) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for result in reports.iter().flat_map(|named| &named.report.results) {
        if rows.iter().all(|row| row.name != result.name) {
            rows.push(Row {
                name: &result.name,
                shape: &result.shape,
                cells: Vec::new(),
            });
        }
    }
    for row in &mut rows {
        row.cells = reports
            .iter()
            .map(|named| cell(&named.report, row.name, row.shape))
            .collect();
    }
    rows
}

fn cell<'a>(report: &'a Report, name: &str, shape: &Shape) -> Cell<'a> {
    let Some(result) = report.results.iter().find(|result| result.name == name) else {
        return Cell::Absent;
    };
    if result.unsupported.is_some() {
        return stronger(report, shape).map_or(Cell::Unsupported, Cell::Substitute);
    }
    if result.shape != *shape {
        return Cell::OtherLoad(result);
    }
    if result.errors > 0 || !result.leader_was_stable() {
        return Cell::Failed;
    }
    Cell::Measured(result)
}

/// The linearizable read of the same load.
fn stronger<'a>(report: &'a Report, shape: &Shape) -> Option<&'a RunResult> {
    let wanted = Shape {
        consistency: Some(ReadConsistency::Linearizable),
        ..shape.clone()
    };
    let counts = |result: &&RunResult| {
        result.shape == wanted && result.errors == 0 && result.leader_was_stable()
    };
    report.results.iter().find(counts)
}

#[cfg(test)]
mod tests;
