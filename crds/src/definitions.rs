//! The CustomResourceDefinitions as we ship them: what the derive makes, cleaned of what the API
//! server would warn about or misunderstand.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value;

use crate::{DEngineBenchmark, DEngineCluster};

const HEADER: &str = "# Generated from crds/src by `make crds`. Do not edit.\n";

/// Both definitions with the name of the file that each ships in.
///
/// # Panics
/// Never on a build that passes this crate's tests: the definitions are constants.
pub fn all() -> Vec<(&'static str, CustomResourceDefinition)> {
    vec![
        ("dengineclusters.yaml", cleaned(DEngineCluster::crd())),
        ("denginebenchmarks.yaml", cleaned(DEngineBenchmark::crd())),
    ]
}

/// The text of a definition's file.
///
/// # Errors
/// If the definition can not be written as YAML, which a test rules out.
pub fn to_yaml(definition: &CustomResourceDefinition) -> Result<String, serde_yaml::Error> {
    Ok(format!("{HEADER}{}", serde_yaml::to_string(definition)?))
}

fn cleaned(definition: CustomResourceDefinition) -> CustomResourceDefinition {
    let mut value = serde_json::to_value(definition).expect("a definition is plain data");
    clean(&mut value);
    serde_json::from_value(value).expect("cleaning keeps the definition's shape")
}

/// - `nullable` goes: then the API server drops a null before it applies defaults and rules, instead
///   of handing it to rules whose `has()` would find it.
/// - Formats of unsigned numbers go: the API server knows only int32 and int64 and warns of others.
fn clean(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("nullable");
            if map
                .get("format")
                .and_then(Value::as_str)
                .is_some_and(|f| f.starts_with("uint"))
            {
                map.remove("format");
            }
            map.values_mut().for_each(clean);
        }
        Value::Array(items) => items.iter_mut().for_each(clean),
        _ => {}
    }
}
