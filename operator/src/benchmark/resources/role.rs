//! The Role of a Job: it may patch the status of its own benchmark, and nothing else.

use dengine_crds::{DEngineBenchmark, names};
use k8s_openapi::api::rbac::v1::{PolicyRule, Role};
use kube::Resource;

use super::{Benchmark, reporter};

/// The Role `NAME-reporter`.
pub(crate) fn build(benchmark: &Benchmark) -> Role {
    Role {
        metadata: reporter(benchmark),
        rules: Some(vec![PolicyRule {
            api_groups: Some(vec![names::GROUP.to_owned()]),
            resources: Some(vec![format!("{}/status", DEngineBenchmark::plural(&()))]),
            resource_names: Some(vec![benchmark.name.clone()]),
            verbs: vec!["patch".to_owned()],
            ..PolicyRule::default()
        }]),
    }
}

#[cfg(test)]
mod tests {
    use crate::benchmark::resources::tests::benchmark;

    #[test]
    fn a_job_touches_one_status_and_nothing_else() {
        let rules = super::build(&benchmark("{workload: put, target: {}}"))
            .rules
            .unwrap();
        assert_eq!(rules.len(), 1);
        assert_eq!(rules[0].verbs, ["patch"]);
        assert_eq!(
            rules[0].resources,
            Some(vec!["denginebenchmarks/status".to_owned()])
        );
        assert_eq!(rules[0].resource_names, Some(vec!["demo-write".to_owned()]));
    }
}
