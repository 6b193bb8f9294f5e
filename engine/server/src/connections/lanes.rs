//! Turns of the threads that serve clients: round by source, so that who asks for much waits behind
//! itself.
//!
//! A runtime polls tasks in the order in which they became ready, whoever's they are: behind ten
//! thousand calls of one client, each of them cheap, everybody else waits until all are done. So
//! whatever is done for one source, its connections and their calls alike, is done by a few of the
//! runtime's tasks, its lanes. A lane gives way when its [turn](super::turn) is over, and what is
//! left of it comes behind what others have.

use std::cell::RefCell;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::task::AtomicWaker;
use futures::{FutureExt as _, StreamExt as _};
use tokio::runtime::Handle;
use tokio::task::coop::unconstrained;

use super::heavy::WorkElsewhere;
use super::turn::{Group, Threads, Time, Turn};
use crate::node::SendsTogether;
use crate::preemption::{found_a_task, somebody_is_heavy};

/// Tasks that a thread of a runtime polls that serves clients or peers before it looks whether
/// something has arrived ([`event_interval`](tokio::runtime::Builder::event_interval)). A task may
/// take 200 µs here, and of tokio's own choice, 61 of them, whoever waits would notice.
pub const TASKS_BETWEEN_EVENTS: u32 = 5;
/// Of one source, on one thread. What waits has been read, with all its headers.
const WAITING_MAX: usize = 1024;
/// No threads that a lane waits for.
const NONE: usize = usize::MAX;

thread_local! {
    /// Of the lane that this thread polls.
    static TURN: RefCell<Option<Turn>> = const { RefCell::new(None) };
}

/// Pending, to be polled again behind others, if the turn of the lane that is being polled is over.
/// For whoever could go on for long, as long as there is something: a connection takes in and sends
/// all that there is, and a stream serves all requests.
pub(crate) fn give_way(context: &Context<'_>) -> Poll<()> {
    if TURN.with_borrow(|turn| turn.as_ref().is_some_and(Turn::is_over)) {
        context.waker().wake_by_ref();
        return Poll::Pending;
    }
    Poll::Ready(())
}

/// The lanes of one source: one on each thread, so that it can keep all of them busy. They end with
/// what they do, once this is dropped.
pub(super) struct Lanes {
    sharing: Threads,
    time: Arc<Time>,
    /// Each from when there is something to do in it.
    lanes: Box<[OnceLock<Arc<Lane>>]>,
}

struct Lane {
    /// What it has not begun to poll; `None` once nothing polls it any more.
    arrived: Mutex<Option<Vec<Task>>>,
    /// Wakes the task that it is.
    task: AtomicWaker,
    /// It was woken and is not polled yet, and waits for these threads ([`Group::code`]), or for
    /// [`NONE`].
    waits_for: AtomicUsize,
    /// Who polls it.
    is_with_nicer: AtomicBool,
    /// Who polls it otherwise, and which of them that is.
    usual: Handle,
    number: usize,
    /// What was asked for and has not begun.
    waiting: Arc<AtomicUsize>,
    /// Of its source.
    time: Arc<Time>,
    /// Nothing comes after what is in `arrived`.
    closed: AtomicBool,
}

/// What a lane polls, unless its turn is over.
struct Task {
    work: BoxFuture<'static, ()>,
    /// Until it begins.
    waiting: Option<Waiting>,
}

/// Counts what waits to begin, until it is dropped.
struct Waiting(Arc<AtomicUsize>);

/// What one of the runtime's tasks does: everything in a lane.
struct Running {
    lane: Arc<Lane>,
    tasks: FuturesUnordered<Task>,
    /// Another task does it now.
    has_moved: bool,
}

/// Until it is dropped, this thread polls a lane.
struct Polling {
    /// What came by all connections is handed over as one. That belongs to the turn.
    together: Option<SendsTogether>,
}

impl Lanes {
    /// Of the source with this address.
    pub(super) fn of(address: IpAddr, sharing: &Threads) -> Self {
        Self::with(sharing.time_of(address), sharing)
    }

    /// Of one that was never here.
    #[cfg(test)]
    fn new(sharing: &Threads) -> Self {
        Self::with(sharing.one(), sharing)
    }

    fn with(time: Arc<Time>, sharing: &Threads) -> Self {
        Self {
            sharing: sharing.clone(),
            time,
            lanes: (0..sharing.count()).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Whether so much waits to begin on this thread that nothing more is to be taken in there for
    /// now.
    pub(super) fn are_behind(&self, number: usize) -> bool {
        let waits = |lane: &Arc<Lane>| lane.waiting.load(Ordering::Relaxed) >= WAITING_MAX;
        self.lanes[number].get().is_some_and(waits)
    }

    /// What other threads have done for the source.
    pub(super) fn work_elsewhere(&self) -> &Arc<WorkElsewhere> {
        self.time.work_elsewhere()
    }

    /// Does this in the one of them with this number, or in another if that has ended. If it
    /// panics, nothing else ends. Dropped if all have ended, which is when their threads have.
    /// Within a runtime, unless the threads have their own.
    pub(super) fn spawn(&self, first: usize, work: impl Future<Output = ()> + Send + 'static) {
        let work = AssertUnwindSafe(work).catch_unwind().map(drop);
        let mut work = Some(work.boxed());
        let count = self.lanes.len();
        for number in (first..first + count).map(|number| number % count) {
            let lane = self.lane(number);
            if let Some(arrived) = lane.arrivals().as_mut() {
                arrived.extend(work.take().map(|work| Task {
                    work,
                    waiting: Some(Waiting::begin(&lane.waiting)),
                }));
                lane.wake_by_ref();
                return;
            }
        }
    }

    fn lane(&self, number: usize) -> &Arc<Lane> {
        self.lanes[number].get_or_init(|| {
            let lane = Arc::new(Lane {
                arrived: Mutex::new(Some(Vec::new())),
                task: AtomicWaker::new(),
                waits_for: AtomicUsize::new(NONE),
                is_with_nicer: AtomicBool::new(false),
                usual: self.sharing.usual(number),
                number,
                waiting: Arc::default(),
                time: Arc::clone(&self.time),
                closed: AtomicBool::new(false),
            });
            let running = Running::new(Arc::clone(&lane));
            // What gives way by the turn need not count its steps besides.
            lane.usual.spawn(unconstrained(running));
            lane
        })
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        for lane in self.lanes.iter().filter_map(OnceLock::get) {
            lane.closed.store(true, Ordering::Release);
            lane.wake_by_ref();
        }
    }
}

impl Lane {
    fn arrivals(&self) -> MutexGuard<'_, Option<Vec<Task>>> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn group(&self) -> Group {
        match self.is_with_nicer.load(Ordering::Relaxed) {
            true => Group::Nicer,
            false => Group::Usual(self.number),
        }
    }

    fn waits_for(&self, threads: Option<Group>) {
        let now = threads.map_or(NONE, Group::code);
        // What was noted is what is taken back: it may have moved since.
        let before = self.waits_for.swap(now, Ordering::Relaxed);
        if before == now {
            return;
        }
        if before != NONE {
            self.time.wants_no_more(Group::of(before));
        }
        if let Some(group) = threads {
            self.time.wants(group);
        }
    }
}

impl Wake for Lane {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.waits_for(Some(self.group()));
        self.task.wake();
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.waits_for(None);
    }
}

impl Polling {
    fn begin(lane: &Arc<Lane>) -> Self {
        lane.waits_for(None);
        TURN.set(Some(lane.time.begin(lane.group())));
        Self {
            together: Some(SendsTogether::begin()),
        }
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        self.together = None;
        TURN.set(None);
    }
}

impl Waiting {
    fn begin(waiting: &Arc<AtomicUsize>) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(waiting))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Running {
    fn new(lane: Arc<Lane>) -> Self {
        Self {
            lane,
            tasks: FuturesUnordered::new(),
            has_moved: false,
        }
    }

    /// Goes on there, with the other threads.
    fn move_to(&mut self, threads: &Handle) {
        self.has_moved = true;
        let moves_to_nicer = self.lane.group() != Group::Nicer;
        let is_with_nicer = &self.lane.is_with_nicer;
        is_with_nicer.store(moves_to_nicer, Ordering::Relaxed);
        self.lane.waits_for(Some(self.lane.group()));
        threads.spawn(unconstrained(Self {
            lane: Arc::clone(&self.lane),
            tasks: std::mem::take(&mut self.tasks),
            has_moved: false,
        }));
    }
}

impl Drop for Running {
    /// With its runtime, or because what it polled panicked while it was dropped: what has arrived
    /// is polled by nobody, and would keep its connections forever.
    fn drop(&mut self) {
        if self.has_moved {
            return;
        }
        let arrived = self.lane.arrivals().take();
        drop(arrived);
    }
}

impl Future for Task {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        ready!(give_way(context));
        found_a_task();
        self.waiting = None;
        self.work.as_mut().poll(context)
    }
}

impl Future for Running {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let time = Arc::clone(&this.lane.time);
        let lane = Arc::clone(&this.lane);
        if let Some(threads) = time.elsewhere(lane.group(), &lane.usual) {
            this.move_to(threads);
            return Poll::Ready(());
        }
        if lane.group() == Group::Nicer {
            somebody_is_heavy();
        }
        // Before anything is looked at: what comes later wakes this.
        this.lane.task.register(context.waker());
        let _polling = Polling::begin(&this.lane);
        let waker = Waker::from(Arc::clone(&this.lane));
        let mut context = Context::from_waker(&waker);
        loop {
            let closed = this.lane.closed.load(Ordering::Acquire);
            let arrived = this.lane.arrivals().as_mut().map(std::mem::take);
            this.tasks.extend(arrived.into_iter().flatten());
            match this.tasks.poll_next_unpin(&mut context) {
                Poll::Ready(None) if closed => return Poll::Ready(()),
                Poll::Ready(None) => return Poll::Pending,
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(())) => ready!(give_way(&context)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;
    use std::time::Instant;

    use tokio::sync::oneshot;
    use tokio::task::yield_now;

    use super::super::turn::{SLICE, threads_for_heavy};
    use super::*;
    use crate::preemption;

    /// Takes some of a slice.
    fn work() {
        let begun = Instant::now();
        while begun.elapsed() < SLICE / 10 {}
    }

    /// All was done in the order in which it was asked for.
    #[tokio::test]
    async fn who_asks_for_much_waits_behind_itself() {
        const MUCH: usize = 10_000;
        let threads = Threads::default();
        let (greedy, other) = (Lanes::new(&threads), Lanes::new(&threads));
        let done = Arc::<AtomicUsize>::default();
        for _ in 0..MUCH {
            let done = Arc::clone(&done);
            greedy.spawn(0, async move {
                work();
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        let (tell, told) = oneshot::channel();
        other.spawn(0, async move {
            // Some steps, as a call has.
            let mut steps = 10;
            std::future::poll_fn(|context| {
                steps -= 1;
                context.waker().wake_by_ref();
                if steps == 0 {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            })
            .await;
            let _ = tell.send(());
        });
        told.await.unwrap();
        let before = done.load(Ordering::Relaxed);
        assert!(before < MUCH / 2, "{before} were done before");
        while done.load(Ordering::Relaxed) < MUCH {
            yield_now().await;
        }
    }

    /// A connection that reads and reads is one poll of one task.
    #[tokio::test]
    async fn who_goes_on_for_long_gives_way_and_is_done_in_the_end() {
        let lanes = Lanes::new(&Threads::default());
        let (tell, told) = oneshot::channel();
        lanes.spawn(0, async move {
            let mut ways = 0;
            for _ in 0..100 {
                work();
                std::future::poll_fn(|context| {
                    let way = give_way(context);
                    ways += u32::from(way.is_pending());
                    way
                })
                .await;
            }
            let _ = tell.send(ways);
        });
        assert!(told.await.unwrap() >= 2);
    }

    #[tokio::test]
    async fn a_panic_ends_nothing_else() {
        let lanes = Lanes::new(&Threads::default());
        let (before, waits) = oneshot::channel::<()>();
        let (tell, told) = oneshot::channel();
        lanes.spawn(0, async move {
            let _ = waits.await;
            let _ = tell.send(());
        });
        lanes.spawn(0, async { panic!("on purpose") });
        yield_now().await;
        before.send(()).unwrap();
        told.await.unwrap();
    }

    /// A panic while something is dropped ends the task that a lane is, as the end of a runtime
    /// does.
    #[tokio::test]
    async fn a_lane_that_ended_keeps_nothing_and_others_take_what_comes() {
        let mut lanes = Lanes::new(&Threads::default());
        let others = Lanes::new(&Threads::default());
        lanes.lane(0);
        others.lane(0);
        lanes.lanes = lanes.lanes.iter().chain(&others.lanes).cloned().collect();
        let (kept, dropped) = oneshot::channel::<()>();
        lanes.spawn(0, async move { drop(kept) });
        drop(Running::new(Arc::clone(lanes.lane(0))));
        assert!(dropped.await.is_err());
        assert_eq!(lanes.lane(0).waiting.load(Ordering::Relaxed), 0);
        for _ in 0..3 {
            let (tell, told) = oneshot::channel();
            lanes.spawn(0, async move {
                let _ = tell.send(());
            });
            assert!(told.await.is_ok());
        }
    }

    /// Back and forth as its source is heavy, and then is not.
    #[tokio::test]
    async fn a_lane_that_moves_to_other_threads_takes_everything_along() {
        let lanes = Lanes::new(&Threads::with_nicer().unwrap());
        let time = Arc::clone(&lanes.time);
        let (done, mut told) = tokio::sync::mpsc::unbounded_channel();
        let (go_on, _) = tokio::sync::broadcast::channel::<()>(1);
        // Another test may be told instead of this one, once.
        let mut told_of_heavy = false;
        for heavy in [true, false, true, false] {
            for _ in 0..100 {
                let (done, mut waits) = (done.clone(), go_on.subscribe());
                lanes.spawn(0, async move {
                    let _ = waits.recv().await;
                    let _ = done.send(std::thread::current().name().map(str::to_owned));
                });
            }
            // Until all of them wait.
            while go_on.receiver_count() < 100 || lanes.lane(0).waiting.load(Ordering::Relaxed) > 0
            {
                yield_now().await;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            time.set_heavy(heavy);
            go_on.send(()).unwrap();
            for _ in 0..100 {
                let there = told.recv().await.unwrap();
                assert_eq!(there.as_deref() == Some("dengine-heavy"), heavy);
            }
            told_of_heavy |= heavy && preemption::somebody_was_heavy();
        }
        assert!(told_of_heavy);
        assert_eq!(lanes.lane(0).waiting.load(Ordering::Relaxed), 0);
    }

    /// What has moved since it was woken is not taken back where it was never noted.
    #[tokio::test]
    async fn a_lane_waits_for_the_threads_that_poll_it() {
        let threads = Threads::default();
        let (lanes, other) = (Lanes::new(&threads), threads.one());
        let waits = || [Group::Usual(0), Group::Nicer].map(|group| other.others_wait(group));
        let lane = lanes.lane(0);
        lane.wake_by_ref();
        assert_eq!(waits(), [true, false]);
        lane.is_with_nicer.store(true, Ordering::Relaxed);
        lane.wake_by_ref();
        assert_eq!(waits(), [false, true]);
        lane.is_with_nicer.store(false, Ordering::Relaxed);
        drop(Polling::begin(lane));
        assert_eq!(waits(), [false, false]);
    }

    /// It kept the threads that did it, and went on when everything else had ended.
    #[test]
    fn what_is_done_for_who_is_heavy_is_over_once_its_threads_are_ended() {
        let usual = tokio::runtime::Runtime::new().unwrap();
        let nicer = threads_for_heavy(1).unwrap();
        let (node, (begin, begun)) = (Arc::new(()), std::sync::mpsc::channel());
        let held = Arc::clone(&node);
        usual.block_on(async {
            let lanes = Arc::new(Lanes::new(&Threads::of([Handle::current()], &nicer)));
            // As a connection has its source.
            let own = Arc::clone(&lanes);
            lanes.time.set_heavy(true);
            lanes.spawn(0, async move {
                let there = std::thread::current().name().map(str::to_owned);
                begin.send(there).unwrap();
                // In the midst of something when it is to end.
                std::thread::sleep(std::time::Duration::from_millis(50));
                std::future::pending::<()>().await;
                drop((held, own));
            });
            let there = begun.recv().unwrap();
            assert_eq!(there.as_deref(), Some("dengine-heavy"));
        });
        let long = std::time::Duration::from_secs(30);
        nicer.end(long);
        usual.shutdown_timeout(long);
        assert_eq!(Arc::strong_count(&node), 1);
    }

    #[tokio::test]
    async fn lanes_end_with_what_they_do() {
        let lanes = Lanes::new(&Threads::default());
        let (end, waits) = oneshot::channel::<()>();
        lanes.spawn(0, async move { drop(waits.await) });
        let all: Vec<Weak<Lane>> = lanes
            .lanes
            .iter()
            .filter_map(OnceLock::get)
            .map(Arc::downgrade)
            .collect();
        let left = || all.iter().filter(|it| it.strong_count() > 0).count();
        drop(lanes);
        for _ in 0..10 {
            yield_now().await;
        }
        assert_eq!(left(), 1, "one still has something to do");
        end.send(()).unwrap();
        while left() > 0 {
            yield_now().await;
        }
    }
}
