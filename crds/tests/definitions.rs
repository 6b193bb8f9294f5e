//! The definitions as they ship: in step with the types, small enough for client-side apply, with
//! every rule in place and every list and text bounded; and the rules themselves, without a server.
#![expect(clippy::unwrap_used, reason = "a test that can not go on says where")]

use std::{fs, path::Path};

use dengine_crds::{DEngineBenchmark, DEngineCluster, definitions};
use kube::core::cel::Validator;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

/// Where the chart keeps what `make crds` writes.
const SHIPPED: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../charts/dengine-operator/files/crds"
);
const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests");

/// What client-side `kubectl apply` can store in its annotation.
const DEFINITION_BYTES_MAX: usize = 256 * 1024;

#[test]
fn shipped_files_are_what_the_types_say() {
    for (file, definition) in definitions::all() {
        let shipped = fs::read_to_string(Path::new(SHIPPED).join(file)).unwrap_or_default();
        let generated = definitions::to_yaml(&definition).unwrap();
        assert!(
            shipped == generated,
            "{file} is out of date: run `make crds`"
        );
    }
}

#[test]
fn definitions_stay_small() {
    for (file, definition) in definitions::all() {
        let bytes = serde_json::to_vec(&definition).unwrap().len();
        assert!(bytes < DEFINITION_BYTES_MAX, "{file}: {bytes} bytes");
    }
}

/// A rule under the wrong attribute is dropped without a word, so they are counted.
#[test]
fn no_rule_got_lost() {
    let counts: Vec<usize> = definitions::all()
        .iter()
        .map(|(_, d)| rules(&serde_json::to_value(d).unwrap()).len())
        .collect();
    assert_eq!(counts, [9, 11]);
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

/// What only the schema refuses (ranges, patterns, enums) needs the API server; its messages are not ours.
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
                documents: serde_yaml::Deserializer::from_str(&text)
                    .map(|document| Value::deserialize(document).unwrap())
                    .collect(),
            }
        })
        .collect();
    cases.sort_by(|a, b| a.file.cmp(&b.file));
    assert!(!cases.is_empty());
    cases
}

/// Defaults as the API server would fill them in: our types carry the same ones.
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
