//! The CustomResourceDefinitions as shipped: as derived, without what the API server would warn
//! about or misread.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Map, Value};

use crate::{DEngineBenchmark, DEngineCluster};

const HEADER: &str = "# Generated from crds/src by `make crds`. Do not edit.\n";

/// Both definitions with the name of the file that each ships in.
pub fn all() -> Vec<(&'static str, CustomResourceDefinition)> {
    vec![
        ("dengineclusters.yaml", cleaned(DEngineCluster::crd())),
        ("denginebenchmarks.yaml", cleaned(DEngineBenchmark::crd())),
    ]
}

/// The text of a definition's file.
///
/// This is the one use of `serde_yaml`, which the design of this project names for it. It is
/// deprecated, but complete for what we write ourselves: what others write is read by
/// `serde_saphyr`.
pub fn to_yaml(definition: &CustomResourceDefinition) -> Result<String, serde_yaml::Error> {
    Ok(format!("{HEADER}{}", serde_yaml::to_string(definition)?))
}

fn cleaned(definition: CustomResourceDefinition) -> CustomResourceDefinition {
    let mut value = serde_json::to_value(definition).expect("a definition is plain data");
    clean(&mut value);
    serde_json::from_value(value).expect("cleaning keeps the definition's shape")
}

/// - `nullable` is removed: then the API server drops a null before it applies defaults and rules,
///   instead of passing it to rules whose `has()` would find it.
/// - Every integer is bounded by its type: the API server would store numbers that our types can
///   not decode, and one such object would break the list of all.
/// - Formats of unsigned numbers are removed: the API server knows only int32 and int64 and warns
///   about others.
fn clean(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("nullable");
            bound(map);
            if text(map, "format").starts_with("uint") {
                map.remove("format");
            }
            map.values_mut().for_each(clean);
        }
        Value::Array(items) => items.iter_mut().for_each(clean),
        _ => {}
    }
}

/// The largest integer below 2^63 that a schema can express: bounds are doubles there, and integers
/// int64.
const INTEGER_MAX: u64 = 9_223_372_036_854_774_784;
/// The smallest one likewise. API servers of 1.36 read a bound by its shortest decimal digits: what
/// these say of -2^63 lies below it, and every object with such a field would be refused.
const INTEGER_MIN: i64 = -9_223_372_036_854_774_784;

/// Adds the bounds that an integer's schema lacks.
fn bound(schema: &mut Map<String, Value>) {
    if text(schema, "type") != "integer" {
        return;
    }
    let (min, max) = match text(schema, "format") {
        "uint8" => (0, u8::MAX.into()),
        "uint16" => (0, u16::MAX.into()),
        "uint32" => (0, u32::MAX.into()),
        "int32" => (i32::MIN.into(), i32::MAX as u64),
        "uint" | "uint64" => (0, INTEGER_MAX),
        _ => (INTEGER_MIN, INTEGER_MAX),
    };
    schema.entry("minimum").or_insert(min.into());
    schema.entry("maximum").or_insert(max.into());
}

fn text<'a>(schema: &'a Map<String, Value>, key: &str) -> &'a str {
    schema.get(key).and_then(Value::as_str).unwrap_or_default()
}
