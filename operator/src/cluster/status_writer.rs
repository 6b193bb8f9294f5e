//! Writes the status of a cluster by server-side apply. The only place that does.

use dengine_crds::names::managers;
use dengine_crds::{DEngineCluster, DEngineClusterStatus};
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Resource, ResourceExt};
use serde_json::json;

use crate::limits::within_limits;

/// Writes the whole status, unless anybody wrote the resource since it was read (409): an operator that was stopped between
/// reading and writing takes back nothing that another one recorded meanwhile.
///
/// # Errors
/// If the API server refuses or does not answer.
pub(super) async fn write(
    client: &Client,
    resource: &DEngineCluster,
    status: &DEngineClusterStatus,
) -> Result<DEngineCluster, kube::Error> {
    let name = resource.name_any();
    let api: Api<DEngineCluster> =
        Api::namespaced(client.clone(), &resource.namespace().unwrap_or_default());
    let patch = json!({
        "apiVersion": DEngineCluster::api_version(&()),
        "kind": DEngineCluster::kind(&()),
        "metadata": {
            "name": name,
            "uid": resource.metadata.uid,
            "resourceVersion": resource.metadata.resource_version,
        },
        "status": within_limits(status.clone()),
    });
    let parameters = PatchParams::apply(managers::OPERATOR).force();
    api.patch_status(&name, &parameters, &Patch::Apply(&patch))
        .await
}
