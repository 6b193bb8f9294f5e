//! Whether this process still holds the lease, seen for itself: the lease manager says "holds" until it reads that another does,
//! and an API server that does not answer tells it nothing.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};
use tokio::time::sleep;

use crate::options::Options;

/// Looks in one lease's time. Three looks in ten seconds are most of what an idle operator asks the API server.
const LOOKS: u64 = 5;

/// What was read of the lease last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// By this process, which renewed it then, by its own clock.
    Since(Timestamp),
    /// By another, or by nobody.
    Not,
}

/// Ends once another may hold the lease: it says so, or it was not renewed for as long as it lasts.
pub async fn lost(client: &Client, options: &Options, holder: &str) {
    let api: Api<Lease> = Api::namespaced(client.clone(), &options.lease_namespace);
    let lasts = Duration::from_secs(options.lease_seconds);
    let mut held = Held::Since(Timestamp::now());
    while !is_lost(held, Timestamp::now(), lasts) {
        sleep(lasts / u32::try_from(LOOKS).expect("a few")).await;
        match api.get(&options.lease_name).await {
            Ok(lease) => held = read(&lease.spec.unwrap_or_default(), holder),
            Err(error) => tracing::warn!(%error, "the lease can not be read"),
        }
    }
}

fn read(lease: &LeaseSpec, holder: &str) -> Held {
    let ours = lease.holder_identity.as_deref() == Some(holder);
    match &lease.renew_time {
        Some(renewed) if ours => Held::Since(renewed.0),
        _ => Held::Not,
    }
}

fn is_lost(held: Held, now: Timestamp, lasts: Duration) -> bool {
    match held {
        Held::Since(renewed) => {
            let age_ms = now.as_millisecond() - renewed.as_millisecond();
            u128::try_from(age_ms).is_ok_and(|age_ms| age_ms >= lasts.as_millis())
        }
        Held::Not => true,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

    use super::*;

    #[test]
    fn a_lease_that_is_not_renewed_in_time_is_lost_whoever_can_be_asked() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let lease = LeaseSpec {
            holder_identity: Some("a".to_owned()),
            renew_time: Some(MicroTime(at(100))),
            ..LeaseSpec::default()
        };
        let lasts = Duration::from_secs(15);
        assert!(!is_lost(read(&lease, "a"), at(114), lasts));
        assert!(is_lost(read(&lease, "a"), at(115), lasts), "it went silent");
        assert!(is_lost(read(&lease, "b"), at(101), lasts), "another has it");
        assert!(is_lost(read(&LeaseSpec::default(), "a"), at(101), lasts));
        assert!(
            !is_lost(read(&lease, "a"), at(99), lasts),
            "the clock was set"
        );
    }
}
