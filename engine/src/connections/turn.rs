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
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Handle};

use super::heavy::{Demand, Demands, Spent};
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
    /// How many connections each of these serves.
    connections: Box<[AtomicUsize]>,
    /// The threads of whoever is heavy. No more than a handle: what they do has this.
    nicer: Option<Handle>,
    demands: Demands,
    queues: [Queue; 2],
}

/// The thread that serves a connection and its calls, until this is dropped.
pub(super) struct Home {
    all: Arc<All>,
    number: usize,
}

/// Which threads serve a source. The time of one group says nothing of the other's: turns of the
/// nicer threads last longer, and who wants one of them takes nothing from those whom the usual
/// ones serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    Usual,
    /// Who is heavy.
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
    demand: Demand,
    parts: [Part; 2],
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
    pub(super) const ALL: [Self; 2] = [Self::Usual, Self::Nicer];

    pub(super) fn others(self) -> Self {
        match self {
            Self::Usual => Self::Nicer,
            Self::Nicer => Self::Usual,
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
            connections: (0..count).map(|_| AtomicUsize::new(0)).collect(),
            nicer: None,
            demands: Demands::of_threads(count),
            queues: Default::default(),
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

    /// A handle of each of the usual ones.
    pub(super) fn usual(&self) -> Vec<Handle> {
        if self.0.usual.is_empty() {
            let own = Handle::current();
            return vec![own.clone(); own.metrics().num_workers()];
        }
        self.0.usual.to_vec()
    }

    /// For one more connection: the thread that serves fewest of them.
    pub(super) fn home(&self) -> Home {
        let all = Arc::clone(&self.0);
        let counts = all.connections.iter().enumerate();
        let least = counts.min_by_key(|(_, count)| count.load(Ordering::Relaxed));
        let number = least.map_or(0, |(number, _)| number);
        all.connections[number].fetch_add(1, Ordering::Relaxed);
        Home { all, number }
    }

    /// For one more source.
    pub(super) fn one(&self) -> Arc<Time> {
        Arc::new(Time {
            all: Arc::clone(&self.0),
            demand: self.0.demands.one(),
            parts: Default::default(),
        })
    }
}

impl Home {
    /// Which of the usual ones it is.
    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// Its runtime, if that is not the one in which connections come in.
    pub(super) fn runtime(&self) -> Option<&Handle> {
        self.all.usual.get(self.number)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.all.connections[self.number].fetch_sub(1, Ordering::Relaxed);
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
        &self.parts[group as usize]
    }

    fn queue(&self, group: Group) -> &Queue {
        &self.all.queues[group as usize]
    }

    /// The threads that are to serve it, if those that do are the others. It has `usual` unless it
    /// is heavy.
    pub(super) fn elsewhere<'a>(&'a self, group: Group, usual: &'a Handle) -> Option<&'a Handle> {
        match (group, self.demand.is_heavy()) {
            (Group::Usual, true) => self.all.nicer.as_ref(),
            (Group::Nicer, false) => Some(usual),
            (Group::Usual, false) | (Group::Nicer, true) => None,
        }
    }

    #[cfg(test)]
    pub(super) fn set_heavy(&self, heavy: bool) {
        self.demand.set_heavy(heavy);
    }

    /// Begins a turn.
    pub(super) fn begin(self: &Arc<Self>, group: Group) -> Turn {
        let (queue, part) = (self.queue(group), self.part(group));
        let reached = queue.reached.load(Ordering::Relaxed);
        let least = reached.saturating_sub(nanos(CREDIT));
        let before = part.had.fetch_max(least, Ordering::Relaxed).max(least);
        queue.reached.fetch_max(before, Ordering::Relaxed);
        Turn {
            begun: Instant::now(),
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
        let lasted = self.begun.elapsed();
        let had = &self.time.part(self.group).had;
        had.fetch_add(nanos(lasted), Ordering::Relaxed);
        let left_nothing = !self.time.has_more_to_do();
        let turn = Spent {
            worked: worked_by_this_thread(lasted),
            lasted,
            left_nothing,
        };
        self.time.all.demands.count(&self.time.demand, turn);
    }
}

/// For how much of a turn that ends now the thread had a processor. To ask the system takes longer
/// than many turns do, and in a short one it hardly waited for that: so it is asked after longer
/// ones, and short ones are taken off.
fn worked_by_this_thread(lasted: Duration) -> Duration {
    thread_local! {
        /// What the thread had worked when the system was asked, and in short turns since.
        static WORKED: Cell<(Duration, Duration)> = const { Cell::new((Duration::ZERO, Duration::ZERO)) };
    }
    let (before, in_short_turns) = WORKED.get();
    if lasted < SLICE {
        WORKED.set((before, in_short_turns + lasted));
        return lasted;
    }
    let now = Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default();
    WORKED.set((now, Duration::ZERO));
    now.saturating_sub(before + in_short_turns).min(lasted)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::heavy::PERIOD;
    use super::*;

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
        greedy.wants(Group::Usual);
        modest.wants(Group::Usual);
        drop(modest.begin(Group::Usual));
        let frame = greedy.begin(Group::Usual);
        spend(CREDIT / 2);
        assert!(frame.is_over());
        drop(frame);
        drop(greedy.begin(Group::Usual));
        let turn = modest.begin(Group::Usual);
        spend(2 * SLICE);
        assert!(!turn.is_over(), "it has had less");
        spend(CREDIT / 2);
        assert!(turn.is_over());
    }

    #[tokio::test]
    async fn who_was_away_has_no_claim_to_all_of_that_time() {
        let threads = Threads::default();
        let (busy, away) = (threads.one(), threads.one());
        busy.wants(Group::Usual);
        away.wants(Group::Usual);
        for _ in 0..10 {
            let _turn = busy.begin(Group::Usual);
            spend(CREDIT);
        }
        let turn = away.begin(Group::Usual);
        assert!(!turn.is_over());
        spend(CREDIT);
        assert!(turn.is_over());
    }

    #[tokio::test]
    async fn who_is_alone_gives_way_less_often() {
        let alone = Threads::default().one();
        alone.wants(Group::Usual);
        let turn = alone.begin(Group::Usual);
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
        assert!(!modest.others_wait(Group::Usual) && modest.others_wait(Group::Nicer));
        assert_eq!(modest.begin(Group::Usual).before, 0);
        // Nor does it begin behind all others, when it is heavy no more.
        assert!(heavy.begin(Group::Usual).before < long / 2);
        heavy.wants_no_more(Group::Nicer);
        assert!(!modest.others_wait(Group::Nicer));
    }

    #[tokio::test]
    async fn who_is_heavy_is_served_by_the_nicer_threads() {
        let threads = Threads::with_nicer().unwrap();
        let source = threads.one();
        let usual = Handle::current();
        let moves = || Group::ALL.map(|group| source.elsewhere(group, &usual).is_some());
        assert_eq!(moves(), [false, true]);
        source.set_heavy(true);
        assert_eq!(moves(), [true, false]);
    }

    #[test]
    fn connections_are_spread_over_threads_as_they_come_and_go() {
        let (usual, nicer) = (
            tokio::runtime::Runtime::new().unwrap(),
            threads_for_heavy(1),
        );
        let two = [(); 2].map(|()| usual.handle().clone());
        let threads = Threads::of(two, &nicer.unwrap());
        let homes = [(); 4].map(|()| threads.home());
        let numbers = |homes: &[Home]| homes.iter().map(Home::number).collect::<Vec<_>>();
        assert_eq!(numbers(&homes), [0, 1, 0, 1]);
        let [_first, second, _third, fourth] = homes;
        drop((second, fourth));
        assert_eq!(numbers(&[(); 3].map(|()| threads.home())), [1, 1, 0]);
    }

    /// Whoever asks for little and was served by threads that wait for a processor was heavy for as
    /// long as it was served by them.
    #[tokio::test]
    async fn to_wait_for_a_processor_makes_nobody_heavy() {
        let threads = Threads::with_nicer().unwrap();
        let (busy, waiting) = (threads.one(), threads.one());
        for _ in 0..2 {
            let turn = waiting.begin(Group::Usual);
            std::thread::sleep(PERIOD / 2);
            drop(turn);
            let turn = busy.begin(Group::Usual);
            spend(PERIOD / 2);
            drop(turn);
        }
        drop(waiting.begin(Group::Usual));
        let usual = Handle::current();
        assert!(waiting.elsewhere(Group::Usual, &usual).is_none());
    }
}
