//! The definitions as shipped: in step with the types, small enough for client-side apply, with
//! every rule in place and every list and text bounded; and the rules themselves, without a server.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::fs;
use std::path::Path;

use dengine_crds::{DEngineBenchmark, DEngineCluster, definitions};
use kube::core::cel::Validator;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Where `make crds` writes: for kubectl, and in the chart.
const SHIPPED: [&str; 2] = [
    concat!(env!("CARGO_MANIFEST_DIR"), "/yaml"),
    concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../charts/dengine-operator/files/crds"
    ),
];
const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests");

/// What client-side `kubectl apply` can store in its annotation.
const DEFINITION_BYTES_MAX: usize = 256 * 1024;

#[test]
fn shipped_files_match_the_types() {
    for (file, definition) in definitions::all() {
        let generated = definitions::to_yaml(&definition).unwrap();
        for folder in SHIPPED {
            let shipped = fs::read_to_string(Path::new(folder).join(file)).unwrap_or_default();
            assert!(
                shipped == generated,
                "{file} is out of date: run `make crds`"
            );
        }
    }
}

#[test]
fn definitions_stay_small() {
    for (file, definition) in definitions::all() {
        let bytes = serde_json::to_vec(&definition).unwrap().len();
        assert!(bytes < DEFINITION_BYTES_MAX, "{file}: {bytes} bytes");
    }
}

/// A rule under the wrong attribute is dropped silently, so they are counted.
#[test]
fn no_rule_is_lost() {
    let counts: Vec<usize> = definitions::all()
        .iter()
        .map(|(_, d)| rules(&serde_json::to_value(d).unwrap()).len())
        .collect();
    assert_eq!(counts, [9, 23]);
}

#[test]
fn everything_a_person_writes_is_bounded() {
    for (file, definition) in definitions::all() {
        let schema = schema(&serde_json::to_value(&definition).unwrap());
        let mut unbounded = Vec::new();
        find_unbounded(&schema["properties"]["spec"], "spec", &mut unbounded);
        assert!(unbounded.is_empty(), "{file}: no bound on {unbounded:?}");
    }
}

#[test]
fn uninstalling_the_chart_keeps_the_definitions() {
    for (file, definition) in definitions::all() {
        let annotations = definition.metadata.annotations.unwrap_or_default();
        assert_eq!(
            annotations
                .get("helm.sh/resource-policy")
                .map(String::as_str),
            Some("keep"),
            "{file}"
        );
    }
}

#[test]
fn valid_resources_pass_the_rules() {
    for case in cases("valid") {
        if let Err(errors) = case.last_against_the_one_before() {
            panic!("{}: {errors}", case.file);
        }
    }
}

/// Ranges, patterns and enums are checked by the API server alone; its messages are not ours.
#[test]
fn invalid_resources_break_the_rule_they_name() {
    let ours: Vec<String> = definitions::all()
        .iter()
        .flat_map(|(_, d)| rules(&serde_json::to_value(d).unwrap()))
        .map(|rule| {
            rule["message"]
                .as_str()
                .expect("every rule has a message")
                .to_owned()
        })
        .collect();
    let mut seen = std::collections::BTreeSet::new();
    for case in cases("invalid") {
        let expected = case
            .expect
            .clone()
            .unwrap_or_else(|| panic!("{}: no `# expect:`", case.file));
        if ours.contains(&expected) {
            let errors = case.last_against_the_one_before().expect_err(&case.file);
            assert!(errors.contains(&expected), "{}: {errors}", case.file);
            seen.insert(expected);
        }
    }
    for message in &ours {
        assert!(
            seen.contains(message),
            "no bad resource for the rule: {message}"
        );
    }
}

/// One file: documents in the order in which they are applied.
struct Case {
    file: String,
    expect: Option<String>,
    documents: Vec<Value>,
}

impl Case {
    fn last_against_the_one_before(&self) -> Result<(), String> {
        let (last, before) = self.documents.split_last().expect("a case has a document");
        let kind = last["kind"].as_str().unwrap();
        let definition = definitions::all()
            .into_iter()
            .map(|(_, d)| serde_json::to_value(d).unwrap())
            .find(|d| d["spec"]["names"]["kind"] == kind)
            .unwrap();
        let old = before.last().map(with_defaults);
        Validator::new()
            .validate(&schema(&definition), &with_defaults(last), old.as_ref())
            .map_err(|errors| errors.to_string())
    }
}

fn cases(folder: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = fs::read_dir(Path::new(CASES).join(folder))
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            Case {
                file: path.file_name().unwrap().to_string_lossy().into_owned(),
                expect: text
                    .lines()
                    .next()
                    .and_then(|l| l.strip_prefix("# expect: "))
                    .map(str::to_owned),
                documents: serde_saphyr::from_multiple(&text).unwrap(),
            }
        })
        .collect();
    cases.sort_by(|a, b| a.file.cmp(&b.file));
    assert!(!cases.is_empty());
    cases
}

/// Defaults as the API server fills them in: our types have the same ones.
fn with_defaults(document: &Value) -> Value {
    match document["kind"].as_str() {
        Some("DEngineCluster") => through::<DEngineCluster>(document),
        Some("DEngineBenchmark") => through::<DEngineBenchmark>(document),
        other => panic!("unknown kind {other:?}"),
    }
}

fn through<T: DeserializeOwned + Serialize>(document: &Value) -> Value {
    let typed: T = serde_json::from_value(document.clone()).unwrap();
    serde_json::to_value(typed).unwrap()
}

fn schema(definition: &Value) -> Value {
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

fn rules(value: &Value) -> Vec<Value> {
    match value {
        Value::Object(map) => map
            .iter()
            .flat_map(|(key, value)| match (key.as_str(), value) {
                ("x-kubernetes-validations", Value::Array(rules)) => rules.clone(),
                _ => rules(value),
            })
            .collect(),
        Value::Array(items) => items.iter().flat_map(rules).collect(),
        _ => Vec::new(),
    }
}

fn find_unbounded(schema: &Value, path: &str, found: &mut Vec<String>) {
    let has = |key: &str| schema.get(key).is_some();
    let bounded = match schema["type"].as_str() {
        Some("string") => has("maxLength") || has("enum"),
        Some("array") => has("maxItems"),
        Some("integer") => has("maximum") || path.ends_with("tolerationSeconds"),
        Some("object") => has("properties") || has("maxProperties"),
        _ => true,
    };
    if !bounded {
        found.push(path.to_owned());
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        find_unbounded(property, &format!("{path}.{name}"), found);
    }
    for inner in ["items", "additionalProperties"] {
        if has(inner) {
            find_unbounded(&schema[inner], &format!("{path}[]"), found);
        }
    }
}

/// The API server stores every integer that the schema allows, so a reader has to accept it.
#[test]
fn every_integer_that_the_schema_allows_can_be_read() {
    for (file, definition) in definitions::all() {
        let definition = serde_json::to_value(&definition).unwrap();
        let schema = schema(&definition);
        let kind = definition["spec"]["names"]["kind"].clone();
        let mut full = sample(&schema);
        full["apiVersion"] = "dengine.io/v1alpha1".into();
        full["kind"] = kind;
        full["metadata"] = serde_json::json!({"name": "x"});
        let mut integers = Vec::new();
        find_integers(&schema, "", &mut integers);
        assert!(integers.len() > 10, "{file}: {}", integers.len());
        for (path, schema) in integers {
            for bound in ["minimum", "maximum"] {
                let extreme = schema[bound].as_f64();
                let extreme = extreme.unwrap_or_else(|| panic!("{file}: no {bound} of {path}"));
                // API servers of 1.36 read a bound by its shortest digits, and refuse every object
                // with a field whose bound is then no int64.
                let digits = extreme.to_string();
                assert!(digits.parse::<i64>().is_ok(), "{file}: {path}: {digits}");
                let mut full = full.clone();
                *full.pointer_mut(&path).unwrap() = whole(extreme);
                let read = with_defaults(&full);
                // An entry of the status that cannot be read would be left out, and so are some
                // zeros.
                let read = read.pointer(&path).cloned().unwrap_or_else(|| 0.into());
                assert_eq!(Some(&read), full.pointer(&path), "{file}: {path}");
            }
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "bounds of integers are whole and within 64 bits, and `as` saturates"
)]
fn whole(number: f64) -> Value {
    (number as i64).into()
}

/// A value with every property, one item in each list and one entry in each map.
fn sample(schema: &Value) -> Value {
    if schema["enum"].is_array() {
        return schema["enum"][0].clone();
    }
    let properties = schema["properties"].as_object();
    match schema["type"].as_str() {
        Some("object") => match properties {
            Some(properties) => properties
                .iter()
                .map(|(name, schema)| (name.clone(), sample(schema)))
                .collect(),
            None => serde_json::json!({"key": sample(&schema["additionalProperties"])}),
        },
        Some("array") => vec![sample(&schema["items"])].into(),
        Some("integer") => whole(schema["minimum"].as_f64().unwrap_or(1.0)),
        Some("number") => 1.5.into(),
        Some("boolean") => true.into(),
        _ if schema["format"] == "date-time" => "2026-01-01T00:00:00Z".into(),
        _ => "1".into(),
    }
}

/// Each integer's schema with the place of its value in a sample.
fn find_integers(schema: &Value, path: &str, found: &mut Vec<(String, Value)>) {
    if schema["type"] == "integer" {
        found.push((path.to_owned(), schema.clone()));
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        find_integers(property, &format!("{path}/{name}"), found);
    }
    find_integers_if_any(&schema["items"], &format!("{path}/0"), found);
    find_integers_if_any(
        &schema["additionalProperties"],
        &format!("{path}/key"),
        found,
    );
}

fn find_integers_if_any(schema: &Value, path: &str, found: &mut Vec<(String, Value)>) {
    if schema.is_object() {
        find_integers(schema, path, found);
    }
}

/// A newer operator wrote the status, and `helm rollback` brought back this one.
#[test]
fn an_older_version_reads_the_status_of_a_newer_one() {
    for (file, definition) in definitions::all() {
        let definition = serde_json::to_value(&definition).unwrap();
        let schema = schema(&definition);
        let mut full = sample(&schema);
        full["kind"] = definition["spec"]["names"]["kind"].clone();
        full["metadata"] = serde_json::json!({"name": "x"});
        let mut enums = Vec::new();
        find_enums(&schema["properties"]["status"], "/status", &mut enums);
        assert!(enums.len() > 3, "{file}: {enums:?}");
        for path in enums {
            let mut full = full.clone();
            *full.pointer_mut(&path).unwrap() = "OfTomorrow".into();
            with_defaults(&full);
        }
    }
}

fn find_enums(schema: &Value, path: &str, found: &mut Vec<String>) {
    // Conditions have `Unknown` for values to come.
    if schema["enum"].is_array() && !path.contains("/conditions/") {
        found.push(path.to_owned());
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        find_enums(property, &format!("{path}/{name}"), found);
    }
    for (key, place) in [("items", "0"), ("additionalProperties", "key")] {
        if schema[key].is_object() {
            find_enums(&schema[key], &format!("{path}/{place}"), found);
        }
    }
}
