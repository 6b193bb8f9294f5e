//! Alerts and dashboard use only metrics that members or the operator have, and each alert has its
//! runbook.

use std::collections::BTreeSet;

use dengine_operator::telemetry;
use serde_json::Value;

use crate::{read, workspace};

pub(crate) const ALERTS: &str = "charts/dengine-operator/files/monitoring/alerts.yaml";
const DASHBOARD: &str = "charts/dengine-operator/files/monitoring/dashboard.json";
/// Names of the members' metrics. The crate cannot be a dependency: it compiles RocksDB.
const MEMBERS: [&str; 2] = [
    "engine/server/src/telemetry/metrics.rs",
    "engine/server/src/node/metrics.rs",
];
/// Suffixes that Prometheus adds to a histogram's name.
const OF_HISTOGRAM: [&str; 3] = ["_bucket", "_sum", "_count"];

fn known() -> BTreeSet<String> {
    let mut known: BTreeSet<String> = telemetry::NAMES.map(str::to_owned).into();
    for file in MEMBERS {
        let source = read(file);
        let quoted = source.split('"').skip(1).step_by(2);
        known.extend(quoted.map(str::to_owned));
    }
    known
}

/// Metrics in an expression: ours all have the same prefix. Labels do too, but stand before an `=`,
/// a `,` or a `)`.
fn metrics(expression: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut rest = expression;
    while let Some(start) = rest.find(is_name) {
        let word = &rest[start..];
        let end = word.find(|c| !is_name(c)).unwrap_or(word.len());
        let (name, after) = word.split_at(end);
        let ours = name.starts_with("dengine_") || name.starts_with("process_");
        if ours && !name.starts_with("dengine_io_") {
            found.insert(name.to_owned());
        }
        rest = after;
    }
    found
}

fn check(what: &str, expressions: impl IntoIterator<Item = String>) {
    let (known, mut looked_at) = (known(), 0);
    assert!(known.contains("dengine_ready"), "{known:?}");
    for expression in expressions {
        let found = metrics(&expression);
        assert!(
            !found.is_empty(),
            "{what}: no metric of ours in {expression}"
        );
        for name in found {
            let base = OF_HISTOGRAM.iter().find_map(|end| name.strip_suffix(end));
            let exists = known.contains(&name) || base.is_some_and(|base| known.contains(base));
            assert!(
                exists,
                "{what} speaks of {name}, which nobody emits: {expression}"
            );
            looked_at += 1;
        }
    }
    assert!(looked_at > 10, "{what}: only {looked_at} metrics found");
}

fn alerts() -> Vec<Value> {
    let groups: Vec<Value> = serde_saphyr::from_str(&read(ALERTS)).unwrap();
    let rules = groups
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap());
    rules.cloned().collect()
}

fn text(value: &Value) -> String {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value}"))
        .to_owned()
}

#[test]
fn alerts_use_metrics_that_exist() {
    check(
        "alerts.yaml",
        alerts().iter().map(|rule| text(&rule["expr"])),
    );
}

#[test]
fn the_dashboard_shows_metrics_that_exist() {
    check("dashboard.json", of_dashboard());
}

fn of_dashboard() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    targets.map(|target| text(&target["expr"])).collect()
}

const AGGREGATIONS: [&str; 5] = ["sum", "max", "min", "avg", "count"];

/// Removes quotes, braces and square brackets with their content, which has no operators.
fn bare(expression: &str) -> String {
    let (mut bare, mut end) = (String::new(), None);
    for c in expression.chars() {
        match (c, end) {
            (c, Some(awaited)) if c == awaited => end = None,
            (_, Some(_)) => {}
            ('"', None) => end = Some('"'),
            ('{', None) => end = Some('}'),
            ('[', None) => end = Some(']'),
            (c, None) => bare.push(c),
        }
    }
    bare
}

/// The text before the parenthesis that this one closes, and the text within.
fn parenthesis(closed: &str) -> Option<(&str, &str)> {
    let inner = closed.trim_end().strip_suffix(')')?;
    let mut depth = 1;
    let open = inner.rfind(|c: char| {
        depth += i32::from(c == ')') - i32::from(c == '(');
        depth == 0
    })?;
    Some((inner[..open].trim_end(), &inner[open + 1..]))
}

fn labels(list: &str) -> BTreeSet<String> {
    let labels = list.split(',').map(str::trim);
    let labels = labels.filter(|label| !label.is_empty());
    labels.map(str::to_owned).collect()
}

/// Labels that the operand before an operator is aggregated to, if it is.
fn aggregated_before(text: &str) -> Option<BTreeSet<String>> {
    let (head, _) = parenthesis(text)?;
    let (head, list) = match parenthesis(head) {
        Some((head, list)) => (head.strip_suffix("by")?.trim_end(), list),
        None => (head, ""),
    };
    let is_one = AGGREGATIONS.iter().any(|name| head.ends_with(name));
    is_one.then(|| labels(list))
}

/// The same for the operand after it.
fn aggregated_behind(text: &str) -> Option<BTreeSet<String>> {
    let text = text.trim_start();
    let mut names = AGGREGATIONS.iter();
    let rest = names.find_map(|name| text.strip_prefix(name))?.trim_start();
    if rest.starts_with('(') {
        return Some(BTreeSet::new());
    }
    Some(listed(rest, "by")?.0)
}

/// The labels after a keyword, and the rest.
fn listed<'a>(text: &'a str, word: &str) -> Option<(BTreeSet<String>, &'a str)> {
    let list = text.trim_start().strip_prefix(word)?.trim_start();
    let (list, rest) = list.strip_prefix('(')?.split_once(')')?;
    Some((labels(list), rest))
}

fn is_number(word: Option<&str>) -> bool {
    word.is_some_and(|word| word.parse::<f64>().is_ok())
}

/// Checks that Prometheus can match the series of both sides of every arithmetic operator: both
/// have the same labels, or those that `on` names. Returns the number of operators.
fn matched(expression: &str) -> Result<usize, String> {
    let bare = bare(expression);
    let operators = bare.match_indices(['+', '-', '*', '/', '%']);
    let mut seen = 0;
    for (place, operator) in operators {
        let (before, behind) = (&bare[..place], &bare[place + 1..]);
        let is_edge = |c: char| [' ', '(', ')'].contains(&c);
        let last = before.trim_end().rsplit(is_edge).next();
        let next = behind.trim_start().split(is_edge).next();
        if is_number(last) || is_number(next) {
            continue;
        }
        let on = listed(behind, "on");
        let (on, behind) = match on {
            Some((on, rest)) => (Some(on), rest.trim_start()),
            None => (None, behind),
        };
        let behind = behind.strip_prefix("group_left").unwrap_or(behind);
        let sides = [aggregated_before(before), aggregated_behind(behind)];
        let fits = match (&sides, on) {
            ([Some(left), Some(right)], None) => left == right,
            ([Some(left), Some(right)], Some(on)) => on.is_subset(left) && on.is_subset(right),
            _ => false,
        };
        if !fits {
            return Err(format!("{sides:?} at {operator} in {expression}"));
        }
        seen += 1;
    }
    Ok(seen)
}

/// An alert that adds series with different labels never fires.
#[test]
fn operands_have_the_same_labels() {
    let alerts = alerts().into_iter().map(|rule| text(&rule["expr"]));
    let seen: Result<Vec<usize>, String> = alerts
        .chain(of_dashboard())
        .map(|expression| matched(&expression))
        .collect();
    let seen: usize = seen.unwrap().into_iter().sum();
    assert!(seen >= 3, "only {seen} operators found");
}

#[test]
fn mismatched_operands_are_found() {
    for expression in [
        "increase(a[15m]) + increase(b[15m]) > 20",
        "sum by (x) (a) + increase(b[15m])",
        "sum by (x) (a) - sum by (x, y) (b)",
        "rate(a[5m]) / on (x) group_left sum by (x) (b)",
        "sum by (y) (a) / on (x) group_left sum by (x) (b)",
        "avg(sum by (x) (a) - b)",
    ] {
        assert!(matched(expression).is_err(), "{expression}");
    }
    for (expression, operators) in [
        (
            "sum by (x) (rate(a{b=\"-\"}[5m])) / sum by (x) (c) > 0.5",
            1,
        ),
        ("sum by (x, y) (a) / on (x) group_left sum by (x) (b)", 1),
        ("max(a) - max(b) * 100", 1),
        ("a or b", 0),
    ] {
        assert_eq!(matched(expression), Ok(operators), "{expression}");
    }
}

#[test]
fn every_alert_has_its_runbook_and_every_runbook_its_alert() {
    let alerts: BTreeSet<String> = alerts().iter().map(|rule| text(&rule["alert"])).collect();
    let files = std::fs::read_dir(workspace().join("docs/runbooks")).unwrap();
    let runbooks: BTreeSet<String> = files
        .map(|entry| entry.unwrap().path())
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(alerts, runbooks);
}

#[test]
fn names_are_found_in_expressions() {
    let expression =
        r#"sum by (dengine_io_cluster) (rate(dengine_x_total{namespace="dengine_y"}[5m])) > 1"#;
    let found = metrics(expression);
    assert!(found.contains("dengine_x_total") && !found.contains("dengine_io_cluster"));
}
