//! Whose thread takes a turn of the replica: its own, or that of a sender with something for it.
//!
//! To wake a thread takes longer than most of what the replica does then. So while little is under
//! way, a sender that puts something into its queue takes the turn at once, in place of the
//! replica's thread, which sleeps on: a runtime thread that has read a write or a peer's message,
//! or the log writer's thread that has synced. Under load the thread works, on all that queued
//! meanwhile. The replica goes over to it with the first turn that found much or took long, and
//! back once it has been quiet for a moment.
//!
//! A runtime thread that waits takes its timers and sockets with it, for tokio lets no other thread
//! poll them, and a member whose disk hangs must go on answering heartbeats. A turn of the replica
//! hardly waits (docs/design/writes.md says for what). One of the applier may have to: its store
//! may not have in memory what it asks for, or no room. So only the peers' thread takes these,
//! after the replica's turn, of what is quick, and while it has little else to do ([`own_turns`]);
//! it leaves to the applier's thread what the store does not have at hand ([`By`],
//! [`Next::Leave`]); and the first turn that others add to meanwhile, or that takes long, is the
//! last for a while ([`Pace`]). The log writer's are its thread's alone: it does nothing but wait
//! for the disk.

use std::panic::AssertUnwindSafe;
use std::sync::mpsc::{RecvTimeoutError, SendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::metrics::Counter;
use dengine_raft::channel::{Loan, Receiver, Rest, Sender, channel};
use tokio::sync::watch;

use super::own_turns;
use crate::error::Fatal;

/// However long a turn took, callers try again after this.
const SLOW_MAX: Duration = Duration::from_secs(5);

/// When a worker's turns are its thread's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// A turn that finds more than this is one of many that work at a time.
    pub(super) few_items: usize,
    /// Turns that a caller takes before the thread is woken for what has come meanwhile.
    pub(super) turns_max: usize,
    /// What a caller takes in one turn.
    pub(super) items_max: usize,
    /// After too much the thread works for so long.
    pub(super) busy: Duration,
    /// A turn that takes longer than this waited for something.
    pub(super) slow_turn: Duration,
    /// After it the thread works for so many times as long, [`SLOW_MAX`] at most.
    pub(super) slow_times: u32,
    /// The metric that counts callers' turns.
    pub(super) by_callers: &'static str,
}

/// Who takes a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// The worker's thread, which may wait for what it needs.
    Thread,
    /// A caller, who must not.
    Caller,
}

/// What a worker does.
pub(super) trait Work<T>: Send + 'static {
    /// Does what follows from what has queued, of which it takes the first at least, if there is
    /// any.
    fn work(&mut self, items: &mut dyn Iterator<Item = T>, by: By) -> Next;

    /// Nobody can send anything any more, and all that was sent is done.
    fn finish(&mut self) {}
}

/// What a worker does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It waits for items.
    Wait {
        /// No longer than until then.
        until: Option<Instant>,
        /// What is sent quietly can wait for what is not.
        deep: bool,
    },
    /// What it has taken has to be waited for, so its thread does it. Only a caller is told so.
    Leave,
    /// It has ended.
    End,
}

/// The way to a worker.
pub(super) struct Worker<T> {
    queue: Sender<T>,
    turns: Arc<dyn Turns<T>>,
    /// Who sends more than this at once leaves it to the thread.
    few_items: usize,
}

/// A worker, as callers see it, who know nothing of what it works on.
trait Turns<T>: Send + Sync {
    /// Takes turns in the place of its thread.
    fn take(&self, loan: Loan<T>);
}

/// What the thread of a worker needs.
pub(super) struct WorkerThread<T, W> {
    queue: Receiver<T>,
    shared: Arc<WorkerShared<W>>,
}

/// What a worker works on: for its thread, and for callers. It is theirs by turns, so none waits
/// for the lock.
struct WorkerShared<W> {
    name: &'static str,
    pace: Pace,
    /// Counts callers' turns.
    by_callers: Counter,
    state: Mutex<WorkerState<W>>,
    fatal: watch::Sender<Option<Fatal>>,
}

struct WorkerState<W> {
    /// `None` before its thread has begun, and once it has ended.
    work: Option<W>,
    /// It has ended, in the hands of a caller: its thread is to end too.
    has_ended: bool,
    /// Until then its thread works.
    busy_until: Instant,
}

/// A worker, and what its thread takes over. If a caller panics in its place, `fatal` is told, as
/// of a thread of this name.
pub(super) fn worker<T: Send + 'static, W: Work<T>>(
    name: &'static str,
    pace: Pace,
    fatal: watch::Sender<Option<Fatal>>,
) -> (Worker<T>, WorkerThread<T, W>) {
    let (sender, queue) = channel();
    let state = WorkerState {
        work: None,
        has_ended: false,
        busy_until: Instant::now(),
    };
    let shared = Arc::new(WorkerShared {
        name,
        pace,
        by_callers: ::metrics::counter!(pace.by_callers),
        state: Mutex::new(state),
        fatal,
    });
    let worker = Worker {
        queue: sender,
        turns: Arc::clone(&shared) as _,
        few_items: pace.few_items,
    };
    (worker, WorkerThread { queue, shared })
}

impl<T> Worker<T> {
    /// Sends something, and does what follows if this thread may and the worker's sleeps.
    ///
    /// # Errors
    /// The worker has ended; here it is again.
    pub(super) fn send(&self, item: T) -> Result<(), SendError<T>> {
        match own_turns::takes_turns() {
            true => self.work(self.queue.send_or_borrow(item)?),
            false => self.queue.send(item)?,
        }
        Ok(())
    }

    /// Sends something from within another worker's turn. If a caller takes that one, and has time,
    /// and it is quick to do, it takes this one too once that is over.
    ///
    /// # Errors
    /// The worker has ended; here it is again.
    pub(super) fn send_within_turn(
        &self,
        item: T,
        is_quick: impl FnOnce(&T) -> bool,
    ) -> Result<(), SendError<T>>
    where
        T: 'static,
    {
        if !own_turns::has_time_afterwards() || !is_quick(&item) {
            return self.queue.send(item);
        }
        if let Some(loan) = self.queue.send_or_borrow(item)? {
            let turns = Arc::clone(&self.turns);
            own_turns::afterwards(move || turns.take(loan));
        }
        Ok(())
    }

    /// The same with all of them, which are put in side by side.
    ///
    /// # Errors
    /// The worker has ended; here they are again.
    pub(super) fn send_all(&self, items: Vec<T>) -> Result<(), SendError<Vec<T>>> {
        match own_turns::takes_turns() && items.len() <= self.few_items {
            true => self.work(self.queue.send_all_or_borrow(items)?),
            false => self.queue.send_all(items)?,
        }
        Ok(())
    }

    /// What only sends, and leaves the work to the thread.
    pub(super) fn queue(&self) -> Sender<T> {
        self.queue.clone()
    }

    fn work(&self, loan: Option<Loan<T>>) {
        own_turns::note_sent();
        if let Some(loan) = loan {
            own_turns::take(|| self.turns.take(loan));
        }
    }
}

impl<T: Send + 'static, W: Work<T>> Turns<T> for WorkerShared<W> {
    fn take(&self, mut loan: Loan<T>) {
        for _ in 0..self.pace.turns_max {
            let (next, lends) = self.turn_by_caller(&mut loan);
            match next {
                Next::Leave | Next::End => break,
                Next::Wait { until, deep } if loan.is_empty() => {
                    return loan.give_back(Rest { until, deep, lends });
                }
                Next::Wait { .. } if lends => {}
                Next::Wait { .. } => break,
            }
        }
        // More comes than a caller should do: its thread sees to the rest.
        self.lock().stay_busy_for(self.pace.busy);
        drop(loan);
    }
}

impl<W> WorkerShared<W> {
    fn lock(&self) -> MutexGuard<'_, WorkerState<W>> {
        // A panic while it was held has ended the worker.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn_by_caller<T>(&self, loan: &mut Loan<T>) -> (Next, bool)
    where
        W: Work<T>,
    {
        let mut state = self.lock();
        let mut items = loan.take(self.pace.items_max);
        let turn = || state.turn(&mut items, By::Caller, &self.pace);
        let turn = std::panic::catch_unwind(AssertUnwindSafe(turn));
        self.by_callers.increment(1);
        let next = turn.unwrap_or_else(|_| {
            self.fatal.send_replace(Some(Fatal::Panicked(self.name)));
            Next::End
        });
        state.has_ended |= next == Next::End;
        (next, state.lends())
    }
}

impl<W> WorkerState<W> {
    fn turn<T>(&mut self, items: &mut dyn Iterator<Item = T>, by: By, pace: &Pace) -> Next
    where
        W: Work<T>,
    {
        let Some(work) = &mut self.work else {
            return Next::End;
        };
        let mut taken = 0;
        let begun = Instant::now();
        let next = work.work(&mut items.inspect(|_| taken += 1), by);
        let took = begun.elapsed();
        if took > pace.slow_turn {
            self.stay_busy_for((took * pace.slow_times).min(SLOW_MAX));
        } else if taken > pace.few_items {
            self.stay_busy_for(pace.busy);
        }
        next
    }

    /// For so long at least its thread works.
    fn stay_busy_for(&mut self, time: Duration) {
        self.busy_until = self.busy_until.max(Instant::now() + time);
    }

    /// Whether a caller may work while its thread sleeps.
    fn lends(&self) -> bool {
        self.busy_until <= Instant::now()
    }
}

impl<T: Send + 'static, W: Work<T>> WorkerThread<T, W> {
    /// Works until it ends, or all senders are gone and what they sent is done.
    pub(super) fn run(self, work: W) {
        self.shared.lock().work = Some(work);
        // Also in a panic: others wait for what it lets go of.
        let _drops = DropsWork(&self.shared);
        let mut first = None;
        loop {
            let (next, lends) = {
                let mut state = self.shared.lock();
                if state.has_ended {
                    return;
                }
                let mut items = first.take().into_iter().chain(self.queue.try_iter());
                let next = state.turn(&mut items, By::Thread, &self.shared.pace);
                (next, state.lends())
            };
            let (until, deep) = match next {
                Next::End => return,
                Next::Leave => continue,
                Next::Wait { until, deep } => (until, deep),
            };
            match self.queue.recv_at(Rest { until, deep, lends }) {
                Ok(item) => first = Some(item),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.finish(),
            }
        }
    }

    /// What has failed is not finished.
    fn finish(&self) {
        let mut state = self.shared.lock();
        let WorkerState {
            work, has_ended, ..
        } = &mut *state;
        if let Some(work) = work
            && !*has_ended
        {
            work.finish();
        }
    }
}

/// Drops what a worker works on when its thread ends, without the lock.
struct DropsWork<'a, W>(&'a WorkerShared<W>);

impl<W> Drop for DropsWork<'_, W> {
    fn drop(&mut self) {
        let work = self.0.lock().work.take();
        drop(work);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread::{self, JoinHandle, ThreadId};

    use super::super::own_turns::Takes;
    use super::super::replica;
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Tells what it is given, and by which thread; some numbers make it do more.
    struct Notes {
        told: mpsc::Sender<(u8, ThreadId)>,
        /// Of somebody else, who sends while it works.
        other: Option<Sender<u8>>,
        /// It has taken something that it has to wait for.
        waits: bool,
    }

    const PANIC: u8 = 100;
    const END: u8 = 101;
    const SLOW_ONE: u8 = 102;
    const WITH_OTHER: u8 = 103;
    const OTHER: u8 = 104;
    const FINISHED: u8 = 105;
    const WAITS: u8 = 106;

    const PACE: Pace = Pace {
        by_callers: "turns_of_a_test",
        ..replica::PACE
    };

    impl Work<u8> for Notes {
        fn work(&mut self, items: &mut dyn Iterator<Item = u8>, by: By) -> Next {
            if std::mem::take(&mut self.waits) {
                self.told.send((WAITS, thread::current().id())).unwrap();
            }
            let mut other = None;
            for item in items {
                match item {
                    PANIC => panic!("on purpose"),
                    END => return Next::End,
                    SLOW_ONE => thread::sleep(2 * PACE.slow_turn),
                    WITH_OTHER => other = self.other.take(),
                    WAITS if by == By::Caller => {
                        self.waits = true;
                        return Next::Leave;
                    }
                    _ => {}
                }
                self.told.send((item, thread::current().id())).unwrap();
            }
            // As while a log is synced.
            if let Some(other) = other {
                other.send(OTHER).unwrap();
            }
            Next::Wait {
                until: None,
                deep: false,
            }
        }

        fn finish(&mut self) {
            self.told.send((FINISHED, thread::current().id())).unwrap();
        }
    }

    struct Hall {
        told: mpsc::Receiver<(u8, ThreadId)>,
        fatal: watch::Receiver<Option<Fatal>>,
        thread: JoinHandle<()>,
    }

    fn working() -> (Worker<u8>, Hall) {
        working_at(PACE, false)
    }

    fn working_at(pace: Pace, with_other: bool) -> (Worker<u8>, Hall) {
        own_turns::take_turns_in_this_thread(Takes::All);
        let (fatal, told_fatal) = watch::channel(None);
        let (worker, its_thread) = worker("notes", pace, fatal);
        let (told, came) = mpsc::channel();
        let other = with_other.then(|| worker.queue());
        let notes = Notes {
            told,
            other,
            waits: false,
        };
        let hall = Hall {
            told: came,
            fatal: told_fatal,
            thread: thread::spawn(move || its_thread.run(notes)),
        };
        (worker, hall)
    }

    impl Hall {
        /// Who did this.
        fn by(&self, item: u8) -> ThreadId {
            let (done, by) = self.told.recv_timeout(LONG).unwrap();
            assert_eq!(done, item);
            by
        }

        fn by_thread(&self, item: u8) -> bool {
            self.by(item) == self.thread.thread().id()
        }

        /// Sends until it is done by the caller itself, as once the thread sleeps and was quiet.
        fn by_caller(&self, worker: &Worker<u8>, item: u8) {
            let begun = Instant::now();
            loop {
                worker.send(item).unwrap();
                if self.by(item) == thread::current().id() {
                    return;
                }
                assert!(begun.elapsed() < LONG);
                thread::sleep(PACE.busy);
            }
        }
    }

    #[test]
    fn a_caller_works_while_little_is_under_way_and_the_thread_when_it_is_much() {
        let (worker, hall) = working();
        hall.by_caller(&worker, 1);
        let many = vec![5; PACE.few_items + 1];
        worker.send_all(many.clone()).unwrap();
        assert!(many.iter().all(|item| hall.by_thread(*item)));
        hall.by_caller(&worker, 6);
        own_turns::take_turns_in_this_thread(Takes::Nothing);
        worker.send(7).unwrap();
        assert!(hall.by_thread(7), "this thread takes none");
        drop(worker);
        assert!(hall.by_thread(FINISHED));
        hall.thread.join().unwrap();
    }

    /// What may wait for a disk is done by who took the turn that led to it, once that is over.
    #[test]
    fn what_a_turn_leads_to_is_done_after_it_by_the_same_caller() {
        let (worker, hall) = working();
        hall.by_caller(&worker, 1);
        own_turns::take(|| {
            worker.send_within_turn(2, |_| true).unwrap();
            thread::sleep(PACE.busy);
            assert!(hall.told.try_recv().is_err(), "it is not over");
        });
        assert_eq!(hall.by(2), thread::current().id());
        own_turns::take(|| worker.send_within_turn(3, |_| false).unwrap());
        assert!(hall.by_thread(3), "it is not quick");
        worker.send_within_turn(4, |_| true).unwrap();
        assert!(hall.by_thread(4), "there was no turn");
    }

    /// Who is not alone leaves it to the thread, for a while.
    #[test]
    fn what_others_send_meanwhile_is_done_by_the_thread() {
        let pace = Pace {
            turns_max: 1,
            busy: LONG,
            ..PACE
        };
        let (worker, hall) = working_at(pace, true);
        hall.by_caller(&worker, 1);
        own_turns::take(|| worker.send_within_turn(WITH_OTHER, |_| true).unwrap());
        assert_eq!(hall.by(WITH_OTHER), thread::current().id());
        assert!(hall.by_thread(OTHER));
        own_turns::take(|| worker.send_within_turn(2, |_| true).unwrap());
        assert!(hall.by_thread(2));
    }

    /// A caller that had to wait leaves it to the thread for a while.
    #[test]
    fn a_turn_that_took_long_is_the_last_of_a_caller() {
        let (worker, hall) = working();
        hall.by_caller(&worker, 1);
        worker.send(SLOW_ONE).unwrap();
        assert_eq!(hall.by(SLOW_ONE), thread::current().id());
        worker.send(1).unwrap();
        assert!(hall.by_thread(1));
    }

    /// Nothing else has to come for that.
    #[test]
    fn what_a_caller_would_have_to_wait_for_is_done_by_the_thread() {
        let (worker, hall) = working();
        hall.by_caller(&worker, 1);
        worker.send(WAITS).unwrap();
        assert!(hall.by_thread(WAITS));
        hall.by_caller(&worker, 2);
    }

    #[test]
    fn a_panic_of_a_caller_ends_the_worker_not_the_caller() {
        let (worker, hall) = working();
        hall.by_caller(&worker, 1);
        worker.send(PANIC).unwrap();
        hall.thread.join().unwrap();
        assert!(matches!(
            *hall.fatal.borrow(),
            Some(Fatal::Panicked("notes"))
        ));
        assert!(worker.send(2).is_err());
        assert!(hall.told.recv().is_err(), "it was let go of");
    }

    #[test]
    fn a_worker_that_ends_in_the_hands_of_a_caller_ends() {
        let (worker, hall) = working();
        hall.by_caller(&worker, 1);
        worker.send_all(vec![END, 2]).unwrap();
        hall.thread.join().unwrap();
        assert!(hall.fatal.borrow().is_none());
        assert!(worker.send(3).is_err());
    }
}
