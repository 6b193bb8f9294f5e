//! Whether this process still holds the lease, seen for itself: the lease manager says "holds" until it reads that another does,
//! and an API server that does not answer tells it nothing.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::options::Options;

/// Looks in one lease's time. Three looks in ten seconds are most of what an idle operator asks the API server.
const LOOKS: u32 = 5;
/// This part of the lease's time is left for ending. The lease is renewed when a third of its time is left.
const MARGIN: u32 = 15;

/// What was read of the lease last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// By this process, which renewed it then, by its own clock.
    Since(Timestamp),
    /// By another, or by nobody.
    Not,
}

/// Ends before another may hold the lease that was not renewed, or once another says that it does.
pub async fn lost(client: &Client, options: &Options, holder: &str) {
    let api: Api<Lease> = Api::namespaced(client.clone(), &options.lease_namespace);
    let lasts = Duration::from_secs(options.lease_seconds);
    until_lost(&api, &options.lease_name, holder, lasts, Timestamp::now).await;
}

/// Waits for no answer beyond the moment at which another may take over: a black-holed API server must not keep a process at
/// work whose lease is over.
async fn until_lost(
    api: &Api<Lease>,
    name: &str,
    holder: &str,
    lasts: Duration,
    now: impl Fn() -> Timestamp,
) {
    let pause = lasts / LOOKS;
    let mut looks = interval(pause);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut held = Held::Since(now());
    while let Some(left) = time_left(held, now(), lasts) {
        let look = async {
            looks.tick().await;
            timeout(pause, api.get(name)).await
        };
        match timeout(left, look).await.and_then(|answer| answer) {
            Ok(Ok(lease)) => held = read(&lease.spec.unwrap_or_default(), holder),
            Ok(Err(error)) => tracing::warn!(%error, "the lease can not be read"),
            Err(_) => tracing::warn!("the API server does not say who holds the lease"),
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

/// How long work may go on if the lease is not renewed; `None`: it is lost. A clock that was set back gives no more than the
/// lease lasts.
fn time_left(held: Held, now: Timestamp, lasts: Duration) -> Option<Duration> {
    let Held::Since(renewed) = held else {
        return None;
    };
    let age_ms = now.as_millisecond() - renewed.as_millisecond();
    let age = Duration::from_millis(u64::try_from(age_ms).unwrap_or(0));
    let ends = lasts - lasts / MARGIN;
    ends.checked_sub(age).filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::pending;

    use axum::http::{Request, Response};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
    use kube::client::Body;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_lost_in_time_though_nobody_answers() {
        let black_hole = tower::service_fn(|_: Request<Body>| async {
            pending::<Result<Response<Body>, Infallible>>().await
        });
        let api = Api::namespaced(Client::new(black_hole, "test"), "test");
        let begun = Instant::now();
        let now = || {
            let passed = i64::try_from(begun.elapsed().as_millis()).unwrap();
            Timestamp::from_millisecond(passed).unwrap()
        };
        let lasts = Duration::from_secs(15);
        let lost = until_lost(&api, "lease", "a", lasts, now);
        let in_time = timeout(2 * lasts, lost).await;
        assert!(in_time.is_ok(), "it works on");
        assert!(begun.elapsed() < lasts, "another may work by now");
        assert!(begun.elapsed() >= lasts - lasts / LOOKS, "too early");
    }

    #[test]
    fn a_lease_that_is_not_renewed_in_time_is_lost_whoever_can_be_asked() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let lease = LeaseSpec {
            holder_identity: Some("a".to_owned()),
            renew_time: Some(MicroTime(at(100))),
            ..LeaseSpec::default()
        };
        let lasts = Duration::from_secs(15);
        let is_lost = |held, now, lasts| time_left(held, now, lasts).is_none();
        assert!(!is_lost(read(&lease, "a"), at(113), lasts));
        assert!(is_lost(read(&lease, "a"), at(114), lasts), "it went silent");
        assert!(is_lost(read(&lease, "b"), at(101), lasts), "another has it");
        assert!(is_lost(read(&LeaseSpec::default(), "a"), at(101), lasts));
        assert!(
            !is_lost(read(&lease, "a"), at(99), lasts),
            "the clock was set"
        );
    }
}
