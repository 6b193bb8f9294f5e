//! What the StatefulSet records about its cluster, and its claims while there is none. Both outlive
//! a status that was lost or restored from an old backup: no decision may depend on that.

use std::collections::BTreeMap;

use dengine_crds::names::{self, annotations, labels};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use kube::api::{Api, Patch};
use serde_json::json;

use super::model::Observed;
use super::objects::publish_altered;
use super::observe::Observation;
use super::validate::Cluster;
use super::versions::Version;
use crate::apply::{by_us, is_ours};
use crate::context::Context;

/// What is recorded; empty without a StatefulSet or claims.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The image that members run, or are about to.
    pub image: Option<String>,
    /// The id of the cluster, once it had members, so that acknowledged data may exist.
    pub cluster_id: Option<u64>,
    /// Highest version that every member has run.
    pub cluster_version: Option<Version>,
}

impl Standing {
    /// Of the resource with this UID, or of one of this name that was deleted with
    /// `--cascade=orphan`: its members are adopted as they are. Another resource's StatefulSet is
    /// about other members.
    pub(crate) fn of(set: &StatefulSet, cluster: &str, uid: &str) -> Option<Self> {
        is_its(set, cluster, uid).then(|| Self::said_by(set))
    }

    fn said_by(set: &StatefulSet) -> Self {
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

/// Whether it belongs to the resource with this UID, or has no owner any more.
pub(super) fn is_its(set: &StatefulSet, cluster: &str, uid: &str) -> bool {
    let label = |name: &str| match name {
        labels::MANAGED_BY => Some(labels::MANAGED_BY_VALUE),
        labels::CLUSTER => Some(cluster),
        _ => None,
    };
    is_ours(set, Some(uid), label)
}

impl Standing {
    /// From the claims that a cluster left behind, as when its resource was deleted, or restored
    /// from a backup without its StatefulSet.
    pub(super) fn of_claims<'a>(claims: impl Iterator<Item = &'a PersistentVolumeClaim>) -> Self {
        let mut standing = Self::default();
        for claim in claims {
            let said = claim.annotations();
            let version = said.get(annotations::CLUSTER_VERSION);
            let version = version.and_then(|text| Version::parse(text));
            standing.cluster_version = standing.cluster_version.max(version);
            let image = || said.get(annotations::IMAGE).cloned();
            standing.image = standing.image.or_else(image);
        }
        standing
    }

    /// Annotations that the claim lacks; `None` if it has them.
    fn missing_on(&self, claim: &PersistentVolumeClaim) -> Option<BTreeMap<&'static str, String>> {
        let version = self.cluster_version.map(|version| version.to_string());
        let wanted = [
            (annotations::IMAGE, self.image.clone()),
            (annotations::CLUSTER_VERSION, version),
        ];
        let wanted = wanted.into_iter();
        let wanted: BTreeMap<_, _> = wanted.filter_map(|(name, it)| Some((name, it?))).collect();
        let differs =
            |(name, value): (&&str, &String)| claim.annotations().get(*name) != Some(value);
        let stays = claim.metadata.deletion_timestamp.is_none();
        (stays && wanted.iter().any(differs)).then_some(wanted)
    }
}

/// Records on the claims what the StatefulSet records: they outlive it. Nothing waits for it.
pub(super) async fn note_on_claims(
    context: &Context,
    cluster: &Cluster,
    observation: &Observation,
) {
    let Some(set) = observation.stateful_set.as_deref() else {
        return;
    };
    let standing = Standing {
        image: image(set),
        cluster_version: observation.observed.cluster_version,
        ..Standing::default()
    };
    for claim in observation.claims.values() {
        let Some(said) = standing.missing_on(claim) else {
            continue;
        };
        let wanted = json!(said);
        if context.altered.is(&wanted, claim.as_ref()) {
            continue;
        }
        let (uid, name) = (claim.uid(), claim.name_any());
        let api: Api<PersistentVolumeClaim> =
            Api::namespaced(context.client.clone(), &cluster.namespace);
        let patch = Patch::Merge(json!({"metadata": {"uid": uid, "annotations": wanted}}));
        let (attempt, by_us) = (format!("note on {}", uid.unwrap_or_default()), by_us());
        let what_fails = format!("image and version cannot be recorded on volume claim {name}");
        let noted = async {
            let answer = api.patch(&name, &by_us, &patch).await?;
            if standing.missing_on(&answer).is_some() {
                context.altered.remember(&wanted, &answer);
                publish_altered(context, cluster, "PersistentVolumeClaim", &name).await;
            }
            Ok::<_, kube::Error>(())
        };
        let about = cluster.reference();
        if let Err(error) = context
            .best_effort(&about, &attempt, &what_fails, noted)
            .await
        {
            tracing::debug!(%error, name, "not recorded on the claim");
        }
    }
}

fn image(set: &StatefulSet) -> Option<String> {
    let pod = set.spec.as_ref()?.template.spec.as_ref()?;
    let mut containers = pod.containers.iter();
    let server = containers.find(|container| container.name == names::cluster::CONTAINER)?;
    server.image.clone()
}

/// What is recorded about the observed cluster: values are only added or raised.
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
