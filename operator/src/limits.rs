//! Limits of the status in the schema. The API server would refuse a longer status as a whole, with
//! every retry, so values are cut: messages of webhooks, names of members that were added by hand,
//! what a Job posted. Pure.

use std::sync::LazyLock;

use dengine_crds::{
    DEngineBenchmark, DEngineBenchmarkStatus, DEngineCluster, DEngineClusterStatus,
};
use kube::CustomResourceExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub(crate) trait Limited: Serialize + DeserializeOwned {
    /// Its schema in the CRD.
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

/// The status, cut to the limits of its schema.
pub(crate) fn within_limits<S: Limited>(status: S) -> S {
    let mut value = serde_json::to_value(&status).expect("a status is plain data");
    if cut(&mut value, S::schema()) {
        serde_json::from_value(value).expect("nothing of it has another type")
    } else {
        status
    }
}

/// Returns whether anything was cut.
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
