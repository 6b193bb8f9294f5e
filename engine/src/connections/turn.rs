//! How long a source has a thread for while others want it: the time of threads is shared out as in start-time fair
//! queueing (Goyal, Vin and Cheng, SIGCOMM 1996).
//!
//! A turn cannot be cut short: who decodes a frame of a thousand calls, or answers it, gives way only after that. So time that
//! was had is counted, of each source. Who has had less than others goes on until it is even with them, and who has had
//! more gives way as soon as it can. Who was away has no claim to all the time in which others were served: a moment of it,
//! [`CREDIT`], is enough to be served at once.
//!
//! Between turns this shares out only what the system gives these threads of its processors, and where they are busy, that is late:
//! with each step of a call, milliseconds late. So who has had clearly more than others is *heavy*, and served by threads
//! that are nicer than all others ([`Nicer`]) until it is so no more: they have whatever processors are idle, and whoever
//! asks for little, the log and the state machine need not wait for them.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::runtime::{Builder, Handle};

use super::lanes::TASKS_BETWEEN_EVENTS;
use crate::nicer::Nicer;

/// Of a thread, at a time, while others wait: three to ten calls. To change over takes a fiftieth
/// of it.
pub(super) const SLICE: Duration = Duration::from_micros(50);
/// While nobody is known to wait. Somebody may, of whom the thread has not heard yet.
const SLICE_ALONE: Duration = Duration::from_micros(200);
/// By so much others may be ahead of whoever is served; also the longest turn that anybody has while others wait.
const CREDIT: Duration = Duration::from_millis(1);

/// How often it is found out who is heavy.
const PERIOD: Duration = Duration::from_millis(100);
/// Nobody is heavy if all together had less of a period.
const BUSY: Duration = Duration::from_millis(30);
/// What all sources that share threads have of them. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Threads(Arc<All>);

#[derive(Default)]
struct All {
    nicer: Option<Nicer>,
    period: Mutex<Period>,
    /// How many lanes want a thread.
    ready: AtomicUsize,
    /// How much time, in nanoseconds, whoever has had most had when it was served last.
    reached: AtomicU64,
}

/// In which time is counted to find out who is heavy.
struct Period {
    number: u64,
    since: Instant,
    /// Of all sources.
    had: Duration,
    sources: u32,
    /// Who had more than this in the period before is heavy.
    heavy_above: Option<Duration>,
}

/// What one source has of them.
pub(super) struct Time {
    all: Arc<All>,
    /// The threads that it has unless it is heavy.
    usual: Handle,
    heavy: AtomicBool,
    in_period: Mutex<InPeriod>,
    /// How many of its lanes want a thread.
    ready: AtomicUsize,
    /// In nanoseconds, with what it had no claim to.
    had: AtomicU64,
}

/// What one source had in a period.
#[derive(Default)]
struct InPeriod {
    number: u64,
    had: Duration,
}

/// From when a lane is polled until this is dropped.
pub(super) struct Turn {
    begun: Instant,
    /// What its source had had.
    before: u64,
    time: Arc<Time>,
}

impl Default for Period {
    fn default() -> Self {
        Self {
            // No source has been counted in it.
            number: 1,
            since: Instant::now(),
            had: Duration::ZERO,
            sources: 0,
            heavy_above: None,
        }
    }
}

impl Period {
    /// Begins the next one if this is over.
    fn go_on(&mut self) {
        if self.since.elapsed() < PERIOD {
            return;
        }
        let share = self.had / self.sources.max(1);
        let is_shared = self.sources > 1 && self.had > BUSY;
        *self = Self {
            number: self.number + 1,
            heavy_above: is_shared.then(|| share * 6 / 5),
            ..Self::default()
        };
    }
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
            ..All::default()
        })))
    }

    /// For one more source. Within the runtime that has the threads.
    pub(super) fn one(&self) -> Arc<Time> {
        Arc::new(Time {
            all: Arc::clone(&self.0),
            usual: Handle::current(),
            heavy: AtomicBool::new(false),
            in_period: Mutex::default(),
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
        let heavy = self.heavy.load(Ordering::Relaxed);
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
        self.heavy.store(heavy, Ordering::Relaxed);
    }

    /// Counts a turn, and finds out whether this source is heavy.
    fn count(&self, taken: Duration) {
        let mut period = lock(&self.all.period);
        period.go_on();
        let mut own = lock(&self.in_period);
        if own.number != period.number {
            // What it had longer ago does not count.
            let had = (own.number + 1 == period.number).then_some(own.had);
            let heavy = had
                .zip(period.heavy_above)
                .is_some_and(|(had, most)| had > most);
            self.heavy.store(heavy, Ordering::Relaxed);
            period.sources += 1;
            *own = InPeriod {
                number: period.number,
                had: Duration::ZERO,
            };
        }
        own.had += taken;
        period.had += taken;
    }

    /// Begins a turn.
    pub(super) fn begin(self: &Arc<Self>) -> Turn {
        let reached = self.all.reached.load(Ordering::Relaxed);
        let least = reached.saturating_sub(nanos(CREDIT));
        let before = self.had.fetch_max(least, Ordering::Relaxed).max(least);
        self.all.reached.fetch_max(before, Ordering::Relaxed);
        Turn {
            begun: Instant::now(),
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
        let taken = self.begun.elapsed();
        self.time.had.fetch_add(nanos(taken), Ordering::Relaxed);
        self.time.count(taken);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// Whoever asks for little had to wait for a processor behind it.
    #[tokio::test]
    async fn who_has_clearly_more_than_others_is_heavy_for_as_long() {
        let threads = Threads::with_nicer().unwrap();
        let (greedy, modest) = (threads.one(), threads.one());
        let serve = |time: &Arc<Time>, of: Duration| {
            let turn = time.begin();
            spend(of);
            drop(turn);
        };
        let period = |of_greedy: u32, of_modest: u32| {
            for _ in 0..10 {
                serve(&greedy, PERIOD / 1_000 * of_greedy);
                serve(&modest, PERIOD / 1_000 * of_modest);
            }
            spend(PERIOD.saturating_sub(PERIOD / 100 * (of_greedy + of_modest)));
            serve(&greedy, Duration::ZERO);
            serve(&modest, Duration::ZERO);
            [&greedy, &modest].map(|it| it.heavy.load(Ordering::Relaxed))
        };
        assert_eq!(period(60, 5), [true, false]);
        assert!(greedy.elsewhere(false).is_some() && greedy.elsewhere(true).is_none());
        assert_eq!(period(30, 30), [false, false], "as much as the other");
        assert!(greedy.elsewhere(true).is_some());
        assert_eq!(period(6, 1), [false, false], "there is enough for both");
    }

    #[tokio::test]
    async fn who_is_alone_is_never_heavy() {
        let threads = Threads::with_nicer().unwrap();
        let alone = threads.one();
        for _ in 0..2 {
            let turn = alone.begin();
            spend(PERIOD);
            drop(turn);
        }
        drop(alone.begin());
        assert!(alone.elsewhere(false).is_none());
    }
}
