//! What all clients of a load report to: latencies in one histogram per worker thread, failures
//! counted apart.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::{ERRORS_MAX, Measured};

/// Latencies above this are recorded as this: no request is allowed to take so long.
const LATENCY_US_MAX: u64 = 3_600_000_000;
/// Significant digits of a latency.
const LATENCY_DIGITS: u8 = 3;
/// Histograms. With more worker threads than this, some share one.
const SHARDS: usize = 16;

/// An empty histogram with the bounds that all of them share.
#[must_use]
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_US_MAX, LATENCY_DIGITS).expect("the bounds are valid")
}

pub(super) struct Recorder {
    shards: Box<[Shard]>,
    errors: AtomicU64,
    first_error: OnceLock<String>,
}

/// The lock is there for the progress bar and the end; its own thread finds it free.
struct Shard(Mutex<Recorded>);

struct Recorded {
    latency_us: Histogram<u64>,
    revision: u64,
}

/// The shard of this thread.
fn own_shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static OWN: Cell<Option<usize>> = const { Cell::new(None) });
    OWN.with(|own| {
        own.get().unwrap_or_else(|| {
            let shard = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
            own.set(Some(shard));
            shard
        })
    })
}

impl Shard {
    fn with<T>(&self, work: impl FnOnce(&mut Recorded) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn record(&self, latency: Duration, revision: u64) {
        let latency_us = u64::try_from(latency.as_micros()).unwrap_or(LATENCY_US_MAX);
        self.with(|recorded| {
            recorded.latency_us.saturating_record(latency_us);
            recorded.revision = recorded.revision.max(revision);
        });
    }
}

impl Recorder {
    pub(super) fn new() -> Self {
        let shard = |_| {
            Shard(Mutex::new(Recorded {
                latency_us: histogram(),
                revision: 0,
            }))
        };
        Recorder {
            shards: (0..SHARDS).map(shard).collect(),
            errors: AtomicU64::new(0),
            first_error: OnceLock::new(),
        }
    }

    /// A request succeeded; `revision` is the one it took or saw.
    pub(super) fn record(&self, latency: Duration, revision: u64) {
        self.shards[own_shard()].record(latency, revision);
    }

    pub(super) fn fail(&self, error: String) {
        self.fail_many(1, error);
    }

    pub(super) fn fail_many(&self, requests: u64, error: String) {
        self.errors.fetch_add(requests, Ordering::Relaxed);
        // Only the first is kept.
        let _ = self.first_error.set(error);
    }

    /// So many requests failed that the rest need not be sent.
    pub(super) fn has_failed(&self) -> bool {
        self.errors.load(Ordering::Relaxed) >= ERRORS_MAX
    }

    /// Requests that were answered or failed so far.
    pub(super) fn finished(&self) -> u64 {
        let answered = |shard: &Shard| shard.with(|recorded| recorded.latency_us.len());
        self.shards.iter().map(answered).sum::<u64>() + self.errors.load(Ordering::Relaxed)
    }

    pub(super) fn measured(&self, began: Option<Instant>, elapsed: Duration) -> Measured {
        let mut latency_us = histogram();
        let mut revision = 0;
        for shard in &self.shards {
            shard.with(|recorded| {
                latency_us
                    .add(&recorded.latency_us)
                    .expect("all histograms have the same bounds");
                revision = revision.max(recorded.revision);
            });
        }
        Measured {
            latency_us,
            errors: self.errors.load(Ordering::Relaxed),
            first_error: self.first_error.get().cloned(),
            began,
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
        fn sharded_latencies_merge_to_the_same_as_one_histogram(
            latencies in prop::collection::vec(0..10_000_000_u64, 1..500),
        ) {
            let recorder = Recorder::new();
            let mut one = histogram();
            for (i, &us) in latencies.iter().enumerate() {
                recorder.shards[i % SHARDS].record(Duration::from_micros(us), i as u64);
                one.record(us).unwrap();
            }
            let measured = recorder.measured(None, Duration::from_secs(1));
            prop_assert_eq!(&measured.latency_us, &one);
            prop_assert_eq!(measured.requests(), latencies.len() as u64);
            prop_assert_eq!(measured.revision, latencies.len() as u64 - 1);
            prop_assert_eq!(recorder.finished(), latencies.len() as u64);
        }
    }

    #[test]
    fn what_several_threads_record_is_all_there() {
        let recorder = Recorder::new();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let recorder = &recorder;
                scope.spawn(move || {
                    for i in 0..1_000 {
                        recorder.record(Duration::from_micros(i + 1), thread * 1_000 + i);
                    }
                });
            }
        });
        let measured = recorder.measured(None, Duration::from_secs(1));
        assert_eq!((measured.requests(), measured.revision), (4_000, 3_999));
        assert_eq!(
            (measured.latency_us.min(), measured.latency_us.max()),
            (1, 1_000)
        );
    }

    #[test]
    fn failures_are_counted_apart_and_the_first_is_kept() {
        let recorder = Recorder::new();
        recorder.fail("one".to_owned());
        recorder.fail_many(3, "two".to_owned());
        let measured = recorder.measured(None, Duration::ZERO);
        assert_eq!((measured.errors, measured.requests()), (4, 4));
        assert_eq!(measured.first_error.as_deref(), Some("one"));
        assert!(measured.latency_us.is_empty() && !recorder.has_failed());
    }
}
