//! Writes the status of a cluster by server-side apply. The only place that does.

use dengine_crds::names::managers;
use dengine_crds::{DEngineCluster, DEngineClusterStatus};
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Resource, ResourceExt};
use serde_json::json;

/// Writes the whole status. With a resource version the write fails (409) if anybody wrote since.
///
/// # Errors
/// If the API server refuses or does not answer.
pub(super) async fn write(
    client: &Client,
    resource: &DEngineCluster,
    status: &DEngineClusterStatus,
    resource_version: Option<String>,
) -> Result<DEngineCluster, kube::Error> {
    let name = resource.name_any();
    let api: Api<DEngineCluster> =
        Api::namespaced(client.clone(), &resource.namespace().unwrap_or_default());
    let mut patch = json!({
        "apiVersion": DEngineCluster::api_version(&()),
        "kind": DEngineCluster::kind(&()),
        "metadata": { "name": name, "uid": resource.metadata.uid },
        "status": status,
    });
    if let Some(version) = resource_version {
        patch["metadata"]["resourceVersion"] = version.into();
    }
    let parameters = PatchParams::apply(managers::OPERATOR).force();
    api.patch_status(&name, &parameters, &Patch::Apply(&patch))
        .await
}
