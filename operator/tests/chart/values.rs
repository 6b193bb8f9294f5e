//! Every value of the chart has a comment in values.yaml and a type in the schema, and the schema
//! has no others.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::read;

/// Paths of all values; maps that people fill themselves count as one.
fn paths(value: &Value, schema: &Value, prefix: &str, found: &mut BTreeSet<String>) {
    let Some(properties) = schema["properties"].as_object() else {
        found.insert(prefix.to_owned());
        return;
    };
    let empty = serde_json::Map::new();
    let values = value.as_object().unwrap_or(&empty);
    // Helm passes `global` to every chart.
    for key in properties.keys().filter(|key| *key != "global") {
        assert!(values.contains_key(key), "{prefix}.{key} has no default");
    }
    for (key, value) in values {
        let schema = properties.get(key);
        let schema = schema.unwrap_or_else(|| panic!("{prefix}.{key} is not in the schema"));
        paths(value, schema, &format!("{prefix}.{key}"), found);
    }
}

#[test]
fn values_and_schema_agree() {
    let values: Value =
        serde_saphyr::from_str(&read("charts/dengine-operator/values.yaml")).unwrap();
    let schema = read("charts/dengine-operator/values.schema.json");
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let mut found = BTreeSet::new();
    paths(&values, &schema, "", &mut found);
    assert!(found.len() > 20, "{found:?}");
}

/// A comment stands above each value, or above the first of a few that belong together.
#[test]
fn every_value_is_described() {
    let text = read("charts/dengine-operator/values.yaml");
    let mut described = false;
    for line in text.lines() {
        let trimmed = line.trim_start();
        if trimmed.is_empty() {
            described = false;
        } else if trimmed.starts_with('#') {
            described = true;
        } else if !trimmed.ends_with(':') && !trimmed.starts_with("- ") {
            assert!(described, "no words above: {line}");
        }
    }
}
