//! Writes the status of clusters and benchmarks by server-side apply. The only place that does.

use std::fmt::Debug;

use dengine_crds::names::managers;
use kube::api::{Api, Patch, PatchParams};
use kube::core::NamespaceResourceScope;
use kube::core::object::HasStatus;
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::limits::{Limited, within_limits};

/// Writes the whole status, unless the resource was written since it was read (409): an operator
/// that was suspended between reading and writing must not undo what another one recorded.
pub(crate) async fn write<K>(
    client: &Client,
    resource: &K,
    status: &K::Status,
) -> Result<K, kube::Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + HasStatus,
    K: Clone + Debug + DeserializeOwned,
    K::Status: Limited + Clone,
{
    let status = within_limits(status.clone());
    let version = resource.resource_version();
    apply(client, managers::OPERATOR, resource, version, &status).await
}

/// Applies fields of the status under this field manager, and takes away those that the manager
/// applied before and that are missing now. With a resource version only to that version.
pub(crate) async fn apply<K>(
    client: &Client,
    manager: &str,
    resource: &K,
    version: Option<String>,
    status: &impl Serialize,
) -> Result<K, kube::Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + DeserializeOwned,
{
    let name = resource.name_any();
    let namespace = resource.namespace().unwrap_or_default();
    let mut patch = json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "metadata": { "name": name, "uid": resource.meta().uid },
        "status": status,
    });
    if let Some(version) = version {
        patch["metadata"]["resourceVersion"] = version.into();
    }
    let api: Api<K> = Api::namespaced(client.clone(), &namespace);
    let parameters = PatchParams::apply(manager).force();
    api.patch_status(&name, &parameters, &Patch::Apply(&patch))
        .await
}
