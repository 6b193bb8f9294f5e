//! How long a source has a thread for while others want it: the time of threads is shared out as in
//! start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996).
//!
//! A turn cannot be cut short: who decodes a frame of a thousand calls, or answers it, gives way
//! only after that. So time that was had is counted, of each source. A source that has used less
//! than others continues until it has caught up, and one that has used more yields as soon as it
//! can. Who was away has no claim to all the time in which others were served: a moment of it,
//! [`CREDIT`], is enough to be served at once.
//!
//! Where processors are busy, who wants clearly more than others is [*heavy*](super::heavy) and
//! served by threads that are nicer ([`Nicer`]): less of a processor, and turns that last longer by
//! as much. Turns are shared out among those that the same threads serve.

use std::cell::Cell;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Handle};

use super::heavy::{Demand, Demands, Spent, WorkElsewhere};
use super::lanes::TASKS_BETWEEN_EVENTS;
use crate::nicer::Nicer;

/// Of a thread, at a time, while others wait: three to ten calls. To change over takes a fiftieth
/// of it.
pub(super) const SLICE: Duration = Duration::from_micros(50);
/// While nobody is known to wait. Somebody may, of whom the thread has not heard yet.
const SLICE_ALONE: Duration = Duration::from_micros(200);
/// By so much others may be ahead of whoever is served; also the longest turn that anybody has
/// while others wait.
const CREDIT: Duration = Duration::from_millis(1);

/// What all sources that share threads have of them. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Threads(Arc<All>);

struct All {
    /// The usual ones, each with a runtime of its own; none if they are those of the runtime in
    /// which something is done first for a source.
    usual: Box<[Handle]>,
    /// How many sources have a connection that it serves, for each of these.
    sources: Box<[AtomicUsize]>,
    /// The threads of whoever is heavy. No more than a handle: what they do has this.
    nicer: Option<Handle>,
    demands: Demands,
    /// Of each of the usual threads, and of the nicer ones together.
    queues: Box<[Queue]>,
}

/// How many of a source's connections each of the usual threads serves.
pub(super) struct Homes {
    all: Arc<All>,
    own: Mutex<Box<[usize]>>,
}

/// The thread that serves a connection and its calls, until this is dropped.
pub(super) struct Home {
    source: Arc<Homes>,
    number: usize,
}

/// Threads that stand in for each other. The time of one group says nothing of another's: who keeps
/// one thread busy takes nothing from those whom the next one serves, and turns of the nicer
/// threads last longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    /// The one with this number.
    Usual(usize),
    /// All those that serve who is heavy.
    Nicer,
}

/// Threads that serve the same sources.
#[derive(Default)]
struct Queue {
    /// How many lanes want one of them.
    ready: AtomicUsize,
    /// How much time, in nanoseconds, whoever has had most had when it was served last.
    reached: AtomicU64,
}

/// What one source has of a group.
#[derive(Default)]
struct Part {
    /// How many of its lanes want a thread.
    ready: AtomicUsize,
    /// In nanoseconds, with what it had no claim to.
    had: AtomicU64,
}

/// What one source has of them.
pub(super) struct Time {
    all: Arc<All>,
    demand: Arc<Demand>,
    /// Of each group, as the queues are.
    parts: Box<[Part]>,
}

/// From when a lane is polled until this is dropped, by the same thread.
pub(super) struct Turn {
    begun: Instant,
    /// What its source had had.
    before: u64,
    group: Group,
    time: Arc<Time>,
}

impl Group {
    /// A number for it, less than the greatest one.
    pub(super) fn code(self) -> usize {
        match self {
            Self::Usual(number) => number,
            Self::Nicer => usize::MAX - 1,
        }
    }

    /// That of a number.
    pub(super) fn of(code: usize) -> Self {
        match code == Self::Nicer.code() {
            true => Self::Nicer,
            false => Self::Usual(code),
        }
    }

    /// Its place among so many groups.
    fn place(self, count: usize) -> usize {
        match self {
            Self::Usual(number) => number,
            Self::Nicer => count - 1,
        }
    }
}

/// Threads for whoever is heavy. To be ended by whoever ends the usual ones.
///
/// # Errors
/// The system gives no more threads.
pub(crate) fn threads_for_heavy(count: usize) -> io::Result<Nicer> {
    let mut builder = Builder::new_multi_thread();
    builder
        .worker_threads(count)
        .thread_name("dengine-heavy")
        .event_interval(TASKS_BETWEEN_EVENTS)
        .enable_all();
    Nicer::start(&mut builder)
}

impl Default for All {
    fn default() -> Self {
        Self::of(Box::default())
    }
}

impl All {
    fn of(usual: Box<[Handle]>) -> Self {
        let count = usual.len().max(1);
        Self {
            usual,
            sources: (0..count).map(|_| AtomicUsize::new(0)).collect(),
            nicer: None,
            demands: Demands::of_threads(count),
            queues: (0..=count).map(|_| Queue::default()).collect(),
        }
    }
}

impl Threads {
    /// These, each of which has a runtime, and `nicer` for whoever is heavy.
    pub(super) fn of(usual: impl IntoIterator<Item = Handle>, nicer: &Nicer) -> Self {
        let mut all = All::of(usual.into_iter().collect());
        all.nicer = Some(nicer.handle().clone());
        Self(Arc::new(all))
    }

    /// With threads for whoever is heavy that nobody ends.
    #[cfg(test)]
    pub(super) fn with_nicer() -> io::Result<Self> {
        let nicer = threads_for_heavy(1)?;
        let threads = Self::of([Handle::current()], &nicer);
        std::mem::forget(nicer);
        Ok(threads)
    }

    /// How many of the usual ones there are.
    pub(super) fn count(&self) -> usize {
        self.0.sources.len()
    }

    /// The usual one with this number, or this runtime.
    pub(super) fn usual(&self, number: usize) -> Handle {
        let own = self.0.usual.get(number).cloned();
        own.unwrap_or_else(Handle::current)
    }

    /// For one more source.
    pub(super) fn homes(&self) -> Arc<Homes> {
        Arc::new(Homes {
            all: Arc::clone(&self.0),
            own: Mutex::new(vec![0; self.count()].into()),
        })
    }

    /// For the source with this address.
    pub(super) fn time_of(&self, address: IpAddr) -> Arc<Time> {
        Arc::new(Time {
            all: Arc::clone(&self.0),
            demand: self.0.demands.of(address),
            parts: self.0.queues.iter().map(|_| Part::default()).collect(),
        })
    }

    /// For one that was never here.
    #[cfg(test)]
    pub(super) fn one(&self) -> Arc<Time> {
        self.time_of(super::heavy::an_address())
    }
}

impl Homes {
    /// For one more connection of this source: the thread that serves fewest of its own, and of
    /// these the one that serves fewest others. So whoever opens and closes many has nobody else's
    /// end up on one thread.
    pub(super) fn one(self: &Arc<Self>) -> Home {
        let mut own = self.lock();
        let others = |number: usize| self.all.sources[number].load(Ordering::Relaxed);
        let least = (0..own.len()).min_by_key(|number| (own[*number], others(*number)));
        let number = least.expect("there is one thread at least");
        own[number] += 1;
        if own[number] == 1 {
            self.all.sources[number].fetch_add(1, Ordering::Relaxed);
        }
        Home {
            source: Arc::clone(self),
            number,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Box<[usize]>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Home {
    /// Which of the usual ones it is.
    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// Its runtime, if that is not the one in which connections come in.
    pub(super) fn runtime(&self) -> Option<&Handle> {
        self.source.all.usual.get(self.number)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let mut own = self.source.lock();
        own[self.number] -= 1;
        if own[self.number] == 0 {
            let others = &self.source.all.sources[self.number];
            others.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Time {
    /// One more of its lanes wants one of these threads.
    pub(super) fn wants(&self, group: Group) {
        for ready in self.ready(group) {
            ready.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// One less of them.
    pub(super) fn wants_no_more(&self, group: Group) {
        for ready in self.ready(group) {
            ready.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Its own lanes, and all.
    fn ready(&self, group: Group) -> [&AtomicUsize; 2] {
        [&self.part(group).ready, &self.queue(group).ready]
    }

    pub(super) fn others_wait(&self, group: Group) -> bool {
        let [own, all] = self.ready(group).map(|it| it.load(Ordering::Relaxed));
        all > own
    }

    fn has_more_to_do(&self) -> bool {
        let mut parts = self.parts.iter();
        parts.any(|it| it.ready.load(Ordering::Relaxed) > 0)
    }

    fn part(&self, group: Group) -> &Part {
        &self.parts[group.place(self.parts.len())]
    }

    fn queue(&self, group: Group) -> &Queue {
        &self.all.queues[group.place(self.all.queues.len())]
    }

    /// The threads that are to serve it, if those that do are the others. It has `usual` unless it
    /// is heavy.
    pub(super) fn elsewhere<'a>(&'a self, group: Group, usual: &'a Handle) -> Option<&'a Handle> {
        match (group, self.demand.is_heavy()) {
            (Group::Usual(_), true) => self.all.nicer.as_ref(),
            (Group::Nicer, false) => Some(usual),
            (Group::Usual(_), false) | (Group::Nicer, true) => None,
        }
    }

    #[cfg(test)]
    pub(super) fn set_heavy(&self, heavy: bool) {
        self.demand.set_heavy(heavy);
    }

    /// What other threads have done for its source.
    pub(super) fn work_elsewhere(&self) -> &Arc<WorkElsewhere> {
        self.demand.work_elsewhere()
    }

    /// Begins a turn.
    pub(super) fn begin(self: &Arc<Self>, group: Group) -> Turn {
        let (queue, part) = (self.queue(group), self.part(group));
        let reached = queue.reached.load(Ordering::Relaxed);
        let least = reached.saturating_sub(nanos(CREDIT));
        let before = part.had.fetch_max(least, Ordering::Relaxed).max(least);
        queue.reached.fetch_max(before, Ordering::Relaxed);
        let begun = Instant::now();
        Worked::begin(begun);
        Turn {
            begun,
            before,
            group,
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
        if !self.time.others_wait(self.group) {
            return taken >= SLICE_ALONE;
        }
        let reached = self.time.queue(self.group).reached.load(Ordering::Relaxed);
        taken >= CREDIT || self.before + nanos(taken) >= reached
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let now = Instant::now();
        let lasted = now - self.begun;
        let had = &self.time.part(self.group).had;
        had.fetch_add(nanos(lasted), Ordering::Relaxed);
        let left_nothing = !self.time.has_more_to_do();
        let turn = Spent {
            worked: Worked::end(now, lasted),
            lasted,
            left_nothing,
        };
        self.time.all.demands.count(&self.time.demand, turn);
    }
}

/// What a thread has worked. To ask the system takes longer than many turns do, and in a short one
/// the thread hardly waited for a processor: so it is asked after longer ones, and what it says
/// less short turns is theirs. Before a turn it is asked if the thread may have done much else.
#[derive(Clone, Copy)]
struct Worked {
    /// When the system was asked.
    then: Duration,
    /// In short turns since.
    in_turns: Duration,
    /// Between turns since, while it slept too.
    between: Duration,
    /// When the last turn ended.
    ended: Option<Instant>,
}

thread_local! {
    static WORKED: Cell<Worked> = const { Cell::new(Worked::NOTHING) };
}

impl Worked {
    const NOTHING: Self = Self {
        then: Duration::ZERO,
        in_turns: Duration::ZERO,
        between: Duration::ZERO,
        ended: None,
    };

    /// A turn begins.
    fn begin(now: Instant) {
        let mut worked = WORKED.get();
        let since = worked.ended.map_or(Duration::MAX, |ended| now - ended);
        worked.between = worked.between.saturating_add(since);
        if worked.between > SLICE {
            worked.ask();
        }
        WORKED.set(worked);
    }

    /// For how much of a turn that ends now this thread had a processor.
    fn end(now: Instant, lasted: Duration) -> Duration {
        let mut worked = WORKED.get();
        worked.ended = Some(now);
        let had = if lasted < SLICE {
            worked.in_turns += lasted;
            lasted
        } else {
            worked.ask().min(lasted)
        };
        WORKED.set(worked);
        had
    }

    /// Asks the system, and says what was worked since, but in short turns.
    fn ask(&mut self) -> Duration {
        let now = time_of_this_thread();
        let had = now.saturating_sub(self.then + self.in_turns);
        (self.then, self.in_turns, self.between) = (now, Duration::ZERO, Duration::ZERO);
        had
    }
}

/// For how long this thread has had a processor.
pub(crate) fn time_of_this_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::heavy::PERIOD;
    use super::*;

    const USUAL: Group = Group::Usual(0);

    fn spend(time: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < time {}
    }

    /// Fifty microseconds of every half a millisecond were less than it wanted, and it waited for
    /// ever longer.
    #[tokio::test]
    async fn who_has_had_less_goes_on_until_it_is_even() {
        let threads = Threads::default();
        let (greedy, modest) = (threads.one(), threads.one());
        greedy.wants(USUAL);
        modest.wants(USUAL);
        drop(modest.begin(USUAL));
        let frame = greedy.begin(USUAL);
        spend(CREDIT / 2);
        assert!(frame.is_over());
        drop(frame);
        drop(greedy.begin(USUAL));
        let turn = modest.begin(USUAL);
        spend(2 * SLICE);
        assert!(!turn.is_over(), "it has had less");
        spend(CREDIT / 2);
        assert!(turn.is_over());
    }

    #[tokio::test]
    async fn who_was_away_has_no_claim_to_all_of_that_time() {
        let threads = Threads::default();
        let (busy, away) = (threads.one(), threads.one());
        busy.wants(USUAL);
        away.wants(USUAL);
        for _ in 0..10 {
            let _turn = busy.begin(USUAL);
            spend(CREDIT);
        }
        let turn = away.begin(USUAL);
        assert!(!turn.is_over());
        spend(CREDIT);
        assert!(turn.is_over());
    }

    #[tokio::test]
    async fn who_is_alone_gives_way_less_often() {
        let alone = Threads::default().one();
        alone.wants(USUAL);
        let turn = alone.begin(USUAL);
        spend(2 * SLICE);
        let early = turn.is_over();
        spend(SLICE_ALONE);
        assert!(!early && turn.is_over());
    }

    /// Its turns last as long as it waits for a processor, so that it was far ahead of all others:
    /// none of these gave way to another before its turn had lasted a millisecond.
    #[tokio::test]
    async fn what_the_nicer_threads_do_counts_for_nobody_whom_the_usual_ones_serve() {
        let threads = Threads::with_nicer().unwrap();
        let (heavy, modest) = (threads.one(), threads.one());
        let long = nanos(Duration::from_secs(1));
        heavy.part(Group::Nicer).had.store(long, Ordering::Relaxed);
        heavy.wants(Group::Nicer);
        drop(heavy.begin(Group::Nicer));
        assert!(!modest.others_wait(USUAL) && modest.others_wait(Group::Nicer));
        assert_eq!(modest.begin(USUAL).before, 0);
        // Nor does it begin behind all others, when it is heavy no more.
        assert!(heavy.begin(USUAL).before < long / 2);
        heavy.wants_no_more(Group::Nicer);
        assert!(!modest.others_wait(Group::Nicer));
    }

    #[tokio::test]
    async fn who_is_heavy_is_served_by_the_nicer_threads() {
        let threads = Threads::with_nicer().unwrap();
        let source = threads.one();
        let usual = Handle::current();
        let moves = || [USUAL, Group::Nicer].map(|group| source.elsewhere(group, &usual).is_some());
        assert_eq!(moves(), [false, true]);
        source.set_heavy(true);
        assert_eq!(moves(), [true, false]);
    }

    fn two_threads() -> (tokio::runtime::Runtime, Threads) {
        let usual = tokio::runtime::Runtime::new().unwrap();
        let two = [(); 2].map(|()| usual.handle().clone());
        let threads = Threads::of(two, &threads_for_heavy(1).unwrap());
        (usual, threads)
    }

    fn numbers(homes: &[Home]) -> Vec<usize> {
        homes.iter().map(Home::number).collect()
    }

    #[test]
    fn connections_are_spread_over_threads_as_they_come_and_go() {
        let (_usual, threads) = two_threads();
        let source = threads.homes();
        let homes = [(); 4].map(|()| source.one());
        assert_eq!(numbers(&homes), [0, 1, 0, 1]);
        let [_first, second, _third, fourth] = homes;
        drop((second, fourth));
        assert_eq!(numbers(&[(); 3].map(|()| source.one())), [1, 1, 0]);
    }

    /// Who opens many connections and closes those of all threads but one had all of the next ones
    /// come to these.
    #[test]
    fn who_leaves_connections_on_one_thread_has_nobody_else_served_by_the_others_alone() {
        let (_usual, threads) = two_threads();
        let greedy = threads.homes();
        let mut its = Vec::from([(); 20].map(|()| greedy.one()));
        its.retain(|it| it.number() == 0);
        let others = [(); 5].map(|()| threads.homes().one());
        assert_eq!(numbers(&others), [1, 0, 1, 0, 1]);
    }

    /// Turns of those beside whom another is busy, on its own thread, lasted for a millisecond.
    #[test]
    fn who_keeps_one_thread_busy_is_ahead_of_nobody_on_another() {
        let (_usual, threads) = two_threads();
        let (busy, modest, light) = (threads.one(), threads.one(), threads.one());
        let long = nanos(Duration::from_secs(1));
        busy.part(USUAL).had.store(long, Ordering::Relaxed);
        busy.wants(USUAL);
        drop(busy.begin(USUAL));
        let beside = Group::Usual(1);
        assert!(!modest.others_wait(beside));
        light.wants(beside);
        modest.wants(beside);
        let turn = modest.begin(beside);
        assert_eq!(turn.before, 0);
        spend(2 * SLICE);
        assert!(turn.is_over());
    }

    /// Whoever asks for little and was served by threads that wait for a processor was heavy for as
    /// long as it was served by them.
    #[tokio::test]
    async fn to_wait_for_a_processor_makes_nobody_heavy() {
        let threads = Threads::with_nicer().unwrap();
        let (busy, waiting) = (threads.one(), threads.one());
        for _ in 0..2 {
            let turn = waiting.begin(USUAL);
            std::thread::sleep(PERIOD / 2);
            drop(turn);
            let turn = busy.begin(USUAL);
            spend(PERIOD / 2);
            drop(turn);
        }
        drop(waiting.begin(USUAL));
        let usual = Handle::current();
        assert!(waiting.elsewhere(USUAL, &usual).is_none());
    }
}
