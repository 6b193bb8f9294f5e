//! What the threads of a member tell each other ([`channel`]).

use super::any_turns;
use crate::channel::channel;
use dengine_planted::{Bug, plant};
use shuttle::thread;

const EACH: u8 = 2;

/// A receiver that sleeps for ever shows as a deadlock.
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
        let long = std::time::Duration::MAX;
        let came = [(); 2 * EACH as usize].map(|()| receiver.recv_loud_timeout(long));
        assert_eq!(came, [Ok(0), Ok(1), Ok(2), Ok(3)]);
    });
    for item in 0..EACH {
        sender.send_quietly(2 * item).expect("it is received");
        sender.send(2 * item + 1).expect("it is received");
    }
    receiving.join().expect("it received");
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
