//! Results side by side: read from files, matched by the names of their workloads, shown as tables with
//! ratios, and held against a baseline.

mod budget;
pub mod columns;
mod table;

use std::{collections::HashMap, path::Path};

use anyhow::{Context, bail};
use dengine_bench_model::results::{ReadConsistency, Report, RunResult, Shape};

use crate::{cli::CompareArgs, summary};

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
    let results = read_all(&args.results)?;
    let mut compared = Compared {
        text: table::render(&results),
        regressed: false,
    };
    if let Some(path) = &args.baseline {
        let baseline = read(path)?;
        let budget = budget::Budget {
            throughput_and_cpu: args.budget,
            p99: args.p99_budget,
        };
        let verdict = budget::judge(&results, &baseline, &budget);
        compared.text += &verdict.text;
        compared.regressed = verdict.regressed;
    }
    Ok(compared)
}

/// Reads results and gives each its label.
///
/// # Errors
/// If one cannot be read, or is no result.
pub fn read_all<P: AsRef<Path>>(paths: &[P]) -> anyhow::Result<Vec<Named>> {
    let reports = paths
        .iter()
        .map(|path| read(path.as_ref()))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let stems = paths.iter().map(|path| stem(path.as_ref()));
    Ok(label(reports.into_iter().zip(stems).collect()))
}

fn read(path: &Path) -> anyhow::Result<Report> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let report: Report = serde_json::from_str(&text)
        .with_context(|| format!("{} is no result that `--json` wrote", path.display()))?;
    if report.results.is_empty() {
        bail!("{} holds no workload", path.display());
    }
    Ok(report)
}

fn stem(path: &Path) -> String {
    path.file_stem()
        .map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
}

/// A report is called what its maker called it, else by its engine; with its file where that is not enough.
fn label(reports: Vec<(Report, String)>) -> Vec<Named> {
    let name = |report: &Report| {
        let engine = || report.results.first().map(summary::engine);
        report.system.clone().or_else(engine).unwrap_or_default()
    };
    let mut uses: HashMap<String, usize> = HashMap::new();
    for (report, _) in &reports {
        *uses.entry(name(report)).or_default() += 1;
    }
    let named = |(report, stem): (Report, String)| {
        let name = name(&report);
        let label = if uses[&name] > 1 {
            format!("{name} ({stem})")
        } else {
            name
        };
        Named { label, report }
    };
    reports.into_iter().map(named).collect()
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
    /// The target cannot do it; instead, and labelled so, its nearest stronger read of the same load.
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
            _ => None,
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
