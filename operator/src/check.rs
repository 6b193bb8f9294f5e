//! `--check`, run by `helm test`: whether the custom resources are served and an operator holds the
//! lease.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use dengine_crds::names::{GROUP, VERSION};
use dengine_crds::{DEngineBenchmark, DEngineCluster};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client, Resource};
use tokio::time::{Instant, sleep};

use crate::options::Options;

/// A newly installed operator may still wait for the lease of the one before it.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_secs(1);

/// Retries until all checks pass.
///
/// # Errors
/// The check that still fails after a minute.
pub async fn run(options: &Options) -> anyhow::Result<()> {
    let client = Client::try_default()
        .await
        .context("the Kubernetes API is not configured")?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match check(&client, options).await {
            Ok(holder) => {
                tracing::info!(holder, "an operator holds the lease");
                return Ok(());
            }
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(error) => tracing::info!(%error, "not yet"),
        }
        sleep(PAUSE).await;
    }
}

async fn check(client: &Client, options: &Options) -> anyhow::Result<String> {
    let version = format!("{GROUP}/{VERSION}");
    let served = client
        .list_api_group_resources(&version)
        .await
        .with_context(|| format!("{version} is not served; install the chart's CRDs"))?;
    for kind in [DEngineCluster::kind(&()), DEngineBenchmark::kind(&())] {
        let is_there = served
            .resources
            .iter()
            .any(|resource| resource.kind == kind);
        ensure!(is_there, "{kind} is not served; install the chart's CRDs");
    }
    let leases: Api<Lease> = Api::namespaced(client.clone(), &options.lease_namespace);
    let lease = leases
        .get(&options.lease_name)
        .await
        .context("the lease cannot be read")?;
    holder(&lease.spec.unwrap_or_default(), Timestamp::now())
}

/// The holder of the lease, if it was renewed in time.
fn holder(lease: &LeaseSpec, now: Timestamp) -> anyhow::Result<String> {
    let Some(holder) = lease
        .holder_identity
        .clone()
        .filter(|name| !name.is_empty())
    else {
        bail!("no operator holds the lease");
    };
    let renewed = lease
        .renew_time
        .as_ref()
        .context("the lease was never renewed")?;
    let age_seconds = now.as_second() - renewed.0.as_second();
    let valid_seconds = i64::from(lease.lease_duration_seconds.unwrap_or(0));
    ensure!(
        age_seconds <= valid_seconds,
        "{holder} renewed its lease {age_seconds} s ago; it expires after {valid_seconds} s"
    );
    Ok(holder)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

    use super::*;

    #[test]
    fn only_a_lease_that_is_held_and_renewed_counts() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let held = LeaseSpec {
            holder_identity: Some("a".to_owned()),
            lease_duration_seconds: Some(15),
            renew_time: Some(MicroTime(at(100))),
            ..LeaseSpec::default()
        };
        assert_eq!(holder(&held, at(115)).unwrap(), "a");
        assert!(holder(&held, at(116)).is_err(), "it went silent");
        let free = LeaseSpec {
            holder_identity: Some(String::new()),
            ..held
        };
        assert!(holder(&free, at(100)).is_err(), "it was given back");
    }
}
