//! From the custom resource to a cluster that can be built: defaults of the operator filled in, and
//! checks that the schema cannot express. Pure.

use dengine_crds::cluster::REPLICAS_MAX;
use dengine_crds::names::annotations;
use dengine_crds::{DEngineCluster, DEngineClusterSpec};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};

use super::standing::Standing;
use super::versions::{self, Version};
use crate::pod::User;
use crate::quantity;

/// Defaults of the operator for fields that a spec leaves out.
#[derive(Clone, Debug)]
pub struct Defaults {
    pub image: String,
    pub bench_image: String,
    /// User of the pods; no spec changes it.
    pub user: User,
}

/// A cluster whose spec can be carried out.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    /// Name of the custom resource and prefix of all its objects.
    pub name: String,
    pub namespace: String,
    /// Makes Kubernetes delete the objects once the custom resource is deleted.
    pub owner: OwnerReference,
    /// The spec as the schema accepted it.
    pub spec: DEngineClusterSpec,
    pub image: String,
    /// Why that is not the image that the spec asks for.
    pub refused_image: Option<String>,
    /// The image without one in the spec.
    pub default_image: String,
    /// Any new value restarts the members.
    pub restart: Option<String>,
    /// User of the pods.
    pub user: User,
}

impl Cluster {
    /// The resource that events are about.
    pub(crate) fn reference(&self) -> ObjectReference {
        ObjectReference {
            name: Some(self.name.clone()),
            namespace: Some(self.namespace.clone()),
            uid: Some(self.owner.uid.clone()),
            kind: Some(self.owner.kind.clone()),
            api_version: Some(self.owner.api_version.clone()),
            ..ObjectReference::default()
        }
    }
}

/// Why a spec cannot be carried out. The schema refuses all of these; they are checked again
/// because a schema of another version may have accepted them.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum InvalidSpec {
    /// Even, zero or too many.
    #[error("spec.replicas is {0}; it must be odd and from 1 to 7")]
    Replicas(u32),
    /// Not a quantity.
    #[error("spec.storage.size is {0:?}; it must be a quantity such as 1Gi")]
    StorageSize(String),
    /// The API server did not return the identity of the object.
    #[error("the resource has no uid or no namespace")]
    NoIdentity,
}

/// Checks the spec and fills in defaults.
pub(crate) fn validate(
    resource: &DEngineCluster,
    defaults: &Defaults,
    standing: &Standing,
) -> Result<Cluster, InvalidSpec> {
    let spec = &resource.spec;
    if spec.replicas.is_multiple_of(2) || spec.replicas > REPLICAS_MAX {
        return Err(InvalidSpec::Replicas(spec.replicas));
    }
    if quantity::parse(&spec.storage.size).is_none() {
        return Err(InvalidSpec::StorageSize(spec.storage.size.clone()));
    }
    let status = resource.status.as_ref();
    // The status may be lost, as after a restored backup; the running image is then the best guess.
    let running = standing.image.as_deref();
    let recorded = status
        .and_then(|status| status.default_image.clone())
        .or_else(|| running.map(str::to_owned));
    let default_image = recorded.unwrap_or_else(|| defaults.image.clone());
    let wanted = spec.image.clone().unwrap_or_else(|| default_image.clone());
    let cluster_version = status.and_then(|status| status.cluster_version.as_deref());
    let cluster_version = cluster_version.and_then(Version::parse);
    let cluster_version = cluster_version.max(standing.cluster_version);
    let refused = running.and_then(|running| versions::refused(cluster_version, running, &wanted));
    let image = match running {
        Some(running) if refused.is_some() => running.to_owned(),
        _ => wanted,
    };
    Ok(Cluster {
        name: resource.name_any(),
        namespace: resource.namespace().ok_or(InvalidSpec::NoIdentity)?,
        owner: resource
            .controller_owner_ref(&())
            .ok_or(InvalidSpec::NoIdentity)?,
        image,
        refused_image: refused,
        default_image,
        restart: resource.annotations().get(annotations::RESTART).cloned(),
        user: defaults.user,
        spec: spec.clone(),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn defaults() -> Defaults {
        Defaults {
            image: "localhost/dengine:dev".to_owned(),
            bench_image: "localhost/dengine-bench:dev".to_owned(),
            user: User::Fixed,
        }
    }

    pub(crate) fn resource_with(name: &str, spec: &str) -> DEngineCluster {
        let mut resource = DEngineCluster::new(name, serde_saphyr::from_str(spec).unwrap());
        resource.metadata.namespace = Some("test".to_owned());
        resource.metadata.uid = Some("a-uid".to_owned());
        resource.metadata.generation = Some(1);
        resource
    }

    pub(crate) fn cluster(name: &str) -> Cluster {
        cluster_with(name, "{}")
    }

    pub(crate) fn cluster_with(name: &str, spec: &str) -> Cluster {
        validate(
            &resource_with(name, spec),
            &defaults(),
            &Standing::default(),
        )
        .unwrap()
    }

    fn validated(resource: &DEngineCluster, standing: &Standing) -> Cluster {
        validate(resource, &defaults(), standing).unwrap()
    }

    /// A cluster whose members run this image.
    fn runs(image: &str) -> Standing {
        Standing {
            image: Some(image.to_owned()),
            ..Standing::default()
        }
    }

    #[test]
    fn an_empty_spec_is_three_members_of_the_default_image() {
        let cluster = cluster("demo");
        assert_eq!(cluster.spec.replicas, 3);
        assert_eq!(cluster.image, "localhost/dengine:dev");
        assert_eq!(cluster.owner.controller, Some(true));
    }

    #[test]
    fn a_new_default_image_applies_to_new_clusters() {
        let mut resource = resource_with("demo", "{}");
        let status = dengine_crds::DEngineClusterStatus {
            default_image: Some("older".to_owned()),
            ..Default::default()
        };
        resource.status = Some(status);
        let image = |resource: &DEngineCluster| validated(resource, &Standing::default()).image;
        assert_eq!(image(&resource), "older");
        resource.spec.image = Some("asked-for".to_owned());
        assert_eq!(image(&resource), "asked-for");
        resource.spec.image = None;
        assert_eq!(image(&resource), "older", "taken back");
    }

    #[test]
    fn a_lost_status_restarts_no_member() {
        let resource = resource_with("demo", "{}");
        let cluster = validated(&resource, &runs("what-runs"));
        assert_eq!(cluster.image, "what-runs");
        assert_eq!(cluster.default_image, "what-runs");
    }

    #[test]
    fn an_image_that_may_not_follow_is_refused() {
        let mut resource = resource_with("demo", "{image: 'd:1.4.0'}");
        let status = dengine_crds::DEngineClusterStatus {
            cluster_version: Some("1.2.0".to_owned()),
            ..Default::default()
        };
        resource.status = Some(status);
        let cluster = |resource: &DEngineCluster| validated(resource, &runs("d:1.2.0"));
        assert_eq!(cluster(&resource).image, "d:1.2.0");
        let message = cluster(&resource).refused_image.unwrap();
        assert!(message.contains("skips"), "{message}");
        resource.spec.image = Some("d:1.3.0".to_owned());
        assert_eq!(cluster(&resource).image, "d:1.3.0");
        assert_eq!(cluster(&resource).refused_image, None);
    }

    #[test]
    fn a_version_recorded_outside_the_status_counts() {
        let resource = resource_with("demo", "{image: 'd:1.1.0'}");
        let mut standing = runs("d:1.2.0");
        assert_eq!(validated(&resource, &standing).image, "d:1.1.0");
        standing.cluster_version = Version::parse("1.2.0");
        assert_eq!(validated(&resource, &standing).image, "d:1.2.0");
    }

    #[test]
    fn what_an_older_schema_accepted_is_refused() {
        for (spec, expected) in [
            ("{replicas: 4}", InvalidSpec::Replicas(4)),
            ("{replicas: 9}", InvalidSpec::Replicas(9)),
            (
                "{storage: {size: lots}}",
                InvalidSpec::StorageSize("lots".to_owned()),
            ),
        ] {
            let refused = validate(
                &resource_with("demo", spec),
                &defaults(),
                &Standing::default(),
            );
            assert_eq!(refused.map(|_| ()), Err(expected));
        }
    }
}
