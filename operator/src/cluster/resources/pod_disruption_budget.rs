//! Lets node drains take one member at a time.

use dengine_crds::names;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{meta, selector};
use crate::cluster::validate::Cluster;

/// The PodDisruptionBudget `NAME`.
pub fn build(cluster: &Cluster) -> PodDisruptionBudget {
    PodDisruptionBudget {
        metadata: meta(cluster, names::cluster::stateful_set(&cluster.name)),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            selector: Some(LabelSelector {
                match_labels: Some(selector(&cluster.name)),
                ..LabelSelector::default()
            }),
            ..PodDisruptionBudgetSpec::default()
        }),
        ..PodDisruptionBudget::default()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

    use crate::cluster::validate::tests::cluster;

    #[test]
    fn one_member_at_a_time() {
        let budget = super::build(&cluster("demo"));
        assert_eq!(
            budget.spec.unwrap().max_unavailable,
            Some(IntOrString::Int(1))
        );
    }
}
