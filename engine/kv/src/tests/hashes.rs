//! Hashes of the pairs of a revision: what they depend on, and what not.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dengine_types::Revision;

use super::{Machine, compact, delete, machine, put, put_for, run};
use crate::{Command, ReadError};

fn machine_with(commands: impl IntoIterator<Item = Command>) -> Machine {
    let mut machine = machine();
    run(&mut machine, commands);
    machine
}

fn hash(machine: &Machine, revision: u64) -> u64 {
    let hashed = machine.reader().revision_hash(Revision(revision));
    hashed.expect("a revision that can be read").hash
}

/// A member that was away for a while has applied less and compacted less.
#[test]
fn what_is_later_or_compacted_does_not_count() {
    let first = || [put("a", "1"), put("b", "2"), delete("a"), put("c", "3")];
    let behind = machine_with(first());
    let mut ahead = machine_with(first());
    run(&mut ahead, [put("b", "4"), delete("c"), compact(5)]);
    assert_eq!(hash(&ahead, 5), hash(&behind, 5));
    let hashed = ahead.reader().revision_hash(Revision(5)).expect("hash");
    let revisions = [hashed.revision, hashed.newest, hashed.compact_revision];
    assert_eq!(revisions, [5, 7, 5].map(Revision));
    assert_ne!(hash(&ahead, 6), hash(&ahead, 5));
}

#[test]
fn every_part_of_a_pair_counts() {
    let of = |commands: [Command; 2]| hash(&machine_with(commands), 3);
    let plain = of([put("a", "1"), put("b", "2")]);
    for others in [
        [put("a", "1"), put("c", "2")],
        [put("a", "1"), put("b", "3")],
        [put("b", "2"), put("a", "1")],
        [put("b", "2"), put("b", "2")],
        [put("a", "1"), put_for("b", "2", 9)],
        // The same bytes, with their boundary elsewhere.
        [put("a", "1"), put("b2", "")],
    ] {
        assert_ne!(of(others), plain);
    }
    assert_eq!(of([put("a", "1"), put("b", "2")]), plain);
}

#[test]
fn a_revision_that_cannot_be_read_has_no_hash() {
    let machine = machine_with([put("a", "1"), put("a", "2"), compact(3)]);
    let hash = |revision| machine.reader().revision_hash(Revision(revision));
    let is_compacted = |error| matches!(error, ReadError::Compacted { .. });
    assert!(hash(2).is_err_and(is_compacted));
    let is_future = |error| matches!(error, ReadError::Future { .. });
    assert!(hash(4).is_err_and(is_future));
    let stopped = machine
        .reader()
        .attended_by(Arc::new(AtomicBool::new(true)));
    let is_stopped = |error| matches!(error, ReadError::Stopped { .. });
    assert!(stopped.revision_hash(Revision(3)).is_err_and(is_stopped));
}
