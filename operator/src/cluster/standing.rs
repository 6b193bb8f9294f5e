//! What the StatefulSet that there is says of its cluster. It outlives a status that is lost, or put back as it was long ago
//! (a backup): what may become of a cluster must not depend on that. Pure.

use dengine_crds::names::{self, annotations};
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::ResourceExt;

use super::model::Observed;
use super::versions::Version;

/// What it says; nothing of a cluster without one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The image that members run, or are about to.
    pub image: Option<String>,
    /// The cluster that members belong to, once there were any, so that acknowledged data may exist.
    pub cluster_id: Option<u64>,
    /// Highest version that every member has run.
    pub cluster_version: Option<Version>,
}

impl Standing {
    /// Of the resource with this UID. What another one's says is about other members.
    pub fn of(set: &StatefulSet, uid: &str) -> Self {
        let owners = set.owner_references();
        if !owners.iter().any(|owner| owner.uid == uid) {
            return Self::default();
        }
        let said = set.annotations();
        let id = said.get(annotations::CLUSTER_ID);
        let version = said.get(annotations::CLUSTER_VERSION);
        Self {
            image: image(set),
            cluster_id: id.and_then(|text| text.parse().ok()),
            cluster_version: version.and_then(|text| Version::parse(text)),
        }
    }
}

fn image(set: &StatefulSet) -> Option<String> {
    let pod = set.spec.as_ref()?.template.spec.as_ref()?;
    let mut containers = pod.containers.iter();
    let server = containers.find(|container| container.name == names::cluster::CONTAINER)?;
    server.image.clone()
}

/// What is to be said of the cluster that was observed: more and more, never less.
pub(super) fn annotations(observed: &Observed) -> impl Iterator<Item = (String, String)> {
    let id = observed.cluster_id.filter(|_| observed.had_members);
    let id = id.map(|id| id.to_string());
    let version = observed.cluster_version.map(|version| version.to_string());
    let said = [
        (annotations::CLUSTER_ID, id),
        (annotations::CLUSTER_VERSION, version),
    ];
    said.into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
}
