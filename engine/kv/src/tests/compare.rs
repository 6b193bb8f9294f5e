//! Compare-and-swap, as a table.

use dengine_types::Revision;

use super::{bytes, command_entry, delete, put};
use crate::store::MemoryStore;
use crate::{Command, Expected, Outcome, StateMachine};

/// Runs a compare-and-swap on `a` after `before`; returns whether it succeeded, and the revision
/// afterwards.
fn swap(before: &[Command], expected: Expected) -> (bool, u64) {
    let mut machine = StateMachine::open(MemoryStore::default()).expect("open");
    let swap = Command::CompareAndSwap {
        key: bytes("a"),
        expected,
        value: bytes("new"),
        ttl_ms: 0,
    };
    let commands = before.iter().cloned().chain([swap]);
    let entries: Vec<_> = (1..)
        .zip(commands)
        .map(|(index, command)| command_entry(index, command))
        .collect();
    let last = machine.apply(&entries).expect("apply").pop();
    let Some(Outcome::CompareAndSwap {
        revision,
        succeeded,
        prev,
    }) = last.map(|applied| applied.outcome)
    else {
        panic!("the last answer belongs to the swap");
    };
    assert_eq!(revision, machine.revision());
    let (_, now) = machine.reader().get(&bytes("a"), None).expect("get");
    match now {
        Some(now) if succeeded => {
            assert_eq!(now.value, "new");
            assert_eq!(now.version, prev.map_or(1, |prev| prev.version + 1));
        }
        now => assert_eq!(now, prev, "a failed swap changes nothing"),
    }
    (succeeded, revision.0)
}

#[test]
fn by_mod_revision() {
    let revision = |number| Expected::ModRevision(Revision(number));
    assert_eq!(swap(&[], revision(0)), (true, 2));
    assert_eq!(swap(&[], revision(1)), (false, 1));
    assert_eq!(swap(&[put("a", "x")], revision(0)), (false, 2));
    assert_eq!(swap(&[put("a", "x")], revision(2)), (true, 3));
    assert_eq!(
        swap(&[put("a", "x"), put("a", "x")], revision(2)),
        (false, 3)
    );
    assert_eq!(swap(&[put("a", "x"), delete("a")], revision(0)), (true, 4));
    assert_eq!(swap(&[put("a", "x"), delete("a")], revision(2)), (false, 3));
}

#[test]
fn by_value() {
    let value = |text| Expected::Value(bytes(text));
    assert_eq!(swap(&[], value("")), (false, 1));
    assert_eq!(swap(&[put("a", "")], value("")), (true, 3));
    assert_eq!(swap(&[put("a", "x")], value("x")), (true, 3));
    assert_eq!(swap(&[put("a", "x")], value("y")), (false, 2));
    assert_eq!(swap(&[put("a", "x"), delete("a")], value("x")), (false, 3));
}
