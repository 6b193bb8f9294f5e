//! Time to live: one rule at a time, by example.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use dengine_types::{Moment, Revision, SessionId};

use super::{Machine, apply, bytes, command_entry, delete, machine, put, put_for, run, show};
use crate::store::MemoryStore;
use crate::{
    Batch, BatchOperation, Command, CommandVersion, Expected, ExpiredKey, Expiry, KeyRange,
    Outcome, Put, Reader, Request, StateMachine,
};

fn ms(at: u64) -> Moment {
    Moment(0).after(Duration::from_millis(at))
}

/// A clock that stands still.
fn at(at_ms: u64) -> impl FnMut() -> Moment {
    move || ms(at_ms)
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
fn a_key_has_the_time_to_live_of_its_put() {
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
fn swaps_and_batches_set_and_clear_a_time_to_live_like_puts() {
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
    let operation = |key, ttl_ms| {
        BatchOperation::Put(Put {
            ttl_ms,
            ..Put::new(bytes(key), bytes("x"))
        })
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
fn the_index_is_read_in_pages() {
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
fn a_leader_proposes_an_expiry_once_the_time_is_over() {
    let mut machine = machine();
    run(&mut machine, [put_for("a", "1", 70), put_for("b", "1", 20)]);
    let mut leader = Expiry::default();
    let reader = machine.reader();
    leader.observe(&reader, at(1000)).expect("observe");
    let due = |leader: &mut Expiry, at_ms: u64| leader.due(&reader, at(at_ms), 9).expect("due");
    assert_eq!(due(&mut leader, 1019), []);
    assert_eq!(due(&mut leader, 1020), [expire(&[("b", 3)])]);
    assert_eq!(due(&mut leader, 1021), [], "it is proposed already");
    assert_eq!(due(&mut leader, 1070), [expire(&[("a", 2)])]);
    assert_eq!(due(&mut leader, 5020), [expire(&[("b", 3)])], "it got lost");
    run(&mut machine, [expire(&[("a", 2), ("b", 3)])]);
    assert_eq!(due(&mut leader, 9000), []);
}

#[test]
fn a_new_leader_starts_the_clock_again() {
    let mut machine = machine();
    run(&mut machine, [put_for("a", "1", 70)]);
    let reader = machine.reader();
    let mut leader = Expiry::default();
    leader.observe(&reader, at(5_000_000)).expect("observe");
    let early = leader.due(&reader, at(5_000_069), 9).expect("due");
    assert_eq!(early, []);
    let due = leader.due(&reader, at(5_000_070), 9).expect("due");
    assert_eq!(due, [expire(&[("a", 2)])]);
}

#[test]
fn a_key_that_is_put_again_lives_for_the_full_time() {
    let mut machine = machine();
    run(&mut machine, [put_for("a", "1", 70)]);
    let reader = machine.reader();
    let mut leader = Expiry::default();
    leader.observe(&reader, at(0)).expect("observe");
    run(&mut machine, [put_for("a", "2", 70)]);
    leader.observe(&reader, at(50)).expect("observe");
    assert_eq!(leader.due(&reader, at(119), 9).expect("due"), []);
    let due = leader.due(&reader, at(120), 9).expect("due");
    assert_eq!(due, [expire(&[("a", 3)])]);
}

#[test]
fn an_unused_session_becomes_due() {
    let mut machine = machine();
    run(&mut machine, [Command::OpenSession { ttl_ms: 100 }]);
    let session = SessionId(1);
    let reader = machine.reader();
    let mut leader = Expiry::default();
    leader.observe(&reader, at(0)).expect("observe");
    assert_eq!(leader.due(&reader, at(99), 9).expect("due"), []);
    run(&mut machine, [Command::KeepAlive { session }]);
    assert_eq!(leader.due(&reader, at(124), 9).expect("due"), []);
    assert_eq!(leader.due(&reader, at(223), 9).expect("due"), []);
    let due = leader.due(&reader, at(224), 9).expect("due");
    let [Command::ExpireSession { last_used, .. }] = due[..] else {
        panic!("{due:?}");
    };
    assert_eq!(last_used.0, 2);
    assert_eq!(
        run(&mut machine, due),
        Outcome::SessionClosed { closed: true }
    );
    leader.observe(&reader, at(5000)).expect("observe");
    assert_eq!(leader.due(&reader, at(5000), 9).expect("due"), []);
}

#[test]
fn sessions_expire_a_few_at_a_time() {
    let mut machine = machine();
    run(
        &mut machine,
        (0..5).map(|_| Command::OpenSession { ttl_ms: 100 }),
    );
    let reader = machine.reader();
    let mut leader = Expiry::default();
    leader.observe(&reader, at(0)).expect("observe");
    let mut sessions = Vec::new();
    for expected in [2, 2, 1, 0] {
        let due = leader.due_sessions(&reader, &mut at(100), 2);
        let due = due.expect("due");
        assert_eq!(due.len(), expected);
        sessions.extend(due.into_iter().map(|due| match due.command {
            Command::ExpireSession { session, .. } => session.0,
            other => panic!("{other:?}"),
        }));
    }
    assert_eq!(sessions, [1, 2, 3, 4, 5]);
}

#[test]
fn the_time_overdue_of_the_first_due_key_is_reported() {
    let mut machine = machine();
    run(
        &mut machine,
        [put_for("a", "1", 100), put_for("b", "1", 1_000)],
    );
    let mut leader = Expiry::default();
    assert_eq!(leader.overdue(ms(5_000)), None, "it knows of none");
    leader.observe(&machine.reader(), at(0)).expect("observe");
    assert_eq!(leader.overdue(ms(99)), None);
    // A key is due when the time of its whole class is over, a little later than its own.
    let (is_due, late) = (ms(110), Duration::from_millis(5));
    let overdue = leader.overdue(is_due).expect("the first is due");
    assert!(overdue < Duration::from_millis(11), "{overdue:?}");
    assert_eq!(leader.overdue(is_due.after(late)), Some(overdue + late));
}

#[test]
fn a_session_that_is_used_all_the_time_never_expires() {
    let mut machine = machine();
    run(&mut machine, [Command::OpenSession { ttl_ms: 100 }]);
    let session = SessionId(1);
    let reader = machine.reader();
    let mut leader = Expiry::default();
    for at in (0..5000).step_by(10) {
        leader.observe(&reader, || ms(at)).expect("observe");
        assert_eq!(leader.due(&reader, || ms(at), 9).expect("due"), []);
        if at % 70 == 0 {
            run(&mut machine, [Command::KeepAlive { session }]);
        }
    }
}

#[test]
fn deleted_keys_and_closed_sessions_are_dropped() {
    let mut machine = machine();
    run(
        &mut machine,
        [put_for("a", "1", 5), Command::OpenSession { ttl_ms: 5 }],
    );
    let mut leader = Expiry::default();
    let reader = machine.reader();
    leader.observe(&reader, at(0)).expect("observe");
    let session = SessionId(2);
    run(
        &mut machine,
        [delete("a"), Command::CloseSession { session }],
    );
    assert_eq!(leader.due(&reader, at(9), 9).expect("due"), []);
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
    leader.observe(&machine.reader(), at(0)).expect("observe");
    let due = leader.due(&machine.reader(), at(70), 9).expect("due");
    assert_eq!(run(&mut machine, due), expired(4, 2));
    let all = machine
        .reader()
        .range(&crate::RangeQuery::new(KeyRange::From(bytes(""))));
    assert_eq!(all.expect("range").count, Some(0));
}

/// A clock that advances by a second at each reading.
fn ticking(seconds: &Cell<u64>) -> impl FnMut() -> Moment {
    || {
        seconds.set(seconds.get() + 1);
        ms(seconds.get() * 1000)
    }
}

/// Puts and sessions of this time to live, more than are read at once, and the leader that has just
/// read them.
fn long_index(ttl_ms: u64, seconds: &Cell<u64>) -> (Machine, Expiry) {
    const MANY: u64 = 1500;
    let mut machine = machine();
    let commands = (0..MANY).flat_map(|number| {
        let put = put_for(&number.to_string(), "1", ttl_ms);
        [put, Command::OpenSession { ttl_ms }]
    });
    let entries: Vec<_> = (1..)
        .zip(commands)
        .map(|(index, command)| command_entry(index, command))
        .collect();
    machine.apply(&entries).expect("apply");
    let mut leader = Expiry::default();
    let observed = leader.observe(&machine.reader(), ticking(seconds));
    observed.expect("observe");
    assert!(seconds.get() >= 4, "the clock goes on while it reads");
    (machine, leader)
}

#[test]
fn keys_read_late_live_for_the_full_time_from_then_on() {
    let seconds = Cell::new(1000);
    let (machine, mut leader) = long_index(2000, &seconds);
    // The second page of keys was read at 1002, of sessions at 1004.
    let due = leader.due(&machine.reader(), at(1_003_999), usize::MAX);
    let due = due.expect("due");
    let [Command::ExpireKeys { keys }] = &due[..] else {
        panic!("{due:?}");
    };
    assert_eq!(keys.len(), 1024, "the first page, and no session");
    let due = leader.due(&machine.reader(), at(1_004_000), usize::MAX);
    let due = due.expect("due");
    let Some(Command::ExpireKeys { keys }) = due.last() else {
        panic!("{due:?}");
    };
    assert!(keys.len() >= 1500 - 1024);
}

#[test]
fn a_session_use_read_late_extends_it_by_the_full_time() {
    let mut machine = machine();
    run(&mut machine, [Command::OpenSession { ttl_ms: 10_000 }]);
    let session = SessionId(1);
    let reader = machine.reader();
    let mut leader = Expiry::default();
    leader.observe(&reader, at(0)).expect("observe");
    run(&mut machine, [Command::KeepAlive { session }]);
    // The call begins at 5 seconds, and has read the session at 6.
    let due = leader.due(&reader, ticking(&Cell::new(4)), 9);
    assert_eq!(due.expect("due"), []);
    assert_eq!(leader.due(&reader, at(15_999), 9).expect("due"), []);
    let due = leader.due(&reader, at(16_000), 9).expect("due");
    assert_eq!(due.len(), 1);
}

#[test]
fn one_command_expires_long_keys_a_few_at_a_time() {
    let mut machine = machine();
    let long = |number: u64| format!("{number:0>32768}");
    run(
        &mut machine,
        (0..40).map(|number| put_for(&long(number), "", 5)),
    );
    let mut leader = Expiry::default();
    leader.observe(&machine.reader(), at(0)).expect("observe");
    let mut calls = 0;
    while machine.revision() < Revision(41) || !index(&machine).is_empty() {
        let due = leader.due(&machine.reader(), at(5), 1024).expect("due");
        for command in due {
            let bytes = Request::from(command.clone())
                .encode(CommandVersion::CURRENT)
                .len();
            assert!(bytes <= (256 << 10) + 33_000, "{bytes}");
            run(&mut machine, [command]);
        }
        calls += 1;
        assert!(calls < 41, "each call gets on");
    }
    assert!(calls > 1);
}

/// How many entries a leader's table of keys has.
fn table_size(leader: &Expiry) -> usize {
    format!("{leader:?}").matches("Changes {").count()
}

#[test]
fn a_frequently_refreshed_key_takes_little_memory() {
    const HOUR_MS: u64 = 3_600_000;
    let mut machine = machine();
    let reader = machine.reader();
    let mut leader = Expiry::default();
    let mut now = 0;
    for _ in 0..20_000 {
        now += 100;
        run(&mut machine, [put_for("k", "", HOUR_MS)]);
        leader.observe(&reader, at(now)).expect("observe");
        assert_eq!(leader.due(&reader, at(now), 9).expect("due"), []);
    }
    assert!(table_size(&leader) < 200, "{}", table_size(&leader));
    let end = now + HOUR_MS;
    assert_eq!(leader.due(&reader, at(end - 1), 9).expect("due"), []);
    let due = leader.due(&reader, at(end + HOUR_MS / 64), 9);
    let due = due.expect("due");
    assert_eq!(due, [expire(&[("k", 20_001)])]);
    run(&mut machine, due);
    let due = leader.due(&reader, at(2 * end), 9).expect("due");
    assert_eq!((due, table_size(&leader)), (Vec::new(), 0));
}

#[test]
fn keys_expire_late_by_at_most_a_64th_of_their_time() {
    let mut machine = machine();
    let reader = machine.reader();
    let mut leader = Expiry::default();
    // From one millisecond to seconds, in no order.
    let ttl_of = |number: u64| 1 + number * 7919 % 300 * (number % 37);
    let mut put_at = BTreeMap::new();
    let mut died = 0;
    for now in 0..19_000 {
        if now < 3000 {
            // Some are put again, with another time.
            let key = (now * 31 % 2000).to_string();
            run(&mut machine, [put_for(&key, "", ttl_of(now))]);
            put_at.insert(Bytes::from(key), (now, ttl_of(now)));
        }
        leader.observe(&reader, at(now)).expect("observe");
        let due = leader.due(&reader, at(now), 7).expect("due");
        let keys = due.iter().flat_map(|command| match command {
            Command::ExpireKeys { keys } => keys.as_slice(),
            other => panic!("{other:?}"),
        });
        for expired in keys {
            let (put, ttl) = put_at.remove(&expired.key).expect("it lives");
            assert!(now >= put + ttl, "{ttl} from {put} is over at {now}");
            assert!(
                now <= put + ttl + ttl / 60 + 8,
                "{ttl} from {put} lasts to {now}"
            );
            died += 1;
        }
        run(&mut machine, due);
    }
    assert!(died > 1000 && put_at.is_empty(), "{died}");
    assert_eq!(table_size(&leader), 0);
}

#[test]
fn keys_of_one_change_expire_in_parts_and_lost_parts_again() {
    let mut machine = machine();
    let put = |number: u64| {
        BatchOperation::Put(Put {
            ttl_ms: 5,
            ..Put::new(bytes(&format!("{number:02}")), Bytes::new())
        })
    };
    let batch = Batch {
        compares: Vec::new(),
        then: (0..25).map(put).collect(),
        otherwise: Vec::new(),
    };
    run(&mut machine, [Command::Batch(batch)]);
    let reader = machine.reader();
    let mut leader = Expiry::default();
    leader.observe(&reader, at(0)).expect("observe");
    let mut due = |at_ms: u64| match &leader.due(&reader, at(at_ms), 10).expect("due")[..] {
        [Command::ExpireKeys { keys }] => keys.len(),
        other => other.len(),
    };
    assert_eq!([due(5), due(6), due(7), due(8)], [10, 10, 5, 0]);
    assert_eq!(due(4005), 10, "all got lost");
    while due(4010) > 0 {}
    let mut commands = leader.due(&reader, at(8500), 100).expect("due");
    assert_eq!(run(&mut machine, [commands.remove(0)]), expired(3, 25));
    assert_eq!(leader.due(&reader, at(20_000), 10).expect("due"), []);
    assert_eq!(table_size(&leader), 0);
}
