//! Batches: one rule at a time, by example.

use bytes::Bytes;
use dengine_types::Revision;

use super::{apply, between, bytes, delete, everything, machine, put, run, show};
use crate::{
    BATCH_READ_BYTES_MAX, Batch, BatchAnswer, BatchOperation, Command, Compare, CompareTarget,
    KeyRange, Outcome, RANGE_DELETE_BYTES_MAX, Refusal, Relation,
};

fn set(key: &str, value: &str) -> BatchOperation {
    BatchOperation::put(bytes(key), bytes(value))
}

fn unset(keys: KeyRange) -> BatchOperation {
    BatchOperation::Delete {
        keys,
        prev_kv: false,
    }
}

fn get(keys: KeyRange) -> BatchOperation {
    BatchOperation::Get {
        keys,
        limit: 0,
        keys_only: false,
        count_only: false,
    }
}

fn one(key: &str) -> KeyRange {
    KeyRange::One(bytes(key))
}

fn compare(keys: KeyRange, relation: Relation, target: CompareTarget) -> Compare {
    Compare {
        keys,
        relation,
        target,
    }
}

fn then(operations: Vec<BatchOperation>) -> Command {
    Command::Batch(Batch {
        then: operations,
        ..Batch::default()
    })
}

/// Applies a batch; returns its revision, whether its comparisons held, and its answers.
fn batch(machine: &mut super::Machine, command: Command) -> (u64, bool, Vec<BatchAnswer>) {
    match apply(machine, command) {
        Outcome::Batch {
            revision,
            succeeded,
            answers,
        } => (revision.0, succeeded, answers),
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
fn all_changes_have_one_revision() {
    let mut machine = machine();
    run(&mut machine, [put("c", "0"), put("d", "0")]);
    let operations = vec![set("a", "1"), set("b", "2"), unset(between("c", "e"))];
    let (revision, succeeded, answers) = batch(&mut machine, then(operations));
    assert_eq!((revision, succeeded, answers.len()), (4, true, 3));
    assert_eq!(show(&machine, "a", None), "1 4/4/1");
    assert_eq!(show(&machine, "b", None), "2 4/4/1");
    assert_eq!(show(&machine, "c", None), "-");
    assert_eq!(show(&machine, "c", Some(3)), "0 2/2/1");
    assert_eq!(show(&machine, "a", Some(3)), "-");
}

#[test]
fn a_batch_that_changes_nothing_takes_no_revision() {
    let mut machine = machine();
    run(&mut machine, [put("a", "1")]);
    let read = then(vec![get(everything()), unset(one("z"))]);
    assert_eq!(batch(&mut machine, read).0, 2);
    let failing = Command::Batch(Batch {
        compares: vec![compare(
            one("a"),
            Relation::Equal,
            CompareTarget::Version(9),
        )],
        then: vec![set("a", "2")],
        otherwise: Vec::new(),
    });
    assert_eq!(batch(&mut machine, failing), (2, false, Vec::new()));
    assert_eq!(batch(&mut machine, then(Vec::new())), (2, true, Vec::new()));
    assert_eq!(run(&mut machine, [put("a", "2")]), {
        let prev = machine.reader().get(&bytes("a"), Some(Revision(2)));
        let (_, prev) = prev.expect("get");
        let revision = Revision(3);
        Outcome::Put { revision, prev }
    });
}

#[test]
fn reads_see_the_operations_before_them() {
    let mut machine = machine();
    run(&mut machine, [put("a", "1"), put("b", "1")]);
    let operations = vec![
        get(everything()),
        set("a", "2"),
        get(everything()),
        unset(one("b")),
        set("c", "2"),
        get(everything()),
    ];
    let (_, _, answers) = batch(&mut machine, then(operations));
    assert_eq!(pairs(&answers[0]).0, ["a=1@2", "b=1@3"]);
    assert_eq!(pairs(&answers[2]).0, ["a=2@4", "b=1@3"]);
    assert_eq!(pairs(&answers[5]).0, ["a=2@4", "c=2@4"]);
}

#[test]
fn failed_comparisons_run_the_other_operations() {
    let mut machine = machine();
    let create = Command::Batch(Batch {
        compares: vec![compare(
            one("a"),
            Relation::Equal,
            CompareTarget::ModRevision(Revision(0)),
        )],
        then: vec![set("a", "1")],
        otherwise: vec![get(one("a"))],
    });
    assert_eq!(
        batch(&mut machine, create.clone()),
        (2, true, vec![BatchAnswer::Put { prev: None }])
    );
    let (revision, succeeded, answers) = batch(&mut machine, create);
    assert_eq!((revision, succeeded), (2, false));
    assert_eq!(pairs(&answers[0]).0, ["a=1@2"]);
}

#[test]
fn comparisons_relate_the_key_to_the_operand() {
    use CompareTarget::{CreateRevision, ModRevision, Value, Version};
    use Relation::{Equal, Greater, Less, NotEqual};
    let mut machine = machine();
    // a: created by 2, changed by 3, version 2. b: 4, 4, 1.
    run(&mut machine, [put("a", "0"), put("a", "m"), put("b", "n")]);
    let both = || between("a", "c");
    let cases = [
        (one("a"), Equal, Version(2), true),
        (one("a"), Less, Version(2), false),
        (one("a"), Greater, Version(1), true),
        (one("a"), Equal, CreateRevision(Revision(2)), true),
        (one("a"), NotEqual, CreateRevision(Revision(2)), false),
        (one("a"), Equal, ModRevision(Revision(3)), true),
        (one("a"), Less, ModRevision(Revision(4)), true),
        (one("a"), Equal, Value(bytes("m")), true),
        (one("a"), Less, Value(bytes("n")), true),
        (one("a"), Greater, Value(bytes("m")), false),
        // The comparison must hold for every key of a range.
        (both(), Greater, Version(0), true),
        (both(), Greater, Version(1), false),
        (both(), Greater, Value(bytes("a")), true),
        (both(), Equal, Value(bytes("m")), false),
        // A missing key has zeros, and no value.
        (one("z"), Equal, Version(0), true),
        (one("z"), Less, ModRevision(Revision(1)), true),
        (one("z"), Equal, Value(Bytes::new()), false),
        (one("z"), NotEqual, Value(bytes("m")), false),
        (between("x", "z"), Equal, CreateRevision(Revision(0)), true),
        (between("x", "z"), NotEqual, Value(bytes("m")), false),
        (between("z", "x"), Equal, Version(0), true),
    ];
    for (keys, relation, target, expected) in cases {
        let compares = vec![compare(keys, relation, target)];
        let shown = format!("{compares:?}");
        let ask = Command::Batch(Batch {
            compares,
            ..Batch::default()
        });
        assert_eq!(batch(&mut machine, ask).1, expected, "{shown}");
    }
}

#[test]
fn comparisons_see_the_state_before_the_batch() {
    let mut machine = machine();
    let command = Command::Batch(Batch {
        compares: vec![
            compare(one("a"), Relation::Equal, CompareTarget::Version(0)),
            compare(one("a"), Relation::Less, CompareTarget::Version(1)),
        ],
        then: vec![set("a", "1")],
        otherwise: Vec::new(),
    });
    assert!(batch(&mut machine, command).1);
}

#[test]
fn a_batch_that_would_change_a_key_twice_is_refused() {
    let mut machine = machine();
    run(&mut machine, [put("b", "0")]);
    let twice: [Vec<BatchOperation>; 4] = [
        vec![set("a", "1"), set("a", "1")],
        vec![set("b", "1"), unset(one("b"))],
        vec![unset(between("a", "c")), set("b", "1")],
        vec![
            set("x", "1"),
            set("b", "1"),
            unset(KeyRange::From(bytes("c"))),
        ],
    ];
    for operations in twice {
        let chosen = then(operations.clone());
        assert_eq!(
            apply(&mut machine, chosen),
            Outcome::Refused(Refusal::DuplicateKey)
        );
        let not_chosen = Command::Batch(Batch {
            otherwise: operations,
            ..Batch::default()
        });
        assert_eq!(
            apply(&mut machine, not_chosen),
            Outcome::Refused(Refusal::DuplicateKey)
        );
    }
    assert_eq!(machine.revision(), Revision(2));
}

#[test]
fn keys_that_change_once_are_not_refused() {
    let mut machine = machine();
    run(&mut machine, [put("b", "0"), put("c", "0")]);
    let fine = Command::Batch(Batch {
        compares: Vec::new(),
        then: vec![
            set("a", "1"),
            unset(between("b", "c")),
            unset(between("a0", "d")),
            unset(between("z", "a")),
            set("d", "1"),
        ],
        otherwise: vec![set("a", "2")],
    });
    let (revision, _, answers) = batch(&mut machine, fine);
    let deleted = |answer: &BatchAnswer| match answer {
        BatchAnswer::Delete { deleted, .. } => *deleted,
        other => panic!("{other:?}"),
    };
    assert_eq!(revision, 4);
    assert_eq!(deleted(&answers[1]), 1);
    assert_eq!(deleted(&answers[2]), 1, "b is gone already");
    assert_eq!(deleted(&answers[3]), 0);
    run(&mut machine, [delete("a")]);
}

#[test]
fn the_reads_of_a_batch_share_a_limit_of_bytes() {
    let mut machine = machine();
    let large = "x".repeat(BATCH_READ_BYTES_MAX / 4);
    run(
        &mut machine,
        ["a", "b", "c", "d", "e"].map(|key| put(key, &large)),
    );
    let reads = then(vec![
        get(between("a", "c")),
        get(everything()),
        get(one("e")),
    ]);
    let (_, _, answers) = batch(&mut machine, reads);
    let size = |answer: &BatchAnswer| {
        let BatchAnswer::Get { kvs, more, count } = answer else {
            panic!("{answer:?}");
        };
        (kvs.len(), *more, *count)
    };
    let sizes: Vec<_> = answers.iter().map(size).collect();
    assert_eq!(sizes, [(2, false, 2), (2, true, 0), (0, true, 0)]);
}

#[test]
fn range_deletes_of_one_command_are_bounded_and_atomic() {
    const KEY_BYTES: usize = 32_000;
    let mut machine = machine();
    let fits = RANGE_DELETE_BYTES_MAX / (KEY_BYTES + 32);
    for number in 0..=fits {
        run(&mut machine, [put(&format!("{number:0KEY_BYTES$}"), "")]);
    }
    let before = machine.reader().revision();
    let too_much = Outcome::Refused(Refusal::DeletesTooMuch {
        bytes_max: RANGE_DELETE_BYTES_MAX as u64,
    });
    let all = || Command::Delete {
        keys: everything(),
        prev_kv: false,
    };
    assert_eq!(apply(&mut machine, all()), too_much);
    let halves = then(vec![
        set("other", "1"),
        unset(between("0", &format!("{:0KEY_BYTES$}", fits / 2))),
        unset(between(&format!("{:0KEY_BYTES$}", fits / 2), "1")),
    ]);
    assert_eq!(apply(&mut machine, halves), too_much);
    assert_eq!(machine.reader().revision(), before, "nothing was changed");
    assert_eq!(show(&machine, "other", None), "-");

    run(&mut machine, [delete(&format!("{:0KEY_BYTES$}", 0))]);
    let deleted = apply(&mut machine, all());
    assert!(
        matches!(deleted, Outcome::Delete { deleted, .. } if deleted == fits as u64),
        "{deleted:?}"
    );
}

#[test]
fn a_limit_and_flags_bound_a_read() {
    let mut machine = machine();
    run(&mut machine, ["a", "b", "c"].map(|key| put(key, "1")));
    let read = |limit, keys_only, count_only| BatchOperation::Get {
        keys: everything(),
        limit,
        keys_only,
        count_only,
    };
    let reads = vec![
        set("b", "2"),
        read(2, false, false),
        read(3, true, false),
        read(1, false, true),
    ];
    let (_, _, answers) = batch(&mut machine, then(reads));
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(pairs(&answers[1]), (names(&["a=1@2", "b=2@5"]), true, 0));
    assert_eq!(
        pairs(&answers[2]),
        (names(&["a=@2", "b=@5", "c=@4"]), false, 3)
    );
    assert_eq!(pairs(&answers[3]), (Vec::new(), false, 3));
}

#[test]
fn a_read_only_batch_reads_what_it_would_if_applied() {
    let mut machine = machine();
    run(&mut machine, ["a", "b", "c", "d"].map(|key| put(key, "1")));
    run(&mut machine, [delete("b")]);
    let read = |version| Batch {
        compares: vec![
            compare(one("a"), Relation::Equal, CompareTarget::Version(version)),
            compare(
                between("b", "d"),
                Relation::Greater,
                CompareTarget::ModRevision(Revision(2)),
            ),
        ],
        then: vec![get(everything()), get(between("a", "c"))],
        otherwise: vec![get(one("c")), get(one("b"))],
    };
    for version in [1, 2] {
        let found = machine.reader().batch(&read(version)).expect("read");
        let applied = apply(&mut machine, Command::Batch(read(version)));
        assert_eq!(found, Some(applied));
    }
    let writes = Batch {
        otherwise: vec![unset(one("never"))],
        ..read(1)
    };
    assert_eq!(machine.reader().batch(&writes), Ok(None));
    assert!(!writes.puts() && !writes.reads_only());
}

#[test]
fn overlapping_ranges_of_a_batch_delete_keys_once() {
    let mut machine = machine();
    run(&mut machine, ["a", "b", "c", "d"].map(|key| put(key, "")));
    let deletes = then(vec![
        unset(between("a", "c")),
        unset(between("b", "d")),
        unset(one("c")),
        unset(one("d")),
    ]);
    let (_, _, answers) = batch(&mut machine, deletes);
    let deleted: Vec<_> = answers
        .iter()
        .map(|answer| match answer {
            BatchAnswer::Delete { deleted, .. } => *deleted,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(deleted, [2, 1, 0, 1]);
}

/// The memory of waiting answers is limited by this.
#[test]
fn the_cost_of_an_answer_grows_with_its_pairs() {
    let cost = |keys: &[&str], value_bytes: usize| {
        let mut machine = machine();
        let value = "v".repeat(value_bytes);
        run(&mut machine, keys.iter().map(|key| put(key, &value)));
        let found = apply(&mut machine, then(vec![get(everything())])).pairs_bytes();
        let deleted = run(&mut machine, [super::delete_keys(everything())]).pairs_bytes();
        assert_eq!(found, deleted);
        found
    };
    let one = cost(&["a"], 0);
    assert!(one > 1);
    assert_eq!(cost(&[], 0), 0);
    assert_eq!(cost(&["a"], 1000), one + 1000);
    assert_eq!(cost(&["abcd"], 0), one + 3);
    assert_eq!(cost(&["a", "b", "c"], 10), 3 * (one + 10));
}
