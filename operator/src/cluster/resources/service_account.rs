//! The members' ServiceAccount: an identity without any permission and without a mounted token.

use dengine_crds::names;
use k8s_openapi::api::core::v1::ServiceAccount;

use super::meta;
use crate::cluster::validate::Cluster;

/// The ServiceAccount `NAME`.
pub(crate) fn build(cluster: &Cluster) -> ServiceAccount {
    ServiceAccount {
        metadata: meta(cluster, names::cluster::stateful_set(&cluster.name)),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}

#[cfg(test)]
mod tests {
    use crate::cluster::validate::tests::cluster;

    #[test]
    fn members_get_no_token() {
        let account = super::build(&cluster("demo"));
        assert_eq!(account.automount_service_account_token, Some(false));
    }
}
