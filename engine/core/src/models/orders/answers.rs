//! The room for answers ([`AnswerBudget`]), taken and given back by all connections.

use super::every_order;
use crate::answers::{AnswerBudget, Held};
use crate::planted::{Bug, plant};
use loom::thread;

const LIMIT: usize = 30_000;

fn three_answers_never_hold_more_than_there_is() {
    let budget = AnswerBudget::new(LIMIT);
    let others: Vec<_> = [20_000, 10_000]
        .map(|bytes| {
            let budget = budget.clone();
            thread::spawn(move || budget.hold(bytes))
        })
        .into_iter()
        .collect();
    let mut held = vec![budget.hold(20_000)];
    held.extend(
        others
            .into_iter()
            .map(|other| other.join().expect("it held")),
    );
    let bytes = held.iter().flatten().map(Held::bytes).sum::<usize>();
    assert!(bytes <= LIMIT, "more is held than there is");
    assert_eq!(bytes, LIMIT, "somebody was refused although there was room");
    drop(held);
    assert!(budget.hold(LIMIT).is_some(), "all was given back");
}

/// One gives back while another takes.
fn what_is_given_back_is_there() {
    let budget = AnswerBudget::new(LIMIT);
    let first = budget.hold(20_000).expect("there is room");
    let other = {
        let budget = budget.clone();
        thread::spawn(move || drop(budget.hold(10_000)))
    };
    drop(first);
    other.join().expect("it tried");
    assert!(budget.hold(LIMIT).is_some(), "room was lost");
}

#[test]
fn room_is_taken_once_and_given_back() {
    every_order(three_answers_never_hold_more_than_there_is);
    every_order(what_is_given_back_is_there);
}

#[test]
#[should_panic(expected = "more is held than there is")]
fn room_that_is_taken_twice_is_found() {
    plant(Some(Bug::RoomTakenInTwoSteps));
    every_order(three_answers_never_hold_more_than_there_is);
}

#[test]
#[should_panic(expected = "room was lost")]
fn room_that_is_lost_is_found() {
    plant(Some(Bug::RoomTakenInTwoSteps));
    every_order(what_is_given_back_is_there);
}
