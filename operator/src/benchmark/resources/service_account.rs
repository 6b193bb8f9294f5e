//! The ServiceAccount with which a Job posts its result.

use k8s_openapi::api::core::v1::ServiceAccount;

use super::{Benchmark, reporter};

/// The ServiceAccount `NAME-reporter`. Only the Job's pod mounts its token.
pub(crate) fn build(benchmark: &Benchmark) -> ServiceAccount {
    ServiceAccount {
        metadata: reporter(benchmark),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}

#[cfg(test)]
mod tests {
    use crate::benchmark::resources::tests::benchmark;

    #[test]
    fn no_token_is_mounted_by_default() {
        let account = super::build(&benchmark("{workload: put, target: {}}"));
        assert_eq!(account.automount_service_account_token, Some(false));
    }
}
