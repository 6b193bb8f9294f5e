//! What waits for a peer ([`LinkQueue`]), queued by one thread and sent by another.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dengine_planted::{Bug, plant};
use dengine_types::MemberId;
use shuttle::future::block_on;
use shuttle::thread;

use super::any_turns;
use crate::link_queue::LinkQueue;
use crate::output::Outbound;
use crate::peer_queue::QueueLimits;

const MESSAGES: u8 = 3;
/// A frame holds two.
const LIMITS: QueueLimits = QueueLimits {
    frame_bytes: 20,
    frame_bytes_max: 20,
    queue_bytes: 1000,
    queue_messages: 100,
    retry_min: Duration::from_millis(1),
    retry_max: Duration::from_millis(1),
};

fn message(number: u8) -> Outbound {
    Outbound {
        to: MemberId(2),
        bytes: Bytes::from(vec![number]),
        carries_log: true,
    }
}

/// A link whose peer has answered.
fn link() -> Arc<LinkQueue> {
    let link = LinkQueue::new(LIMITS);
    link.opened();
    Arc::new(link)
}

fn push_all(link: &LinkQueue) {
    (0..MESSAGES).for_each(|it| link.push(message(it)).expect("there is room"));
}

/// A task that waits forever shows as a deadlock.
fn all_is_sent_that_was_queued_before_the_end() {
    let link = link();
    let sending = Arc::clone(&link);
    let task = thread::spawn(move || {
        let mut sent = Vec::new();
        while let Some(frame) = block_on(sending.next_frame()) {
            sent.extend(frame.iter().flatten().copied());
        }
        sent
    });
    push_all(&link);
    link.close();
    let sent = task.join().expect("it sent");
    assert_eq!(sent, Vec::from_iter(0..MESSAGES), "not all was sent");
}

/// The link goes on: nothing but the messages wakes the task.
fn messages_alone_wake() {
    let link = link();
    let sending = Arc::clone(&link);
    let task = thread::spawn(move || {
        let mut sent = 0;
        while sent < usize::from(MESSAGES) {
            let frame = block_on(sending.next_frame());
            sent += frame.expect("it is open").len();
        }
    });
    push_all(&link);
    task.join().expect("it sent");
}

/// While it waits to connect again.
fn the_end_wakes_who_pauses() {
    let link = link();
    let pausing = Arc::clone(&link);
    let task = thread::spawn(move || {
        pausing.broke();
        block_on(pausing.closed());
    });
    push_all(&link);
    link.close();
    task.join().expect("it paused");
}

#[test]
fn nothing_that_is_queued_waits_for_what_comes_later() {
    any_turns(2_000, all_is_sent_that_was_queued_before_the_end);
    any_turns(2_000, messages_alone_wake);
    any_turns(2_000, the_end_wakes_who_pauses);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_waker_that_comes_too_late_is_found() {
    plant(Some(Bug::LinkWakerLeftAfterLook));
    any_turns(2_000, messages_alone_wake);
}

#[test]
#[should_panic(expected = "not all was sent")]
fn an_end_that_comes_before_what_was_queued_is_found() {
    plant(Some(Bug::ClosedBeforeQueued));
    any_turns(2_000, all_is_sent_that_was_queued_before_the_end);
}
