//! Callers that wait for several writes at once ([`WriteAnswers`]), which other threads answer or
//! give up.

use dengine_kv::Outcome;
use dengine_planted::{Bug, plant};
use dengine_types::Term;
use shuttle::future::block_on;
use shuttle::thread;

use super::any_turns;
use crate::output::Written;
use crate::replica::{RequestError, WriteAnswers};

fn written(term: u64) -> Result<Written, RequestError> {
    Ok(Written {
        term: Term(term),
        outcome: Outcome::Empty,
        visited: 0,
    })
}

/// Two are answered by the applier, one goes with a replica that ends. A caller that waits forever
/// shows as a deadlock.
fn all_who_wait_are_woken() {
    let (replies, mut answers) = WriteAnswers::of(3, None);
    let threads: Vec<_> = replies
        .enumerate()
        .map(|(place, reply)| {
            thread::spawn(move || {
                assert!(!reply.is_gone(), "somebody waits");
                match place {
                    2 => drop(reply),
                    _ => reply.answer(written(place as u64)),
                }
            })
        })
        .collect();
    block_on(answers.complete());
    let (answers, _) = answers.take(|| RequestError::ShuttingDown);
    let lost = Err(RequestError::ShuttingDown);
    assert_eq!(
        answers,
        [written(0), written(1), lost],
        "answers were mixed up"
    );
    threads
        .into_iter()
        .for_each(|it| it.join().expect("it answered"));
}

/// A caller that gives up takes what is there; each answer is whole or lost, and none is sent into
/// nothing.
fn giving_up_takes_what_is_there() {
    let (replies, answers) = WriteAnswers::of(2, None);
    let threads: Vec<_> = replies
        .map(|reply| thread::spawn(move || reply.answer(written(7))))
        .collect();
    let (answers, _) = answers.take(|| RequestError::ShuttingDown);
    let lost = Err(RequestError::ShuttingDown);
    assert!(answers.iter().all(|it| *it == written(7) || *it == lost));
    threads
        .into_iter()
        .for_each(|it| it.join().expect("it answered"));
}

#[test]
fn nobody_waits_for_ever() {
    any_turns(2_000, all_who_wait_are_woken);
    any_turns(2_000, giving_up_takes_what_is_there);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_waker_that_comes_too_late_is_found() {
    plant(Some(Bug::WakerLeftAfterLook));
    any_turns(2_000, all_who_wait_are_woken);
}
