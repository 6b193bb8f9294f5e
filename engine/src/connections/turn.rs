//! How long a source has a thread for while others want it: the time of threads is shared out as in start-time fair
//! queueing (Goyal, Vin and Cheng, SIGCOMM 1996).
//!
//! A turn cannot be cut short: who decodes a frame of a thousand calls, or answers it, gives way only after that. So time that
//! was had is counted, of each source. Who has had less than others goes on until it is even with them, and who has had
//! more gives way as soon as it can. Who was away has no claim to all the time in which others were served: a moment of it,
//! [`CREDIT`], is enough to be served at once.
//!
//! Where processors are busy, who wants clearly more than others is [*heavy*](super::heavy) and served by threads that are nicer
//! ([`Nicer`]).

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Handle};

use super::{
    heavy::{Demand, Demands, Spent},
    lanes::TASKS_BETWEEN_EVENTS,
};
use crate::nicer::Nicer;

/// Of a thread, at a time, while others wait: three to ten calls. To change over takes a fiftieth
/// of it.
pub(super) const SLICE: Duration = Duration::from_micros(50);
/// While nobody is known to wait. Somebody may, of whom the thread has not heard yet.
const SLICE_ALONE: Duration = Duration::from_micros(200);
/// By so much others may be ahead of whoever is served; also the longest turn that anybody has while others wait.
const CREDIT: Duration = Duration::from_millis(1);

/// What all sources that share threads have of them. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Threads(Arc<All>);

#[derive(Default)]
struct All {
    nicer: Option<Nicer>,
    demands: Demands,
    /// How many lanes want a thread.
    ready: AtomicUsize,
    /// How much time, in nanoseconds, whoever has had most had when it was served last.
    reached: AtomicU64,
}

/// What one source has of them.
pub(super) struct Time {
    all: Arc<All>,
    /// The threads that it has unless it is heavy.
    usual: Handle,
    demand: Demand,
    /// How many of its lanes want a thread.
    ready: AtomicUsize,
    /// In nanoseconds, with what it had no claim to.
    had: AtomicU64,
}

/// From when a lane is polled until this is dropped, by the same thread.
pub(super) struct Turn {
    begun: Instant,
    /// What the thread had worked.
    worked: Duration,
    /// What its source had had.
    before: u64,
    time: Arc<Time>,
}

impl Threads {
    /// Those of this runtime, and others for whoever is heavy.
    ///
    /// # Errors
    /// The system gives no more threads.
    pub(super) fn with_nicer() -> io::Result<Self> {
        let threads = Handle::current().metrics().num_workers();
        let mut builder = Builder::new_multi_thread();
        builder
            .worker_threads(threads)
            .thread_name("dengine-heavy")
            .event_interval(TASKS_BETWEEN_EVENTS)
            .enable_all();
        let nicer = Some(Nicer::start(&mut builder)?);
        Ok(Self(Arc::new(All {
            nicer,
            demands: Demands::of_threads(threads),
            ..All::default()
        })))
    }

    /// For one more source. Within the runtime that has the threads.
    pub(super) fn one(&self) -> Arc<Time> {
        Arc::new(Time {
            all: Arc::clone(&self.0),
            usual: Handle::current(),
            demand: self.0.demands.one(),
            ready: AtomicUsize::new(0),
            had: AtomicU64::new(0),
        })
    }
}

impl Time {
    /// One more of its lanes wants a thread, or one less.
    pub(super) fn wants(&self, more: bool) {
        for count in [&self.ready, &self.all.ready] {
            match more {
                true => count.fetch_add(1, Ordering::Relaxed),
                false => count.fetch_sub(1, Ordering::Relaxed),
            };
        }
    }

    fn others_wait(&self) -> bool {
        let own = self.ready.load(Ordering::Relaxed);
        self.all.ready.load(Ordering::Relaxed) > own
    }

    /// The threads that are to serve it, if it is served by others now.
    pub(super) fn elsewhere(&self, is_with_heavy: bool) -> Option<&Handle> {
        let heavy = self.demand.is_heavy();
        if heavy == is_with_heavy {
            return None;
        }
        match heavy {
            true => self.all.nicer.as_ref().map(Nicer::handle),
            false => Some(&self.usual),
        }
    }

    #[cfg(test)]
    pub(super) fn set_heavy(&self, heavy: bool) {
        self.demand.set_heavy(heavy);
    }

    /// Begins a turn.
    pub(super) fn begin(self: &Arc<Self>) -> Turn {
        let reached = self.all.reached.load(Ordering::Relaxed);
        let least = reached.saturating_sub(nanos(CREDIT));
        let before = self.had.fetch_max(least, Ordering::Relaxed).max(least);
        self.all.reached.fetch_max(before, Ordering::Relaxed);
        Turn {
            begun: Instant::now(),
            worked: worked_by_this_thread(),
            before,
            time: Arc::clone(self),
        }
    }
}

impl Turn {
    pub(super) fn is_over(&self) -> bool {
        let taken = self.begun.elapsed();
        if taken < SLICE {
            return false;
        }
        if !self.time.others_wait() {
            return taken >= SLICE_ALONE;
        }
        let reached = self.time.all.reached.load(Ordering::Relaxed);
        taken >= CREDIT || self.before + nanos(taken) >= reached
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let lasted = self.begun.elapsed();
        self.time.had.fetch_add(nanos(lasted), Ordering::Relaxed);
        let worked = worked_by_this_thread().saturating_sub(self.worked);
        let turn = Spent { worked, lasted };
        self.time.all.demands.count(&self.time.demand, turn);
    }
}

/// For how long it has had a processor. It stands still while others have that.
fn worked_by_this_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{super::heavy::PERIOD, *};

    fn spend(time: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < time {}
    }

    /// Fifty microseconds of every half a millisecond were less than it wanted, and it waited for ever longer.
    #[tokio::test]
    async fn who_has_had_less_goes_on_until_it_is_even() {
        let threads = Threads::default();
        let (greedy, modest) = (threads.one(), threads.one());
        greedy.wants(true);
        modest.wants(true);
        drop(modest.begin());
        let frame = greedy.begin();
        spend(CREDIT / 2);
        assert!(frame.is_over());
        drop(frame);
        drop(greedy.begin());
        let turn = modest.begin();
        spend(2 * SLICE);
        assert!(!turn.is_over(), "it has had less");
        spend(CREDIT / 2);
        assert!(turn.is_over());
    }

    #[tokio::test]
    async fn who_was_away_has_no_claim_to_all_of_that_time() {
        let threads = Threads::default();
        let (busy, away) = (threads.one(), threads.one());
        busy.wants(true);
        away.wants(true);
        for _ in 0..10 {
            let _turn = busy.begin();
            spend(CREDIT);
        }
        let turn = away.begin();
        assert!(!turn.is_over());
        spend(CREDIT);
        assert!(turn.is_over());
    }

    #[tokio::test]
    async fn who_is_alone_gives_way_less_often() {
        let alone = Threads::default().one();
        alone.wants(true);
        let turn = alone.begin();
        spend(2 * SLICE);
        let early = turn.is_over();
        spend(SLICE_ALONE);
        assert!(!early && turn.is_over());
    }

    #[tokio::test]
    async fn who_is_heavy_is_served_by_the_nicer_threads() {
        let threads = Threads::with_nicer().unwrap();
        let source = threads.one();
        assert!(source.elsewhere(false).is_none() && source.elsewhere(true).is_some());
        source.set_heavy(true);
        assert!(source.elsewhere(false).is_some() && source.elsewhere(true).is_none());
    }

    /// Whoever asks for little and was served by threads that wait for a processor was heavy for as long as it was served by them.
    #[tokio::test]
    async fn to_wait_for_a_processor_makes_nobody_heavy() {
        let threads = Threads::with_nicer().unwrap();
        let (busy, waiting) = (threads.one(), threads.one());
        for _ in 0..2 {
            let turn = waiting.begin();
            std::thread::sleep(PERIOD / 2);
            drop(turn);
            let turn = busy.begin();
            spend(PERIOD / 2);
            drop(turn);
        }
        drop(waiting.begin());
        assert!(waiting.elsewhere(false).is_none());
    }
}
