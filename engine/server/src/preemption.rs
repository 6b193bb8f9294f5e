//! Whether a thread that is woken takes the processor from the one that runs there.
//!
//! A member's threads wake each other with each step of a call. Where processors are busy, the one
//! that is woken takes the processor from another of them, which was about to hand over more: so
//! the work of a thousand clients is done a few calls at a time, each time with a switch to another
//! thread and back. Scheduled as *batch* (`SCHED_BATCH`, [sched(7)]) it waits until that one has
//! nothing left to do, and finds more when it runs.
//!
//! Beside other programs that keep all processors busy it waits for the end of their slices, some
//! milliseconds at each step; also for that of a long read or a compaction of this process. Who
//! waits for a thousand answers at once does not notice; a call that is alone takes twenty times as
//! long. So all threads are scheduled as batch while those that serve clients find much to do
//! whenever they wake, or have many calls under way, and as usual while both are few, or while
//! somebody is [heavy](crate::connections): whoever is light must not wait for what that one's
//! threads do.
//!
//! What other members pass on to a leader counts like tasks that are found, where it is applied.
//!
//! On a slower machine the same clients let less be found, and what another member passes on over a
//! stream is one task, however many calls are in its frame. How many calls are under way depends
//! less on that: it is what they took together, divided by the time in which they ended (Little's
//! law). What waits in a socket is not known, and a frame of a client counts as one: who makes all
//! of its calls is one client. Where other programs keep the processors busy, calls take longer
//! because of batch. So what was decided by calls is decided again now and then, as it is without.
//!
//! What is done for many watches of a key at each write is as much as many calls are.
//!
//! It is a matter of the whole process, so what is counted is, too; and nobody but whoever runs
//! [`judge`] changes anything. A program that embeds a member does not.
//!
//! [sched(7)]: https://man7.org/linux/man-pages/man7/sched.7.html

use std::cell::Cell;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use tokio::sync::Notify;
use tokio::time::sleep;

/// So many wakes are looked at together while threads are scheduled as usual: 50 ms of them under
/// load, and no timer wakes a member at rest.
const WAKES: u64 = 64;
/// How often it is looked while they are batch.
const PERIOD: Duration = Duration::from_millis(100);
/// Tasks of clients that are found at a wake, on average, from which on threads are scheduled as
/// batch. One client with one call at a time is three of them, ten are four, thirty are six; of a
/// hundred and of a thousand it is seven to eleven, because they preempt each other.
const MANY: u64 = 7;
/// So many or fewer while they are batch are too few. Of a hundred clients it is twelve to
/// fourteen, and ten where other programs keep the processors busy, of a thousand sixteen and more.
const FEW: u64 = 11;
/// Calls under way, on average, that are many as well, if one ends at each wake. Of a hundred
/// clients of three members a member has twenty as usual, of a thousand fifteen to fifty, by what
/// they ask for, and of thirty it has seven.
const MANY_CALLS: u32 = 16;
/// Fewer while they are batch are too few.
const FEW_CALLS: u32 = 10;
/// No more of a call counts: what waits for a lock or a slow disk is none that waits for a thread.
const COUNTED_OF_A_CALL: Duration = Duration::from_millis(10);
/// After so many periods for which not tasks alone would be enough, it is looked how it is without.
const PERIODS_UNSURE: u32 = 100;
/// So many in a period, or fewer: those who called have gone.
const FEW_IN_PERIOD: u32 = 200;
/// In so many periods in a row, and they are scheduled as usual.
const FEW_PERIODS: u32 = 10;
/// A period counts as so many if most of those who called have gone.
const VERY_FEW: u32 = 2;
/// They are not batch again before, unless all who called had gone.
const USUAL_FOR: Duration = Duration::from_secs(4);
/// More than these count as no more: a single burst does not stand for the wakes around it. A
/// thousand calls come in bursts as well, and were too few where 32 counted.
const COUNTED_AT_A_WAKE: u64 = 128;
/// A thread that finds so many without a pause is counted as if it had woken: one that never sleeps
/// does not look as if nobody called.
const WITHOUT_PAUSE: u64 = 512;
/// So often at most it is looked for threads that were started meanwhile.
#[cfg(target_os = "linux")]
const PASSES: usize = 8;
/// One wake in the sum of wakes and tasks, or one call in that of calls and microseconds.
const ONE: u64 = 1 << 40;

thread_local! {
    /// Tasks of clients that this thread has polled since it woke.
    static FOUND: Cell<u64> = const { Cell::new(0) };
    /// Calls that have ended there since, and what they took together.
    static ENDED: Cell<u64> = const { Cell::new(0) };
}

static FOUND_BY_ALL: Found = Found::nothing();
/// All threads of this process wait for whoever runs.
static ALL_ARE_BATCH: AtomicBool = AtomicBool::new(false);

/// What threads that serve clients found when they woke.
struct Found {
    /// Wakes and tasks, since they were looked at.
    sum: AtomicU64,
    /// Calls that ended since, and what they took together in microseconds.
    ended: AtomicU64,
    /// Something was done for a client that is heavy since it was looked last.
    heavy: AtomicBool,
    /// The judge looks at them every [`PERIOD`], or waits until that makes sense.
    is_judged: AtomicBool,
    /// Wakes it when much is found.
    much: Notify,
}

/// What was found since it was looked last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    wakes: u64,
    tasks: u64,
    /// That ended.
    calls: u64,
    calls_took: Duration,
    /// For how long.
    within: Duration,
}

/// How a thread is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    /// Takes the processor when it is woken, if it has had less of it.
    Usual,
    /// Waits for whoever runs.
    Batch,
}

/// Periods in which little was found.
#[derive(Debug, Default)]
struct Few {
    /// In a row.
    few: u32,
    /// In all, those for which tasks alone would not be enough.
    unsure: u32,
}

/// Why threads are scheduled as usual again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Those who called have gone, and may come back any time.
    Quiet,
    /// It may be so only because it is batch.
    Unsure,
    /// Batch does not pay for those who call.
    TooFew,
    /// Somebody is heavy.
    Heavy,
}

/// Whether woken threads of this process wait for those that run.
pub(crate) fn all_are_batch() -> bool {
    ALL_ARE_BATCH.load(Ordering::Relaxed)
}

/// This thread polls a task of a client.
pub(crate) fn found_a_task() {
    let found = FOUND.get() + 1;
    FOUND.set(found);
    if found == WITHOUT_PAUSE {
        sleeps();
    }
}

/// Serves so many calls, which begin now and end together, and notes how long that took.
pub(crate) fn timed<T>(calls: usize, serve: impl Future<Output = T>) -> impl Future<Output = T> {
    let begun = Instant::now();
    serve.inspect(move |_| {
        let took = begun.elapsed().min(COUNTED_OF_A_CALL);
        ENDED.set(ENDED.get() + calls as u64 * (ONE + micros(took)));
    })
}

/// So many calls have ended at once that other members passed on, which took so long together. They
/// are found as many tasks are by a thread that serves clients when it wakes.
pub(crate) fn ended_of_others(calls: u32, took: Duration) {
    if calls > 0 {
        let took = took.min(COUNTED_OF_A_CALL.saturating_mul(calls));
        let calls = u64::from(calls);
        FOUND_BY_ALL.count(calls, calls * ONE + micros(took));
    }
}

/// This thread has nothing left to do, and sleeps until it is woken.
pub(crate) fn sleeps() {
    FOUND_BY_ALL.count(FOUND.take(), ENDED.take());
}

/// Something is done for a client that is heavy, by threads of lower priority.
pub(crate) fn somebody_is_heavy() {
    FOUND_BY_ALL.heavy.store(true, Ordering::Relaxed);
    // What these threads find does not count.
    FOUND.set(0);
    ENDED.set(0);
}

/// The calls that this thread has ended since it slept, and what they took together.
#[cfg(test)]
pub(crate) fn ended() -> (u64, Duration) {
    let ended = ENDED.get();
    (ended / ONE, Duration::from_micros(ended % ONE))
}

/// Whether that was so since it was asked last.
#[cfg(test)]
pub(crate) fn somebody_was_heavy() -> bool {
    FOUND_BY_ALL.somebody_was_heavy()
}

/// Sets the policy of all threads of this process by what those find that serve clients. To be
/// polled once, until the process ends.
pub async fn judge() -> Infallible {
    let wait = async |time| {
        let begun = Instant::now();
        sleep(time).await;
        begun.elapsed()
    };
    FOUND_BY_ALL.judge(set_all, wait).await
}

impl Found {
    const fn nothing() -> Self {
        Self {
            sum: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            heavy: AtomicBool::new(false),
            is_judged: AtomicBool::new(false),
            much: Notify::const_new(),
        }
    }

    /// Counts a wake at which so many tasks were found, and these calls ended.
    fn count(&self, tasks: u64, ended: u64) {
        self.ended.fetch_add(ended, Ordering::Relaxed);
        // Timers and the like.
        if tasks == 0 {
            return;
        }
        let more = ONE + tasks.min(COUNTED_AT_A_WAKE);
        let wakes = self.sum.fetch_add(more, Ordering::Relaxed) / ONE + 1;
        if wakes < WAKES || self.is_judged.load(Ordering::Relaxed) {
            return;
        }
        let seen = self.take(Duration::MAX);
        // Fewer if another thread has been here meanwhile.
        if seen.wakes >= WAKES && (seen.finds(MANY) || seen.ends_calls()) {
            self.much.notify_one();
        }
    }

    /// What was found since this was asked last, which is so long ago.
    fn take(&self, within: Duration) -> Seen {
        let sum = self.sum.swap(0, Ordering::Relaxed);
        let ended = self.ended.swap(0, Ordering::Relaxed);
        Seen {
            wakes: sum / ONE,
            tasks: sum % ONE,
            calls: ended / ONE,
            calls_took: Duration::from_micros(ended % ONE),
            within,
        }
    }

    fn somebody_was_heavy(&self) -> bool {
        self.heavy.swap(false, Ordering::Relaxed)
    }

    /// See [`judge`]; `set` returns whether it could do it, and `wait` waits for so long, and
    /// returns how long it was.
    async fn judge<W: Future<Output = Duration>>(
        &self,
        mut set: impl FnMut(Policy) -> bool,
        wait: impl Fn(Duration) -> W,
    ) -> Infallible {
        loop {
            self.much.notified().await;
            self.is_judged.store(true, Ordering::Relaxed);
            // It may have been a burst; and threads of lower priority, on which somebody is heavy,
            // have a turn only now and then. Who was heavy long ago says nothing.
            let _before = (self.somebody_was_heavy(), self.take(Duration::MAX));
            let seen = self.take(wait(PERIOD).await);
            let is_much = seen.finds(MANY) || seen.has_calls(MANY_CALLS);
            let end = match self.somebody_was_heavy() {
                true => End::Heavy,
                false if seen.is_quiet() || !is_much => End::Quiet,
                false => {
                    set(Policy::Batch);
                    let end = self.until_few(&wait).await;
                    while !set(Policy::Usual) {
                        wait(PERIOD).await;
                    }
                    end
                }
            };
            if matches!(end, End::TooFew | End::Heavy) {
                wait(USUAL_FOR).await;
            }
            self.take(Duration::MAX);
            // From before it was judged.
            let _ = self.much.notified().now_or_never();
            self.is_judged.store(false, Ordering::Relaxed);
        }
    }

    /// Why it ends to be batch.
    async fn until_few<W: Future<Output = Duration>>(&self, wait: &impl Fn(Duration) -> W) -> End {
        let mut few = Few::default();
        loop {
            let seen = self.take(wait(PERIOD).await);
            if let Some(end) = few.one_more(seen, self.somebody_was_heavy()) {
                return end;
            }
        }
    }
}

impl Seen {
    /// Whether at least so many tasks were found at a wake, on average.
    fn finds(self, tasks: u64) -> bool {
        self.tasks >= tasks * self.wakes
    }

    /// Whether a call ended at each wake, on average. Of one client it is every second or third.
    fn ends_calls(self) -> bool {
        self.calls >= self.wakes
    }

    /// Whether at least so many calls were under way, on average, and not only to wait.
    fn has_calls(self, under_way: u32) -> bool {
        self.ends_calls() && self.calls_took >= self.within.saturating_mul(under_way)
    }

    /// Whether those who called have gone.
    fn is_quiet(self) -> bool {
        let tasks = u32::try_from(self.tasks).unwrap_or(u32::MAX);
        PERIOD.saturating_mul(tasks) <= self.within.saturating_mul(FEW_IN_PERIOD)
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Few {
    /// One more period is over, in which this was seen. Why that ends it, if it does.
    fn one_more(&mut self, seen: Seen, heavy: bool) -> Option<End> {
        if heavy {
            return Some(End::Heavy);
        }
        let by_tasks = seen.tasks > FEW * seen.wakes;
        self.few = match seen {
            _ if seen.is_quiet() => self.few + VERY_FEW,
            _ if by_tasks || seen.has_calls(FEW_CALLS) => 0,
            _ if seen.finds(MANY) => self.few + 1,
            _ => self.few + VERY_FEW,
        };
        self.unsure += u32::from(!by_tasks);
        if self.few >= FEW_PERIODS {
            return Some(if seen.is_quiet() {
                End::Quiet
            } else {
                End::TooFew
            });
        }
        (self.unsure >= PERIODS_UNSURE).then_some(End::Unsure)
    }
}

/// As far as the system allows it: threads that it leaves as they were work as well. Those that
/// somebody else gave a third policy keep it. Whether the threads could be looked at.
#[cfg(target_os = "linux")]
fn set_all(policy: Policy) -> bool {
    let (from, to) = match policy {
        Policy::Usual if !all_are_batch() => return true,
        Policy::Usual => (libc::SCHED_BATCH, libc::SCHED_OTHER),
        Policy::Batch => (libc::SCHED_OTHER, libc::SCHED_BATCH),
    };
    let mut changed = 0;
    // A thread that is started meanwhile has the policy of the one that starts it.
    for _ in 0..PASSES {
        let Ok(threads) = fs_err::read_dir("/proc/self/task") else {
            return false;
        };
        let ids = threads.filter_map(|it| it.ok()?.file_name().to_str()?.parse().ok());
        let now = ids.filter(|id| system::change(*id, from, to)).count();
        changed += now;
        if now == 0 {
            break;
        }
    }
    let batch = policy == Policy::Batch && changed > 0;
    ALL_ARE_BATCH.store(batch, Ordering::Relaxed);
    true
}

#[cfg(not(target_os = "linux"))]
fn set_all(_: Policy) -> bool {
    true
}

/// System calls that no maintained crate wraps.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "functions of libc")]
mod system {
    /// Changes the policy of a thread, if it is still there and has this one. Whether the system
    /// has done so.
    pub(super) fn change(thread: libc::pid_t, from: libc::c_int, to: libc::c_int) -> bool {
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: neither changes anything of the process but how a thread is scheduled, and
        // `parameters`, which is read, outlives the call.
        unsafe {
            libc::sched_getscheduler(thread) == from
                && libc::sched_setscheduler(thread, to, &raw const parameters) == 0
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::pin::pin;

    use tokio::task::yield_now;

    use super::*;

    /// So many tasks and calls at so many wakes, and so many calls were under way in a period.
    fn seen(wakes: u64, (tasks, calls): (u64, u64), under_way: u32) -> Seen {
        Seen {
            wakes,
            tasks,
            calls,
            calls_took: under_way * PERIOD,
            within: PERIOD,
        }
    }

    /// After which of the periods it ends, in each of which so many tasks are found at a wake,
    /// and so many calls are under way.
    fn ends_after(averages: &[u64], under_way: u32) -> Option<usize> {
        let mut few = Few::default();
        averages.iter().position(|tasks| {
            let end = few.one_more(seen(200, (200 * tasks, 200), under_way), false);
            assert!(end.is_none_or(|end| end == End::TooFew), "{end:?}");
            end.is_some()
        })
    }

    #[test]
    fn little_now_and_then_does_not_end_it_and_little_all_the_time_does() {
        let few = FEW_CALLS - 1;
        assert_eq!(ends_after(&[20; 100], few), None);
        let now_and_then = [&[11; 7][..], &[6, 12]].concat().repeat(10);
        assert_eq!(ends_after(&now_and_then, few), None);
        let all_the_time = [&[12][..], &[11; 10]].concat();
        assert_eq!(ends_after(&all_the_time, few), Some(10));
        assert_eq!(ends_after(&[4; 5], few), Some(4), "most of them have gone");
    }

    #[test]
    fn so_many_tasks_are_few_and_hardly_more_are_not() {
        let ends = |tasks| {
            let mut few = Few::default();
            let seen = seen(100, (tasks, 100), 0);
            (0..10).find_map(|_| few.one_more(seen, false))
        };
        assert_eq!(ends(100 * FEW), Some(End::TooFew));
        assert_eq!(ends(100 * FEW + 1), None);
    }

    #[test]
    fn many_calls_are_much_unless_few_of_them_end() {
        assert_eq!(ends_after(&[3; 99], FEW_CALLS), None);
        let waits = seen(200, (600, 199), FEW_CALLS);
        let mut few = Few::default();
        let ends = [(); 5].map(|()| few.one_more(waits, false));
        assert_eq!(ends[4], Some(End::TooFew));
    }

    #[test]
    fn it_ends_when_nobody_calls_and_for_few_whom_many_watch() {
        for (wakes, tasks) in [(0, 0), (1, 128), (2, 200)] {
            let mut few = Few::default();
            let mut ends = [(); 5].map(|()| few.one_more(seen(wakes, (tasks, 9), 1_000), false));
            assert_eq!(ends[4].take(), Some(End::Quiet));
            assert_eq!(ends, [None; 5], "{tasks} tasks at {wakes} wakes");
        }
    }

    #[test]
    fn it_ends_as_soon_as_somebody_is_heavy() {
        let end = Few::default().one_more(seen(100, (2_000, 100), 100), true);
        assert_eq!(end, Some(End::Heavy));
    }

    fn is_told_of_much(found: &Found) -> bool {
        found.much.notified().now_or_never().is_some()
    }

    #[test]
    fn wakes_are_looked_at_together_and_those_that_found_nothing_are_none() {
        let found = Found::nothing();
        for (tasks, is_much) in [(MANY, true), (MANY - 1, false), (MANY, true)] {
            for _ in 1..WAKES {
                found.count(0, 0);
                found.count(tasks, 0);
                assert!(!is_told_of_much(&found));
            }
            found.count(tasks, 0);
            assert_eq!(is_told_of_much(&found), is_much, "{tasks} tasks");
        }
    }

    #[test]
    fn a_burst_does_not_stand_for_the_wakes_around_it() {
        let found = Found::nothing();
        found.count(100_000, 0);
        (1..WAKES).for_each(|_| found.count(3, 0));
        assert!(!is_told_of_much(&found));
    }

    #[test]
    fn as_many_calls_as_wakes_are_worth_a_look() {
        let found = Found::nothing();
        (1..WAKES).for_each(|_| found.count(1, ONE));
        found.count(1, 0);
        assert!(!is_told_of_much(&found), "one call less");
        (0..WAKES).for_each(|_| found.count(1, ONE));
        assert!(is_told_of_much(&found));
    }

    /// The first policies that the judge sets, and how many milliseconds after the one before, if
    /// `find` says what is found in each millisecond.
    fn sets<const N: usize>(find: impl Fn(&Found, u64)) -> [(Policy, u64); N] {
        sets_what_changes_them(|found, now, _| find(found, now))
    }

    /// The same if that depends on the policy.
    fn sets_what_changes_them<const N: usize>(
        find: impl Fn(&Found, u64, Policy),
    ) -> [(Policy, u64); N] {
        let (found, now) = (Found::nothing(), Cell::new(0));
        let sets = RefCell::new(Vec::new());
        let pass = |ms| {
            (0..ms).for_each(|_| {
                now.set(now.get() + 1);
                let last = sets.borrow().last().copied();
                let policy = last.map_or(Policy::Usual, |(policy, _)| policy);
                find(&found, now.get(), policy);
            });
        };
        let set = |policy| {
            sets.borrow_mut().push((policy, now.get()));
            true
        };
        let wait = |time: Duration| {
            pass(time.as_millis());
            yield_now().map(move |()| time)
        };
        let mut judge = pin!(found.judge(set, wait));
        while sets.borrow().len() < N {
            assert!(now.get() < 60_000, "it does not come to that");
            pass(1);
            assert!((&mut judge).now_or_never().is_none());
        }
        let mut last = 0;
        std::array::from_fn(|at| {
            let (policy, at) = sets.borrow()[at];
            (policy, at - std::mem::replace(&mut last, at))
        })
    }

    /// Finds so many tasks at a wake, and wakes often.
    fn finds(found: &Found, tasks: u64) {
        (0..WAKES).for_each(|_| found.count(tasks, 0));
    }

    /// Ends a call at each of so many wakes in a millisecond, of which so many are under way.
    fn has_calls(found: &Found, wakes: u32, under_way: u32) {
        let took = under_way * Duration::from_millis(1) / wakes;
        (0..wakes).for_each(|_| found.count(3, ONE + micros(took)));
    }

    #[test]
    fn many_calls_begin_it_and_few_end_it() {
        for wakes in [1, 10, 50] {
            let [one, two] = sets(|found, now| {
                let many = (1_000..2_000).contains(&now);
                has_calls(found, wakes, if many { MANY_CALLS } else { FEW_CALLS - 1 });
            });
            let begins = 1_000..=1_300;
            assert!(one.0 == Policy::Batch && begins.contains(&one.1), "{one:?}");
            let ends = 1_000..=1_600;
            assert!(two.0 == Policy::Usual && ends.contains(&two.1), "{two:?}");
        }
    }

    /// Where others keep the processors busy, calls are many because each waits for long.
    #[test]
    fn it_does_not_go_on_for_calls_that_are_many_because_of_it() {
        let [one, two, three] = sets_what_changes_them(|found, now, policy| {
            let calm = 300..40_000;
            let many = !calm.contains(&now) || policy == Policy::Batch;
            has_calls(found, 10, if many { MANY_CALLS } else { 1 });
        });
        assert!(one.0 == Policy::Batch && one.1 <= 200, "{one:?}");
        let ends = 9_900..=10_100;
        assert!(two.0 == Policy::Usual && ends.contains(&two.1), "{two:?}");
        assert!(three.1 > 29_000, "{three:?}");
    }

    /// And for tasks that are many now and then.
    #[test]
    fn it_is_interrupted_however_often_tasks_are_many() {
        let [_, two] = sets(|found, now| match now / 1_000 % 2 {
            0 => finds(found, 20),
            _ => has_calls(found, 10, MANY_CALLS),
        });
        let ends = 18_000..=22_000;
        assert!(two.0 == Policy::Usual && ends.contains(&two.1), "{two:?}");
    }

    #[test]
    fn it_is_hardly_interrupted_to_see_how_it_is_without() {
        let [_, two, three] = sets(|found, _| has_calls(found, 10, MANY_CALLS));
        assert!(two.0 == Policy::Usual && two.1 >= 9_900, "{two:?}");
        assert!(three.0 == Policy::Batch && three.1 <= 120, "{three:?}");
    }

    #[test]
    fn time_that_was_longer_than_planned_is_not_taken_for_much() {
        let tasks = 2 * u64::from(FEW_IN_PERIOD);
        let in_one = seen(100, (tasks, 100), MANY_CALLS);
        assert!(in_one.has_calls(MANY_CALLS) && !in_one.is_quiet());
        let within = 2 * PERIOD;
        let in_two = Seen { within, ..in_one };
        assert!(!in_two.has_calls(MANY_CALLS) && in_two.is_quiet());
    }

    #[tokio::test]
    async fn of_a_call_that_waits_for_something_else_little_counts() {
        let call = COUNTED_OF_A_CALL / 2;
        timed(1, sleep(call)).await;
        let (calls, took) = ended();
        assert!(calls == 1 && took >= call, "{calls} took {took:?}");
        ENDED.set(0);
        timed(3, sleep(3 * COUNTED_OF_A_CALL)).await;
        assert_eq!(ended(), (3, 3 * COUNTED_OF_A_CALL));
        somebody_is_heavy();
        assert_eq!(ended(), (0, Duration::ZERO), "nothing of who is heavy");
    }

    #[test]
    fn it_rests_once_too_few_call() {
        let [one, two, three] = sets(|found, now| finds(found, if now < 1_000 { 20 } else { FEW }));
        assert!(one.0 == Policy::Batch && one.1 <= 110, "{one:?}");
        let ends = 1_700..=2_000;
        assert!(two.0 == Policy::Usual && ends.contains(&two.1), "{two:?}");
        let rests = 4_000..=4_200;
        assert!(
            three.0 == Policy::Batch && rests.contains(&three.1),
            "{three:?}"
        );
    }

    #[test]
    fn it_begins_again_at_once_with_those_who_had_all_gone() {
        let gone = 1_000..2_000;
        let [_, two, three] = sets(|found, now| {
            if !gone.contains(&now) {
                finds(found, 20);
            }
        });
        let ends = 1_300..=1_500;
        assert!(two.0 == Policy::Usual && ends.contains(&two.1), "{two:?}");
        assert!(three.0 == Policy::Batch && three.1 <= 800, "{three:?}");
    }

    #[test]
    fn a_burst_of_a_moment_does_not_begin_it() {
        let [one] = sets(|found, now| {
            if now % 1_000 == 1 || now > 10_000 {
                finds(found, 20);
            }
        });
        assert_eq!(one.0, Policy::Batch);
        assert!(one.1 > 10_000, "{one:?}");
    }

    #[test]
    fn who_was_heavy_long_ago_does_not_hold_it_up() {
        let [one] = sets(|found, now| {
            found.heavy.fetch_or(now == 1, Ordering::Relaxed);
            if now > 10_000 {
                finds(found, 20);
            }
        });
        assert!(one.0 == Policy::Batch && one.1 <= 10_200, "{one:?}");
    }

    /// Threads of lower priority have a turn only now and then.
    #[test]
    fn it_does_not_begin_while_somebody_is_heavy_now_and_then() {
        let [one] = sets(|found, now| {
            finds(found, 20);
            let is_heavy = now < 20_000 && now.is_multiple_of(50);
            found.heavy.fetch_or(is_heavy, Ordering::Relaxed);
        });
        assert_eq!(one.0, Policy::Batch);
        assert!((20_000..=24_200).contains(&one.1), "{one:?}");
    }

    #[test]
    fn nothing_is_taken_from_the_judge_while_it_looks() {
        let found = Found::nothing();
        found.is_judged.store(true, Ordering::Relaxed);
        (0..2 * WAKES).for_each(|_| found.count(20, ONE + micros(PERIOD)));
        assert!(!is_told_of_much(&found));
        let (wakes, under_way) = (2 * WAKES, 2 * u32::try_from(WAKES).unwrap());
        let all = seen(wakes, (20 * wakes, wakes), under_way);
        assert_eq!(found.take(PERIOD), all);
    }
}
