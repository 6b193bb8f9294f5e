//! What the schema lets into a status. The API server refuses a status with more as a whole, and that would be for ever: what
//! is too long is cut, wherever it comes from (a webhook's words, a member that somebody added by hand, what a Job posted). Pure.

use std::sync::LazyLock;

use dengine_crds::{
    DEngineBenchmark, DEngineBenchmarkStatus, DEngineCluster, DEngineClusterStatus,
};
use kube::CustomResourceExt;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// A status with a schema.
pub(crate) trait Limited: Serialize + DeserializeOwned {
    /// Its schema, as the CRD has it.
    fn schema() -> &'static Value;
}

impl Limited for DEngineClusterStatus {
    fn schema() -> &'static Value {
        static SCHEMA: LazyLock<Value> = LazyLock::new(of_status::<DEngineCluster>);
        &SCHEMA
    }
}

impl Limited for DEngineBenchmarkStatus {
    fn schema() -> &'static Value {
        static SCHEMA: LazyLock<Value> = LazyLock::new(of_status::<DEngineBenchmark>);
        &SCHEMA
    }
}

fn of_status<K: CustomResourceExt>() -> Value {
    let definition = serde_json::to_value(K::crd()).expect("it is plain data");
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"].clone()
}

/// The status without what is more than its schema lets in.
pub(crate) fn within_limits<S: Limited>(status: S) -> S {
    let mut value = serde_json::to_value(&status).expect("a status is plain data");
    if cut(&mut value, S::schema()) {
        serde_json::from_value(value).expect("nothing of it has another type")
    } else {
        status
    }
}

/// Answers whether anything was cut.
fn cut(value: &mut Value, schema: &Value) -> bool {
    let limit = |name: &str| {
        schema[name]
            .as_u64()
            .and_then(|max| usize::try_from(max).ok())
    };
    match value {
        Value::String(text) => {
            let Some(max) = limit("maxLength").filter(|max| text.chars().count() > *max) else {
                return false;
            };
            *text = text.chars().take(max).collect();
            true
        }
        Value::Array(items) => {
            let too_many = limit("maxItems").filter(|max| items.len() > *max);
            if let Some(max) = too_many {
                items.truncate(max);
            }
            let mut changed = too_many.is_some();
            for item in items {
                changed |= cut(item, &schema["items"]);
            }
            changed
        }
        Value::Object(fields) => {
            let mut changed = false;
            for (name, field) in fields {
                changed |= cut(field, &schema["properties"][name]);
            }
            changed
        }
        _ => false,
    }
}
