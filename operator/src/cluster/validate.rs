//! From the custom resource to a cluster that can be built: defaults of the operator filled in, and
//! what the schema can not check. Pure.

use dengine_crds::cluster::REPLICAS_MAX;
use dengine_crds::names::annotations;
use dengine_crds::{DEngineCluster, DEngineClusterSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};

use crate::quantity;

/// What the operator was installed with and a spec may leave out.
#[derive(Clone, Debug)]
pub struct Defaults {
    /// Image of the server.
    pub image: String,
    /// Image of the load generator.
    pub bench_image: String,
}

/// A cluster whose spec can be carried out.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Name of the custom resource and prefix of everything made for it.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Makes Kubernetes delete what we make once the custom resource is deleted.
    pub owner: OwnerReference,
    /// The spec, as the schema let it through.
    pub spec: DEngineClusterSpec,
    /// The image that the members run.
    pub image: String,
    /// The image that they run without one in the spec.
    pub default_image: String,
    /// Any new value restarts the members.
    pub restart: Option<String>,
}

/// Why a spec can not be carried out. The schema refuses all of these; they are checked again because
/// a schema of another version may have let them in.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidSpec {
    /// Even, zero or too many.
    #[error("spec.replicas is {0}; it must be odd and from 1 to 7")]
    Replicas(u32),
    /// Not a quantity.
    #[error("spec.storage.size is {0:?}; it must be a quantity such as 1Gi")]
    StorageSize(String),
    /// The API server did not say which object this is.
    #[error("the resource has no uid or no namespace")]
    NoIdentity,
}

/// Checks the spec and fills in what it leaves out.
///
/// # Errors
/// If the spec can not be carried out.
pub fn validate(resource: &DEngineCluster, defaults: &Defaults) -> Result<Cluster, InvalidSpec> {
    let spec = &resource.spec;
    if spec.replicas.is_multiple_of(2) || spec.replicas > REPLICAS_MAX {
        return Err(InvalidSpec::Replicas(spec.replicas));
    }
    if quantity::parse(&spec.storage.size).is_none() {
        return Err(InvalidSpec::StorageSize(spec.storage.size.clone()));
    }
    let recorded = resource.status.as_ref();
    let recorded = recorded.and_then(|status| status.default_image.clone());
    let default_image = recorded.unwrap_or_else(|| defaults.image.clone());
    Ok(Cluster {
        name: resource.name_any(),
        namespace: resource.namespace().ok_or(InvalidSpec::NoIdentity)?,
        owner: resource
            .controller_owner_ref(&())
            .ok_or(InvalidSpec::NoIdentity)?,
        image: spec.image.clone().unwrap_or_else(|| default_image.clone()),
        default_image,
        restart: resource.annotations().get(annotations::RESTART).cloned(),
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
        }
    }

    pub(crate) fn resource_with(name: &str, spec: &str) -> DEngineCluster {
        let mut resource = DEngineCluster::new(name, serde_yaml::from_str(spec).unwrap());
        resource.metadata.namespace = Some("test".to_owned());
        resource.metadata.uid = Some("a-uid".to_owned());
        resource.metadata.generation = Some(1);
        resource
    }

    pub(crate) fn cluster(name: &str) -> Cluster {
        cluster_with(name, "{}")
    }

    pub(crate) fn cluster_with(name: &str, spec: &str) -> Cluster {
        validate(&resource_with(name, spec), &defaults()).unwrap()
    }

    #[test]
    fn an_empty_spec_is_three_members_of_the_default_image() {
        let cluster = cluster("demo");
        assert_eq!(cluster.spec.replicas, 3);
        assert_eq!(cluster.image, "localhost/dengine:dev");
        assert_eq!(cluster.owner.controller, Some(true));
    }

    #[test]
    fn another_default_of_a_newer_operator_is_for_new_clusters() {
        let mut resource = resource_with("demo", "{}");
        let status = dengine_crds::DEngineClusterStatus {
            default_image: Some("older".to_owned()),
            ..Default::default()
        };
        resource.status = Some(status);
        let image = |resource: &DEngineCluster| validate(resource, &defaults()).unwrap().image;
        assert_eq!(image(&resource), "older");
        resource.spec.image = Some("asked-for".to_owned());
        assert_eq!(image(&resource), "asked-for");
        resource.spec.image = None;
        assert_eq!(image(&resource), "older", "taken back");
    }

    #[test]
    fn what_an_older_schema_let_in_is_refused() {
        for (spec, expected) in [
            ("{replicas: 4}", InvalidSpec::Replicas(4)),
            ("{replicas: 9}", InvalidSpec::Replicas(9)),
            (
                "{storage: {size: lots}}",
                InvalidSpec::StorageSize("lots".to_owned()),
            ),
        ] {
            let refused = validate(&resource_with("demo", spec), &defaults());
            assert_eq!(refused.map(|_| ()), Err(expected));
        }
    }
}
