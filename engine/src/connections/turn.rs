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
//! asks for little, the log and the state machine need not wait for them. What counts for this is the time of processors in about the
//! last half a second. A turn lasts longer where its thread waits for a processor, as the nicer ones do most: by how long turns last, whoever
//! asks for little would be heavy now and then, and stay so.
//!
//! Where processors are busy with other things, compactions for one, the nicer threads get little of them, and who is heavy has had no
//! more than others. It *wants* more all the same: what it had before, as far as its turns last that long. Let go for that,
//! it held everybody up until it was heavy again, once a second.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};
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
/// Of what was had before, so much counts with the next period.
const REMEMBERED: (u32, u32) = (3, 4);
/// In so many periods half of what whoever is heavy has had at most is forgotten: ten seconds.
const HALF_FORGOTTEN: u32 = 100;
/// Who has less of a period than this does not become heavy: a few thousand calls a second. Among several of whom some ask for next to
/// nothing, whoever asks for little has more than the average. Half of it where there is one thread.
const HEAVY_FROM: Duration = Duration::from_millis(30);
/// Nobody is heavy if all turns together last for less of a period. By the time of processors, threads that have none for long would
/// make it look quiet.
const BUSY: Duration = Duration::from_millis(30);
/// What all sources that share threads have of them. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Threads(Arc<All>);

#[derive(Default)]
struct All {
    nicer: Option<Nicer>,
    /// What a source has to have of a period, or to want, to become heavy.
    heavy_from: Duration,
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
    had: Average,
    /// All their turns, the time in which their threads waited for a processor too.
    lasted: Average,
    sources: u32,
    /// In the period before. Whoever is in the midst of a turn has not been counted in this one.
    sources_before: u32,
    /// What those that are heavy want besides what they had.
    unserved: Duration,
    /// What a source had up to the period before, or wanted, on average, while there are several. Who has clearly more is heavy.
    share: Option<Duration>,
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
    had: Average,
    /// How long its turns lasted.
    lasted: Average,
    /// The most that it had, of which a part is forgotten with each period.
    most_had: Duration,
    /// What was not counted yet: worked, and lasted.
    uncounted: [Duration; 2],
}

/// Time of a processor in the present period, and on average in those before, of which the last counts most.
#[derive(Clone, Copy, Default)]
struct Average {
    present: Duration,
    before: Duration,
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

impl Default for Period {
    fn default() -> Self {
        Self {
            // No source has been counted in it.
            number: 1,
            since: Instant::now(),
            had: Average::default(),
            lasted: Average::default(),
            sources: 0,
            sources_before: 0,
            unserved: Duration::ZERO,
            share: None,
        }
    }
}

impl Average {
    /// Begins the next period, or so many periods later.
    fn go_on(&mut self, periods: u64) -> Duration {
        let (of, parts) = REMEMBERED;
        // After so many nothing is left of it.
        for _ in 0..periods.min(64) {
            let present = std::mem::take(&mut self.present);
            self.before = (self.before * of + present * (parts - of)) / parts;
        }
        self.before
    }
}

impl Period {
    /// Begins the next one if this is over.
    fn go_on(&mut self) {
        if self.since.elapsed() < PERIOD {
            return;
        }
        let sources = self.sources.max(self.sources_before);
        let lasted = self.lasted.present.max(self.lasted.go_on(1));
        let is_shared = sources > 1 && lasted > BUSY;
        // What sources had on average that had nothing in this period is part of it.
        let share = (self.had.go_on(1) + self.unserved) / sources.max(1);
        *self = Self {
            number: self.number + 1,
            had: self.had,
            lasted: self.lasted,
            sources_before: self.sources,
            share: is_shared.then_some(share),
            ..Self::default()
        };
    }
}

impl InPeriod {
    /// Begins the next period, or so many later. Returns what it wants besides what it has had if it is heavy, as it was or was
    /// not before: if it wants clearly more than a share, where several have one, and that much at least.
    fn go_on(
        &mut self,
        periods: u64,
        was_heavy: bool,
        share: Option<Duration>,
        heavy_from: Duration,
    ) -> Option<Duration> {
        let had = self.had.go_on(periods);
        let lasted = self.lasted.go_on(periods);
        self.most_had = forgotten(self.most_had, periods).max(had);
        let (wants, clearly, least) = match was_heavy {
            true => (lasted.min(self.most_had).max(had), 11, heavy_from / 2),
            false => (had, 12, heavy_from),
        };
        let is_heavy = share.is_some_and(|share| wants > least.max(share * clearly / 10));
        if !is_heavy {
            self.most_had = had;
        }
        is_heavy.then(|| wants - had)
    }
}

/// What is left of it after so many periods.
fn forgotten(had: Duration, periods: u64) -> Duration {
    let periods = periods.min(u64::from(HALF_FORGOTTEN) * 64) as f64;
    had.mul_f64(0.5_f64.powf(periods / f64::from(HALF_FORGOTTEN)))
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
            heavy_from: if threads > 1 {
                HEAVY_FROM
            } else {
                HEAVY_FROM / 2
            },
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

    /// Counts what was worked in a turn that lasted so long, and finds out whether this source is heavy.
    fn count(&self, worked: Duration, lasted: Duration) {
        let mut own = lock(&self.in_period);
        own.uncounted[0] += worked;
        own.uncounted[1] += lasted;
        // All sources count here. Whoever has it may be a thread that is nicer and has lost its processor, and need not be waited for: the
        // next turn counts for this one.
        let Some(mut period) = try_lock(&self.all.period) else {
            return;
        };
        period.go_on();
        if own.number != period.number {
            let periods = period.number - own.number;
            let was_heavy = self.heavy.load(Ordering::Relaxed);
            let unserved = own.go_on(periods, was_heavy, period.share, self.all.heavy_from);
            self.heavy.store(unserved.is_some(), Ordering::Relaxed);
            period.unserved += unserved.unwrap_or_default();
            period.sources += 1;
            own.number = period.number;
        }
        let [worked, lasted] = std::mem::take(&mut own.uncounted);
        own.had.present += worked;
        own.lasted.present += lasted;
        period.had.present += worked;
        period.lasted.present += lasted;
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
        let taken = self.begun.elapsed();
        self.time.had.fetch_add(nanos(taken), Ordering::Relaxed);
        let worked = worked_by_this_thread().saturating_sub(self.worked);
        self.time.count(worked, taken);
    }
}

/// For how long it has had a processor. It stands still while others have that.
fn worked_by_this_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// None if somebody else has it.
fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
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

    /// In one period these sources had so many milliseconds of a processor, and their turns lasted so long; who is heavy in the next.
    fn period<const N: usize>(sources: [&Arc<Time>; N], had: [(u64, u64); N]) -> [bool; N] {
        for (source, (worked, lasted)) in sources.iter().zip(had) {
            source.count(Duration::from_millis(worked), Duration::from_millis(lasted));
        }
        lock(&sources[0].all.period).since -= PERIOD;
        sources.map(|source| {
            source.count(Duration::ZERO, Duration::ZERO);
            source.heavy.load(Ordering::Relaxed)
        })
    }

    /// Whoever asks for little had to wait for a processor behind it.
    #[tokio::test]
    async fn who_has_clearly_more_than_others_is_heavy_for_as_long() {
        let threads = Threads::with_nicer().unwrap();
        let (greedy, modest) = (threads.one(), threads.one());
        let periods = |number: usize, of_greedy: u64, of_modest: u64| {
            let had = [of_greedy, of_modest].map(|it| (it, it));
            let all: Vec<_> = (0..number)
                .map(|_| period([&greedy, &modest], had))
                .collect();
            all[number - 1]
        };
        assert_eq!(periods(2, 60, 5), [true, false]);
        assert!(greedy.elsewhere(false).is_some() && greedy.elsewhere(true).is_none());
        assert_eq!(periods(8, 30, 30), [false, false], "as much as the other");
        assert!(greedy.elsewhere(true).is_some());
        assert_eq!(periods(2, 6, 1), [false, false], "there is enough for both");
        periods(4, 60, 10);
        let lull = periods(1, 15, 20);
        assert_eq!(lull, [true, false], "of one period alone nothing follows");
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

    /// It was let go whenever the threads of whoever is heavy got too little of a processor, and had as much as all others again.
    #[tokio::test]
    async fn who_is_heavy_and_waits_for_a_processor_stays_heavy() {
        let threads = Threads::with_nicer().unwrap();
        let (greedy, modest) = (threads.one(), threads.one());
        let both = [&greedy, &modest];
        assert_eq!(period(both, [(80, 80), (10, 30)]), [true, false]);
        let heavy = period(both, [(10, 80), (5, 25)]);
        assert_eq!(heavy, [true, false], "it has been waiting");
        // A turn that is longer than a period, in which nobody else was counted.
        let [heavy] = period([&greedy], [(5, 125)]);
        assert!(heavy);
        assert_eq!(period(both, [(0, 0); 2]), [true, false]);
    }

    /// While the state was compacted it was let go once a second, and everybody else waited until it was heavy again.
    #[tokio::test]
    async fn who_is_heavy_and_gets_little_stays_heavy_and_nobody_else_becomes_it() {
        let threads = Threads::with_nicer().unwrap();
        let (greedy, modest) = (threads.one(), threads.one());
        let period = |had| period([&greedy, &modest], had);
        let first: Vec<_> = (0..4).map(|_| period([(80, 80), (15, 15)])).collect();
        assert_eq!(first[3], [true, false]);
        for number in 0..20 {
            let heavy = period([(8, 95), (30, 40)]);
            assert_eq!(heavy, [true, false], "{number}");
        }
        // Now it asks for as little as it gets.
        let last: Vec<_> = (0..8).map(|_| period([(30, 30), (35, 35)])).collect();
        assert_eq!(last[7], [false, false]);
    }

    /// Beside a third one who asked for next to nothing it had more than they had on average, and was served as whoever is heavy is: it
    /// waited for a quarter of a second.
    #[tokio::test]
    async fn who_asks_for_little_is_not_heavy_because_somebody_asks_for_less() {
        let threads = Threads::with_nicer().unwrap();
        let sources: [_; 3] = std::array::from_fn(|_| threads.one());
        for _ in 0..20 {
            let [a, b, c] = &sources;
            let heavy = period([a, b, c], [(14, 20), (14, 20), (0, 0)]);
            assert_eq!(heavy, [false; 3]);
        }
    }

    #[test]
    fn what_somebody_wanted_is_forgotten_in_the_end() {
        let most = Duration::from_millis(80);
        let after = |periods| forgotten(most, periods).as_millis();
        assert_eq!([0, 100, 200, u64::MAX].map(after), [80, 40, 20, 0]);
        let mut source = InPeriod {
            most_had: most,
            ..InPeriod::default()
        };
        source.lasted.before = most;
        let share = Some(Duration::from_millis(10));
        // Its turns last on and on, for it has no processor; and it asks for little.
        let stays = (0..9_000).take_while(|_| {
            source.lasted.present = most;
            source.go_on(1, true, share, Duration::ZERO).is_some()
        });
        assert!((200..400).contains(&stays.count()));
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
