//! Workers of a member: each has a queue, a state that only it sees, and a thread.
//!
//! While little is under way, whoever puts something into a queue does the work at once, in the
//! place of the worker's thread, which sleeps on; and what that leads to at other workers too. A
//! lone write so runs to its end in the threads that read sockets, without one of them waking
//! another: that takes longer than the work. Under load the threads work side by side, each on all
//! that queued meanwhile. A worker goes over to its thread with the first turn that found much or
//! took long, and comes back once it has been quiet for a moment; so a disk that hangs stops one
//! caller, and whoever comes later finds the queue.
//!
//! Whoever stands in is a thread that may ([`lend_thread`]): one of the program's own, of which there
//! are several, with no lower priority than the worker's. It has handed something over and has
//! nothing else to do until that is seen to ([`Worker::send_and_work`]), and holds no lock. What it gives to other workers meanwhile
//! ([`Worker::send`]) is worked off once it is through with the present one, in their
//! [order](Work::ORDER): what waits for nothing comes first, so that no worker's place is kept from
//! its thread while another one waits for a disk.

use super::metrics;
use crate::error::Fatal;
use dengine_raft::channel::{Loan, Receiver, Rest, Sender, channel};
use std::cell::{Cell, RefCell};
use std::panic::AssertUnwindSafe;
use std::sync::mpsc::{RecvTimeoutError, SendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// A turn that finds more than this is one of many that work at a time.
const FEW_ITEMS: usize = 8;
/// For so long after it the thread works.
const BUSY: Duration = Duration::from_millis(5);
/// A turn that takes longer than this waited for something: no caller should.
const SLOW_TURN: Duration = Duration::from_millis(10);
/// For so long after it the thread works.
const SLOW: Duration = Duration::from_millis(50);
/// Whoever stands in leaves what is left after this to the threads.
const STANDS_IN: Duration = Duration::from_millis(2);

/// What a worker does.
pub(super) trait Work<T>: Send + 'static {
    /// Of its thread.
    const NAME: &'static str;
    /// Whoever stands in for several workers begins with the lowest.
    const ORDER: u8;
    /// Turns that a caller takes in its place before its thread is woken for what has come
    /// meanwhile.
    const TURNS: usize;

    /// Whether a caller may do this in its place.
    fn is_little(item: &T) -> bool;

    /// Does what follows from what has queued, of which it takes as much as it likes.
    fn work(&mut self, items: &mut dyn Iterator<Item = T>) -> Next;

    /// Nobody can send it anything any more.
    fn finish(&mut self);
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
    /// It has something left to do, for which nobody waits as others do for what it has done.
    GoOn,
    /// It has ended.
    End,
}

/// The way to a worker.
pub(crate) struct Worker<T> {
    queue: Sender<T>,
    place: Arc<dyn Place<T>>,
}

/// A worker, as those see it who stand in for it.
trait Place<T>: Send + Sync {
    fn is_little(&self, item: &T) -> bool;
    /// Has this thread work in the place of the worker's, once it is through with what it does.
    fn put_off(self: Arc<Self>, loan: Loan<T>);
}

/// A worker that is to be, for the thread that it will have.
pub(super) struct Hired<T, W> {
    queue: Receiver<T>,
    desk: Arc<Desk<W>>,
}

/// What a worker works on: for its thread, and for who stands in. It is theirs by turns, so nobody
/// waits for the lock.
struct Desk<W> {
    state: Mutex<State<W>>,
    fatal: watch::Sender<Option<Fatal>>,
}

struct State<W> {
    /// `None` before its thread has begun, and once it has ended.
    work: Option<W>,
    /// It has ended, in the hands of a caller: its thread is to end too.
    has_ended: bool,
    /// Until then its thread works.
    busy_until: Instant,
}

/// A worker, and what its thread takes over. If a caller panics in its place, `fatal` is told.
pub(super) fn worker<T: Send + 'static, W: Work<T>>(
    fatal: watch::Sender<Option<Fatal>>,
) -> (Worker<T>, Hired<T, W>) {
    let (sender, receiver) = channel();
    let state = State {
        work: None,
        has_ended: false,
        busy_until: Instant::now(),
    };
    let desk = Arc::new(Desk {
        state: Mutex::new(state),
        fatal,
    });
    let worker = Worker {
        queue: sender,
        place: Arc::clone(&desk) as _,
    };
    let queue = receiver;
    (worker, Hired { queue, desk })
}

impl<T> Clone for Worker<T> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
            place: Arc::clone(&self.place),
        }
    }
}

impl<T> Worker<T> {
    /// Sends something. Its thread sees to it; or the caller, later, if that stands in for another
    /// worker now.
    ///
    /// # Errors
    /// The worker has ended; here it is again.
    pub(crate) fn send(&self, item: T) -> Result<(), SendError<T>> {
        if !stands_in() || !self.place.is_little(&item) {
            return self.queue.send(item);
        }
        self.put_off(self.queue.send_or_borrow(item)?);
        Ok(())
    }

    /// The same, for what may wait until something else is sent.
    ///
    /// # Errors
    /// As above.
    pub(super) fn send_quietly(&self, item: T) -> Result<(), SendError<T>> {
        if !stands_in() || !self.place.is_little(&item) {
            return self.queue.send_quietly(item);
        }
        self.put_off(self.queue.send_quietly_or_borrow(item)?);
        Ok(())
    }

    /// Sends all of them, side by side, and does what follows if this thread may and the worker's
    /// sleeps. The caller holds no lock, and waits for what becomes of them.
    ///
    /// # Errors
    /// The worker has ended; here they are again.
    pub(crate) fn send_and_work(&self, items: Vec<T>) -> Result<(), SendError<Vec<T>>> {
        let little = items.len() <= FEW_ITEMS && items.iter().all(|it| self.place.is_little(it));
        if !little || !IS_LENT.get() {
            return self.queue.send_all(items);
        }
        if let Some(loan) = self.queue.send_all_or_borrow(items)? {
            let place = Arc::clone(&self.place);
            stand_in(|| place.put_off(loan));
        }
        Ok(())
    }

    /// What only sends, and leaves the work to the thread.
    pub(crate) fn queue(&self) -> Sender<T> {
        self.queue.clone()
    }

    fn put_off(&self, loan: Option<Loan<T>>) {
        if let Some(loan) = loan {
            Arc::clone(&self.place).put_off(loan);
        }
    }
}

impl<T: Send + 'static, W: Work<T>> Place<T> for Desk<W> {
    fn is_little(&self, item: &T) -> bool {
        W::is_little(item)
    }

    fn put_off(self: Arc<Self>, loan: Loan<T>) {
        put_off(W::ORDER, Box::new(move || self.stand_in(loan)));
    }
}

impl<W> Desk<W> {
    fn lock(&self) -> MutexGuard<'_, State<W>> {
        // A panic while it was held has ended the worker.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works in the place of its thread.
    fn stand_in<T>(self: Arc<Self>, mut loan: Loan<T>)
    where
        T: Send + 'static,
        W: Work<T>,
    {
        for _ in 0..W::TURNS {
            if has_stood_in_for_long() {
                break;
            }
            let (next, lends) = self.turn_in_place(&mut loan);
            match next {
                Next::GoOn => return Place::put_off(self, loan),
                Next::End => break,
                Next::Wait { until, deep } if loan.is_empty() => {
                    return loan.give_back(Rest { until, deep, lends });
                }
                Next::Wait { .. } if lends => {}
                Next::Wait { .. } => break,
            }
        }
        // Its thread sees to the rest.
        drop(loan);
    }

    fn turn_in_place<T>(&self, loan: &mut Loan<T>) -> (Next, bool)
    where
        W: Work<T>,
    {
        let mut state = self.lock();
        let turn = std::panic::catch_unwind(AssertUnwindSafe(|| state.turn(loan)));
        ::metrics::counter!(metrics::TURNS_BY_CALLERS_TOTAL).increment(1);
        let next = turn.unwrap_or_else(|_| {
            self.fatal.send_replace(Some(Fatal::Panicked(W::NAME)));
            Next::End
        });
        state.has_ended |= next == Next::End;
        (next, state.lends())
    }
}

impl<W> State<W> {
    fn turn<T>(&mut self, items: &mut dyn Iterator<Item = T>) -> Next
    where
        W: Work<T>,
    {
        let Some(work) = &mut self.work else {
            return Next::End;
        };
        let mut taken = 0;
        let begun = Instant::now();
        let next = work.work(&mut items.inspect(|_| taken += 1));
        let now = Instant::now();
        let busy = match taken {
            _ if now - begun > SLOW_TURN => SLOW,
            0..=FEW_ITEMS => return next,
            _ => BUSY,
        };
        self.busy_until = self.busy_until.max(now + busy);
        next
    }

    /// Whether a caller may work while its thread sleeps.
    fn lends(&self) -> bool {
        self.busy_until <= Instant::now()
    }
}

impl<T: Send + 'static, W: Work<T>> Hired<T, W> {
    /// Works until it ends, or nobody can send it anything any more.
    pub(super) fn run(self, work: W) {
        self.desk.lock().work = Some(work);
        // Also in a panic: others wait for what it lets go of.
        let _desk = Leaving(&self.desk);
        let mut first = None.into_iter();
        loop {
            let (next, lends) = {
                let mut state = self.desk.lock();
                if state.has_ended {
                    return;
                }
                let mut items = first.by_ref().chain(self.queue.try_iter());
                (state.turn(&mut items), state.lends())
            };
            let (until, deep) = match next {
                Next::GoOn => continue,
                Next::End => return,
                Next::Wait { .. } if first.len() > 0 => continue,
                Next::Wait { until, deep } => (until, deep),
            };
            match self.queue.recv_at(Rest { until, deep, lends }) {
                Ok(item) => first = Some(item).into_iter(),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    if let Some(work) = &mut self.desk.lock().work {
                        work.finish();
                    }
                    return;
                }
            }
        }
    }
}

/// Lets go of a worker's state when its thread ends.
struct Leaving<'a, W>(&'a Desk<W>);

impl<W> Drop for Leaving<'_, W> {
    fn drop(&mut self) {
        let work = self.0.lock().work.take();
        drop(work);
    }
}

/// What a thread that stands in has to do yet.
struct Agenda {
    until: Instant,
    turns: Vec<(u8, Box<dyn FnOnce()>)>,
}

/// From now on this thread may work in the place of members' threads, and wait for their disks.
/// Another thread is to serve what this one would meanwhile; its priority is to be the usual one.
pub fn lend_thread() {
    IS_LENT.set(true);
}

thread_local! {
    static IS_LENT: Cell<bool> = const { Cell::new(false) };
    /// `Some` while this thread stands in for workers.
    static AGENDA: RefCell<Option<Agenda>> = const { RefCell::new(None) };
}

fn stands_in() -> bool {
    AGENDA.with_borrow(Option::is_some)
}

fn has_stood_in_for_long() -> bool {
    AGENDA.with_borrow(|agenda| {
        let agenda = agenda.as_ref();
        agenda.is_none_or(|agenda| agenda.until <= Instant::now())
    })
}

/// Has this thread, which stands in, take a turn later.
fn put_off(order: u8, turn: Box<dyn FnOnce()>) {
    AGENDA.with_borrow_mut(|agenda| {
        if let Some(agenda) = agenda {
            agenda.turns.push((order, turn));
        }
    });
}

/// Stands in for workers, from what this puts off until nothing is left to do.
fn stand_in(begin: impl FnOnce()) {
    if stands_in() {
        return begin();
    }
    let until = Instant::now() + STANDS_IN;
    let turns = Vec::new();
    AGENDA.set(Some(Agenda { until, turns }));
    begin();
    while let Some(turn) = next_turn() {
        turn();
    }
    AGENDA.set(None);
}

fn next_turn() -> Option<Box<dyn FnOnce()>> {
    AGENDA.with_borrow_mut(|agenda| {
        let turns = &mut agenda.as_mut()?.turns;
        let orders = turns.iter().enumerate();
        let (first, _) = orders.min_by_key(|(place, (order, _))| (*order, *place))?;
        Some(turns.remove(first).1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread::{self, JoinHandle, ThreadId};

    const LONG: Duration = Duration::from_secs(60);

    /// Tells what it is given, and by which thread; the last number of a kind makes it do more.
    struct Notes {
        told: mpsc::Sender<(u8, ThreadId)>,
        next: Option<Worker<u8>>,
        finished: mpsc::Sender<()>,
    }

    const PANIC: u8 = 100;
    const END: u8 = 101;
    const SLOW_ONE: u8 = 102;
    const MUCH: u8 = 103;

    impl Work<u8> for Notes {
        const NAME: &'static str = "notes";
        const ORDER: u8 = 1;
        const TURNS: usize = 2;

        fn is_little(item: &u8) -> bool {
            *item != MUCH
        }

        fn work(&mut self, items: &mut dyn Iterator<Item = u8>) -> Next {
            for item in items {
                match item {
                    PANIC => panic!("on purpose"),
                    END => return Next::End,
                    SLOW_ONE => thread::sleep(2 * SLOW_TURN),
                    _ => {}
                }
                self.told.send((item, thread::current().id())).unwrap();
                if let Some(next) = &self.next {
                    next.send(item).unwrap();
                }
            }
            Next::Wait {
                until: None,
                deep: false,
            }
        }

        fn finish(&mut self) {
            self.finished.send(()).unwrap();
        }
    }

    struct Hall {
        told: mpsc::Receiver<(u8, ThreadId)>,
        finished: mpsc::Receiver<()>,
        fatal: watch::Receiver<Option<Fatal>>,
        thread: JoinHandle<()>,
    }

    fn working(next: Option<Worker<u8>>) -> (Worker<u8>, Hall) {
        lend_thread();
        let (fatal, told_fatal) = watch::channel(None);
        let (worker, hired) = worker(fatal);
        let (told, came) = mpsc::channel();
        let (finished, has_finished) = mpsc::channel();
        let notes = Notes {
            told,
            next,
            finished,
        };
        let hall = Hall {
            told: came,
            finished: has_finished,
            fatal: told_fatal,
            thread: thread::spawn(move || hired.run(notes)),
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
                worker.send_and_work(vec![item]).unwrap();
                if self.by(item) == thread::current().id() {
                    return;
                }
                assert!(begun.elapsed() < LONG);
                thread::sleep(BUSY);
            }
        }
    }

    #[test]
    fn a_caller_works_while_little_is_under_way_and_the_thread_when_it_is_much() {
        let (worker, hall) = working(None);
        hall.by_caller(&worker, 1);
        worker.send(2).unwrap();
        assert!(hall.by_thread(2), "this was only to be sent");
        hall.by_caller(&worker, 3);
        worker.send_and_work(vec![MUCH]).unwrap();
        assert!(hall.by_thread(MUCH));
        hall.by_caller(&worker, 4);
        let many = vec![5; FEW_ITEMS + 1];
        worker.send_and_work(many.clone()).unwrap();
        assert!(many.iter().all(|item| hall.by_thread(*item)));
        hall.by_caller(&worker, 6);
        IS_LENT.set(false);
        worker.send_and_work(vec![7]).unwrap();
        assert!(hall.by_thread(7), "this is somebody else's thread");
        drop(worker);
        hall.finished.recv_timeout(LONG).unwrap();
        hall.thread.join().unwrap();
    }

    /// A caller that had to wait leaves it to the thread for a while.
    #[test]
    fn a_turn_that_took_long_is_the_last_of_a_caller() {
        let (worker, hall) = working(None);
        hall.by_caller(&worker, SLOW_ONE);
        worker.send_and_work(vec![1]).unwrap();
        assert!(hall.by_thread(1));
    }

    #[test]
    fn what_a_turn_leads_to_is_done_by_the_same_caller() {
        let (second, of_second) = working(None);
        let (first, of_first) = working(Some(second));
        of_first.by_caller(&first, 1);
        while of_second.told.recv_timeout(BUSY).is_ok() {}
        thread::sleep(BUSY);
        first.send_and_work(vec![2]).unwrap();
        let both = [of_first.by(2), of_second.by(2)];
        assert_eq!(both, [thread::current().id(); 2]);
        drop(first);
        of_second.finished.recv_timeout(LONG).unwrap();
    }

    #[test]
    fn a_panic_of_a_caller_ends_the_worker_not_the_caller() {
        let (worker, hall) = working(None);
        hall.by_caller(&worker, 1);
        worker.send_and_work(vec![PANIC]).unwrap();
        hall.thread.join().unwrap();
        assert!(matches!(
            *hall.fatal.borrow(),
            Some(Fatal::Panicked("notes"))
        ));
        assert!(worker.send(2).is_err());
        assert!(hall.finished.recv().is_err(), "it was let go of");
    }

    #[test]
    fn a_worker_that_ends_in_the_hands_of_a_caller_ends() {
        let (worker, hall) = working(None);
        hall.by_caller(&worker, 1);
        worker.send_and_work(vec![END, 2]).unwrap();
        hall.thread.join().unwrap();
        assert!(hall.fatal.borrow().is_none());
        assert!(worker.send_and_work(vec![3]).is_err());
    }
}
