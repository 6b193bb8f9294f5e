//! Results in files: a report as JSON, and a line for each workload, which several runs append to
//! one file.

use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use dengine_bench_model::results::{Machine, Report, RunResult};
use serde::{Deserialize, Serialize};

use crate::cli::FileOptions;
use crate::{outcome, summary};

/// One workload's result with everything that tells it apart from others in the same file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    system: Option<String>,
    scenario: Option<String>,
    profile: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    machine: Option<Machine>,
    #[serde(flatten)]
    result: RunResult,
}

/// Writes a report wherever the command line says.
///
/// # Errors
/// If a file cannot be written.
pub fn write(to: &FileOptions, report: &Report) -> Result<()> {
    if let Some(path) = &to.json {
        write_json(path, report)?;
    }
    match &to.jsonl {
        Some(path) => append_lines(path, report),
        None => Ok(()),
    }
}

/// Writes a report to a file, or with `-` to the standard output.
///
/// # Errors
/// If the file cannot be written.
pub fn write_json(path: &Path, report: &Report) -> Result<()> {
    let mut json = serde_json::to_string_pretty(report).context("result as JSON")?;
    json.push('\n');
    if path == Path::new("-") {
        return print(&json);
    }
    std::fs::write(path, json).with_context(|| format!("writing {}", path.display()))
}

/// Appends a line for each workload to a file, or writes them to the standard output for `-`.
///
/// # Errors
/// If the file cannot be written.
fn append_lines(path: &Path, report: &Report) -> Result<()> {
    let mut lines = String::new();
    for result in &report.results {
        let line = Line {
            system: report.system.clone(),
            scenario: report.scenario.clone(),
            profile: report.profile.clone(),
            machine: report.machine.clone(),
            result: result.clone(),
        };
        lines += &serde_json::to_string(&line).context("result as JSON")?;
        lines.push('\n');
    }
    if path == Path::new("-") {
        return print(&lines);
    }
    let file = std::fs::File::options()
        .create(true)
        .append(true)
        .open(path);
    file.and_then(|mut file| file.write_all(lines.as_bytes()))
        .with_context(|| format!("appending to {}", path.display()))
}

/// A reader that is gone is no reason to fail a run.
#[expect(clippy::unnecessary_wraps, reason = "as writing to a file")]
fn print(text: &str) -> Result<()> {
    let mut out = io::stdout();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
    Ok(())
}

/// Reads what either of the two wrote: one report, or one for each system in the lines.
///
/// # Errors
/// If the file cannot be read, or holds something else.
pub fn read(path: &Path) -> Result<Vec<Report>> {
    let place = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {place}"))?;
    let reports = match serde_json::from_str::<Report>(&text) {
        Ok(report) => vec![report],
        Err(error) if is_whole(&text) => Err(error).with_context(|| neither(path))?,
        Err(_) => from_lines(&text).with_context(|| neither(path))?,
    };
    if reports.iter().all(|report| report.results.is_empty()) {
        bail!("{place} holds no workload");
    }
    Ok(reports)
}

fn neither(path: &Path) -> String {
    let path = path.display();
    format!("{path} is neither what `--json` nor what `--jsonl` of dengine-bench wrote")
}

/// Whether a text is one JSON value over several lines, as `--json` writes it.
fn is_whole(text: &str) -> bool {
    text.lines().count() > 1 && serde_json::from_str::<serde_json::Value>(text).is_ok()
}

fn from_lines(text: &str) -> Result<Vec<Report>> {
    let mut reports: Vec<Report> = Vec::new();
    for (number, text) in text.lines().enumerate() {
        if text.trim().is_empty() {
            continue;
        }
        let line = serde_json::from_str(text).with_context(|| format!("line {}", number + 1))?;
        let line: Line = line;
        match reports.iter_mut().find(|report| line.belongs_to(report)) {
            Some(report) => report.results.push(line.result),
            None => reports.push(Report {
                system: line.system,
                scenario: line.scenario,
                profile: line.profile,
                machine: line.machine,
                results: vec![line.result],
                ..Report::default()
            }),
        }
    }
    reports.iter_mut().try_for_each(merge)?;
    Ok(reports)
}

impl Line {
    /// Whether it was measured under the same circumstances as what is there.
    fn belongs_to(&self, report: &Report) -> bool {
        let labels = |system, scenario, profile| (system, scenario, profile);
        let server = |result: &RunResult| {
            let told = (result.engine_version.clone(), result.durability.clone());
            (result.protocol, result.wire, told)
        };
        labels(&self.system, &self.scenario, &self.profile)
            == labels(&report.system, &report.scenario, &report.profile)
            && report
                .results
                .iter()
                .all(|other| server(other) == server(&self.result))
    }
}

/// One report of several of one system under the same circumstances: results of one workload are
/// its repetitions, and the rest is as the first one says.
///
/// # Errors
/// If there is none, or a workload is there with two loads.
pub fn of_rounds(reports: &[Report]) -> Result<Report> {
    let first = reports.first().context("no round was measured")?;
    let results = reports.iter().flat_map(|report| report.results.clone());
    let mut all = Report {
        results: results.collect(),
        ..first.clone()
    };
    merge(&mut all)?;
    Ok(all)
}

/// Several results of one workload are its repetitions.
fn merge(report: &mut Report) -> Result<()> {
    let mut merged: Vec<Vec<RunResult>> = Vec::new();
    for result in std::mem::take(&mut report.results) {
        let same = |results: &&mut Vec<RunResult>| results[0].name == result.name;
        match merged.iter_mut().find(same) {
            Some(results) if results[0].shape == result.shape => results.push(result),
            Some(results) => bail!(
                "workload {} has results of two different loads ({}; {}): give each its own \
                 --system or --scenario, or another file",
                result.name,
                load(&results[0]),
                load(&result)
            ),
            None => merged.push(vec![result]),
        }
    }
    report.results = merged.into_iter().map(outcome::of_repetitions).collect();
    Ok(())
}

fn load(result: &RunResult) -> String {
    let shape = &result.shape;
    format!(
        "{}, {} over {}, {}",
        summary::requests_in_words(shape),
        summary::counted(shape.clients, "client"),
        summary::counted(shape.connections, "connection"),
        summary::load_in_words(shape)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::tests as sample;

    fn report(system: &str, name: &str, ops_per_second: f64) -> Report {
        let mut report = sample::report();
        report.system = Some(system.to_owned());
        report.results[0].name = name.to_owned();
        report.results[0].ops_per_second = ops_per_second;
        report
    }

    fn written(reports: &[Report]) -> Result<Vec<Report>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        for report in reports {
            append_lines(&path, report).unwrap();
        }
        read(&path)
    }

    #[test]
    fn lines_of_one_system_become_one_report() {
        let runs = [
            report("A", "seq-put", 1.0),
            report("A", "par-put", 2.0),
            report("B", "seq-put", 3.0),
        ];
        let [a, b] = &written(&runs).unwrap()[..] else {
            panic!("two systems")
        };
        let names: Vec<_> = a.results.iter().map(|result| &result.name).collect();
        assert_eq!(names, ["seq-put", "par-put"]);
        assert_eq!(b.system.as_deref(), Some("B"));
        assert_eq!(b.results, runs[2].results);
    }

    #[test]
    fn several_lines_of_a_workload_are_its_repetitions() {
        let runs = [1.0, 3.0, 2.0].map(|rate| report("A", "put", rate));
        let reports = written(&runs).unwrap();
        let [result] = &reports[0].results[..] else {
            panic!("one workload")
        };
        assert_eq!(result.ops_per_second, 2.0);
        assert_eq!(result.repetitions.len(), 3);
    }

    #[test]
    fn rounds_are_the_repetitions_of_one_report() {
        let rounds = [1.0, 3.0, 2.0].map(|rate| report("A", "put", rate));
        let all = of_rounds(&rounds).unwrap();
        let [result] = &all.results[..] else {
            panic!("one workload")
        };
        let rates: Vec<_> = result
            .repetitions
            .iter()
            .map(|one| one.ops_per_second)
            .collect();
        assert_eq!((result.ops_per_second, rates), (2.0, vec![1.0, 3.0, 2.0]));
        assert_eq!(all.command, rounds[0].command);
        assert_eq!(of_rounds(&rounds[..1]).unwrap(), rounds[0]);
        assert!(of_rounds(&[]).is_err());
    }

    #[test]
    fn one_name_for_two_loads_is_refused_with_what_to_do() {
        let mut other = report("A", "put", 1.0);
        other.results[0].shape.clients = 7;
        let error = written(&[report("A", "put", 1.0), other]).unwrap_err();
        let words = format!("{error:#}");
        assert!(
            words.contains("workload put has results of two different loads"),
            "{words}"
        );
        assert!(words.contains("--system"), "{words}");
    }

    #[test]
    fn what_is_no_result_is_named_by_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        append_lines(&path, &report("A", "put", 1.0)).unwrap();
        let mut text = std::fs::read_to_string(&path).unwrap();
        text += "{\"ops_per_sec\": 1}\n";
        std::fs::write(&path, text).unwrap();
        let words = format!("{:#}", read(&path).unwrap_err());
        assert!(words.contains("results.jsonl is neither"), "{words}");
        assert!(words.contains("line 2"), "{words}");
    }
}
