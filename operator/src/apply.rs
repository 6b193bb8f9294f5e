//! Server-side apply that writes only what changed. An object is left alone if the operator applied
//! the very same before (a hash in an annotation) and everything in it still is as applied.

use std::fmt::Debug;

use dengine_crds::names::{annotations, managers};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, Patch, PatchParams};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource, ResourceExt};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{hash, quantity};

/// Why an object could not be applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// An object of that name is there and belongs to somebody else.
    #[error("{kind} {name} exists and does not belong to this resource; rename one of them")]
    NameTaken {
        /// Kind of the object.
        kind: String,
        /// Its name.
        name: String,
    },
    /// The API server refused or did not answer.
    #[error("{kind} {name}: {source}")]
    Kube {
        /// Kind of the object.
        kind: String,
        /// Its name.
        name: String,
        /// The API server's words.
        source: Box<kube::Error>,
    },
}

impl ApplyError {
    /// The API server looked at the object and found it invalid; repeating does not help.
    pub fn is_invalid(&self) -> bool {
        matches!(self, Self::Kube { source, .. } if is_code(source, 422))
    }
}

/// Whether the API server answered with this HTTP status.
pub fn is_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// Makes the object so, if it is not. `live` is what a cache knows of it. Answers whether it wrote.
///
/// # Errors
/// If the name belongs to somebody else's object, or the API server refuses.
pub async fn ensure<K>(client: &Client, desired: K, live: Option<&K>) -> Result<bool, ApplyError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Serialize + DeserializeOwned + Clone + Debug,
{
    let (kind, name) = (K::kind(&()).into_owned(), desired.name_any());
    let failed = |source: kube::Error| ApplyError::Kube {
        kind: kind.clone(),
        name: name.clone(),
        source: Box::new(source),
    };
    let api: Api<K> = Api::namespaced(client.clone(), &desired.namespace().unwrap_or_default());
    let desired = stamped(desired);
    if live.is_some_and(|live| is_as_applied(&desired, live)) {
        return Ok(false);
    }
    // The cache holds only labelled objects and may lag; what is really there decides.
    if let Some(there) = api.get_opt(&name).await.map_err(failed)? {
        let wanted_owner = owner_uid(&desired["metadata"]["ownerReferences"]);
        if controller(there.owner_references()) != wanted_owner.as_deref() {
            return Err(ApplyError::NameTaken { kind, name });
        }
        if is_as_applied(&desired, &there) {
            return Ok(false);
        }
    }
    let parameters = PatchParams::apply(managers::OPERATOR).force();
    api.patch(&name, &parameters, &Patch::Apply(&desired))
        .await
        .map_err(failed)?;
    tracing::info!(kind, name, "applied");
    Ok(true)
}

fn stamped<K>(desired: K) -> Value
where
    K: Resource<DynamicType = ()> + Serialize,
{
    let mut value = serde_json::to_value(desired).expect("an object is plain data");
    value["apiVersion"] = K::api_version(&()).into();
    value["kind"] = K::kind(&()).into();
    let hash = hash::of(&value);
    value["metadata"]["annotations"][annotations::APPLIED_HASH] = hash.into();
    value
}

fn is_as_applied<K: Serialize>(desired: &Value, live: &K) -> bool {
    let mut live = serde_json::to_value(live).expect("an object is plain data");
    // Typed objects do not repeat what their type says.
    live["apiVersion"] = desired["apiVersion"].clone();
    live["kind"] = desired["kind"].clone();
    contains(&live, desired)
}

/// Everything in `part` is in `whole`. The API server adds defaults, and writes quantities its own way.
/// What we no longer want shows in the hash.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part.iter().all(|(key, value)| {
            let empty = value.as_object().is_some_and(serde_json::Map::is_empty);
            whole.get(key).map_or(empty, |there| contains(there, value))
        }),
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(w, p)| contains(w, p))
        }
        (Value::String(whole), Value::String(part)) => {
            whole == part || quantity::equal(whole, part)
        }
        _ => whole == part,
    }
}

fn controller(owners: &[OwnerReference]) -> Option<&str> {
    owners
        .iter()
        .find(|owner| owner.controller == Some(true))
        .map(|owner| owner.uid.as_str())
}

fn owner_uid(owners: &Value) -> Option<String> {
    let owners: Vec<OwnerReference> = serde_json::from_value(owners.clone()).unwrap_or_default();
    controller(&owners).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::contains;

    #[test]
    fn defaults_of_the_server_are_no_change_and_edits_are() {
        let applied = json!({"spec": {"size": "1024Mi", "ports": [{"port": 1}], "none": {}}});
        let live =
            json!({"spec": {"size": "1Gi", "ports": [{"port": 1, "protocol": "TCP"}], "x": 1}});
        assert!(contains(&live, &applied));
        for edited in [
            json!({"spec": {"size": "2Gi", "ports": [{"port": 1}]}}),
            json!({"spec": {"size": "1Gi", "ports": [{"port": 2}]}}),
            json!({"spec": {"size": "1Gi", "ports": [{"port": 1}, {"port": 2}]}}),
            json!({"spec": {"size": "1Gi"}}),
        ] {
            assert!(!contains(&edited, &applied), "{edited}");
        }
    }
}
