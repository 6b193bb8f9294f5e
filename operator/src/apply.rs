//! Server-side apply that writes only changes. An object is not applied again if the operator
//! applied the same before (a hash in an annotation) and everything in it is still as applied.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Mutex;

use dengine_crds::names::{annotations, labels, managers};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{hash, quantity};

/// Why an object could not be applied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    /// An object of that name exists and belongs to something else.
    #[error("{kind} {name} exists and does not belong to this resource; rename one of them")]
    NameTaken { kind: String, name: String },
    /// It names another operator; in the cache it did not, or did not exist.
    #[error("{kind} {name} is looked after by operator {operator}")]
    OperatedByAnother {
        kind: String,
        name: String,
        operator: String,
    },
    /// The API server refused or did not answer.
    #[error("{kind} {name}: {source}")]
    Kube {
        kind: String,
        name: String,
        source: Box<kube::Error>,
    },
}

impl ApplyError {
    /// The API server found the object invalid; retrying does not help.
    pub(crate) fn is_invalid(&self) -> bool {
        matches!(self, Self::Kube { source, .. } if is_code(source, 422))
    }
}

/// Whether the API server answered with this HTTP status.
pub(crate) fn is_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// Parameters for a patch of single fields.
pub(crate) fn by_us() -> PatchParams {
    PatchParams {
        field_manager: Some(managers::OPERATOR.to_owned()),
        ..PatchParams::default()
    }
}

/// Parameters for deleting the object with this UID, and not a later one of the same name.
pub(crate) fn exactly(uid: &str) -> DeleteParams {
    DeleteParams::default().preconditions(Preconditions {
        uid: Some(uid.to_owned()),
        resource_version: None,
    })
}

/// Takes "not found" for success.
pub(crate) fn gone_or_done<T>(answer: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match answer {
        Err(error) if !is_code(&error, 404) => Err(error),
        _ => Ok(()),
    }
}

/// Result of applying an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Applied {
    /// It was as wanted.
    Same,
    Written,
    /// It was written, and an admission webhook changed it.
    Altered,
}

/// Objects that an admission webhook changes on every write, as they were after the last write.
/// Writing them again would change nothing. An operator that starts writes each once more.
#[derive(Debug, Default)]
pub(crate) struct Altered {
    seen: Mutex<HashMap<String, Seen>>,
}

/// The version of an object after a write, and what was applied.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    /// The generation, which does not change with the status.
    version: String,
    applied: String,
}

/// Objects that are remembered; beyond it, each is written once more.
const ALTERED_MAX: usize = 16_384;

impl Altered {
    /// Whether the object is as it was after its last write.
    pub(crate) fn is<K: Resource>(&self, desired: &Value, live: &K) -> bool {
        let seen = self.seen.lock().expect("nobody panics with the lock");
        let last = live.meta().uid.as_ref().and_then(|uid| seen.get(uid));
        last.is_some_and(|last| *last == Seen::of(desired, live))
    }

    /// Remembers the object as it is after a write.
    pub(crate) fn remember<K: Resource>(&self, desired: &Value, answer: &K) {
        let Some(uid) = answer.meta().uid.clone() else {
            return;
        };
        let mut seen = self.seen.lock().expect("nobody panics with the lock");
        if seen.len() >= ALTERED_MAX {
            seen.clear();
        }
        seen.insert(uid, Seen::of(desired, answer));
    }
}

impl Seen {
    fn of<K: Resource>(desired: &Value, live: &K) -> Self {
        let meta = live.meta();
        let version = match meta.generation {
            Some(generation) => format!("generation {generation}"),
            None => meta.resource_version.clone().unwrap_or_default(),
        };
        Self {
            version,
            applied: hash::of(desired),
        }
    }
}

/// Applies the object if it differs. `live` is the cached object. Returns whether it wrote.
///
/// # Errors
/// If the name belongs to another owner's object, or the API server refuses.
pub(crate) async fn ensure<K>(
    client: &Client,
    desired: K,
    live: Option<&K>,
) -> Result<bool, ApplyError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Serialize + DeserializeOwned + Clone + Debug,
{
    let applied = ensure_once(client, &Altered::default(), desired, live).await?;
    Ok(applied != Applied::Same)
}

/// Like [`ensure`], but does not undo what a webhook changed in the last write.
///
/// # Errors
/// If the name belongs to another owner's object, or the API server refuses.
pub(crate) async fn ensure_once<K>(
    client: &Client,
    altered: &Altered,
    desired: K,
    live: Option<&K>,
) -> Result<Applied, ApplyError>
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
    let is_done = |live: &K| is_as_applied(&desired, live) || altered.is(&desired, live);
    if live.is_some_and(is_done) {
        return Ok(Applied::Same);
    }
    // The cache holds only labelled objects and may lag; the API server decides.
    if let Some(there) = api.get_opt(&name).await.map_err(failed)? {
        if !may_be_applied(&desired, &there) {
            return Err(ApplyError::NameTaken { kind, name });
        }
        if let Some(operator) = another_operator(&desired, &there) {
            return Err(ApplyError::OperatedByAnother {
                kind,
                name,
                operator,
            });
        }
        if is_done(&there) {
            return Ok(Applied::Same);
        }
    }
    let parameters = PatchParams::apply(managers::OPERATOR).force();
    let answer = api
        .patch(&name, &parameters, &Patch::Apply(&desired))
        .await
        .map_err(failed)?;
    if is_as_applied(&desired, &answer) {
        tracing::info!(kind, name, "applied");
        return Ok(Applied::Written);
    }
    tracing::warn!(kind, name, "applied, and changed by an admission webhook");
    altered.remember(&desired, &answer);
    Ok(Applied::Altered)
}

/// Whether the object belongs to the resource with this UID, or has no owner any more: deleting a
/// resource with `--cascade=orphan` leaves its objects with their labels. `label`: the wanted
/// labels.
pub(crate) fn is_ours<'a, K: Resource>(
    there: &K,
    uid: Option<&str>,
    label: impl Fn(&str) -> Option<&'a str>,
) -> bool {
    if let Some(owner) = controller(there.owner_references()) {
        return uid == Some(owner);
    }
    let same = |name: &str| {
        let said = there.labels().get(name).map(String::as_str);
        said.is_some() && said == label(name)
    };
    same(labels::MANAGED_BY) && (same(labels::CLUSTER) || same(labels::BENCHMARK))
}

fn may_be_applied<K: Resource>(desired: &Value, there: &K) -> bool {
    let owner = owner_uid(&desired["metadata"]["ownerReferences"]);
    let labels = &desired["metadata"]["labels"];
    is_ours(there, owner.as_deref(), |name| labels[name].as_str())
}

/// The operator that the object names, if it is another one.
fn another_operator<K: Resource>(desired: &Value, there: &K) -> Option<String> {
    let ours = desired["metadata"]["annotations"][annotations::OPERATOR].as_str()?;
    let named = there.annotations().get(annotations::OPERATOR)?;
    (named != ours).then(|| named.clone())
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
    // Typed objects do not contain their kind.
    live["apiVersion"] = desired["apiVersion"].clone();
    live["kind"] = desired["kind"].clone();
    contains(&live, desired)
}

/// Whether everything in `part` is in `whole`. The API server adds defaults and normalizes
/// quantities. Fields that are no longer wanted show in the hash.
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

/// UID of the owner that controls the object.
pub(crate) fn controller(owners: &[OwnerReference]) -> Option<&str> {
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
    use k8s_openapi::api::core::v1::Service;
    use serde_json::json;

    use super::*;

    fn service(metadata: &Value) -> Service {
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    #[test]
    fn only_orphans_and_own_objects_are_adopted() {
        let owned_by = |uid: &str| {
            json!([{"apiVersion": "dengine.io/v1alpha1", "kind": "DEngineCluster", "name": "demo",
                    "uid": uid,
                    "controller": true}])
        };
        let labels = json!({
            "app.kubernetes.io/managed-by": "dengine-operator", "dengine.io/cluster": "demo",
        });
        let desired = json!({"metadata": {"labels": labels, "ownerReferences": owned_by("new")}});
        for (there, expected) in [
            (
                json!({"labels": labels, "ownerReferences": owned_by("new")}),
                true,
            ),
            (json!({"labels": labels}), true),
            (
                json!({"labels": labels, "ownerReferences": owned_by("another")}),
                false,
            ),
            (json!({}), false),
            (json!({"labels": {"dengine.io/cluster": "demo"}}), false),
            (
                json!({"labels": {
                    "app.kubernetes.io/managed-by": "dengine-operator",
                    "dengine.io/cluster": "another",
                }}),
                false,
            ),
        ] {
            assert_eq!(
                may_be_applied(&desired, &service(&there)),
                expected,
                "{there}"
            );
        }
    }

    #[test]
    fn a_webhooks_change_is_not_undone_until_the_next_edit() {
        let (altered, desired) = (Altered::default(), json!({"spec": {"image": "ours"}}));
        let live = |generation: i64| {
            let text = generation.to_string();
            service(&json!({"uid": "u", "generation": generation, "resourceVersion": text}))
        };
        assert!(!altered.is(&desired, &live(3)));
        altered.remember(&desired, &live(3));
        assert!(altered.is(&desired, &live(3)));
        assert!(!altered.is(&desired, &live(4)), "edited");
        let another = json!({"spec": {"image": "newer"}});
        assert!(!altered.is(&another, &live(3)), "something else is wanted");
    }

    #[test]
    fn server_defaults_are_no_change_but_edits_are() {
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
