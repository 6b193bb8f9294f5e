//! An unbounded channel from any number of threads to one, which sleeps while there is nothing in
//! it.
//!
//! std's `mpsc` wakes the receiver with a lock in hand that the receiver takes before it sleeps
//! again. Where processors are busy the one that is woken takes the place of the one that woke it,
//! and then waits for it: at once where both are equals, and for tens of milliseconds where the
//! sender is a thread of lower priority, and everything that the receiver decides with it. Here the
//! lock is held to put something in, and a receiver that sleeps is woken after that.
//!
//! A sender may also take the place of a receiver that sleeps, and take out what there is
//! ([`Loan`]): while little is under way, to be woken takes longer than what is to be done.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use dengine_planted::planted;
use dengine_types::sync::{Condvar, Mutex, MutexGuard};

/// Items for which the receiver keeps memory while it has none.
const KEPT_ITEMS_MAX: usize = 4096;

/// By less a receiver wakes too late rather than be woken to sleep for less long. What is due at
/// one time by a clock is so at slightly different ones each time that it is asked for by another.
const LATE_MAX: Duration = Duration::from_micros(50);

/// The two ends of a new, empty channel.
#[must_use]
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(ChannelShared {
        state: Mutex::new(ChannelState {
            items: VecDeque::new(),
            senders: 1,
            sleep: Sleep::Awake,
            rest: Rest::default(),
            recalled: false,
            is_closed: false,
        }),
        woken: Condvar::new(),
    });
    let receiver = Receiver {
        shared: Arc::clone(&shared),
        taken: RefCell::default(),
    };
    (Sender(shared), receiver)
}

/// Puts items in. Each clone keeps the channel open.
pub struct Sender<T>(Arc<ChannelShared<T>>);

/// The receiver: takes items in the order in which they were sent.
pub struct Receiver<T> {
    shared: Arc<ChannelShared<T>>,
    /// Out of the channel already: all that there was is taken at once.
    taken: RefCell<VecDeque<T>>,
}

struct ChannelShared<T> {
    state: Mutex<ChannelState<T>>,
    woken: Condvar,
}

struct ChannelState<T> {
    items: VecDeque<T>,
    senders: usize,
    sleep: Sleep,
    /// How the receiver sleeps, or would again after a loan.
    rest: Rest,
    /// The sender that had the receiver's place has something for it to see to.
    recalled: bool,
    /// There is no receiver any more.
    is_closed: bool,
}

/// Whether the receiver sleeps, or is about to, and is not woken yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sleep {
    Awake,
    Asleep,
    /// It sleeps, and somebody else has its place.
    Lent,
}

/// How a receiver waits for items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rest {
    /// Until then, if that is said.
    pub until: Option<Instant>,
    /// What is sent quietly from now on is not waited for: it is received once something else
    /// comes, or at the end of the time.
    pub deep: bool,
    /// A sender may take its place.
    pub lends: bool,
}

impl<T> ChannelShared<T> {
    fn lock(&self) -> MutexGuard<'_, ChannelState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the receiver, if it sleeps, without the lock.
    fn wake(&self, mut state: MutexGuard<'_, ChannelState<T>>) {
        let sleeps = state.sleep == Sleep::Asleep;
        if sleeps {
            state.sleep = Sleep::Awake;
        }
        drop(state);
        if sleeps {
            self.woken.notify_one();
        }
    }
}

impl<T> Sender<T> {
    /// Sends an item. Never blocks.
    ///
    /// # Errors
    /// There is no receiver any more; here it is again.
    pub fn send(&self, item: T) -> Result<(), SendError<T>> {
        if planted!(WokenBeforeSent) {
            self.0.wake(self.0.lock());
        }
        let mut state = self.0.lock();
        if state.is_closed {
            return Err(SendError(item));
        }
        state.items.push_back(item);
        if !planted!(WokenBeforeSent) {
            self.0.wake(state);
        }
        Ok(())
    }

    /// Puts it in, for when the receiver takes something in next. Does not wake it from a
    /// [deep](Rest::deep) rest.
    ///
    /// # Errors
    /// There is no receiver any more; here it is again.
    pub fn send_quietly(&self, item: T) -> Result<(), SendError<T>> {
        let mut state = self.0.lock();
        if state.is_closed {
            return Err(SendError(item));
        }
        state.items.push_back(item);
        if !state.rest.deep {
            self.0.wake(state);
        }
        Ok(())
    }

    /// Puts it in, and takes the place of the receiver if it sleeps and [lends](Rest::lends) it;
    /// otherwise wakes it.
    ///
    /// # Errors
    /// There is no receiver any more; here it is again.
    pub fn send_or_borrow(&self, item: T) -> Result<Option<Loan<T>>, SendError<T>> {
        let mut state = self.0.lock();
        if state.is_closed {
            return Err(SendError(item));
        }
        state.items.push_back(item);
        Ok(self.borrow(state))
    }

    /// The same with all of them, which are put in side by side.
    ///
    /// # Errors
    /// There is no receiver any more; here they are again.
    pub fn send_all_or_borrow(&self, items: Vec<T>) -> Result<Option<Loan<T>>, SendError<Vec<T>>> {
        let mut state = self.0.lock();
        if state.is_closed {
            return Err(SendError(items));
        }
        if items.is_empty() {
            return Ok(None);
        }
        state.items.extend(items);
        Ok(self.borrow(state))
    }

    fn borrow(&self, mut state: MutexGuard<'_, ChannelState<T>>) -> Option<Loan<T>> {
        if state.sleep != Sleep::Asleep || !state.rest.lends {
            self.0.wake(state);
            return None;
        }
        state.sleep = Sleep::Lent;
        Some(Loan {
            shared: Some(Arc::clone(&self.0)),
            taken: VecDeque::new(),
        })
    }

    /// Puts all of them in, side by side. A sender that loses its processor with the lock in hand
    /// stops the receiver and all other senders: of a thousand items each by itself one would do so
    /// much more often.
    ///
    /// # Errors
    /// There is no receiver any more; here they are again.
    pub fn send_all(&self, items: Vec<T>) -> Result<(), SendError<Vec<T>>> {
        let mut state = self.0.lock();
        if state.is_closed {
            return Err(SendError(items));
        }
        if !items.is_empty() {
            state.items.extend(items);
            self.0.wake(state);
        }
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.lock().senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.senders -= 1;
        if state.senders == 0 {
            self.0.wake(state);
        }
    }
}

impl<T> Receiver<T> {
    /// The next item, when there is one.
    ///
    /// # Errors
    /// There is none, and no sender any more.
    pub fn recv(&self) -> Result<T, RecvError> {
        self.recv_at(Rest::default()).map_err(|_| RecvError)
    }

    /// The next item, if there is one within this time.
    ///
    /// # Errors
    /// There was none, or there is none and no sender any more.
    pub fn recv_timeout(&self, patience: Duration) -> Result<T, RecvTimeoutError> {
        self.recv_at(Rest {
            until: Instant::now().checked_add(patience),
            ..Rest::default()
        })
    }

    /// The next item, if there is one now.
    ///
    /// # Errors
    /// There is none; or no sender any more either.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut taken = self.taken.borrow_mut();
        if let Some(item) = taken.pop_front() {
            return Ok(item);
        }
        let mut state = self.shared.lock();
        match state.take(&mut taken) {
            Some(item) => Ok(item),
            None if state.senders == 0 => Err(TryRecvError::Disconnected),
            None => Err(TryRecvError::Empty),
        }
    }

    /// The items that there are, as far as they are asked for.
    pub fn try_iter(&self) -> impl Iterator<Item = T> {
        std::iter::from_fn(|| self.try_recv().ok())
    }

    /// The next item, waited for like this. If its place was lent meanwhile, the time may end
    /// early: there is something to see to, were it only that the next time is another one.
    ///
    /// # Errors
    /// As above.
    pub fn recv_at(&self, rest: Rest) -> Result<T, RecvTimeoutError> {
        let mut taken = self.taken.borrow_mut();
        if let Some(item) = taken.pop_front() {
            return Ok(item);
        }
        let mut state = self.shared.lock();
        // Once: the sender that has its place meanwhile may change how it rests.
        state.rest = rest;
        loop {
            let left = rest
                .until
                .map(|it| it.saturating_duration_since(Instant::now()));
            let is_over = left == Some(Duration::ZERO);
            if state.sleep != Sleep::Lent {
                state.sleep = Sleep::Awake;
                let recalled = std::mem::take(&mut state.recalled);
                if let Some(item) = state.take(&mut taken) {
                    return Ok(item);
                }
                if state.senders == 0 {
                    return Err(RecvTimeoutError::Disconnected);
                }
                if is_over || recalled {
                    return Err(RecvTimeoutError::Timeout);
                }
                state.sleep = Sleep::Asleep;
            }
            let woken = &self.shared.woken;
            state = match left {
                Some(left) if !is_over => {
                    let waited = woken.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                // The sender that has its place sees that the time is over.
                Some(_) | None => woken.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

/// The place of a receiver that sleeps: takes items in its stead, until it is given back or
/// dropped.
pub struct Loan<T> {
    /// `None` once it is given back.
    shared: Option<Arc<ChannelShared<T>>>,
    taken: VecDeque<T>,
}

impl<T> Loan<T> {
    /// Whether there is nothing to take now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let left = |shared: &Arc<ChannelShared<T>>| !shared.lock().items.is_empty();
        self.taken.is_empty() && !self.shared.as_ref().is_some_and(left)
    }

    /// Gives the place back to the receiver, which goes on to sleep like this; but is woken if
    /// something has come meanwhile, if it would have woken by itself, or if it is to wake earlier
    /// than it knows.
    pub fn give_back(mut self, rest: Rest) {
        self.end(Some(rest));
    }

    /// With `None` the receiver is woken in any case.
    fn end(&mut self, rest: Option<Rest>) {
        let Some(shared) = self.shared.take() else {
            return;
        };
        let mut state = shared.lock();
        while let Some(item) = self.taken.pop_back() {
            state.items.push_front(item);
        }
        let known = state.rest.until;
        let is_late = |rest: Rest| {
            let comes_first = |until: Instant| known.is_none_or(|known| until + LATE_MAX < known);
            known.is_some_and(|known| known <= Instant::now())
                || rest.until.is_some_and(comes_first)
        };
        let has_come = !state.items.is_empty() && !planted!(GivenBackUnseen);
        state.sleep = Sleep::Asleep;
        match rest {
            Some(rest) if !has_come && state.senders > 0 && !is_late(rest) => {
                // Its own time stays: that is how long it sleeps.
                let until = known;
                state.rest = Rest { until, ..rest };
            }
            Some(_) | None => {
                state.recalled = true;
                shared.wake(state);
            }
        }
    }
}

impl<T> Iterator for Loan<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        if let Some(item) = self.taken.pop_front() {
            return Some(item);
        }
        self.shared.as_ref()?.lock().take(&mut self.taken)
    }
}

impl<T> Drop for Loan<T> {
    fn drop(&mut self) {
        self.end(None);
    }
}

impl<T> ChannelState<T> {
    /// The first item; the others are in `taken`, which was empty.
    fn take(&mut self, taken: &mut VecDeque<T>) -> Option<T> {
        if taken.capacity() > KEPT_ITEMS_MAX {
            *taken = VecDeque::new();
        }
        std::mem::swap(taken, &mut self.items);
        taken.pop_front()
    }
}

impl<T> Drop for Receiver<T> {
    /// What is left is dropped with it, so that callers that wait for what it would have become
    /// learn that it will not.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_closed = true;
        let left = std::mem::take(&mut state.items);
        drop(state);
        drop(left);
    }
}

#[cfg(all(test, not(any(feature = "loom", feature = "shuttle"))))]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn items_come_out_in_order_and_then_the_end() {
        let (sender, receiver) = channel();
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        let other = sender.clone();
        sender.send(1).expect("it is open");
        other.send_all(vec![2, 3]).expect("it is open");
        assert_eq!(receiver.recv(), Ok(1));
        drop(sender);
        assert_eq!(receiver.try_recv(), Ok(2));
        assert_eq!(receiver.recv_timeout(Duration::ZERO), Ok(3));
        let nothing = receiver.recv_timeout(Duration::from_millis(1));
        assert_eq!(nothing, Err(RecvTimeoutError::Timeout));
        drop(other);
        assert_eq!(receiver.recv(), Err(RecvError));
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
        let nothing = receiver.recv_timeout(Duration::MAX);
        assert_eq!(nothing, Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn what_nobody_takes_is_dropped_and_what_comes_later_is_given_back() {
        let (sender, receiver) = channel();
        let item = Arc::new(());
        for _ in 0..3 {
            sender.send(Arc::clone(&item)).expect("it is open");
        }
        drop(receiver.recv().expect("there are three"));
        drop(receiver);
        assert_eq!(Arc::strong_count(&item), 1);
        let SendError(back) = sender.send(item).expect_err("nobody takes it");
        let SendError(back) = sender.send_all(vec![back]).expect_err("nor several");
        assert_eq!(Arc::strong_count(&back[0]), 1);
    }

    #[test]
    fn who_sleeps_is_woken_by_an_item_and_by_the_end() {
        let (sender, receiver) = channel();
        let receiving = thread::spawn(move || {
            let first = receiver.recv_timeout(Duration::from_secs(60));
            (first, receiver.recv())
        });
        thread::sleep(Duration::from_millis(20));
        sender.send(1).expect("it is open");
        thread::sleep(Duration::from_millis(20));
        drop(sender);
        let came = receiving.join().expect("it received");
        assert_eq!(came, (Ok(1), Err(RecvError)));
    }

    #[test]
    fn what_is_sent_quietly_comes_with_the_next_or_when_the_time_is_over() {
        const LONG: Duration = Duration::from_secs(60);
        let (sender, receiver) = channel();
        // What is there already is not waited for.
        sender.send_quietly(1).expect("it is open");
        assert_eq!(receiver.recv_at(deep(LONG)), Ok(1));
        let receiving = thread::spawn(move || {
            let first = receiver.recv_at(deep(LONG));
            let second = receiver.recv_at(deep(LONG));
            let third = receiver.recv_timeout(LONG);
            let fourth = receiver.recv_at(deep(Duration::from_millis(20)));
            (first, second, third, fourth)
        });
        thread::sleep(Duration::from_millis(20));
        sender.send_quietly(2).expect("it is open");
        thread::sleep(Duration::from_millis(20));
        assert!(!receiving.is_finished() && sender.0.lock().items.len() == 1);
        sender.send(3).expect("it is open");
        thread::sleep(Duration::from_millis(20));
        sender.send_quietly(4).expect("it is open");
        let came = receiving.join().expect("it received");
        assert_eq!(came, (Ok(2), Ok(3), Ok(4), Err(RecvTimeoutError::Timeout)));
    }

    fn deep(patience: Duration) -> Rest {
        Rest {
            until: Some(Instant::now() + patience),
            deep: true,
            lends: false,
        }
    }

    fn lending(patience: Duration) -> Rest {
        Rest {
            deep: false,
            lends: true,
            ..deep(patience)
        }
    }

    /// A place that is lent once the receiver sleeps.
    fn borrow(sender: &Sender<u8>, item: u8) -> Loan<u8> {
        loop {
            if sender.0.lock().sleep == Sleep::Asleep {
                return sender
                    .send_or_borrow(item)
                    .expect("it is open")
                    .expect("it lends");
            }
            thread::yield_now();
        }
    }

    #[test]
    fn who_sleeps_may_be_stood_in_for_and_sleeps_on() {
        const LONG: Duration = Duration::from_secs(60);
        let (sender, receiver) = channel();
        let awake = sender.send_or_borrow(1).expect("it is open");
        assert!(awake.is_none(), "it does not sleep");
        let receiving = thread::spawn(move || {
            assert_eq!(receiver.recv(), Ok(1));
            receiver.recv_at(lending(LONG))
        });
        let mut loan = borrow(&sender, 2);
        assert!(
            sender.send_or_borrow(3).expect("it is open").is_none(),
            "it is lent"
        );
        sender.send_quietly(4).expect("it is open");
        assert_eq!(loan.by_ref().collect::<Vec<_>>(), [2, 3, 4]);
        assert!(loan.is_empty());
        loan.give_back(Rest {
            deep: true,
            ..lending(LONG)
        });
        sender.send_quietly(5).expect("it is open");
        thread::sleep(Duration::from_millis(20));
        assert!(!receiving.is_finished());
        // What was not taken out is the receiver's again, in its order.
        let mut loan = sender
            .send_or_borrow(6)
            .expect("it is open")
            .expect("it lends");
        assert_eq!(loan.next(), Some(5));
        drop(loan);
        assert_eq!(receiving.join().expect("it received"), Ok(6));
    }

    /// It rested again as it had at first, and what was sent quietly waited for the tick.
    #[test]
    fn who_is_woken_for_nothing_rests_as_it_was_left() {
        const LONG: Duration = Duration::from_secs(60);
        let (sender, receiver) = channel();
        let rest = Rest {
            deep: true,
            ..lending(LONG)
        };
        let receiving = thread::spawn(move || receiver.recv_at(rest));
        let mut loan = borrow(&sender, 1);
        assert_eq!(loan.next(), Some(1));
        loan.give_back(lending(LONG));
        // As a wake-up without a cause.
        sender.send_all(Vec::new()).expect("it is open");
        sender.0.woken.notify_one();
        thread::sleep(Duration::from_millis(20));
        sender.send_quietly(2).expect("it is open");
        assert_eq!(receiving.join().expect("it received"), Ok(2));
    }

    #[test]
    fn who_is_stood_in_for_wakes_when_it_has_to() {
        const LONG: Duration = Duration::from_secs(60);
        const SHORT: Duration = Duration::from_millis(20);
        let came = |patience: Duration, meanwhile: fn(&Sender<u8>, Loan<u8>)| {
            let (sender, receiver) = channel();
            let receiving = thread::spawn(move || receiver.recv_at(lending(patience)));
            let mut loan = borrow(&sender, 1);
            assert_eq!(loan.next(), Some(1));
            meanwhile(&sender, loan);
            receiving.join().expect("it received")
        };
        let timeout = Err(RecvTimeoutError::Timeout);
        let item_came = came(LONG, |sender, loan| {
            sender.send(2).expect("it is open");
            loan.give_back(lending(LONG));
        });
        assert_eq!(item_came, Ok(2));
        let earlier = came(LONG, |_, loan| loan.give_back(lending(SHORT)));
        assert_eq!(earlier, timeout);
        let time_is_over = came(SHORT, |_, loan| {
            thread::sleep(2 * SHORT);
            loan.give_back(lending(LONG));
        });
        assert_eq!(time_is_over, timeout);
        assert_eq!(came(LONG, |_, loan| drop(loan)), timeout);
        let end = {
            let (sender, receiver) = channel();
            let receiving = thread::spawn(move || receiver.recv_at(lending(LONG)));
            let mut loan = borrow(&sender, 1);
            assert_eq!(loan.next(), Some(1));
            drop(sender);
            loan.give_back(lending(LONG));
            receiving.join().expect("it received")
        };
        assert_eq!(end, Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn a_burst_is_not_kept_memory_for() {
        let (sender, receiver) = channel();
        for item in 0..2 * KEPT_ITEMS_MAX {
            sender.send(item).expect("it is open");
        }
        while receiver.try_recv().is_ok() {}
        for item in 0..2 {
            sender.send(item).expect("it is open");
            receiver.recv().expect("there is one");
        }
        let kept = receiver.taken.borrow().capacity() + sender.0.lock().items.capacity();
        assert!(kept <= KEPT_ITEMS_MAX, "{kept}");
    }
}
