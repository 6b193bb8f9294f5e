//! What the pods of members and of benchmarks have in common. Pure.

use std::collections::BTreeMap;

use clap::ValueEnum;
use dengine_crds::common::{Resources, Scheduling, Toleration};
use k8s_openapi::api::core::v1::{
    Capabilities, PodSecurityContext, PodSpec, ResourceRequirements, SeccompProfile,
    SecurityContext, Toleration as PodToleration, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// User and group of our images.
const OF_IMAGES: i64 = 65532;

/// User of a pod's processes, and group of its volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum User {
    /// The user of our images.
    #[default]
    Fixed,
    /// Pods name no user, and the platform chooses one. OpenShift does so from the range of the
    /// namespace (its security context constraints `restricted-v2`), and refuses pods with any
    /// other user.
    Assigned,
}

/// Passes the Pod Security Standard "restricted".
pub(crate) fn security_context(user: User) -> PodSecurityContext {
    let id = (user == User::Fixed).then_some(OF_IMAGES);
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: id,
        run_as_group: id,
        fs_group: id,
        // Without this, every start would walk the whole volume to change its owner.
        fs_group_change_policy: Some("OnRootMismatch".to_owned()),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            ..SeccompProfile::default()
        }),
        ..PodSecurityContext::default()
    }
}

/// Passes the Pod Security Standard "restricted"; writes only to its volumes.
pub(crate) fn container_security_context() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".to_owned()]),
            ..Capabilities::default()
        }),
        ..SecurityContext::default()
    }
}

/// Requests and limits as a container states them.
pub(crate) fn resources(resources: &Resources) -> Option<ResourceRequirements> {
    let stated = |map: &BTreeMap<_, _>| (!map.is_empty()).then(|| map.clone());
    (*resources != Resources::default()).then(|| ResourceRequirements {
        requests: stated(&resources.requests),
        limits: stated(&resources.limits),
        ..ResourceRequirements::default()
    })
}

/// A pod spec with the scheduling fields only; `selector` selects the pods that the topology spread
/// counts.
pub(crate) fn scheduled(scheduling: &Scheduling, selector: &BTreeMap<String, String>) -> PodSpec {
    let spread: Vec<TopologySpreadConstraint> = scheduling
        .topology_spread_constraints
        .iter()
        .map(|constraint| TopologySpreadConstraint {
            max_skew: constraint.max_skew,
            topology_key: constraint.topology_key.clone(),
            when_unsatisfiable: constraint.when_unsatisfiable.as_str().to_owned(),
            label_selector: Some(LabelSelector {
                match_labels: Some(selector.clone()),
                ..LabelSelector::default()
            }),
            ..TopologySpreadConstraint::default()
        })
        .collect();
    let tolerations: Vec<PodToleration> = scheduling.tolerations.iter().map(toleration).collect();
    PodSpec {
        node_selector: (!scheduling.node_selector.is_empty())
            .then(|| scheduling.node_selector.clone()),
        tolerations: (!tolerations.is_empty()).then_some(tolerations),
        priority_class_name: scheduling.priority_class_name.clone(),
        topology_spread_constraints: (!spread.is_empty()).then_some(spread),
        ..PodSpec::default()
    }
}

fn toleration(toleration: &Toleration) -> PodToleration {
    PodToleration {
        key: toleration.key.clone(),
        operator: toleration
            .operator
            .map(|operator| operator.as_str().to_owned()),
        value: toleration.value.clone(),
        effect: toleration.effect.map(|effect| effect.as_str().to_owned()),
        toleration_seconds: toleration.toleration_seconds,
    }
}
