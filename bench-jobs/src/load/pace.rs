//! Open loop: requests are wanted at a fixed rate, whether or not earlier ones were answered.
//!
//! Request `n` is wanted `n / rate` after the start, whichever client sends it, and its latency
//! counts from then. A client that is late sends at once; so what a slow answer held up counts as
//! waiting, and a target that stalls cannot hide it ("coordinated omission").
//!
//! The runtime's timers are no finer than a millisecond, too coarse for latencies of tens of
//! microseconds. So a thread sleeps from one request to the next (to about 60 µs, which count too)
//! and wakes its client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::{Part, Plan};

/// The thread that keeps time; it ends when this is dropped.
pub(super) struct Pace(Arc<PaceShared>);

struct PaceShared {
    started: Instant,
    rate: f64,
    /// Whose requests are woken for.
    part: Part,
    /// One for each client of the load.
    due: Box<[Notify]>,
    is_over: AtomicBool,
}

/// What a client knows of the pace.
#[derive(Clone)]
pub(super) struct Schedule(Arc<PaceShared>);

impl Pace {
    pub(super) fn start(started: Instant, rate: f64, plan: &Plan) -> Self {
        Self::of(started, rate, plan.part, plan.clients, plan.total)
    }

    fn of(started: Instant, rate: f64, part: Part, clients: u64, total: u64) -> Self {
        let shared = Arc::new(PaceShared {
            started,
            rate,
            part,
            due: (0..clients).map(|_| Notify::new()).collect(),
            is_over: AtomicBool::new(false),
        });
        let kept = Arc::clone(&shared);
        thread::spawn(move || kept.keep(total));
        Pace(shared)
    }

    pub(super) fn schedule(&self) -> Schedule {
        Schedule(Arc::clone(&self.0))
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

impl PaceShared {
    fn wanted(&self, number: u64) -> Instant {
        self.started + Duration::from_secs_f64(number as f64 / self.rate)
    }

    fn keep(&self, total: u64) {
        let clients = self.due.len() as u64;
        let own = |number: &u64| self.part.has(number % clients);
        for number in (0..total).filter(own) {
            let wanted = self.wanted(number);
            while let Some(early) = wanted.checked_duration_since(Instant::now()) {
                if self.is_over.load(Ordering::Relaxed) {
                    return;
                }
                // Bounded, so that the end of a slow run is noticed soon.
                thread::sleep(early.min(Duration::from_millis(50)));
            }
            // Remembered if the client is busy; it looks at the clock itself then.
            self.due[(number % clients) as usize].notify_one();
        }
    }
}

impl Schedule {
    /// When a request is wanted.
    pub(super) fn wanted(&self, number: u64) -> Instant {
        self.0.wanted(number)
    }

    /// Waits for that moment.
    pub(super) async fn until(&self, wanted: Instant, client: u64) {
        while Instant::now() < wanted {
            self.0.due[client as usize].notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_are_due_at_the_rate_and_never_early() {
        let started = Instant::now();
        let pace = Pace::of(started, 1_000.0, Part::WHOLE, 2, 100);
        let schedule = pace.schedule();
        for number in 0..100 {
            let wanted = schedule.wanted(number);
            schedule.until(wanted, number % 2).await;
            assert!(Instant::now() >= wanted);
        }
        assert_eq!(schedule.wanted(99) - started, Duration::from_millis(99));
    }

    #[tokio::test]
    async fn a_client_that_is_late_does_not_wait() {
        let started = Instant::now();
        // Whoever waited to be woken would be so in a quarter of an hour.
        let pace = Pace::of(started, 0.001, Part::WHOLE, 1, 20);
        let schedule = pace.schedule();
        let late = async {
            for _ in 0..20 {
                schedule.until(started, 0).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), late)
            .await
            .unwrap();
    }
}
