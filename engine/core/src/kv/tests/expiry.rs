//! Time to live: one rule at a time, by example.

use super::{Machine, apply, bytes, delete, machine, put, put_for, run, show};
use crate::kv::store::MemoryStore;
use crate::kv::{
    Batch, BatchOperation, Command, Expected, ExpiredKey, Expiry, KeyRange, Outcome, Reader,
    StateMachine,
};
use crate::types::{Moment, Revision, SessionId};
use std::time::Duration;

fn ms(at: u64) -> Moment {
    Moment(0).after(Duration::from_millis(at))
}

fn expire(keys: &[(&str, u64)]) -> Command {
    Command::ExpireKeys {
        keys: keys
            .iter()
            .map(|(key, revision)| ExpiredKey {
                key: bytes(key),
                mod_revision: Revision(*revision),
            })
            .collect(),
    }
}

fn expired(revision: u64, deleted: u64) -> Outcome {
    Outcome::ExpireKeys {
        revision: Revision(revision),
        deleted,
    }
}

/// The keys in the index: `key@revision for ttl`.
fn index(machine: &Machine) -> Vec<String> {
    let keys = machine.reader().expiring_keys(None, usize::MAX);
    let keys = keys.expect("read").into_iter();
    keys.map(|it| {
        let key = it.key.escape_ascii();
        format!("{key}@{} for {}", it.mod_revision, it.ttl_ms)
    })
    .collect()
}

#[test]
fn a_key_carries_its_time_to_live() {
    let mut machine = machine();
    run(&mut machine, [put_for("a", "1", 70)]);
    let reader = machine.reader();
    let now = reader.get(&bytes("a"), None).expect("get").1;
    assert_eq!(now.expect("it is there").ttl_ms, 70);
    assert_eq!(index(&machine), ["a@2 for 70"]);
}

#[test]
fn a_plain_put_clears_an_old_time_to_live() {
    let mut machine = machine();
    run(&mut machine, [put_for("a", "1", 70), put("a", "2")]);
    assert_eq!(index(&machine), [""; 0]);
    let reader = machine.reader();
    let at = |revision| reader.get(&bytes("a"), revision).expect("get").1;
    assert_eq!(at(None).expect("it is there").ttl_ms, 0);
    let before = at(Some(Revision(2)));
    assert_eq!(before.expect("it was there").ttl_ms, 70);
    assert_eq!(
        apply(&mut machine, expire(&[("a", 2), ("a", 3)])),
        expired(3, 0)
    );
    assert_eq!(show(&machine, "a", None), "2 2/3/2");
}

#[test]
fn swaps_and_batches_set_and_clear_it_as_a_put_does() {
    let mut machine = machine();
    let swap = |revision, ttl_ms| Command::CompareAndSwap {
        key: bytes("a"),
        expected: Expected::ModRevision(Revision(revision)),
        value: bytes("x"),
        ttl_ms,
    };
    run(&mut machine, [swap(0, 50)]);
    assert_eq!(index(&machine), ["a@2 for 50"]);
    run(&mut machine, [swap(9, 0)]);
    assert_eq!(
        index(&machine),
        ["a@2 for 50"],
        "a failed swap changes nothing"
    );
    run(&mut machine, [swap(2, 0)]);
    assert_eq!(index(&machine), [""; 0]);
    let operation = |key, ttl_ms| BatchOperation::Put {
        key: bytes(key),
        value: bytes("x"),
        prev_kv: false,
        ttl_ms,
    };
    let batch = Command::Batch(Batch {
        then: vec![operation("c", 2), operation("b", 1), operation("a", 0)],
        ..Batch::default()
    });
    run(&mut machine, [batch]);
    assert_eq!(index(&machine), ["b@4 for 1", "c@4 for 2"]);
}

#[test]
fn deleted_keys_leave_the_index() {
    let mut machine = machine();
    run(&mut machine, [put_for("a", "1", 70), delete("a")]);
    assert_eq!(index(&machine), [""; 0]);
}

#[test]
fn an_expiry_is_a_no_op_if_the_key_changed_since() {
    let mut machine = machine();
    run(&mut machine, [put_for("a", "1", 70), put_for("a", "2", 70)]);
    assert_eq!(apply(&mut machine, expire(&[("a", 2)])), expired(3, 0));
    assert_eq!(apply(&mut machine, expire(&[("b", 0)])), expired(3, 0));
    assert_eq!(apply(&mut machine, expire(&[])), expired(3, 0));
    assert_eq!(show(&machine, "a", None), "2 2/3/2");
    assert_eq!(apply(&mut machine, expire(&[("a", 3)])), expired(4, 1));
    assert_eq!(show(&machine, "a", None), "-");
    assert_eq!(apply(&mut machine, expire(&[("a", 3)])), expired(4, 0));
}

#[test]
fn an_expiry_of_many_keys_takes_one_revision() {
    let mut machine = machine();
    run(
        &mut machine,
        [put_for("a", "1", 1), put_for("b", "1", 1), put("c", "1")],
    );
    let keys = [("a", 2), ("b", 3), ("b", 3), ("c", 4)];
    assert_eq!(apply(&mut machine, expire(&keys)), expired(5, 2));
    assert_eq!(show(&machine, "a", None), "-");
    assert_eq!(show(&machine, "b", None), "-");
    assert_eq!(show(&machine, "c", None), "1 4/4/1", "it never expires");
    assert_eq!(index(&machine), [""; 0]);
}

#[test]
fn the_index_is_read_on_from_where_it_ended() {
    let mut machine = machine();
    run(&mut machine, [put_for("b", "1", 1), put_for("a", "1", 2)]);
    let reader: Reader<MemoryStore> = machine.reader();
    let first = reader.expiring_keys(None, 1).expect("read");
    assert_eq!(first[0].key, "b");
    let second = reader.expiring_keys(first.last(), 9).expect("read");
    assert_eq!(second[0].key, "a");
    assert_eq!(second.len(), 1);
    run(&mut machine, [put_for("b", "1", 3)]);
    let third = reader.expiring_keys(second.last(), 9).expect("read");
    assert_eq!((third.len(), third[0].mod_revision), (1, Revision(4)));
}

#[test]
fn a_leader_proposes_an_expiry_when_the_time_is_over() {
    let mut machine = machine();
    run(&mut machine, [put_for("a", "1", 70), put_for("b", "1", 20)]);
    let mut leader = Expiry::default();
    let reader = machine.reader();
    leader.observe(&reader, ms(1000)).expect("observe");
    let due = |leader: &mut Expiry, at_ms: u64| leader.due(&reader, ms(at_ms), 9).expect("due");
    assert_eq!(due(&mut leader, 1019), []);
    assert_eq!(due(&mut leader, 1020), [expire(&[("b", 3)])]);
    assert_eq!(due(&mut leader, 1021), [], "it is proposed already");
    assert_eq!(due(&mut leader, 1070), [expire(&[("a", 2)])]);
    assert_eq!(due(&mut leader, 2020), [expire(&[("b", 3)])], "it got lost");
    run(&mut machine, [expire(&[("a", 2), ("b", 3)])]);
    assert_eq!(due(&mut leader, 9000), []);
}

#[test]
fn a_new_leader_starts_the_clock_again() {
    let mut machine = machine();
    run(&mut machine, [put_for("a", "1", 70)]);
    let reader = machine.reader();
    let mut leader = Expiry::default();
    leader.observe(&reader, ms(5_000_000)).expect("observe");
    let early = leader.due(&reader, ms(5_000_069), 9).expect("due");
    assert_eq!(early, []);
    let due = leader.due(&reader, ms(5_000_070), 9).expect("due");
    assert_eq!(due, [expire(&[("a", 2)])]);
}

#[test]
fn a_key_that_was_put_again_gets_its_whole_time() {
    let mut machine = machine();
    run(&mut machine, [put_for("a", "1", 70)]);
    let reader = machine.reader();
    let mut leader = Expiry::default();
    leader.observe(&reader, ms(0)).expect("observe");
    run(&mut machine, [put_for("a", "2", 70)]);
    leader.observe(&reader, ms(50)).expect("observe");
    assert_eq!(leader.due(&reader, ms(119), 9).expect("due"), []);
    let due = leader.due(&reader, ms(120), 9).expect("due");
    assert_eq!(due, [expire(&[("a", 3)])]);
}

#[test]
fn a_session_is_due_when_nothing_used_it() {
    let mut machine = machine();
    run(&mut machine, [Command::OpenSession { ttl_ms: 100 }]);
    let session = SessionId(1);
    let reader = machine.reader();
    let mut leader = Expiry::default();
    leader.observe(&reader, ms(0)).expect("observe");
    assert_eq!(leader.due(&reader, ms(99), 9).expect("due"), []);
    run(&mut machine, [Command::KeepAlive { session }]);
    assert_eq!(leader.due(&reader, ms(124), 9).expect("due"), []);
    assert_eq!(leader.due(&reader, ms(223), 9).expect("due"), []);
    let due = leader.due(&reader, ms(224), 9).expect("due");
    let [Command::ExpireSession { last_used, .. }] = due[..] else {
        panic!("{due:?}");
    };
    assert_eq!(last_used.0, 2);
    assert_eq!(
        run(&mut machine, due),
        Outcome::SessionClosed { closed: true }
    );
    leader.observe(&reader, ms(5000)).expect("observe");
    assert_eq!(leader.due(&reader, ms(5000), 9).expect("due"), []);
}

#[test]
fn a_session_that_is_used_all_the_time_never_expires() {
    let mut machine = machine();
    run(&mut machine, [Command::OpenSession { ttl_ms: 100 }]);
    let session = SessionId(1);
    let reader = machine.reader();
    let mut leader = Expiry::default();
    for at in (0..5000).step_by(10) {
        leader.observe(&reader, ms(at)).expect("observe");
        assert_eq!(leader.due(&reader, ms(at), 9).expect("due"), []);
        if at % 70 == 0 {
            run(&mut machine, [Command::KeepAlive { session }]);
        }
    }
}

#[test]
fn what_is_gone_is_forgotten() {
    let mut machine = machine();
    run(
        &mut machine,
        [put_for("a", "1", 5), Command::OpenSession { ttl_ms: 5 }],
    );
    let mut leader = Expiry::default();
    let reader = machine.reader();
    leader.observe(&reader, ms(0)).expect("observe");
    let session = SessionId(2);
    run(
        &mut machine,
        [delete("a"), Command::CloseSession { session }],
    );
    assert_eq!(leader.due(&reader, ms(9), 9).expect("due"), []);
    let known = format!("{leader:?}");
    assert!(known.contains("keys: {}"), "{known}");
    assert!(known.contains("sessions: {}"), "{known}");
    assert!(known.contains("session_looks: {}"), "{known}");
}

#[test]
fn ranges_of_any_keys_expire_after_a_restart() {
    let store = MemoryStore::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    run(
        &mut machine,
        [put_for("a\0b", "1", 70), put_for("", "1", 70)],
    );
    drop(machine);
    let mut machine = StateMachine::open(store).expect("open again");
    let mut leader = Expiry::default();
    leader.observe(&machine.reader(), ms(0)).expect("observe");
    let due = leader.due(&machine.reader(), ms(70), 9).expect("due");
    assert_eq!(run(&mut machine, due), expired(4, 2));
    let all = machine
        .reader()
        .range(&crate::kv::RangeQuery::new(KeyRange::From(bytes(""))));
    assert_eq!(all.expect("range").count, 0);
}
