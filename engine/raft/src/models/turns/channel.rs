//! What the threads of a member tell each other ([`channel`]).

use dengine_planted::{Bug, plant};
use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::thread;

use super::{any_turns, long_turns};
use crate::channel::{Rest, channel};

const EACH: u8 = 2;

/// A receiver that sleeps forever shows as a deadlock.
fn all_comes_out_in_the_order_of_each_sender_and_then_the_end() {
    let (sender, receiver) = channel();
    for from in 0..2 {
        let sender = sender.clone();
        thread::spawn(move || {
            (0..EACH).for_each(|item| sender.send((from, item)).expect("it is received"));
        });
    }
    drop(sender);
    let came: Vec<_> = std::iter::from_fn(|| receiver.recv().ok()).collect();
    for from in 0..2 {
        let of_one = came.iter().filter(|it| it.0 == from).map(|it| it.1);
        assert!(of_one.eq(0..EACH), "{came:?}");
    }
}

/// The sender stays: nothing but the items wakes the receiver.
fn items_alone_wake() {
    let (sender, receiver) = channel();
    let receiving = thread::spawn(move || {
        (0..EACH).for_each(|item| assert_eq!(receiver.recv(), Ok(item)));
    });
    (0..EACH).for_each(|item| sender.send(item).expect("it is received"));
    receiving.join().expect("it received");
}

/// What is quiet comes with what is not, in order, however the receiver waits.
fn what_is_quiet_is_not_lost() {
    let (sender, receiver) = channel();
    let receiving = thread::spawn(move || {
        let rest = Rest {
            deep: true,
            ..Rest::default()
        };
        let came = [(); 2 * EACH as usize].map(|()| receiver.recv_at(rest));
        assert_eq!(came, [Ok(0), Ok(1), Ok(2), Ok(3)]);
    });
    for item in 0..EACH {
        sender.send_quietly(2 * item).expect("it is received");
        sender.send(2 * item + 1).expect("it is received");
    }
    receiving.join().expect("it received");
}

/// What is taken out, by the receiver or by a sender in its place.
#[derive(Default)]
struct TakenOut {
    /// Held by whoever takes something out. Nobody waits for it: they are never two at a time.
    place: Mutex<()>,
    items: Mutex<Vec<(u8, u8)>>,
    more: Condvar,
}

impl TakenOut {
    fn take(&self, items: impl Iterator<Item = (u8, u8)>) {
        let _place = self.place.try_lock().expect("one at a time");
        self.items.lock().expect("nobody panicked").extend(items);
        self.more.notify_all();
    }
}

/// A sender stays, so nothing but items wakes the receiver: one that is not taken out shows as a
/// deadlock.
fn either_takes_out(each: u8) {
    let (sender, receiver) = channel();
    let taken = Arc::new(TakenOut::default());
    let rest = Rest {
        lends: true,
        ..Rest::default()
    };
    let receives = Arc::clone(&taken);
    thread::spawn(move || {
        while let Ok(item) = receiver.recv_at(rest) {
            receives.take(std::iter::once(item));
        }
    });
    for from in 0..2 {
        let (sender, taken) = (sender.clone(), Arc::clone(&taken));
        thread::spawn(move || {
            for item in 0..each {
                let sent = sender.send_or_borrow((from, item));
                if let Some(mut loan) = sent.expect("it is received") {
                    taken.take(loan.by_ref());
                    loan.give_back(rest);
                }
            }
        });
    }
    let items = taken.items.lock().expect("nobody panicked");
    let is_less = |items: &mut Vec<_>| items.len() < 2 * usize::from(each);
    let items = taken.more.wait_while(items, is_less);
    let items = items.expect("nobody panicked");
    for from in 0..2 {
        let of_one = items.iter().filter(|it| it.0 == from).map(|it| it.1);
        assert!(of_one.eq(0..each), "{items:?}");
    }
    drop(sender);
}

fn either_takes_everything_out() {
    either_takes_out(EACH);
}

fn either_takes_one_out() {
    either_takes_out(1);
}

/// An item is received, dropped with the receiver, or given back.
fn nothing_is_left_in_a_channel_that_nobody_receives_from() {
    let (sender, receiver) = channel();
    let item = std::sync::Arc::new(());
    let sent = std::sync::Arc::clone(&item);
    let sending = thread::spawn(move || drop(sender.send(sent)));
    drop(receiver);
    sending.join().expect("it sent");
    assert_eq!(std::sync::Arc::strong_count(&item), 1);
}

#[test]
fn whoever_receives_is_woken_for_everything() {
    any_turns(
        2_000,
        all_comes_out_in_the_order_of_each_sender_and_then_the_end,
    );
    any_turns(2_000, items_alone_wake);
    any_turns(2_000, what_is_quiet_is_not_lost);
    any_turns(5_000, either_takes_one_out);
    any_turns(5_000, either_takes_everything_out);
    long_turns(5_000, either_takes_everything_out);
    any_turns(
        2_000,
        nothing_is_left_in_a_channel_that_nobody_receives_from,
    );
}

#[test]
#[should_panic(expected = "deadlock")]
fn who_is_woken_before_there_is_something_is_found() {
    plant(Some(Bug::WokenBeforeSent));
    any_turns(2_000, items_alone_wake);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_place_given_back_without_a_look_at_what_came_is_found() {
    plant(Some(Bug::GivenBackUnseen));
    any_turns(50_000, either_takes_one_out);
}
