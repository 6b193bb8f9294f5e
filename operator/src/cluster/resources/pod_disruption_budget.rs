//! The PodDisruptionBudget: node drains evict one member at a time.

use dengine_crds::names;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{meta, selector};
use crate::cluster::validate::Cluster;

/// The PodDisruptionBudget `NAME`.
pub(crate) fn build(cluster: &Cluster) -> PodDisruptionBudget {
    PodDisruptionBudget {
        metadata: meta(cluster, names::cluster::stateful_set(&cluster.name)),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            // A member that does not serve may always be evicted: without a quorum no member is
            // ready, and nodes could not be drained at all. Its volume stays.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
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
        let spec = budget.spec.unwrap();
        assert_eq!(spec.max_unavailable, Some(IntOrString::Int(1)));
        let unhealthy = spec.unhealthy_pod_eviction_policy;
        assert_eq!(unhealthy.as_deref(), Some("AlwaysAllow"));
    }
}
