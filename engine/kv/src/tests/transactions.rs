//! Batches within batches, reads of the past, and puts that keep a value: one rule at a time, by
//! example.

use bytes::Bytes;
use dengine_types::{EntryKind, LeaseId, Revision, SessionId};

use super::{
    Machine, apply, between, bytes, command_entry, compact, delete, entry, everything, machine,
    put, run, show, stamped,
};
use crate::outcome::{decode_kept, encode_kept};
use crate::visits::VisitBounds;
use crate::{
    BATCH_DEPTH_MAX, BATCH_KEPT_BYTES_MAX, BATCH_READ_BYTES_MAX, Batch, BatchAnswer,
    BatchOperation, Command, CommandError, CommandVersion, Compare, CompareTarget, KeyRange,
    Outcome, Put, PutLease, RANGE_VISIT_BYTES_MAX, RANGE_VISIT_KEYS_MAX, READER_BATCH_BYTES_MAX,
    RangeRead, Refusal, Relation, Request, RunningRevision, Selection, SortBy, SortOrder,
};

fn set(key: &str, value: &str) -> BatchOperation {
    BatchOperation::put(bytes(key), bytes(value))
}

/// A put that keeps the value of the key.
fn touch(key: &str) -> BatchOperation {
    BatchOperation::Put(Put {
        ignore_value: true,
        prev_kv: true,
        ..Put::new(bytes(key), Bytes::new())
    })
}

fn unset(keys: KeyRange) -> BatchOperation {
    BatchOperation::Delete {
        keys,
        prev_kv: false,
    }
}

fn read(read: RangeRead) -> BatchOperation {
    BatchOperation::Range(Box::new(read))
}

fn read_at(keys: KeyRange, revision: Option<u64>) -> BatchOperation {
    read(RangeRead {
        revision: revision.map(Revision),
        ..RangeRead::new(keys)
    })
}

fn one(key: &str) -> KeyRange {
    KeyRange::One(bytes(key))
}

fn within(batch: Batch) -> BatchOperation {
    BatchOperation::Batch(Box::new(batch))
}

fn then(operations: Vec<BatchOperation>) -> Batch {
    Batch {
        then: operations,
        ..Batch::default()
    }
}

fn exists(key: &str) -> Compare {
    Compare {
        keys: one(key),
        relation: Relation::Greater,
        target: CompareTarget::Version(0),
    }
}

/// Puts one of two keys, whether `key` exists.
fn if_exists(key: &str, yes: &str, no: &str) -> Batch {
    Batch {
        compares: vec![exists(key)],
        then: vec![set(yes, "1")],
        otherwise: vec![set(no, "1")],
    }
}

/// Applies a batch; returns its revision and its answers.
fn done(machine: &mut Machine, batch: Batch) -> (u64, Vec<BatchAnswer>) {
    match apply(machine, Command::Batch(batch)) {
        Outcome::Batch {
            revision, answers, ..
        } => (revision.0, answers),
        other => panic!("{other:?}"),
    }
}

fn refused(machine: &mut Machine, batch: Batch) -> Refusal {
    let before = machine.revision();
    let outcome = apply(machine, Command::Batch(batch));
    assert_eq!(machine.revision(), before);
    match outcome {
        Outcome::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

/// The pairs of a read, whether there are more, and the count.
fn pairs(answer: &BatchAnswer) -> (Vec<String>, bool, u64) {
    let BatchAnswer::Get { kvs, more, count } = answer else {
        panic!("{answer:?}");
    };
    let show = |kv: &crate::KeyValue| {
        let (key, value) = (kv.key.escape_ascii(), kv.value.escape_ascii());
        format!("{key}={value}@{}", kv.mod_revision)
    };
    (kvs.iter().map(show).collect(), *more, *count)
}

#[test]
fn all_comparisons_see_the_state_before_the_first_operation() {
    let mut machine = machine();
    let inner = Batch {
        then: vec![set("deep", "1"), within(if_exists("a", "a-is", "a-is-not"))],
        ..if_exists("b", "-", "b-is-not")
    };
    run(&mut machine, [put("b", "0")]);
    let batch = then(vec![set("a", "1"), unset(one("b")), within(inner)]);
    let (revision, answers) = done(&mut machine, batch);
    assert_eq!(revision, 3);
    let BatchAnswer::Batch { succeeded, answers } = &answers[2] else {
        panic!("{answers:?}");
    };
    assert!(succeeded, "b existed before it was deleted");
    let of_deepest = BatchAnswer::Batch {
        succeeded: false,
        answers: vec![BatchAnswer::Put { prev: None }],
    };
    assert_eq!(answers[..], [BatchAnswer::Put { prev: None }, of_deepest]);
    assert_eq!(show(&machine, "a-is-not", None), "1 3/3/1");
    assert_eq!(show(&machine, "a-is", None), "-");
    assert_eq!(show(&machine, "b-is-not", None), "-");
}

#[test]
fn keys_that_batches_within_change_twice_are_found() {
    let mut machine = machine();
    run(&mut machine, [put("b", "0")]);
    let put_b = || within(then(vec![set("b", "1")]));
    let otherwise = |operations| Batch {
        otherwise: operations,
        ..Batch::default()
    };
    let all = || unset(everything());
    let twice = [
        vec![set("b", "1"), put_b()],
        vec![put_b(), set("b", "1")],
        vec![put_b(), put_b()],
        vec![put_b(), unset(between("a", "c"))],
        vec![all(), put_b()],
        // Both orders in sisters; etcd refuses one of them.
        vec![put_b(), within(then(vec![all()]))],
        vec![within(then(vec![all()])), put_b()],
        vec![put_b(), within(otherwise(vec![unset(one("b"))]))],
        vec![within(then(vec![within(then(vec![set("b", "1"), all()]))]))],
        vec![unset(between("a", "b")), unset(between("a", "bb")), put_b()],
        vec![
            unset(between("0", "1")),
            unset(one("b")),
            set("a", "1"),
            put_b(),
        ],
    ];
    for operations in twice {
        let shown = format!("{operations:?}");
        let batch = then(operations.clone());
        assert_eq!(
            refused(&mut machine, batch),
            Refusal::DuplicateKey,
            "{shown}"
        );
        let batch = otherwise(operations);
        assert_eq!(
            refused(&mut machine, batch),
            Refusal::DuplicateKey,
            "{shown}"
        );
    }
    let either = Batch {
        compares: vec![exists("b")],
        then: vec![set("b", "1")],
        otherwise: vec![unset(one("b")), unset(one("b")), set("a", "2")],
    };
    let fine = then(vec![
        set("a0", "1"),
        within(either),
        unset(between("a1", "b")),
        unset(between("bb", "z")),
        set("z", "1"),
        unset(between("x", "c")),
    ]);
    assert_eq!(done(&mut machine, fine).0, 3);
    assert_eq!(show(&machine, "b", None), "1 2/3/2");
}

#[test]
fn reads_of_the_past_do_not_see_the_batch() {
    let mut machine = machine();
    run(
        &mut machine,
        [put("a", "1"), put("b", "2"), put("a", "3"), delete("b")],
    );
    let batch = then(vec![
        read_at(everything(), Some(3)),
        set("a", "4"),
        read_at(everything(), Some(5)),
        read_at(everything(), None),
        read_at(one("b"), Some(4)),
        read_at(one("b"), Some(1)),
    ]);
    let (_, answers) = done(&mut machine, batch);
    let found = |at: usize| pairs(&answers[at]).0;
    assert_eq!(found(0), ["a=1@2", "b=2@3"]);
    assert_eq!(found(2), ["a=3@4"]);
    assert_eq!(found(3), ["a=4@6"]);
    assert_eq!(found(4), ["b=2@3"]);
    assert_eq!(found(5), [""; 0]);
}

/// What the entries before it in a run of entries have changed is not written yet.
#[test]
fn reads_of_the_past_see_entries_of_the_same_run() {
    let reads = || Command::Batch(then(vec![set("x", "1"), read_at(everything(), Some(3))]));
    let commands = [
        put("a", "1"),
        put("a", "2"),
        put("a", "3"),
        reads(),
        put("b", "1"),
        reads(),
    ];
    let entries = (1..).zip(commands);
    let entries: Vec<_> = entries
        .map(|(at, command)| command_entry(at, command))
        .collect();
    let mut machine = machine();
    let applied = machine.apply(&entries).expect("apply");
    assert_eq!(applied.len(), 6);
    for place in [3, 5] {
        let Outcome::Batch { answers, .. } = &applied[place].outcome else {
            panic!("{:?}", applied[place]);
        };
        assert_eq!(pairs(&answers[1]).0, ["a=2@3"]);
    }
}

#[test]
fn revisions_that_cannot_be_read_refuse_the_whole_batch() {
    let mut machine = machine();
    run(
        &mut machine,
        [put("a", "1"), put("a", "2"), put("a", "3"), compact(3)],
    );
    let batch = |at| {
        then(vec![
            set("b", "1"),
            within(then(vec![read_at(one("a"), Some(at))])),
        ])
    };
    let (current, compacted) = (Revision(4), Revision(3));
    let future = Refusal::Future {
        requested: Revision(5),
        current,
    };
    assert_eq!(refused(&mut machine, batch(5)), future);
    let gone = Refusal::Compacted {
        requested: Revision(2),
        compacted,
    };
    assert_eq!(refused(&mut machine, batch(2)), gone);
    assert_eq!(done(&mut machine, batch(3)).0, 5);
    // What is not done is not asked for.
    let not_done = Batch {
        otherwise: vec![read_at(one("a"), Some(99))],
        ..then(Vec::new())
    };
    assert_eq!(done(&mut machine, not_done), (5, Vec::new()));
}

#[test]
fn a_whole_read_counts_all_and_returns_what_is_selected() {
    let mut machine = machine();
    run(&mut machine, ["a", "b", "c"].map(|key| put(key, "1")));
    run(&mut machine, [put("a", "2")]);
    let newest_first = Selection {
        order: SortOrder::Descending,
        by: SortBy::ModRevision,
        ..Selection::default()
    };
    let sorted = |limit| {
        read(RangeRead {
            limit,
            keys_only: true,
            selection: newest_first,
            ..RangeRead::new(everything())
        })
    };
    let counted = read(RangeRead {
        count_only: true,
        limit: 1,
        ..RangeRead::new(everything())
    });
    let (_, answers) = done(
        &mut machine,
        then(vec![set("d", "1"), sorted(2), sorted(0), counted]),
    );
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(pairs(&answers[1]), (names(&["d=@6", "a=@5"]), true, 4));
    assert_eq!(
        pairs(&answers[2]),
        (names(&["d=@6", "a=@5", "c=@4", "b=@3"]), false, 4)
    );
    assert_eq!(pairs(&answers[3]), (Vec::new(), false, 4));
}

#[test]
fn whole_reads_that_return_too_much_refuse_a_batch_that_writes() {
    let mut machine = machine();
    let large = "x".repeat(BATCH_READ_BYTES_MAX / 4);
    run(
        &mut machine,
        ["a", "b", "c", "d"].map(|key| put(key, &large)),
    );
    let reads = |limit| {
        let of_two = RangeRead::new(between("a", "c"));
        let rest = RangeRead {
            limit,
            ..RangeRead::new(everything())
        };
        then(vec![
            set("e", "1"),
            unset(one("d")),
            read(of_two),
            read(rest),
        ])
    };
    let too_much = Refusal::ReadsTooMuch {
        bytes_max: BATCH_READ_BYTES_MAX as u64,
    };
    assert_eq!(refused(&mut machine, reads(0)), too_much);
    assert_eq!(show(&machine, "e", None), "-");
    let (_, answers) = done(&mut machine, reads(1));
    assert_eq!(pairs(&answers[3]).2, 4);
    // Nothing waits for a batch that only reads.
    let all = then(vec![
        read(RangeRead::new(everything())),
        read(RangeRead::new(everything())),
    ]);
    let found = machine.reader().batch(&all).expect("read");
    let Some(Outcome::Batch { answers, .. }) = found else {
        panic!("{found:?}");
    };
    assert!(answers.iter().all(|answer| pairs(answer).0.len() == 4));
    assert_eq!(refused(&mut machine, all), too_much);
}

/// A few kilobytes of request would be gigabytes in every member's memory, each time that the log
/// is applied.
#[test]
fn a_batch_keeps_values_up_to_a_bound() {
    let mut machine = machine();
    let large = "x".repeat(BATCH_KEPT_BYTES_MAX / 4);
    let keys = ["a", "b", "c", "d", "e"];
    run(&mut machine, keys.map(|key| put(key, &large)));
    done(
        &mut machine,
        then(keys[..4].iter().map(|key| touch(key)).collect()),
    );
    let before = show(&machine, "a", None);
    let five = keys.iter().map(|key| touch(key)).collect();
    let too_much = Refusal::ReadsTooMuch {
        bytes_max: BATCH_KEPT_BYTES_MAX as u64,
    };
    assert_eq!(refused(&mut machine, then(five)), too_much);
    assert_eq!(show(&machine, "a", None), before);
}

/// Each comparison of a large value costs as much as a range that visits it.
#[test]
fn what_is_compared_and_read_of_single_keys_is_bounded() {
    let mut machine = machine();
    let large = "x".repeat(1 << 20);
    run(&mut machine, [put("a", &large), put("b", "1")]);
    let most = RANGE_VISIT_BYTES_MAX >> 20;
    let compares = |many: usize| Batch {
        compares: (0..many)
            .map(|_| Compare {
                keys: one("a"),
                relation: Relation::Greater,
                target: CompareTarget::Value(Bytes::new()),
            })
            .collect(),
        then: vec![touch("b")],
        otherwise: Vec::new(),
    };
    let too_large = Refusal::RangesTooLarge {
        keys_max: RANGE_VISIT_KEYS_MAX as u64,
        bytes_max: RANGE_VISIT_BYTES_MAX as u64,
    };
    done(&mut machine, compares(most / 2));
    let before = show(&machine, "b", None);
    assert_eq!(refused(&mut machine, compares(most + 1)), too_large);
    assert_eq!(show(&machine, "b", None), before);
    // One that only reads returns less than it may visit.
    let reads = |many: usize| then((0..many).map(|_| read(RangeRead::new(one("a")))).collect());
    let answer = |batch| machine.reader().batch(&batch).expect("read");
    let fits = (READER_BATCH_BYTES_MAX >> 20) - 1;
    assert!(matches!(answer(reads(fits)), Some(Outcome::Batch { .. })));
    let too_much = Refusal::ReadsTooMuch {
        bytes_max: READER_BATCH_BYTES_MAX as u64,
    };
    assert_eq!(answer(reads(fits + 2)), Some(Outcome::Refused(too_much)));
}

/// A member that applies all of them in one step must refuse what one refuses that takes them one
/// by one.
#[test]
fn a_single_key_that_is_deleted_costs_nothing_wherever_the_step_begins() {
    let reads = then(vec![read_at(one("b"), None), read_at(one("a"), None)]);
    let entries = [
        put("a", "1"),
        put("b", "1"),
        delete("a"),
        Command::Batch(reads),
    ];
    let entries = (1..)
        .zip(entries)
        .map(|(index, it)| command_entry(index, it));
    let entries = entries.collect::<Vec<_>>();
    let outcomes_of = |entries_of_a_step: usize| {
        let mut machine = machine();
        machine.bound_visits(VisitBounds {
            keys: 1,
            ..VisitBounds::ALL
        });
        let steps = entries.chunks(entries_of_a_step);
        let applied = steps.flat_map(|step| machine.apply(step).expect("apply"));
        applied.map(|it| it.outcome).collect::<Vec<_>>()
    };
    let one_by_one = outcomes_of(1);
    assert!(matches!(one_by_one[3], Outcome::Batch { .. }));
    assert_eq!(outcomes_of(4), one_by_one);
}

#[test]
fn a_lease_that_is_missing_is_told_before_a_key_that_is() {
    let mut machine = machine();
    let unknown = LeaseId(7);
    let lease = PutLease::Attach(unknown);
    let keep = Command::Put(Put {
        ignore_value: true,
        lease,
        ..Put::new(bytes("a"), Bytes::new())
    });
    let missing = Refusal::LeaseNotFound(unknown);
    assert_eq!(apply(&mut machine, keep), Outcome::Refused(missing.clone()));
    let kept = BatchOperation::Put(Put {
        ignore_value: true,
        lease,
        ..Put::new(bytes("a"), Bytes::new())
    });
    assert_eq!(refused(&mut machine, then(vec![kept])), missing);
}

#[test]
fn a_put_may_keep_the_value() {
    let mut machine = machine();
    let keep = |key: &str| {
        Command::Put(Put {
            ignore_value: true,
            prev_kv: true,
            ..Put::new(bytes(key), Bytes::new())
        })
    };
    let not_found = Outcome::Refused(Refusal::KeyNotFound);
    assert_eq!(apply(&mut machine, keep("a")), not_found);
    run(&mut machine, [put("a", "1"), keep("a")]);
    assert_eq!(show(&machine, "a", None), "1 2/3/2");
    let (_, answers) = done(&mut machine, then(vec![set("b", "1"), touch("a")]));
    assert!(matches!(&answers[1], BatchAnswer::Put { prev: Some(kv) } if kv.value == "1"));
    assert_eq!(show(&machine, "a", None), "1 2/4/3");
    // Not even a key that the batch puts itself: it would be put twice.
    let absent = then(vec![set("c", "1"), within(then(vec![touch("z")]))]);
    assert_eq!(refused(&mut machine, absent), Refusal::KeyNotFound);
    assert_eq!(show(&machine, "c", None), "-");
    run(&mut machine, [delete("a")]);
    assert_eq!(apply(&mut machine, keep("a")), not_found);
}

#[test]
fn a_batch_that_only_reads_is_answered_as_if_applied() {
    let mut machine = machine();
    run(
        &mut machine,
        [put("a", "1"), put("b", "2"), delete("a"), compact(3)],
    );
    let batch = |at| Batch {
        compares: vec![exists("b")],
        then: vec![
            within(Batch {
                compares: vec![exists("a")],
                then: vec![read_at(everything(), None)],
                otherwise: vec![read_at(everything(), Some(at)), read_at(everything(), None)],
            }),
            read_at(one("b"), None),
        ],
        otherwise: Vec::new(),
    };
    for at in [2, 3, 4, 5] {
        let found = machine.reader().batch(&batch(at)).expect("read");
        assert_eq!(
            found,
            Some(apply(&mut machine, Command::Batch(batch(at)))),
            "{at}"
        );
    }
    let writes = then(vec![within(then(vec![unset(one("never"))]))]);
    assert_eq!(machine.reader().batch(&writes), Ok(None));
    assert!(!writes.puts());
    assert!(then(vec![within(then(vec![touch("never")]))]).puts());
}

#[test]
fn each_operation_has_the_revision_of_its_time() {
    let mut machine = machine();
    run(&mut machine, [put("a", "1")]);
    let get = || read_at(one("a"), None);
    let batch = then(vec![
        get(),
        unset(one("none")),
        within(then(vec![get(), set("b", "1"), get()])),
        unset(one("a")),
    ]);
    let (revision, answers) = done(&mut machine, batch);
    let mut running = RunningRevision::new(Revision(revision), &answers);
    let BatchAnswer::Batch { answers: inner, .. } = &answers[2] else {
        panic!("{answers:?}");
    };
    let singles = answers[..2].iter().chain(inner).chain(&answers[3..]);
    let revisions: Vec<_> = singles.map(|answer| running.after(answer).0).collect();
    assert_eq!(revisions, [2, 2, 2, 3, 3, 3]);
    let (revision, answers) = done(&mut machine, then(vec![get(), unset(one("a"))]));
    let mut running = RunningRevision::new(Revision(revision), &answers);
    assert_eq!([0, 1].map(|at| running.after(&answers[at]).0), [3, 3]);
}

/// As deep as it may be, and one more.
fn nested(depth: usize) -> Batch {
    (1..depth).fold(then(vec![set("deep", "1")]), |inner, _| {
        then(vec![within(inner)])
    })
}

#[test]
fn batches_are_within_each_other_to_a_bound() {
    let mut machine = machine();
    let deepest = nested(BATCH_DEPTH_MAX);
    assert_eq!(deepest.depth(), BATCH_DEPTH_MAX);
    let session = SessionId(1);
    apply(&mut machine, Command::OpenSession { ttl_ms: 1 });
    let request = stamped(session, 1, 0, Command::Batch(deepest));
    let outcome = apply(&mut machine, request.clone());
    assert_eq!(
        decode_kept(encode_kept(&outcome).into()).as_ref(),
        Ok(&outcome)
    );
    assert_eq!(
        apply(&mut machine, request),
        outcome,
        "the session's answer is as it was"
    );
    let too_deep = [BATCH_DEPTH_MAX + 1, 60].map(nested);
    for batch in too_deep {
        let outcome = apply(&mut machine, Command::Batch(batch));
        let is_malformed = matches!(outcome, Outcome::Rejected(CommandError::Malformed(_)));
        assert!(is_malformed, "{outcome:?}");
    }
}

#[test]
fn bytes_of_batches_within_each_other_without_end_are_no_command() {
    let field = |tag: u8, message: &[u8]| {
        let mut bytes = vec![tag << 3 | 2];
        prost::encoding::encode_varint(message.len() as u64, &mut bytes);
        bytes.extend_from_slice(message);
        bytes
    };
    let mut batch = Vec::new();
    for _ in 0..2_000 {
        // An operation of the list `then`, which is a batch.
        batch = field(2, &field(5, &batch));
    }
    let data = [vec![4], field(5, &batch)].concat();
    let decoded = Request::decode(data.into()).expect("it is no newer version");
    assert!(
        matches!(decoded, Err(CommandError::Malformed(_))),
        "{decoded:?}"
    );
}

/// Programs before it read entries of older versions so.
#[test]
fn what_is_new_means_nothing_in_an_older_version() {
    let new = [
        Command::Batch(then(vec![within(Batch::default())])),
        Command::Batch(then(vec![read_at(everything(), None)])),
        Command::Batch(then(vec![touch("a")])),
        Command::Put(Put {
            ignore_value: true,
            ..Put::new(bytes("a"), bytes("new"))
        }),
    ];
    let mut machine = machine();
    run(&mut machine, [put("a", "1")]);
    let mut outcomes = Vec::new();
    for command in new {
        let request = Request::from(command);
        assert_eq!(request.version_needed(), CommandVersion::V4);
        let mut data = request.encode(CommandVersion::OLDEST).to_vec();
        assert_eq!(data[0], 4);
        data[0] = 3;
        let index = machine.applied().0.next().0;
        let older = entry(index, EntryKind::Command, data.into());
        outcomes.push(machine.apply(&[older]).expect("apply").remove(0).outcome);
    }
    let rejected = Outcome::Rejected(CommandError::Incomplete("operation"));
    assert_eq!(outcomes[..2], [rejected.clone(), rejected]);
    assert!(matches!(outcomes[2], Outcome::Batch { .. }));
    assert_eq!(show(&machine, "a", None), "new 2/4/3");
}
