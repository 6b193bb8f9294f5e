//! The objects of a run, one file each. Pure.

pub(super) mod job;
pub(super) mod loads;
pub(super) mod pods_service;
pub(super) mod role;
pub(super) mod role_binding;
pub(super) mod service_account;

use std::collections::BTreeMap;

use dengine_crds::DEngineBenchmarkSpec;
use dengine_crds::benchmark::Leg;
use dengine_crds::names::{self, labels};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::pod::User;

/// A benchmark whose run can be built.
#[derive(Clone, Debug)]
pub(crate) struct Benchmark {
    pub name: String,
    pub namespace: String,
    /// Makes Kubernetes delete the objects once the custom resource is deleted.
    pub owner: OwnerReference,
    pub spec: DEngineBenchmarkSpec,
    /// Image of the load generator.
    pub image: String,
    /// User of its pod.
    pub user: User,
    /// The recorded run.
    pub run_id: String,
    /// Which system its Job measures.
    pub leg: Leg,
}

impl Benchmark {
    /// Whether its load comes from several pods, which have to find each other.
    pub(crate) fn has_several_pods(&self) -> bool {
        self.spec.pods > 1
    }

    /// The run id under which the Job posts its result.
    pub(crate) fn posts_as(&self) -> String {
        match self.leg {
            Leg::Target => self.run_id.clone(),
            Leg::Rival => names::benchmark::rival(&self.run_id),
        }
    }
}

fn labels(benchmark: &str) -> BTreeMap<String, String> {
    [
        (labels::NAME, labels::NAME_VALUE),
        (labels::INSTANCE, benchmark),
        (labels::MANAGED_BY, labels::MANAGED_BY_VALUE),
        (labels::COMPONENT, labels::COMPONENT_BENCHMARK),
        (labels::BENCHMARK, benchmark),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect()
}

fn meta(benchmark: &Benchmark, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(benchmark.namespace.clone()),
        labels: Some(labels(&benchmark.name)),
        owner_references: Some(vec![benchmark.owner.clone()]),
        ..ObjectMeta::default()
    }
}

fn reporter(benchmark: &Benchmark) -> ObjectMeta {
    meta(benchmark, names::benchmark::reporter(&benchmark.name))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn benchmark(spec: &str) -> Benchmark {
        Benchmark {
            name: "demo-write".to_owned(),
            namespace: "test".to_owned(),
            owner: OwnerReference::default(),
            spec: serde_saphyr::from_str(spec).unwrap(),
            image: "localhost/dengine-bench:dev".to_owned(),
            user: User::Fixed,
            run_id: "1".to_owned(),
            leg: Leg::Target,
        }
    }
}
