//! The load itself: clients, their latencies and failures. Knows nothing of command lines,
//! protocols or reports.
//!
//! The load shares its machine with what it measures as often as not, so a request costs it as
//! little as possible: keys come from a chunk, values are shared, and each worker thread records
//! into a histogram that no other thread writes to.

mod client;
mod pace;
mod part;
mod recorder;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dengine_bench_model::results::ReadConsistency;
use hdrhistogram::Histogram;
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::client::Client;
use self::pace::Pace;
pub use self::part::Part;
use self::recorder::Recorder;
pub use self::recorder::histogram;
use crate::keys::{self, Keys};
use crate::progress::Progress;
use crate::target::Way;

/// A run that fails so often has failed; going on would only load a cluster in trouble.
pub const ERRORS_MAX: u64 = 1_000;
/// Each client has its own value, unless all of them together would be larger than this.
const VALUES_BYTES_MAX: u64 = 64 << 20;

/// What each request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Writes its key.
    Put,
    /// Reads its key, which must exist.
    Get(ReadConsistency),
    /// Reads its key in so many percent of the cases, else writes it.
    Mixed(ReadConsistency, u32),
    /// Writes its client's own key, and is done when so many watches have told of it.
    Watch(u32),
    /// Writes its client's own key, unless that was changed since the client did so last.
    Swap,
    /// Writes its client's own key, and is done when its watch and a session read have shown that.
    Seen,
    /// Reads so many keys in a row, which must exist.
    Scan(u64),
}

/// A load.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What each request does.
    pub operation: Operation,
    /// Clients, each with one request in flight.
    pub clients: u64,
    /// Which of them this process is; all the others are elsewhere.
    pub part: Part,
    /// Requests over all clients, exactly, unless `at_least` has them go on.
    pub total: u64,
    /// Each client goes on after its part of `total` until this long after the start.
    pub at_least: Option<Duration>,
    /// Each client stops after its first request that ends so long after the start, whatever
    /// `total` says.
    pub ends_after: Option<Duration>,
    /// Requests wanted per second over all clients; `None`: as fast as the answers come.
    pub rate: Option<f64>,
    /// Which keys are used.
    pub keys: Keys,
    /// Bytes of each value.
    pub value_size: u32,
    /// Seed of the values.
    pub seed: u64,
    /// A write that a watch has not told of for so long has failed; other requests are bounded by
    /// their `Way`.
    pub request_timeout: Duration,
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
    /// When the clients began; `None` if they never did.
    pub began: Option<Instant>,
    /// From the common start to the last answer.
    pub elapsed: Duration,
    /// The highest revision that a request saw.
    pub revision: u64,
}

impl Measured {
    /// Notes the failure of what belongs to the load and is none of its requests.
    pub fn fail(&mut self, error: String) {
        self.errors += 1;
        self.first_error.get_or_insert(error);
    }

    /// Requests that were answered or failed.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.latency_us.len() + self.errors
    }
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

/// Runs a load until it is done, or `cut` says in words why it must end now. `way` gives each
/// client its own.
pub async fn run<W: Way>(
    plan: Plan,
    way: impl Fn(usize) -> W,
    progress: &Progress,
    cut: impl Future<Output = String>,
) -> Measured {
    run_when(async { Ok(()) }, plan, way, progress, cut).await
}

/// The same, beginning when `begin` resolves, which is awaited once all clients are ready. If it
/// fails, nothing is sent.
pub async fn run_when<W: Way>(
    begin: impl Future<Output = Result<(), String>>,
    plan: Plan,
    way: impl Fn(usize) -> W,
    progress: &Progress,
    cut: impl Future<Output = String>,
) -> Measured {
    let recorder = Arc::new(Recorder::new());
    tokio::pin!(cut);
    let ready = async {
        let clients = open_clients(&plan, way, &recorder).await?;
        begin.await?;
        Ok(clients)
    };
    let ready = tokio::select! {
        ready = ready => ready,
        reason = &mut cut => Err(reason),
    };
    let clients = match ready {
        Ok(clients) => clients,
        Err(error) => {
            recorder.fail(error);
            return recorder.measured(None, Duration::ZERO);
        }
    };
    let started = Instant::now();
    let ended = run_clients(clients, started, &plan, &recorder, progress, cut).await;
    recorder.measured(Some(started), ended - started)
}

async fn open_clients<W: Way>(
    plan: &Plan,
    way: impl Fn(usize) -> W,
    recorder: &Arc<Recorder>,
) -> Result<Vec<Client<W>>, String> {
    let values = values(plan);
    let mut clients = Vec::with_capacity(plan.part.share(plan.clients) as usize);
    for (place, index) in plan.part.of(plan.clients).enumerate() {
        let value = values[index as usize % values.len()].clone();
        let (plan, recorder) = (plan.clone(), Arc::clone(recorder));
        let at = client::At {
            index,
            place: place as u64,
        };
        clients.push(Client::open(plan, at, &way, value, recorder).await?);
    }
    Ok(clients)
}

fn values(plan: &Plan) -> Vec<Bytes> {
    let distinct = (VALUES_BYTES_MAX / u64::from(plan.value_size.max(1))).clamp(1, plan.clients);
    (0..distinct)
        .map(|i| keys::value(plan.value_size, plan.seed.wrapping_add(i)))
        .collect()
}

/// Lets all clients begin at once; returns when the last answer came, or the run was cut short.
async fn run_clients<W: Way>(
    clients: Vec<Client<W>>,
    started: Instant,
    plan: &Plan,
    recorder: &Arc<Recorder>,
    progress: &Progress,
    mut cut: impl Future<Output = String> + Unpin,
) -> Instant {
    let pace = plan.rate.map(|rate| Pace::start(started, rate, plan));
    let (begin, begun) = watch::channel(());
    let mut tasks = JoinSet::new();
    for client in clients {
        let pace = pace.as_ref().map(Pace::schedule);
        let mut begun = begun.clone();
        tasks.spawn(async move {
            // None is ahead of the others, however long it takes to spawn them.
            let _ = begun.changed().await;
            client.run(started, pace).await
        });
    }
    begin.send_replace(());

    let watched = Arc::clone(recorder);
    let _shown = match plan.ends_after {
        Some(time) => progress.follow_time(time),
        None => {
            let total = plan.part.requests(plan.clients, plan.total);
            let in_time = plan.at_least.map(|time| move || part_of(started, time));
            progress.follow(total, move || {
                let by_time = in_time.map_or(1.0, |in_time| in_time());
                watched.finished().min((total as f64 * by_time) as u64)
            })
        }
    };
    let mut ended = started;
    loop {
        tokio::select! {
            joined = tasks.join_next() => match joined {
                Some(Ok(last)) => ended = ended.max(last),
                Some(Err(panic)) => recorder.fail(format!("a client ended abnormally: {panic}")),
                None => return ended,
            },
            reason = &mut cut => {
                // Each client that is left has one request in flight, whose end nobody will see.
                let in_flight = tasks.len() as u64;
                tasks.shutdown().await;
                recorder.fail_many(in_flight, format!("{reason}; {in_flight} requests were in \
                    flight"));
                return Instant::now();
            }
        }
    }
}

/// How much of so long a time has passed since then, 1 at most.
fn part_of(since: Instant, time: Duration) -> f64 {
    (since.elapsed().as_secs_f64() / time.as_secs_f64()).min(1.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_total_is_distributed_exactly_and_evenly(clients in 1..200_u64,
                                                       total in 0..5_000_u64) {
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
    }

    #[test]
    fn a_client_index_near_the_end_of_numbers_does_not_overflow() {
        assert_eq!(numbers(u64::MAX - 1, 5, u64::MAX).count(), 1);
    }
}
