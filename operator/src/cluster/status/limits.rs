//! What the schema lets into a status. The API server refuses a status with more as a whole, and that would be for ever: what
//! is too long is cut, wherever it comes from (a webhook's words, a member that somebody added by hand). Pure.

use std::sync::LazyLock;

use dengine_crds::{DEngineCluster, DEngineClusterStatus};
use kube::CustomResourceExt;
use serde_json::Value;

/// Schema of the status, as the CRD has it.
static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let definition = serde_json::to_value(DEngineCluster::crd()).expect("it is plain data");
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"].clone()
});

/// The status without what is more than its schema lets in.
pub(in crate::cluster) fn within_limits(status: DEngineClusterStatus) -> DEngineClusterStatus {
    let mut value = serde_json::to_value(&status).expect("a status is plain data");
    if cut(&mut value, &SCHEMA) {
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
