//! Alerts and dashboard speak only of metrics that members or operator have, and each alert has its runbook.

use std::collections::BTreeSet;

use dengine_operator::telemetry;
use serde_json::Value;

use crate::{read, workspace};

pub(crate) const ALERTS: &str = "charts/dengine-operator/files/monitoring/alerts.yaml";
const DASHBOARD: &str = "charts/dengine-operator/files/monitoring/dashboard.json";
/// Where the members' metrics get their names. The crate itself can not be asked: it compiles RocksDB.
const MEMBERS: [&str; 2] = [
    "engine/src/telemetry/metrics.rs",
    "engine/src/node/metrics.rs",
];
/// What Prometheus makes of a histogram's name.
const OF_HISTOGRAM: [&str; 3] = ["_bucket", "_sum", "_count"];

fn known() -> BTreeSet<String> {
    let mut known: BTreeSet<String> = telemetry::NAMES.map(str::to_owned).into();
    for file in MEMBERS {
        let source = read(file);
        let constants = source.lines().filter(|line| line.starts_with("pub const"));
        known.extend(constants.filter_map(|line| Some(line.split('"').nth(1)?.to_owned())));
    }
    known
}

/// Words of an expression that can only be metrics: ours all begin alike. Labels do too, but stand before an `=`, a `,`
/// or a `)`.
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
    let groups: Vec<Value> = serde_yaml::from_str(&read(ALERTS)).unwrap();
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
fn alerts_speak_of_metrics_that_exist() {
    check(
        "alerts.yaml",
        alerts().iter().map(|rule| text(&rule["expr"])),
    );
}

#[test]
fn the_dashboard_shows_metrics_that_exist() {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap());
    check(
        "dashboard.json",
        targets.map(|target| text(&target["expr"])),
    );
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
