//! The objects of a cluster, one file each. Pure: from the validated cluster to the object.
//!
//! A rolling update is triggered by the pod template alone: nothing may enter it that can change
//! without the spec, least of all the operator's own version.

pub(super) mod client_service;
pub(super) mod peer_service;
pub(super) mod pod_disruption_budget;
pub(super) mod service_account;
pub(super) mod stateful_set;

use std::collections::BTreeMap;

use dengine_crds::names::labels;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::validate::Cluster;

/// Labels that select the objects and pods of one cluster. They never change: a StatefulSet's
/// selector cannot.
pub(super) fn selector(cluster: &str) -> BTreeMap<String, String> {
    [
        (labels::NAME, labels::NAME_VALUE),
        (labels::COMPONENT, labels::COMPONENT_MEMBER),
        (labels::CLUSTER, cluster),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect()
}

pub(super) fn labels(cluster: &str) -> BTreeMap<String, String> {
    let mut labels = selector(cluster);
    labels.insert(labels::INSTANCE.to_owned(), cluster.to_owned());
    labels.insert(
        labels::MANAGED_BY.to_owned(),
        labels::MANAGED_BY_VALUE.to_owned(),
    );
    labels
}

/// The selector as text, for the scale subresource.
pub(super) fn selector_text(cluster: &str) -> String {
    selector(cluster)
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect::<Vec<_>>()
        .join(",")
}

fn meta(cluster: &Cluster, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(cluster.namespace.clone()),
        labels: Some(labels(&cluster.name)),
        owner_references: Some(vec![cluster.owner.clone()]),
        ..ObjectMeta::default()
    }
}
