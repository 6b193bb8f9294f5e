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
//! whenever they wake, and as usual while they find little, or while somebody is
//! [heavy](crate::connections): whoever is light must not wait for what that one's threads do.
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
use std::time::Duration;

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
/// So many in a period, or fewer: those who called have gone.
const FEW_IN_PERIOD: u64 = 200;
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
/// One wake, in the sum of wakes and tasks.
const ONE_WAKE: u64 = 1 << 40;

thread_local! {
    /// Tasks of clients that this thread has polled since it woke.
    static FOUND: Cell<u64> = const { Cell::new(0) };
}

static FOUND_BY_ALL: Found = Found::nothing();
/// All threads of this process wait for whoever runs.
static ALL_ARE_BATCH: AtomicBool = AtomicBool::new(false);

/// Wakes of threads that serve clients, and tasks that they found.
struct Found {
    /// Of both, since they were looked at.
    sum: AtomicU64,
    /// Something was done for a client that is heavy since it was looked last.
    heavy: AtomicBool,
    /// The judge looks at them every [`PERIOD`], or waits until that makes sense.
    is_judged: AtomicBool,
    /// Wakes it when much is found.
    much: Notify,
}

/// How a thread is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    /// Takes the processor when it is woken, if it has had less of it.
    Usual,
    /// Waits for whoever runs.
    Batch,
}

/// Periods in a row in which little was found.
#[derive(Debug, Default)]
struct Few(u32);

/// Why threads are scheduled as usual again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Those who called have gone, and may come back any time.
    Quiet,
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

/// This thread has nothing left to do, and sleeps until it is woken.
pub(crate) fn sleeps() {
    FOUND_BY_ALL.count(FOUND.take());
}

/// Something is done for a client that is heavy, by threads of lower priority.
pub(crate) fn somebody_is_heavy() {
    FOUND_BY_ALL.heavy.store(true, Ordering::Relaxed);
    // What these threads find does not count.
    FOUND.set(0);
}

/// Whether that was so since it was asked last.
#[cfg(test)]
pub(crate) fn somebody_was_heavy() -> bool {
    FOUND_BY_ALL.somebody_was_heavy()
}

/// Sets the policy of all threads of this process by what those find that serve clients. To be
/// polled once, until the process ends.
pub async fn judge() -> Infallible {
    FOUND_BY_ALL.judge(set_all, sleep).await
}

impl Found {
    const fn nothing() -> Self {
        Self {
            sum: AtomicU64::new(0),
            heavy: AtomicBool::new(false),
            is_judged: AtomicBool::new(false),
            much: Notify::const_new(),
        }
    }

    /// Counts a wake at which so many tasks were found.
    fn count(&self, tasks: u64) {
        // Timers and the like.
        if tasks == 0 {
            return;
        }
        let more = ONE_WAKE + tasks.min(COUNTED_AT_A_WAKE);
        let wakes = self.sum.fetch_add(more, Ordering::Relaxed) / ONE_WAKE + 1;
        if wakes < WAKES || self.is_judged.load(Ordering::Relaxed) {
            return;
        }
        let (wakes, tasks) = self.take();
        // Fewer if another thread has been here meanwhile.
        if wakes >= WAKES && tasks >= MANY * wakes {
            self.much.notify_one();
        }
    }

    /// What was found since: wakes, and tasks.
    fn take(&self) -> (u64, u64) {
        let sum = self.sum.swap(0, Ordering::Relaxed);
        (sum / ONE_WAKE, sum % ONE_WAKE)
    }

    fn somebody_was_heavy(&self) -> bool {
        self.heavy.swap(false, Ordering::Relaxed)
    }

    /// See [`judge`]; `set` returns whether it could do it, and `wait` waits for so long.
    async fn judge<W: Future<Output = ()>>(
        &self,
        mut set: impl FnMut(Policy) -> bool,
        wait: impl Fn(Duration) -> W,
    ) -> Infallible {
        loop {
            self.much.notified().await;
            self.is_judged.store(true, Ordering::Relaxed);
            // It may have been a burst; and threads of lower priority, on which somebody is heavy,
            // have a turn only now and then. Who was heavy long ago says nothing.
            let _before = self.somebody_was_heavy();
            wait(PERIOD).await;
            let (wakes, tasks) = self.take();
            let end = match self.somebody_was_heavy() {
                true => End::Heavy,
                false if tasks <= FEW_IN_PERIOD || tasks < MANY * wakes => End::Quiet,
                false => {
                    set(Policy::Batch);
                    let end = self.until_few(&wait).await;
                    while !set(Policy::Usual) {
                        wait(PERIOD).await;
                    }
                    end
                }
            };
            if end != End::Quiet {
                wait(USUAL_FOR).await;
            }
            self.take();
            // From before it was judged.
            let _ = self.much.notified().now_or_never();
            self.is_judged.store(false, Ordering::Relaxed);
        }
    }

    /// Why it ends to be batch.
    async fn until_few<W: Future<Output = ()>>(&self, wait: &impl Fn(Duration) -> W) -> End {
        let mut few = Few::default();
        loop {
            wait(PERIOD).await;
            let (wakes, tasks) = self.take();
            if let Some(end) = few.one_more(wakes, tasks, self.somebody_was_heavy()) {
                return end;
            }
        }
    }
}

impl Few {
    /// One more period is over, in which threads woke so often and found so many tasks. Why that
    /// ends it, if it does.
    fn one_more(&mut self, wakes: u64, tasks: u64, heavy: bool) -> Option<End> {
        if heavy {
            return Some(End::Heavy);
        }
        let quiet = tasks <= FEW_IN_PERIOD;
        self.0 = match tasks {
            _ if quiet || tasks < MANY * wakes => self.0 + VERY_FEW,
            _ if tasks <= FEW * wakes => self.0 + 1,
            _ => 0,
        };
        let end = if quiet { End::Quiet } else { End::TooFew };
        (self.0 >= FEW_PERIODS).then_some(end)
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

    /// After which of the periods it ends, in each of which so many tasks are found at 100 wakes.
    fn ends_after(averages: &[u64]) -> Option<usize> {
        let mut few = Few::default();
        averages.iter().position(|tasks| {
            let end = few.one_more(100, 100 * tasks, false);
            assert!(end.is_none_or(|end| end == End::TooFew));
            end.is_some()
        })
    }

    #[test]
    fn little_now_and_then_does_not_end_it_and_little_all_the_time_does() {
        assert_eq!(ends_after(&[20; 100]), None);
        let now_and_then = [&[11; 7][..], &[6, 12]].concat().repeat(10);
        assert_eq!(ends_after(&now_and_then), None);
        let all_the_time = [&[12][..], &[11; 10]].concat();
        assert_eq!(ends_after(&all_the_time), Some(10));
        assert_eq!(ends_after(&[3; 5]), Some(4), "most of them have gone");
    }

    #[test]
    fn it_ends_when_nobody_calls_and_for_few_whom_many_watch() {
        for (wakes, tasks) in [(0, 0), (1, 128), (2, 200)] {
            let mut few = Few::default();
            let mut ends = [(); 5].map(|()| few.one_more(wakes, tasks, false));
            assert_eq!(ends[4].take(), Some(End::Quiet));
            assert_eq!(ends, [None; 5], "{tasks} tasks at {wakes} wakes");
        }
    }

    #[test]
    fn it_ends_as_soon_as_somebody_is_heavy() {
        let end = Few::default().one_more(100, 2_000, true);
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
                found.count(0);
                found.count(tasks);
                assert!(!is_told_of_much(&found));
            }
            found.count(tasks);
            assert_eq!(is_told_of_much(&found), is_much, "{tasks} tasks");
        }
    }

    #[test]
    fn a_burst_does_not_stand_for_the_wakes_around_it() {
        let found = Found::nothing();
        found.count(100_000);
        (1..WAKES).for_each(|_| found.count(3));
        assert!(!is_told_of_much(&found));
    }

    /// The first policies that the judge sets, and how many milliseconds after the one before, if
    /// `find` says what is found in each millisecond.
    fn sets<const N: usize>(find: impl Fn(&Found, u64)) -> [(Policy, u64); N] {
        let (found, now) = (Found::nothing(), Cell::new(0));
        let pass = |ms| {
            (0..ms).for_each(|_| {
                now.set(now.get() + 1);
                find(&found, now.get());
            });
        };
        let sets = RefCell::new(Vec::new());
        let set = |policy| {
            sets.borrow_mut().push((policy, now.get()));
            true
        };
        let wait = |time: Duration| {
            pass(time.as_millis());
            yield_now()
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
        (0..WAKES).for_each(|_| found.count(tasks));
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
        (0..2 * WAKES).for_each(|_| found.count(20));
        assert!(!is_told_of_much(&found));
        assert_eq!(found.take(), (2 * WAKES, 2 * WAKES * 20));
    }
}
