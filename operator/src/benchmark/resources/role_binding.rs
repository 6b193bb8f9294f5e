//! Binds the Role to the Job's ServiceAccount.

use dengine_crds::names;
use k8s_openapi::api::rbac::v1::{RoleBinding, RoleRef, Subject};

use super::{Benchmark, reporter};

/// The RoleBinding `NAME-reporter`.
pub(crate) fn build(benchmark: &Benchmark) -> RoleBinding {
    let name = names::benchmark::reporter(&benchmark.name);
    RoleBinding {
        metadata: reporter(benchmark),
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".to_owned(),
            kind: "Role".to_owned(),
            name: name.clone(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name,
            namespace: Some(benchmark.namespace.clone()),
            ..Subject::default()
        }]),
    }
}

#[cfg(test)]
mod tests {
    use crate::benchmark::resources::tests::benchmark;

    #[test]
    fn the_account_and_the_role_are_of_this_benchmark() {
        let binding = super::build(&benchmark("{workload: put, target: {}}"));
        assert_eq!(binding.role_ref.name, "demo-write-reporter");
        assert_eq!(binding.subjects.unwrap()[0].name, "demo-write-reporter");
    }
}
