//! The load itself: closed-loop clients, their latencies and failures. Knows nothing of command
//! lines, protocols or reports.

use std::{
    future::Future,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use dengine_crds::benchmark::ReadConsistency;
use hdrhistogram::Histogram;
use tokio::{sync::watch, task::JoinSet, time::sleep};

use crate::{
    keys::{self, Keys},
    progress::Progress,
    target::{Lane, Target},
};

/// Latencies above this are recorded as this: no request is allowed to take so long.
const LATENCY_US_MAX: u64 = 3_600_000_000;
/// Significant digits of a latency.
const LATENCY_DIGITS: u8 = 3;
/// Clients share histograms, so that many clients cost little memory and rarely meet.
const SHARDS: usize = 16;
/// A run that fails so often has failed; going on would only load a cluster in trouble.
pub const ERRORS_MAX: u64 = 1_000;
/// Each client has its own value, unless all of them together would be larger than this.
const VALUES_BYTES_MAX: u64 = 64 << 20;
/// A client waits so long after a failure, so that a dead target is not hammered.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(10);

/// What each request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Writes its key.
    Put,
    /// Reads its key, which must exist.
    Get(ReadConsistency),
}

/// A load.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// What each request does.
    pub operation: Operation,
    /// Clients, each with one request in flight.
    pub clients: u64,
    /// Requests over all clients, exactly.
    pub total: u64,
    /// Which keys are used.
    pub keys: Keys,
    /// Bytes of each value.
    pub value_size: u32,
    /// Seed of the values.
    pub seed: u64,
}

/// What came of a load.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Latencies of the successful requests, µs.
    pub latency_us: Histogram<u64>,
    /// Requests that failed, those in flight when the run was cut short included.
    pub errors: u64,
    /// The first failure, in words.
    pub first_error: Option<String>,
    /// From the common start to the last answer.
    pub elapsed: Duration,
    /// The highest revision that a write took.
    pub revision: u64,
}

impl Measured {
    /// Requests that were answered or failed.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.latency_us.len() + self.errors
    }
}

/// An empty histogram with the bounds that all of them share.
#[must_use]
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_US_MAX, LATENCY_DIGITS).expect("the bounds are valid")
}

/// The requests of one client: every request of the run belongs to exactly one, and at any time all
/// clients are at about the same place in the order of keys.
pub fn numbers(client: u64, clients: u64, total: u64) -> impl Iterator<Item = u64> {
    let mut next = Some(client);
    std::iter::from_fn(move || {
        let number = next.filter(|&number| number < total)?;
        next = number.checked_add(clients);
        Some(number)
    })
}

/// Runs a load until it is done, or `cut` says in words why it must end now.
pub async fn run(
    plan: Plan,
    target: &Target,
    progress: &Progress,
    cut: impl Future<Output = String>,
) -> Measured {
    let (start, started) = watch::channel(None);
    let shared = Arc::new(Shared::new());
    let values = values(&plan);
    let mut tasks = JoinSet::new();
    for client in 0..plan.clients {
        let lane = target.lane(client as usize);
        let value = values[client as usize % values.len()].clone();
        tasks.spawn(run_client(
            plan,
            client,
            lane,
            value,
            Arc::clone(&shared),
            started.clone(),
        ));
    }
    drop(started);
    let start_at = Instant::now();
    start.send_replace(Some(start_at));

    let watched = Arc::clone(&shared);
    let shown = progress.follow(plan.total, move || watched.finished());
    tokio::pin!(cut);
    let mut end_at = start_at;
    loop {
        tokio::select! {
            joined = tasks.join_next() => match joined {
                Some(Ok(ended)) => end_at = end_at.max(ended),
                Some(Err(panic)) => shared.fail(format!("a client ended abnormally: {panic}")),
                None => break,
            },
            reason = &mut cut => {
                // Each client that is left has one request in flight, whose end nobody will see.
                let in_flight = tasks.len() as u64;
                tasks.shutdown().await;
                shared.fail_many(in_flight, format!("{reason}; {in_flight} requests were in flight"));
                end_at = Instant::now();
                break;
            }
        }
    }
    drop(shown);
    shared.measured(end_at - start_at)
}

fn values(plan: &Plan) -> Vec<Bytes> {
    let distinct = (VALUES_BYTES_MAX / u64::from(plan.value_size.max(1))).clamp(1, plan.clients);
    (0..distinct)
        .map(|i| keys::value(plan.value_size, plan.seed.wrapping_add(i)))
        .collect()
}

/// Sends a client's requests one after the other; returns when the last was answered.
async fn run_client(
    plan: Plan,
    client: u64,
    mut lane: Lane,
    value: Bytes,
    shared: Arc<Shared>,
    mut started: watch::Receiver<Option<Instant>>,
) -> Instant {
    let shard = &shared.shards[client as usize % SHARDS];
    let mut keys = plan.keys.client(client);
    let start = started.wait_for(Option::is_some).await.map(|start| *start);
    let Ok(Some(mut wanted)) = start else {
        return Instant::now();
    };
    for number in numbers(client, plan.clients, plan.total) {
        let key = keys.key(number);
        let outcome = send(plan.operation, &mut lane, key, &value).await;
        let answered = Instant::now();
        match outcome {
            Ok(revision) => {
                shard.record(answered - wanted, revision);
                wanted = answered;
            }
            Err(error) => {
                shared.fail(error);
                if shared.errors.load(Ordering::Relaxed) >= ERRORS_MAX {
                    break;
                }
                sleep(PAUSE_AFTER_FAILURE).await;
                wanted = Instant::now();
            }
        }
    }
    wanted
}

async fn send(
    operation: Operation,
    lane: &mut Lane,
    key: Bytes,
    value: &Bytes,
) -> Result<u64, String> {
    match operation {
        Operation::Put => lane.put(key, value).await,
        Operation::Get(fresh) => {
            let found = lane.get(key, fresh).await?;
            if !found.exists {
                return Err("a key that was written before the run was not found".to_owned());
            }
            Ok(found.revision)
        }
    }
}

struct Shared {
    shards: Box<[Shard]>,
    errors: AtomicU64,
    first_error: OnceLock<String>,
}

struct Shard(Mutex<(Histogram<u64>, u64)>);

impl Shard {
    fn record(&self, latency: Duration, revision: u64) {
        let latency_us = u64::try_from(latency.as_micros()).unwrap_or(LATENCY_US_MAX);
        let mut shard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shard.0.saturating_record(latency_us);
        shard.1 = shard.1.max(revision);
    }
}

impl Shared {
    fn new() -> Self {
        let shards = (0..SHARDS).map(|_| Shard(Mutex::new((histogram(), 0))));
        Shared {
            shards: shards.collect(),
            errors: AtomicU64::new(0),
            first_error: OnceLock::new(),
        }
    }

    fn fail(&self, error: String) {
        self.fail_many(1, error);
    }

    fn fail_many(&self, requests: u64, error: String) {
        self.errors.fetch_add(requests, Ordering::Relaxed);
        // Only the first is kept.
        let _ = self.first_error.set(error);
    }

    fn finished(&self) -> u64 {
        let answered = |shard: &Shard| {
            shard
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .0
                .len()
        };
        self.shards.iter().map(answered).sum::<u64>() + self.errors.load(Ordering::Relaxed)
    }

    fn measured(&self, elapsed: Duration) -> Measured {
        let mut latency_us = histogram();
        let mut revision = 0;
        for shard in &self.shards {
            let shard = shard.0.lock().unwrap_or_else(PoisonError::into_inner);
            latency_us
                .add(&shard.0)
                .expect("all histograms have the same bounds");
            revision = revision.max(shard.1);
        }
        Measured {
            latency_us,
            errors: self.errors.load(Ordering::Relaxed),
            first_error: self.first_error.get().cloned(),
            elapsed,
            revision,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_total_is_distributed_exactly_and_evenly(clients in 1..200_u64, total in 0..5_000_u64) {
            let mut all: Vec<u64> = Vec::new();
            let mut shares = Vec::new();
            for client in 0..clients {
                let share: Vec<u64> = numbers(client, clients, total).collect();
                shares.push(share.len());
                all.extend(share);
            }
            all.sort_unstable();
            prop_assert_eq!(all, (0..total).collect::<Vec<_>>());
            prop_assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
        }

        #[test]
        fn sharded_latencies_merge_to_the_same_as_one_histogram(
            latencies in prop::collection::vec(0..10_000_000_u64, 1..500),
        ) {
            let shared = Shared::new();
            let mut one = histogram();
            for (i, &us) in latencies.iter().enumerate() {
                shared.shards[i % SHARDS].record(Duration::from_micros(us), i as u64);
                one.record(us).unwrap();
            }
            let measured = shared.measured(Duration::from_secs(1));
            prop_assert_eq!(&measured.latency_us, &one);
            prop_assert_eq!(measured.requests(), latencies.len() as u64);
            prop_assert_eq!(measured.revision, latencies.len() as u64 - 1);
            prop_assert_eq!(shared.finished(), latencies.len() as u64);
        }
    }

    #[test]
    fn a_client_index_near_the_end_of_numbers_does_not_overflow() {
        assert_eq!(numbers(u64::MAX - 1, 5, u64::MAX).count(), 1);
    }

    #[test]
    fn failures_are_counted_apart_and_the_first_is_kept() {
        let shared = Shared::new();
        shared.fail("one".to_owned());
        shared.fail_many(3, "two".to_owned());
        let measured = shared.measured(Duration::ZERO);
        assert_eq!((measured.errors, measured.requests()), (4, 4));
        assert_eq!(measured.first_error.as_deref(), Some("one"));
        assert!(measured.latency_us.is_empty());
    }
}
