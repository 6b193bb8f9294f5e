//! The room for answers ([`AnswerBudget`]), taken and given back by all connections.

use std::net::IpAddr;

use dengine_planted::{Bug, plant};
use shuttle::thread;

use super::{any_turns, long_turns};
use crate::answers::{AnswerBudget, Held};

const LIMIT: usize = 30_000;

fn budget() -> AnswerBudget {
    AnswerBudget::new(LIMIT, LIMIT)
}

/// Who holds none may have all that is left.
fn address(last: u8) -> IpAddr {
    [10, 0, 0, last].into()
}

fn three_answers_never_hold_more_than_there_is() {
    let budget = budget();
    let others: Vec<_> = [(1, 20_000), (2, 10_000)]
        .map(|(whose, bytes)| {
            let budget = budget.clone();
            thread::spawn(move || budget.hold(address(whose), bytes))
        })
        .into_iter()
        .collect();
    let mut held = vec![budget.hold(address(3), 20_000)];
    held.extend(
        others
            .into_iter()
            .map(|other| other.join().expect("it held")),
    );
    let bytes = held.iter().flatten().map(Held::bytes).sum::<usize>();
    assert!(bytes <= LIMIT, "more is held than there is");
    assert_eq!(bytes, LIMIT, "somebody was refused although there was room");
    drop(held);
    assert!(
        budget.hold(address(1), LIMIT).is_some(),
        "all was given back"
    );
}

/// One gives back while another takes.
fn what_is_given_back_is_there() {
    let budget = budget();
    let first = budget.hold(address(1), 20_000).expect("there is room");
    let other = {
        let budget = budget.clone();
        thread::spawn(move || drop(budget.hold(address(2), 10_000)))
    };
    drop(first);
    other.join().expect("it tried");
    assert!(budget.hold(address(1), LIMIT).is_some(), "room was lost");
}

#[test]
fn room_is_taken_once_and_given_back() {
    for model in [
        three_answers_never_hold_more_than_there_is,
        what_is_given_back_is_there,
    ] {
        any_turns(1_000, model);
        long_turns(1_000, model);
    }
}

#[test]
#[should_panic(expected = "more is held than there is")]
fn room_that_is_taken_twice_is_found() {
    plant(Some(Bug::RoomTakenInTwoSteps));
    long_turns(1_000, three_answers_never_hold_more_than_there_is);
}

#[test]
#[should_panic(expected = "room was lost")]
fn room_that_is_lost_is_found() {
    plant(Some(Bug::RoomTakenInTwoSteps));
    any_turns(1_000, what_is_given_back_is_there);
}
