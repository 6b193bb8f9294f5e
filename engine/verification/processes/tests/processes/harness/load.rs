//! Clients that write and read all the time, and remember what they were promised.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use dengine_client::{Client, Consistency, Error, Expected, KeyValue};
use tokio::task::JoinSet;

use super::eventually;

const WRITERS: usize = 8;
const READERS: usize = 4;
/// The key whose value only grows.
const COUNTER: &str = "counter";

/// Writers and readers under way.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    reads: Arc<AtomicU64>,
    writers: JoinSet<Vec<Promise>>,
    readers: JoinSet<()>,
}

/// A write that was acknowledged.
struct Promise {
    key: String,
    value: String,
    revision: u64,
}

impl Load {
    /// Begins writing distinct keys and one counter, and reading the counter.
    pub(crate) fn start(client: &Client) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let acknowledged = Arc::new(AtomicU64::new(0));
        let reads = Arc::new(AtomicU64::new(0));
        // The highest counter value that was acknowledged, and the highest that was read.
        let floor = Arc::new(AtomicU64::new(0));
        let (mut writers, mut readers) = (JoinSet::new(), JoinSet::new());
        for writer in 0..WRITERS {
            let (client, stop) = (client.clone(), Arc::clone(&stop));
            writers.spawn(write(writer, client, stop, Arc::clone(&acknowledged)));
        }
        writers.spawn(count(client.clone(), Arc::clone(&stop), Arc::clone(&floor)));
        for _ in 0..READERS {
            let (client, stop) = (client.clone(), Arc::clone(&stop));
            readers.spawn(read(client, stop, Arc::clone(&floor), Arc::clone(&reads)));
        }
        Self {
            stop,
            acknowledged,
            reads,
            writers,
            readers,
        }
    }

    /// Waits until so many more writes are acknowledged, and so many more reads answered.
    pub(crate) async fn progress(&self, count: u64) {
        let target = |counter: &AtomicU64| counter.load(Ordering::Relaxed) + count;
        let targets = (target(&self.acknowledged), target(&self.reads));
        eventually("writes are acknowledged and reads answered", || async {
            let reached = self.acknowledged.load(Ordering::Relaxed) >= targets.0
                && self.reads.load(Ordering::Relaxed) >= targets.1;
            reached.then_some(())
        })
        .await;
    }

    /// Ends the load and checks that everything that was promised is there.
    pub(crate) async fn finish(mut self, client: &Client) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(reader) = self.readers.join_next().await {
            reader.expect("no linearizable read goes back");
        }
        let mut checked = 0;
        while let Some(promises) = self.writers.join_next().await {
            for promise in promises.expect("writers do not fail") {
                check(client, &promise).await;
                checked += 1;
            }
        }
        assert!(
            checked > 0,
            "nothing was acknowledged, so nothing was shown"
        );
    }
}

async fn check(client: &Client, promise: &Promise) {
    let read = client
        .get(promise.key.clone(), Consistency::Linearizable)
        .await
        .unwrap();
    let kv = read.kv.unwrap_or_else(|| {
        panic!(
            "{} was acknowledged at revision {} and is gone",
            promise.key, promise.revision
        )
    });
    assert_eq!(
        (&kv.value[..], kv.mod_revision),
        (promise.value.as_bytes(), promise.revision)
    );
    assert_eq!(
        kv.version, 1,
        "{} was written once, and applied more than once",
        promise.key
    );
}

async fn write(
    writer: usize,
    client: Client,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
) -> Vec<Promise> {
    let mut promises = Vec::new();
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let (key, value) = (format!("w{writer}-{n}"), format!("value {n} of {writer}"));
        match client.put(key.clone(), value.clone()).await {
            Ok(put) => {
                acknowledged.fetch_add(1, Ordering::Relaxed);
                promises.push(Promise {
                    key,
                    value,
                    revision: put.header.revision,
                });
            }
            Err(error) => tolerate(&error).await,
        }
    }
    promises
}

/// Counts by compare-and-swap, so that a write of unknown outcome that arrives late changes nothing.
async fn count(client: Client, stop: Arc<AtomicBool>, floor: Arc<AtomicU64>) -> Vec<Promise> {
    while !stop.load(Ordering::Relaxed) {
        match count_once(&client).await {
            Ok(Some(counted)) => {
                floor.fetch_max(counted, Ordering::SeqCst);
            }
            Ok(None) => {}
            Err(error) => tolerate(&error).await,
        }
    }
    Vec::new()
}

async fn count_once(client: &Client) -> Result<Option<u64>, Error> {
    let found = client.get(COUNTER, Consistency::Linearizable).await?.kv;
    let next = found.as_ref().map_or(0, number) + 1;
    let expected = Expected::ModRevision(found.map_or(0, |kv| kv.mod_revision));
    let swap = client
        .compare_and_swap(COUNTER, expected, next.to_string())
        .await?;
    Ok(swap.succeeded.then_some(next))
}

fn number(kv: &KeyValue) -> u64 {
    std::str::from_utf8(&kv.value).unwrap().parse().unwrap()
}

async fn read(client: Client, stop: Arc<AtomicBool>, floor: Arc<AtomicU64>, reads: Arc<AtomicU64>) {
    let mut last_revision = 0;
    while !stop.load(Ordering::Relaxed) {
        // Whatever was acknowledged, or read by anybody, before this read began must be seen.
        let least = floor.load(Ordering::SeqCst);
        match client.get(COUNTER, Consistency::Linearizable).await {
            Ok(read) => {
                let value = read.kv.as_ref().map_or(0, number);
                assert!(
                    value >= least,
                    "read {value} after {least} was acknowledged or read"
                );
                let revision = read.header.revision;
                assert!(
                    revision >= last_revision,
                    "revision {revision} after {last_revision}"
                );
                last_revision = revision;
                floor.fetch_max(value, Ordering::SeqCst);
                reads.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => tolerate(&error).await,
        }
    }
}

/// While a leader is replaced, requests fail or stay open; nothing else may happen to them.
async fn tolerate(error: &Error) {
    let expected = error.retryable() || matches!(error, Error::UnknownOutcome { .. });
    assert!(expected, "{error}");
    tokio::time::sleep(Duration::from_millis(10)).await;
}
