//! What came of it, as a table.

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use super::metrics::RequestTimes;
use super::probe::Lag;

/// One run.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Measured {
    /// What the API server kept its objects in.
    pub store: String,
    pub nodes: u32,
    pub pods: u32,
    /// Until all nodes were Ready.
    pub nodes_seconds: f64,
    /// Until all pods ran.
    pub running_seconds: f64,
    /// Until all were gone again.
    pub gone_seconds: f64,
    /// Of all members together, while pods came and went.
    pub store_cpu_seconds: f64,
    /// The same of the API server.
    pub api_server_cpu_seconds: f64,
    pub lag: Lag,
    pub requests: Vec<RequestTimes>,
}

/// A row: its name, and what it shows of a run that has it.
type Row = (String, Box<dyn Fn(&Measured) -> Option<f64>>);

/// A column for each run, and how the first store compares with the second one, if there is one.
#[must_use]
pub fn render(runs: &[Measured]) -> String {
    let stores = stores(runs);
    let mut header = vec!["".to_owned()];
    header.extend(runs.iter().map(|run| run.store.clone()));
    let compared = match &stores[..] {
        [first, second] => {
            header.push(format!("{first} / {second}"));
            Some([*first, *second])
        }
        _ => None,
    };
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(header);
    for (name, value) in rows(runs) {
        let mut line = vec![name];
        line.extend(
            runs.iter()
                .map(|run| value(run).map(number).unwrap_or_default()),
        );
        if let Some([first, second]) = compared {
            let mean = |store: &str| mean(runs.iter().filter(|run| run.store == store).map(&value));
            let ratio = mean(first).zip(mean(second)).map(|(a, b)| a / b);
            line.push(ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default());
        }
        table.add_row(line);
    }
    table
        .column_iter_mut()
        .skip(1)
        .for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table.to_string()
}

/// Without repetitions, in the order of their first runs.
fn stores(runs: &[Measured]) -> Vec<&str> {
    let mut stores: Vec<&str> = Vec::new();
    for run in runs {
        if !stores.contains(&run.store.as_str()) {
            stores.push(&run.store);
        }
    }
    stores
}

fn rows(runs: &[Measured]) -> Vec<Row> {
    let mut rows = vec![
        row("nodes Ready, s", |run| run.nodes_seconds),
        row("pods run, s", |run| run.running_seconds),
        row("pods gone, s", |run| run.gone_seconds),
        row("pods run and gone, s", |run| {
            run.running_seconds + run.gone_seconds
        }),
        row("store's CPU, s", |run| run.store_cpu_seconds),
        row("API server's CPU, s", |run| run.api_server_cpu_seconds),
        row("object made, p99 ms", |run| run.lag.answered.p99_ms),
        row("object seen, p50 ms", |run| run.lag.seen.p50_ms),
        row("object seen, p99 ms", |run| run.lag.seen.p99_ms),
        row("object seen, max ms", |run| run.lag.seen.max_ms),
    ];
    let all = runs.iter().flat_map(|run| &run.requests);
    let mut operations: Vec<_> = all.map(|times| times.operation.clone()).collect();
    operations.sort();
    operations.dedup();
    for operation in operations {
        rows.push(of_requests(&operation, "count", |it| it.count as f64));
        rows.push(of_requests(&operation, "mean ms", |it| it.mean_ms));
        rows.push(of_requests(&operation, "p99 ms", |it| it.p99_ms));
    }
    rows
}

fn row(name: &str, value: impl Fn(&Measured) -> f64 + 'static) -> Row {
    (name.to_owned(), Box::new(move |run| Some(value(run))))
}

fn of_requests(operation: &str, what: &str, value: fn(&RequestTimes) -> f64) -> Row {
    let name = format!("`{operation}`, {what}");
    let operation = operation.to_owned();
    let value = move |run: &Measured| {
        let mut all = run.requests.iter();
        all.find(|it| it.operation == operation).map(value)
    };
    (name, Box::new(value))
}

fn mean(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let values: Vec<f64> = values.collect::<Option<_>>()?;
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn number(value: f64) -> String {
    match value {
        _ if value.fract() == 0.0 => format!("{value}"),
        _ if value < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::probe::Percentiles;
    use super::*;

    fn run(store: &str, running_seconds: f64) -> Measured {
        let percentiles = Percentiles {
            p50_ms: 1.0,
            p99_ms: 2.5,
            max_ms: 120.4,
        };
        Measured {
            store: store.to_owned(),
            nodes: 1,
            pods: 1,
            nodes_seconds: 1.5,
            running_seconds,
            gone_seconds: 2.0,
            store_cpu_seconds: 3.0,
            api_server_cpu_seconds: 4.0,
            lag: Lag {
                changes: 1,
                answered: percentiles.clone(),
                seen: percentiles,
            },
            requests: vec![RequestTimes {
                operation: "create".to_owned(),
                count: 7,
                mean_ms: 1.25,
                p99_ms: 4.9,
            }],
        }
    }

    fn line(table: &str, name: &str) -> Vec<String> {
        let mut lines = table.lines().map(|line| {
            let cells = line.split('|').map(|cell| cell.trim().to_owned());
            cells.filter(|cell| !cell.is_empty()).collect::<Vec<_>>()
        });
        lines.find(|line| line[0] == name).unwrap()
    }

    #[test]
    fn two_stores_are_compared_by_the_means_of_their_runs() {
        let runs = [("a", 1.0), ("b", 10.0), ("b", 10.0), ("a", 3.0)];
        let table = render(&runs.map(|(store, seconds)| run(store, seconds)));
        assert_eq!(line(&table, "a"), ["a", "b", "b", "a", "a / b"]);
        assert_eq!(
            line(&table, "pods run, s"),
            ["pods run, s", "1", "10", "10", "3", "0.20"]
        );
        assert_eq!(line(&table, "`create`, mean ms")[1..5], ["1.2"; 4][..]);
    }

    #[test]
    fn one_store_is_compared_with_nothing() {
        let table = render(&[run("a", 1.0), run("a", 2.0)]);
        assert_eq!(line(&table, "pods gone, s"), ["pods gone, s", "2", "2"]);
        assert_eq!(line(&table, "object seen, max ms")[1], "120");
    }
}
