//! The chart's permissions and the table in docs/rbac.md are the same.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::read;

/// Verbs by group and resource.
type Rules = BTreeMap<(String, String), BTreeSet<String>>;

/// Rules for namespaces, and those that only a ClusterRole can grant.
const TEMPLATES: [&str; 2] = ["dengine-operator.rules", "dengine-operator.volumeRules"];

fn rules(helpers: &str, template: &str) -> Vec<Value> {
    let head = format!("{{{{- define \"{template}\" -}}}}");
    let (_, rules) = helpers.split_once(&head).unwrap();
    let (rules, _) = rules.split_once("{{- end -}}").unwrap();
    serde_saphyr::from_str(rules).unwrap()
}

fn of_chart() -> Rules {
    let helpers = read("charts/dengine-operator/templates/_helpers.tpl");
    let templates = TEMPLATES.into_iter();
    let rules: Vec<Value> = templates
        .flat_map(|template| rules(&helpers, template))
        .collect();
    let mut found = Rules::new();
    for rule in &rules {
        for group in strings(&rule["apiGroups"]) {
            for resource in strings(&rule["resources"]) {
                let verbs = found.entry((group.clone(), resource)).or_default();
                verbs.extend(strings(&rule["verbs"]));
            }
        }
    }
    found
}

fn strings(list: &Value) -> Vec<String> {
    let items = list.as_array().unwrap().iter();
    items
        .map(|item| item.as_str().unwrap().to_owned())
        .collect()
}

/// The rows of the first table: group, resource, verbs, why.
fn of_docs() -> Rules {
    let docs = read("docs/rbac.md");
    let rows = docs.lines().skip_while(|line| !line.starts_with("|---"));
    let rows = rows.skip(1).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [group, resource, verbs, why] = cells[..] else {
            panic!("four cells are expected: {row}")
        };
        assert!(!why.is_empty(), "no reason: {row}");
        let group = if group == "(core)" { "" } else { group };
        let verbs = verbs.split(", ").map(str::to_owned).collect();
        ((group.to_owned(), resource.to_owned()), verbs)
    })
    .collect()
}

#[test]
fn every_permission_is_documented_and_nothing_else_is() {
    assert_eq!(of_chart(), of_docs());
}

#[test]
fn nothing_is_granted_by_wildcard() {
    for ((group, resource), verbs) in of_chart() {
        let words = [group, resource].into_iter().chain(verbs);
        assert!(words.into_iter().all(|word| !word.contains('*')));
    }
}
