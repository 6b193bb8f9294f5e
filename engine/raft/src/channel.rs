//! An unbounded channel from any number of threads to one, which sleeps while there is nothing in
//! it.
//!
//! std's `mpsc` wakes the receiver with a lock in hand that the receiver takes before it sleeps
//! again. Where processors are busy the one that is woken takes the place of the one that woke it,
//! and then waits for it: at once where both are equals, and for tens of milliseconds where the
//! sender is a thread of lower priority, and everything that the receiver decides with it. Here the
//! lock is held to put something in, and whoever sleeps is woken after that.

use dengine_planted::planted;
use dengine_types::sync::{Condvar, Mutex, MutexGuard};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Items for which the receiver keeps memory while it has none.
const KEPT_ITEMS_MAX: usize = 4096;

/// A channel.
#[must_use]
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Shared {
        state: Mutex::new(State {
            items: VecDeque::new(),
            senders: 1,
            sleep: Sleep::Awake,
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
pub struct Sender<T>(Arc<Shared<T>>);

/// The receiver: takes items in the order in which they were sent.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    /// Out of the channel already: all that there was is taken at once.
    taken: RefCell<VecDeque<T>>,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    woken: Condvar,
}

struct State<T> {
    items: VecDeque<T>,
    senders: usize,
    sleep: Sleep,
    /// There is no receiver any more.
    is_closed: bool,
}

/// Whether the receiver sleeps, or is about to, and nobody has woken it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sleep {
    Awake,
    /// Until there is anything.
    Light,
    /// Until there is something that was not sent quietly.
    Deep,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the receiver, if it sleeps, without the lock.
    fn wake(&self, mut state: MutexGuard<'_, State<T>>) {
        let sleep = std::mem::replace(&mut state.sleep, Sleep::Awake);
        drop(state);
        if sleep != Sleep::Awake {
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

    /// Puts it in, for when the receiver takes something in next. Wakes it only from
    /// [`Receiver::recv_timeout`], not from [`Receiver::recv_loud_timeout`].
    ///
    /// # Errors
    /// There is no receiver any more; here it is again.
    pub fn send_quietly(&self, item: T) -> Result<(), SendError<T>> {
        let mut state = self.0.lock();
        if state.is_closed {
            return Err(SendError(item));
        }
        state.items.push_back(item);
        if state.sleep == Sleep::Light {
            self.0.wake(state);
        }
        Ok(())
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
        state.items.extend(items);
        self.0.wake(state);
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
        self.0.wake(state);
    }
}

impl<T> Receiver<T> {
    /// The next item, when there is one.
    ///
    /// # Errors
    /// There is none, and no sender any more.
    pub fn recv(&self) -> Result<T, RecvError> {
        self.next(None, Sleep::Light).map_err(|_| RecvError)
    }

    /// The next item, if there is one within this time.
    ///
    /// # Errors
    /// There was none, or there is none and no sender any more.
    pub fn recv_timeout(&self, patience: Duration) -> Result<T, RecvTimeoutError> {
        self.next(Instant::now().checked_add(patience), Sleep::Light)
    }

    /// The same, but what is sent quietly from now on is not waited for: it is returned once
    /// something else comes, or at the end of this time.
    ///
    /// # Errors
    /// As above.
    pub fn recv_loud_timeout(&self, patience: Duration) -> Result<T, RecvTimeoutError> {
        self.next(Instant::now().checked_add(patience), Sleep::Deep)
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

    fn next(&self, until: Option<Instant>, sleep: Sleep) -> Result<T, RecvTimeoutError> {
        let mut taken = self.taken.borrow_mut();
        if let Some(item) = taken.pop_front() {
            return Ok(item);
        }
        let mut state = self.shared.lock();
        loop {
            if let Some(item) = state.take(&mut taken) {
                return Ok(item);
            }
            if state.senders == 0 {
                return Err(RecvTimeoutError::Disconnected);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                state.sleep = Sleep::Awake;
                return Err(RecvTimeoutError::Timeout);
            }
            state.sleep = sleep;
            let woken = &self.shared.woken;
            state = match left {
                Some(left) => {
                    let waited = woken.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => woken.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl<T> State<T> {
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
    /// What is left is dropped with it, so that whoever waits for what it would have become learns
    /// that it will not.
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
    use super::*;
    use std::thread;

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
        assert_eq!(receiver.recv_loud_timeout(LONG), Ok(1));
        let receiving = thread::spawn(move || {
            let first = receiver.recv_loud_timeout(LONG);
            let second = receiver.recv_loud_timeout(LONG);
            let third = receiver.recv_timeout(LONG);
            let fourth = receiver.recv_loud_timeout(Duration::from_millis(20));
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
