//! Small histories, each right or wrong for one reason.

use crate::linearizable::{self, DEFAULT_STEPS};
use crate::{
    Answer, BatchStep, Call, Expected, History, Level, Moment, Operation, Reply, Rule, Seen, check,
};

/// When an operation was called and answered.
type Span = (u64, u64);

fn at(order: u64) -> Moment {
    Moment { order, nanos: 0 }
}

fn operation((invoked, completed): Span, call: Call, answer: Answer) -> Operation {
    Operation {
        client: 1,
        member: 0,
        call,
        invoked: at(invoked),
        completed: (completed > 0).then(|| at(completed)),
        answer,
    }
}

fn put_call(value: &str) -> Call {
    Call::Put {
        key: "k".to_owned(),
        value: value.to_owned(),
        expires: false,
    }
}

fn put(span: Span, value: &str, revision: u64) -> Operation {
    operation(span, put_call(value), Answer::Put { revision })
}

/// Called at a moment, never answered.
fn lost_put(invoked: u64, value: &str) -> Operation {
    operation((invoked, 0), put_call(value), Answer::Unknown)
}

fn delete(span: Span, revision: u64, deleted: bool) -> Operation {
    let key = "k".to_owned();
    operation(
        span,
        Call::Delete { key },
        Answer::Delete { revision, deleted },
    )
}

/// A pair as `value created/modified/version`.
fn seen(value: &str, created: u64, modified: u64, version: u64) -> Option<Seen> {
    Some(Seen {
        value: value.to_owned(),
        create_revision: created,
        mod_revision: modified,
        version,
    })
}

fn read_at(level: Level, span: Span, revision: u64, found: Option<Seen>) -> Operation {
    let keys = vec!["k".to_owned()];
    let found = vec![found];
    operation(
        span,
        Call::Read { keys, level },
        Answer::Read { revision, found },
    )
}

fn read(span: Span, revision: u64, found: Option<Seen>) -> Operation {
    read_at(Level::Linearizable, span, revision, found)
}

fn swap(
    span: Span,
    expected: u64,
    value: &str,
    (revision, succeeded): (u64, bool),
    previous: Option<Seen>,
) -> Operation {
    let call = Call::CompareAndSwap {
        key: "k".to_owned(),
        expected: Expected::ModRevision(expected),
        value: value.to_owned(),
        expires: false,
    };
    let answer = Answer::CompareAndSwap {
        revision,
        succeeded,
        previous,
    };
    operation(span, call, answer)
}

fn verdict(operations: Vec<Operation>, alone_since: Option<u64>) -> Option<Rule> {
    let history = History {
        operations,
        alone_since,
    };
    let violation = check(&history, DEFAULT_STEPS).err();
    violation.map(|violation| violation.rule)
}

fn good(operations: Vec<Operation>) {
    assert_eq!(verdict(operations, Some(1)), None);
}

/// Wrong, whether or not other clients wrote.
fn bad(operations: Vec<Operation>, rule: Rule) {
    assert_eq!(verdict(operations, None), Some(rule));
}

#[test]
fn reads_that_overlap_a_write_may_see_it_or_not() {
    let (old, new) = (seen("a", 2, 2, 1), seen("b", 2, 3, 2));
    good(vec![
        put((1, 2), "a", 2),
        put((3, 9), "b", 3),
        read((4, 6), 2, old),
        read((5, 8), 3, new),
    ]);
}

#[test]
fn a_stale_read() {
    let operations = |level| {
        vec![
            put((1, 2), "a", 2),
            put((3, 4), "b", 3),
            read_at(level, (5, 6), 2, seen("a", 2, 2, 1)),
        ]
    };
    bad(operations(Level::Linearizable), Rule::RealTime);
    bad(operations(Level::Lease), Rule::RealTime);
    bad(operations(Level::Session { after: 0 }), Rule::Session);
    good(operations(Level::Eventual));
}

#[test]
fn a_stale_read_that_claims_a_new_revision() {
    bad(
        vec![
            put((1, 2), "a", 2),
            put((3, 4), "b", 3),
            read((5, 6), 3, seen("a", 2, 2, 1)),
        ],
        Rule::WrongAtRevision,
    );
}

#[test]
fn reads_that_go_back() {
    bad(
        vec![
            put((1, 2), "a", 2),
            put((3, 20), "b", 3),
            read((4, 5), 3, seen("b", 2, 3, 2)),
            read((6, 7), 2, seen("a", 2, 2, 1)),
        ],
        Rule::RealTime,
    );
}

#[test]
fn an_eventual_read_from_the_future() {
    let read = read_at(Level::Eventual, (1, 2), 2, seen("a", 2, 2, 1));
    bad(vec![read, put((3, 4), "a", 2)], Rule::RealTime);
}

#[test]
fn a_lost_write() {
    bad(
        vec![put((1, 2), "a", 2), read((3, 4), 2, None)],
        Rule::WrongAtRevision,
    );
}

#[test]
fn a_value_that_nobody_wrote() {
    bad(
        vec![put((1, 2), "a", 2), read((3, 4), 3, seen("x", 2, 3, 2))],
        Rule::NeverWritten,
    );
}

#[test]
fn a_write_that_was_refused_and_still_seen() {
    let refused = operation((1, 2), put_call("a"), Answer::Refused);
    bad(
        vec![refused, read((3, 4), 2, seen("a", 2, 2, 1))],
        Rule::NeverWritten,
    );
}

#[test]
fn two_swaps_of_one_state_cannot_both_succeed() {
    let first = seen("a", 2, 2, 1);
    bad(
        vec![
            put((1, 2), "a", 2),
            swap((3, 6), 2, "b", (3, true), first.clone()),
            swap((4, 7), 2, "c", (4, true), first),
        ],
        Rule::WrongAtRevision,
    );
}

#[test]
fn a_swap_that_fails_although_the_key_is_as_expected() {
    let first = seen("a", 2, 2, 1);
    bad(
        vec![put((1, 2), "a", 2), swap((3, 4), 2, "b", (2, false), first)],
        Rule::Compare,
    );
}

#[test]
fn a_swap_that_overlaps_another_fails_with_what_that_left() {
    good(vec![
        put((1, 2), "a", 2),
        swap((3, 6), 2, "b", (3, true), seen("a", 2, 2, 1)),
        swap((4, 7), 2, "c", (3, false), seen("b", 2, 3, 2)),
    ]);
}

#[test]
fn a_write_that_was_applied_twice_shows_in_the_version() {
    let operations = vec![put((1, 2), "a", 2), read((3, 4), 2, seen("a", 2, 2, 2))];
    bad(operations, Rule::WrongAtRevision);
}

#[test]
fn a_write_that_was_applied_twice_and_overwritten_shows_in_the_revisions() {
    let operations = vec![put((1, 2), "a", 2), put((3, 4), "b", 4)];
    assert_eq!(verdict(operations.clone(), None), None, "others may write");
    assert_eq!(
        verdict(operations, Some(1)),
        Some(Rule::UnexplainedRevision)
    );
}

#[test]
fn a_revision_for_two_writes() {
    bad(
        vec![put((1, 3), "a", 2), put((2, 4), "b", 2)],
        Rule::RevisionTakenTwice,
    );
}

#[test]
fn a_write_without_answer_may_appear_late_or_never() {
    let (old, new) = (seen("b", 2, 2, 1), seen("a", 2, 3, 2));
    good(vec![
        lost_put(1, "a"),
        put((2, 3), "b", 2),
        read((4, 5), 2, old.clone()),
    ]);
    good(vec![
        lost_put(1, "a"),
        put((2, 3), "b", 2),
        read((4, 5), 2, old),
        read((6, 7), 3, new),
    ]);
}

#[test]
fn a_write_without_answer_cannot_appear_before_it_was_called() {
    bad(
        vec![read((1, 2), 2, seen("a", 2, 2, 1)), lost_put(3, "a")],
        Rule::NeverWritten,
    );
}

#[test]
fn a_write_without_answer_happens_once() {
    let twice = vec![
        lost_put(1, "a"),
        read((2, 3), 2, seen("a", 2, 2, 1)),
        put((4, 5), "b", 3),
        read((6, 7), 4, seen("a", 2, 4, 3)),
    ];
    bad(twice, Rule::NeverWritten);
}

/// Each sighting alone can be explained; only the search sees that one lost delete cannot do for
/// both.
#[test]
fn a_delete_without_answer_happens_once() {
    let lost = operation(
        (1, 0),
        Call::Delete {
            key: "k".to_owned(),
        },
        Answer::Unknown,
    );
    let twice = vec![
        lost,
        put((2, 3), "a", 2),
        read((4, 5), 3, None),
        put((6, 7), "b", 4),
        read((8, 9), 5, None),
    ];
    bad(twice, Rule::Linearizable);
}

/// No revision is left for the delete that would explain what was seen.
#[test]
fn a_delete_without_answer_needs_a_revision() {
    let call = Call::Delete {
        key: "k".to_owned(),
    };
    let lost = operation((1, 0), call, Answer::Unknown);
    let read = read((4, 5), 2, None);
    bad(vec![lost, put((2, 3), "a", 2), read], Rule::WrongAtRevision);
}

#[test]
fn a_deleted_key_starts_over() {
    good(vec![
        put((1, 2), "a", 2),
        delete((3, 4), 3, true),
        delete((5, 6), 3, false),
        put((7, 8), "b", 4),
        read((9, 10), 4, seen("b", 4, 4, 1)),
    ]);
    bad(
        vec![put((1, 2), "a", 2), delete((3, 4), 2, false)],
        Rule::WrongAtRevision,
    );
}

#[test]
fn a_pair_that_may_expire_may_be_gone_later_but_no_other() {
    let expiring = Call::Put {
        key: "k".to_owned(),
        value: "a".to_owned(),
        expires: true,
    };
    let expiring = operation((1, 2), expiring, Answer::Put { revision: 2 });
    good(vec![expiring.clone(), read((3, 4), 3, None)]);
    let replaced = put((3, 4), "b", 3);
    let gone = vec![expiring, replaced, read((5, 6), 4, None)];
    bad(gone.clone(), Rule::WrongAtRevision);
    // The search does not need the other checker for it.
    let history = History {
        operations: gone,
        alone_since: None,
    };
    let found = linearizable::check(&history, DEFAULT_STEPS).map_err(|it| it.rule);
    assert_eq!(found, Err(Rule::Linearizable));
}

#[test]
fn what_a_swap_or_a_batch_put_may_expire_as_well() {
    let swap = Call::CompareAndSwap {
        key: "k".to_owned(),
        expected: Expected::ModRevision(0),
        value: "a".to_owned(),
        expires: true,
    };
    let answer = Answer::CompareAndSwap {
        revision: 2,
        succeeded: true,
        previous: None,
    };
    let swap = operation((1, 2), swap, answer);
    let batch = |then: [fn(String, String) -> BatchStep; 2]| {
        let [x, y] = then;
        let call = Call::Batch {
            compares: Vec::new(),
            then: vec![
                x("x".to_owned(), "1".to_owned()),
                y("y".to_owned(), "2".to_owned()),
            ],
            otherwise: Vec::new(),
        };
        let answer = Answer::Batch {
            revision: 3,
            succeeded: true,
            replies: vec![Reply::Put, Reply::Put],
        };
        operation((3, 4), call, answer)
    };
    // Nobody else took 4 to 6.
    let gone = |batch| {
        vec![
            swap.clone(),
            batch,
            read((5, 6), 6, None),
            both((7, 8), 6, vec![None, None]),
        ]
    };
    good(gone(batch([BatchStep::PutExpiring; 2])));
    bad(
        gone(batch([BatchStep::PutExpiring, BatchStep::Put])),
        Rule::WrongAtRevision,
    );
}

/// No other client writes, so every revision was taken by a recorded call.
#[test]
fn only_what_was_put_to_expire_and_is_still_there_takes_a_revision_to_go() {
    let unexplained = |operations| {
        assert_eq!(
            verdict(operations, Some(1)),
            Some(Rule::UnexplainedRevision)
        );
    };
    let expiring = || {
        let step = |value: &str| BatchStep::PutExpiring("k".to_owned(), value.to_owned());
        let call = Call::Batch {
            compares: vec![("k".to_owned(), Expected::ModRevision(0))],
            then: vec![step("a")],
            otherwise: vec![BatchStep::Delete("k".to_owned()), step("x")],
        };
        let answer = Answer::Batch {
            revision: 2,
            succeeded: true,
            replies: vec![Reply::Put],
        };
        operation((1, 2), call, answer)
    };
    good(vec![expiring(), read((3, 4), 3, None)]);
    // What was replaced does not expire any more, and what was put before cannot have.
    let replaced = put((3, 4), "b", 3);
    let still = read((5, 6), 4, seen("b", 2, 3, 2));
    unexplained(vec![expiring(), replaced, still]);
    // Of two lists of operations, one was done.
    unexplained(vec![expiring(), read((3, 4), 4, None)]);
}

fn transfer(span: Span, replies: Vec<Reply>) -> Operation {
    let call = Call::Batch {
        compares: vec![("x".to_owned(), Expected::ModRevision(0))],
        then: vec![
            BatchStep::Put("x".to_owned(), "1".to_owned()),
            BatchStep::Put("y".to_owned(), "2".to_owned()),
            BatchStep::Get("x".to_owned()),
        ],
        otherwise: Vec::new(),
    };
    let answer = Answer::Batch {
        revision: 2,
        succeeded: true,
        replies,
    };
    operation(span, call, answer)
}

fn both(span: Span, revision: u64, found: Vec<Option<Seen>>) -> Operation {
    let call = Call::Read {
        keys: vec!["x".to_owned(), "y".to_owned()],
        level: Level::Linearizable,
    };
    operation(span, call, Answer::Read { revision, found })
}

#[test]
fn a_batch_is_seen_whole() {
    let (x, y) = (seen("1", 2, 2, 1), seen("2", 2, 2, 1));
    let replies = vec![Reply::Put, Reply::Put, Reply::Get(x.clone())];
    let batch = transfer((1, 5), replies);
    let whole = both((2, 3), 2, vec![x.clone(), y]);
    good(vec![batch.clone(), whole]);
    good(vec![batch.clone(), both((2, 3), 1, vec![None, None])]);
    bad(
        vec![batch.clone(), both((2, 3), 2, vec![x.clone(), None])],
        Rule::WrongAtRevision,
    );
    bad(
        vec![batch, both((2, 3), 1, vec![x, None])],
        Rule::WrongAtRevision,
    );
}

#[test]
fn a_batch_sees_its_own_steps() {
    let replies = vec![Reply::Put, Reply::Put, Reply::Get(None)];
    bad(vec![transfer((1, 2), replies)], Rule::Linearizable);
}

#[test]
fn an_answer_to_another_call_is_no_answer() {
    let wrong = operation(
        (1, 2),
        put_call("a"),
        Answer::Delete {
            revision: 2,
            deleted: true,
        },
    );
    bad(vec![wrong], Rule::Malformed);
}

/// Many calls without an answer must not make the search endless.
#[test]
fn a_hundred_lost_writes_are_searched_in_time() {
    let mut operations: Vec<_> = (0..100)
        .map(|nth| lost_put(nth + 1, &format!("lost{nth}")))
        .collect();
    operations.push(put((200, 201), "a", 300));
    operations.push(read((202, 203), 300, None));
    bad(operations, Rule::WrongAtRevision);
}
