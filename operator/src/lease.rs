//! Checks independently whether this process still holds the lease: the lease manager reports
//! "held" until it reads that another process holds it, and learns nothing from an API server that
//! does not answer.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};
use tokio::time::{Instant, sleep, timeout};

use crate::options::Options;

/// How often the lease is read within its duration, plus one read near its end. Three or four reads
/// in ten seconds are most of the requests of an idle operator.
const READS: u32 = 5;
/// After a failed read the next one comes this many times sooner: between two renewals there may be
/// time for only two reads.
const SOONER: u32 = 10;
/// This fraction of the lease's duration is left for shutting down. The lease is renewed when a
/// third of its duration is left.
const MARGIN: u32 = 15;

/// Holder of the lease as last read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// This process, which renewed it at this time of its own clock.
    Since(Timestamp),
    /// Another process, or none.
    Not,
}

/// Returns before another process may take over a lease that was not renewed, or once another one
/// holds it.
pub(crate) async fn lost(client: &Client, options: &Options, holder: &str) {
    let api: Api<Lease> = Api::namespaced(client.clone(), &options.lease_namespace);
    let lasts = Duration::from_secs(options.lease_seconds);
    until_lost(&api, &options.lease_name, holder, lasts, Timestamp::now).await;
}

/// Waits for no answer longer than until another process may take over: an API server that drops
/// packets must not keep a process working after its lease expired.
async fn until_lost(
    api: &Api<Lease>,
    name: &str,
    holder: &str,
    lasts: Duration,
    now: impl Fn() -> Timestamp,
) {
    let pause = lasts / READS;
    let mut next = Duration::ZERO;
    let mut held = Held::Since(now());
    let mut first_seen = Instant::now();
    while let Some(left) = time_left(held, first_seen.elapsed(), now(), lasts) {
        // If this read is not answered, there is time for two more.
        let (wait, longest) = (next.min(left / 3), pause.min(left / 3));
        let read_lease = async {
            sleep(wait).await;
            timeout(longest, api.get(name)).await
        };
        next = pause / SOONER;
        match timeout(left, read_lease).await.and_then(|answer| answer) {
            Ok(Ok(lease)) => {
                let seen = read(&lease.spec.unwrap_or_default(), holder);
                if seen != held {
                    (held, first_seen) = (seen, Instant::now());
                }
                next = pause;
            }
            Ok(Err(error)) => tracing::warn!(%error, "the lease cannot be read"),
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

/// How long work may continue without a renewal; `None`: the lease is lost. If the clock was set
/// back, the time since that renewal was first seen limits it.
fn time_left(held: Held, seen_for: Duration, now: Timestamp, lasts: Duration) -> Option<Duration> {
    let Held::Since(renewed) = held else {
        return None;
    };
    let age_ms = now.as_millisecond() - renewed.as_millisecond();
    let age = Duration::from_millis(u64::try_from(age_ms).unwrap_or(0)).max(seen_for);
    let ends = lasts - lasts / MARGIN;
    ends.checked_sub(age).filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::pending;
    use std::sync::atomic::{AtomicU64, Ordering};

    use axum::http::{Request, Response};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
    use kube::client::Body;

    use super::*;

    const RENEWED_EVERY_MS: u64 = 10_000;

    #[derive(Clone, Copy, Debug)]
    enum Answer {
        Refused,
        Never,
    }

    /// For a lease that is renewed in time, with one read that fails.
    async fn is_lost_for_a_failed_look(late_ms: u64, failing: u64, how: Answer) -> bool {
        let begun = Instant::now();
        let passed_ms = move || late_ms + begun.elapsed().as_millis() as u64;
        let at = |ms: u64| Timestamp::from_millisecond(i64::try_from(ms).unwrap()).unwrap();
        let asked = AtomicU64::new(0);
        let server = tower::service_fn(move |_: Request<Body>| {
            let fails = asked.fetch_add(1, Ordering::Relaxed) == failing;
            let renewed = passed_ms() / RENEWED_EVERY_MS * RENEWED_EVERY_MS;
            let lease = Lease {
                spec: Some(LeaseSpec {
                    holder_identity: Some("a".to_owned()),
                    renew_time: Some(MicroTime(at(renewed))),
                    ..LeaseSpec::default()
                }),
                ..Lease::default()
            };
            let answer = Response::builder().status(if fails { 503 } else { 200 });
            let body = serde_json::to_vec(&lease).unwrap();
            async move {
                if fails && matches!(how, Answer::Never) {
                    pending::<()>().await;
                }
                Ok::<_, Infallible>(answer.body(Body::from(body)).unwrap())
            }
        });
        let api = Api::namespaced(Client::new(server, "test"), "test");
        let lasts = Duration::from_secs(15);
        let lost = until_lost(&api, "lease", "a", lasts, || at(passed_ms()));
        timeout(4 * lasts, lost).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn one_failed_read_does_not_lose_a_renewed_lease() {
        for late_ms in (0..RENEWED_EVERY_MS).step_by(500) {
            for (failing, how) in
                (0..24).map(|it| (it / 2, [Answer::Refused, Answer::Never][it % 2]))
            {
                let lost = is_lost_for_a_failed_look(late_ms, failing as u64, how).await;
                assert!(
                    !lost,
                    "{late_ms} ms after a renewal, look {failing}: {how:?}"
                );
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_lost_in_time_though_the_api_server_is_silent() {
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
        assert!(begun.elapsed() >= lasts - lasts / READS, "too early");
    }

    /// While the clock lags behind, no time seems to pass.
    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_set_back_gives_no_more_time_than_the_lease_lasts() {
        let black_hole = tower::service_fn(|_: Request<Body>| async {
            pending::<Result<Response<Body>, Infallible>>().await
        });
        let api = Api::namespaced(Client::new(black_hole, "test"), "test");
        let begun = Instant::now();
        let hour_ms = 3_600_000;
        let now = || {
            let passed = i64::try_from(begun.elapsed().as_millis()).unwrap();
            let set_back = if passed > 1_000 { hour_ms } else { 0 };
            Timestamp::from_millisecond(2 * hour_ms + passed - set_back).unwrap()
        };
        let lasts = Duration::from_secs(15);
        let lost = until_lost(&api, "lease", "a", lasts, now);
        let in_time = timeout(2 * lasts, lost).await;
        assert!(in_time.is_ok(), "it works on");
        assert!(begun.elapsed() < lasts, "another may work by now");
    }

    #[test]
    fn a_lease_that_is_not_renewed_in_time_is_lost() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let lease = LeaseSpec {
            holder_identity: Some("a".to_owned()),
            renew_time: Some(MicroTime(at(100))),
            ..LeaseSpec::default()
        };
        let lasts = Duration::from_secs(15);
        let is_lost = |held, now, lasts| time_left(held, Duration::ZERO, now, lasts).is_none();
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
