//! Sessions: one rule at a time, by example.

use bytes::Bytes;
use dengine_types::{Index, Revision, SessionId};

use super::{Machine, apply, bytes, command_entry, machine, put, run, show, stamped};
use crate::layout::{MachineState, STATE_KEY, decode_state, encode_state};
use crate::store::{MemoryStore, WriteBatch};
use crate::{
    Batch, BatchOperation, Command, Compare, CompareTarget, KeyRange, Outcome, Put,
    REPLY_BYTES_MAX, Refusal, Relation, Request, SESSION_BYTES_MAX, SESSION_REPLIES_MAX,
    SESSIONS_MAX, SessionInfo, StateMachine, Store, StoreError,
};

fn open(machine: &mut Machine) -> SessionId {
    match apply(machine, Command::OpenSession { ttl_ms: 1000 }) {
        Outcome::SessionOpened { session } => session,
        other => panic!("{other:?}"),
    }
}

fn info(machine: &Machine, session: SessionId) -> SessionInfo {
    let sessions = machine.reader().sessions(SessionId(0), usize::MAX);
    let mut sessions = sessions.expect("read").into_iter();
    sessions.find(|it| it.id == session).expect("it is open")
}

fn put_outcome(revision: u64) -> Outcome {
    Outcome::Put {
        revision: Revision(revision),
        prev: None,
    }
}

#[test]
fn a_session_id_is_the_index_of_the_entry_that_opened_it() {
    let mut machine = machine();
    run(&mut machine, [put("a", "1")]);
    assert_eq!(open(&mut machine), SessionId(2));
    assert_eq!(open(&mut machine), SessionId(3));
    let expected = SessionInfo {
        id: SessionId(3),
        ttl_ms: 1000,
        last_used: Index(3),
        acknowledged: 0,
        replies: 0,
        reply_bytes: 0,
    };
    assert_eq!(info(&machine, SessionId(3)), expected);
    assert_eq!(machine.revision(), Revision(2), "sessions are not history");
}

#[test]
fn a_repeated_command_gets_the_first_answer_without_effect() {
    let mut machine = machine();
    let session = open(&mut machine);
    let first = apply(&mut machine, stamped(session, 1, 0, put("a", "1")));
    assert_eq!(first, put_outcome(2));
    run(&mut machine, [put("a", "other")]);
    let again = apply(&mut machine, stamped(session, 1, 0, put("a", "1")));
    assert_eq!(again, first);
    assert_eq!(show(&machine, "a", None), "other 2/3/2");
}

/// Clients must not do this: the state keeps the answers, and not the commands.
#[test]
fn another_command_under_a_used_sequence_gets_the_first_answer() {
    let mut machine = machine();
    let session = open(&mut machine);
    let first = apply(&mut machine, stamped(session, 1, 0, put("a", "1")));
    let another = apply(&mut machine, stamped(session, 1, 0, put("b", "2")));
    assert_eq!(another, first);
    assert_eq!(show(&machine, "b", None), "-");
}

#[test]
fn a_command_repeated_within_one_batch_is_applied_once() {
    let mut machine = machine();
    let session = open(&mut machine);
    let entries: Vec<_> = (2..5)
        .map(|index| command_entry(index, stamped(session, 1, 0, put("a", "1"))))
        .collect();
    let applied = machine.apply(&entries).expect("apply");
    assert!(applied.iter().all(|it| it.outcome == put_outcome(2)));
    assert_eq!(show(&machine, "a", None), "1 2/2/1");
}

#[test]
fn answers_survive_a_restart() {
    let store = MemoryStore::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    let session = open(&mut machine);
    let first = apply(&mut machine, stamped(session, 1, 0, put("a", "1")));
    drop(machine);
    let mut machine = StateMachine::open(store).expect("open again");
    let again = apply(&mut machine, stamped(session, 1, 0, put("a", "1")));
    assert_eq!(again, first);
    assert_eq!(machine.revision(), Revision(2));
}

/// Commands with every kind of answer that a session keeps, if a session was opened and `b` is "x".
fn with_every_answer() -> [Command; 9] {
    let put_a = BatchOperation::Put(Put {
        prev_kv: true,
        ttl_ms: 5,
        ..Put::new(bytes("a"), bytes("3"))
    });
    let delete_b = BatchOperation::Delete {
        keys: KeyRange::One(bytes("b")),
        prev_kv: true,
    };
    let get = |keys_only| BatchOperation::Get {
        keys: KeyRange::From(bytes("a")),
        limit: 1,
        keys_only,
        count_only: false,
    };
    [
        put("a", "1"),
        put("a", "2"),
        super::delete("a"),
        super::compact(2),
        super::compact(2),
        super::compact(99),
        Command::CompareAndSwap {
            key: bytes("b"),
            expected: crate::Expected::Value(bytes("x")),
            value: bytes("y"),
            ttl_ms: 7,
        },
        Command::Batch(Batch {
            then: vec![put_a.clone(), get(true), delete_b.clone(), get(false)],
            ..Batch::default()
        }),
        Command::Batch(Batch {
            then: vec![delete_b; 2],
            otherwise: vec![put_a; 2],
            ..Batch::default()
        }),
    ]
}

#[test]
fn replies_round_trip() {
    let mut machine = machine();
    let session = open(&mut machine);
    run(&mut machine, [put("b", "x")]);
    let requests: Vec<_> = (1..)
        .zip(with_every_answer())
        .map(|(sequence, command)| stamped(session, sequence, 0, command))
        .collect();
    let first: Vec<_> = requests
        .iter()
        .map(|request| apply(&mut machine, request.clone()))
        .collect();
    let revision = machine.revision();
    let again: Vec<_> = requests
        .iter()
        .map(|request| apply(&mut machine, request.clone()))
        .collect();
    assert_eq!(again, first);
    assert_eq!(machine.revision(), revision);
    let refused = |outcome: &&Outcome| matches!(outcome, Outcome::Refused(_));
    assert_eq!(first.iter().filter(refused).count(), 3);
}

#[test]
fn an_acknowledged_command_is_refused_and_its_reply_dropped() {
    let mut machine = machine();
    let session = open(&mut machine);
    for sequence in 1..=3 {
        apply(&mut machine, stamped(session, sequence, 0, put("a", "1")));
    }
    assert_eq!(info(&machine, session).replies, 3);
    apply(&mut machine, stamped(session, 4, 2, put("a", "1")));
    let now = info(&machine, session);
    assert_eq!((now.replies, now.acknowledged), (2, 2));
    for sequence in [0, 1, 2] {
        let stale = apply(&mut machine, stamped(session, sequence, 0, put("a", "2")));
        let acknowledged = 2;
        let refusal = Refusal::Acknowledged {
            sequence,
            acknowledged,
        };
        assert_eq!(stale, Outcome::Refused(refusal));
    }
    assert_eq!(show(&machine, "a", None), "1 2/5/4");
    assert_eq!(
        info(&machine, session).acknowledged,
        2,
        "it never goes back"
    );
}

#[test]
fn commands_of_a_session_may_arrive_in_any_order() {
    let mut machine = machine();
    let session = open(&mut machine);
    let five = apply(&mut machine, stamped(session, 5, 0, put("a", "5")));
    let three = apply(&mut machine, stamped(session, 3, 0, put("b", "3")));
    assert_eq!((&five, &three), (&put_outcome(2), &put_outcome(3)));
    let again = apply(&mut machine, stamped(session, 3, 0, put("b", "3")));
    assert_eq!(again, three);
    let late = apply(&mut machine, stamped(session, 4, 3, put("c", "4")));
    assert_eq!(late, put_outcome(4));
}

#[test]
fn a_command_of_an_unknown_session_is_not_applied() {
    let mut machine = machine();
    let session = open(&mut machine);
    let refused = |session| Outcome::Refused(Refusal::UnknownSession(session));
    let never = SessionId(99);
    let outcome = apply(&mut machine, stamped(never, 1, 0, put("a", "1")));
    assert_eq!(outcome, refused(never));
    apply(&mut machine, stamped(session, 1, 0, put("a", "1")));
    let closed = apply(&mut machine, Command::CloseSession { session });
    assert_eq!(closed, Outcome::SessionClosed { closed: true });
    for sequence in [1, 2] {
        let outcome = apply(&mut machine, stamped(session, sequence, 0, put("a", "2")));
        assert_eq!(outcome, refused(session));
    }
    let outcome = apply(&mut machine, Command::KeepAlive { session });
    assert_eq!(outcome, refused(session));
    assert_eq!(show(&machine, "a", None), "1 2/2/1");
    let closed = apply(&mut machine, Command::CloseSession { session });
    assert_eq!(closed, Outcome::SessionClosed { closed: false });
}

#[test]
fn an_ended_session_leaves_nothing_behind() {
    let store = MemoryStore::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    let keys = || store.dump().into_iter().map(|(key, _)| key);
    let session = open(&mut machine);
    for sequence in 1..=3 {
        apply(&mut machine, stamped(session, sequence, 1, put("a", "1")));
    }
    assert_eq!(keys().filter(|key| b"rs".contains(&key[0])).count(), 3);
    apply(&mut machine, Command::CloseSession { session });
    assert_eq!(keys().filter(|key| b"rs".contains(&key[0])).count(), 0);
}

#[test]
fn an_expiry_is_a_no_op_if_the_session_was_used_since() {
    let mut machine = machine();
    let session = open(&mut machine);
    let expire = |last_used| Command::ExpireSession {
        session,
        last_used: Index(last_used),
    };
    let closed = |closed| Outcome::SessionClosed { closed };
    apply(&mut machine, stamped(session, 1, 0, put("a", "1")));
    assert_eq!(apply(&mut machine, expire(1)), closed(false));
    apply(&mut machine, stamped(session, 1, 0, put("a", "1")));
    assert_eq!(
        info(&machine, session).last_used,
        Index(4),
        "a repeat is a use"
    );
    assert_eq!(apply(&mut machine, expire(2)), closed(false));
    apply(&mut machine, Command::KeepAlive { session });
    assert_eq!(apply(&mut machine, expire(4)), closed(false));
    assert_eq!(apply(&mut machine, expire(6)), closed(true));
    assert_eq!(apply(&mut machine, expire(6)), closed(false));
}

#[test]
fn a_full_window_refuses_before_anything_is_applied() {
    let mut machine = machine();
    let session = open(&mut machine);
    let max = SESSION_REPLIES_MAX as u64;
    for sequence in 1..=max {
        apply(&mut machine, stamped(session, sequence, 0, put("a", "1")));
    }
    let revision = machine.revision();
    let more = stamped(session, max + 1, 0, put("a", "2"));
    let outcome = apply(&mut machine, more);
    let Outcome::Refused(refusal @ Refusal::WindowFull { .. }) = outcome else {
        panic!("{outcome:?}");
    };
    assert!(refusal.to_string().contains("acknowledge"));
    assert_eq!(machine.revision(), revision);
    let repeated = apply(&mut machine, stamped(session, 1, 0, put("a", "1")));
    assert_eq!(repeated, put_outcome(2), "what is kept is still answered");
    let outcome = apply(&mut machine, stamped(session, max + 1, 1, put("a", "2")));
    assert!(matches!(outcome, Outcome::Put { .. }), "{outcome:?}");
}

/// The client can acknowledge nothing before it has this reply: the command would be refused
/// permanently.
#[test]
fn a_full_window_admits_the_oldest_open_command() {
    let mut machine = machine();
    let session = open(&mut machine);
    let max = SESSION_REPLIES_MAX as u64;
    for sequence in 2..=max + 1 {
        apply(&mut machine, stamped(session, sequence, 0, put("a", "1")));
    }
    let next = apply(&mut machine, stamped(session, max + 2, 0, put("a", "2")));
    assert!(matches!(next, Outcome::Refused(Refusal::WindowFull { .. })));
    let oldest = apply(&mut machine, stamped(session, 1, 0, put("a", "2")));
    assert!(matches!(oldest, Outcome::Put { .. }), "{oldest:?}");
}

#[test]
fn a_window_is_bounded_in_bytes() {
    let mut machine = machine();
    let session = open(&mut machine);
    let value = "x".repeat(REPLY_BYTES_MAX - 100);
    let mut sequence = 0;
    loop {
        sequence += 1;
        let outcome = apply(
            &mut machine,
            stamped(session, sequence, 0, put("a", &value)),
        );
        if let Outcome::Refused(Refusal::WindowFull { bytes, .. }) = outcome {
            assert!(bytes >= SESSION_BYTES_MAX);
            assert!(bytes < SESSION_BYTES_MAX + REPLY_BYTES_MAX as u64);
            assert_eq!(bytes, info(&machine, session).reply_bytes);
            break;
        }
    }
    assert!(sequence < 20);
}

#[test]
fn too_large_a_reply_is_stored_without_its_pairs() {
    let mut machine = machine();
    let session = open(&mut machine);
    let large = "x".repeat(REPLY_BYTES_MAX);
    run(&mut machine, [put("a", &large)]);
    let request = stamped(session, 1, 0, put("a", "1"));
    let first = apply(&mut machine, request.clone());
    assert!(matches!(&first, Outcome::Put { prev: Some(prev), .. } if prev.value == large));
    let again = apply(&mut machine, request);
    assert_eq!(again, Outcome::Trimmed(Box::new(put_outcome(3))));
    assert!(info(&machine, session).reply_bytes < 100);
}

#[test]
fn sessions_are_bounded() {
    let store = MemoryStore::default();
    drop(StateMachine::open(store.clone()).expect("open"));
    let record = store.get(STATE_KEY).expect("get").expect("a state");
    let nearly_full = MachineState {
        sessions: SESSIONS_MAX - 1,
        ..decode_state(&record).expect("a state")
    };
    let mut batch = WriteBatch::default();
    batch.put(STATE_KEY, &encode_state(&nearly_full));
    store.write(&batch).expect("write");
    let mut machine = StateMachine::open(store).expect("open again");
    let session = open(&mut machine);
    let outcome = apply(&mut machine, Command::OpenSession { ttl_ms: 1 });
    let refusal = Refusal::TooManySessions(SESSIONS_MAX);
    assert_eq!(outcome, Outcome::Refused(refusal));
    apply(&mut machine, Command::CloseSession { session });
    open(&mut machine);
}

/// Found by review: the count overflowed.
#[test]
fn a_session_that_the_state_does_not_count_is_damage() {
    let store = MemoryStore::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    let session = open(&mut machine);
    let (last_used, _) = machine.applied();
    drop(machine);
    let record = store.get(STATE_KEY).expect("get").expect("a state");
    let without = MachineState {
        sessions: 0,
        ..decode_state(&record).expect("a state")
    };
    let mut batch = WriteBatch::default();
    batch.put(STATE_KEY, &encode_state(&without));
    store.write(&batch).expect("write");
    let close = Command::CloseSession { session };
    let expire = Command::ExpireSession { session, last_used };
    for command in [close, expire] {
        let mut machine = StateMachine::open(store.clone()).expect("open again");
        let applied = machine.apply(&[command_entry(last_used.next().0, command)]);
        let expected = format!("session {session} is open, but the state counts none");
        assert_eq!(applied, Err(StoreError::Corrupt(expected)));
    }
}

#[test]
fn only_commands_about_keys_may_be_stamped() {
    let mut machine = machine();
    let session = open(&mut machine);
    let commands = [
        Command::OpenSession { ttl_ms: 1 },
        Command::KeepAlive { session },
        Command::CloseSession { session },
        Command::ExpireKeys { keys: Vec::new() },
    ];
    for command in commands {
        assert!(!command.may_be_stamped());
        let outcome = apply(&mut machine, stamped(session, 1, 0, command));
        assert_eq!(outcome, Outcome::Refused(Refusal::NotForSessions));
    }
}

/// A batch without an effect counted as all that it named, as much as members apply in a third of a
/// second; and the end of a session with all of its replies counted as one record.
#[test]
fn an_entry_counts_the_records_that_it_visits() {
    let mut machine = machine();
    let mut records = |request: Request| {
        let index = machine.applied().0.next().0;
        let applied = machine.apply(&[command_entry(index, request)]);
        applied.expect("apply")[0].records
    };
    let puts = |count: usize| {
        let put = |number: usize| BatchOperation::put(bytes(&number.to_string()), Bytes::new());
        (0..count).map(put).collect()
    };
    let batch = Command::Batch(Batch {
        compares: Vec::new(),
        then: puts(2),
        otherwise: puts(1_000),
    });
    assert_eq!(batch.records(), 1_000, "it may be as many");
    assert_eq!(records(batch.into()), 2);
    assert_eq!(records(Command::OpenSession { ttl_ms: 1_000 }.into()), 1);
    let session = SessionId(2);
    for sequence in 1..=3 {
        let put = stamped(session, sequence, 0, put("a", "1"));
        assert_eq!(records(put), 1);
    }
    let close = || Request::from(Command::CloseSession { session });
    assert_eq!(records(close()), 4, "with three answers");
    assert_eq!(records(close()), 1, "it is gone");
}

/// A hundred comparisons counted as much as one put.
#[test]
fn batches_count_the_comparisons_that_they_evaluate() {
    let mut machine = machine();
    apply(&mut machine, put("a", "1"));
    let has = |key: &str, value: &str| Compare {
        keys: KeyRange::One(bytes(key)),
        relation: Relation::Equal,
        target: CompareTarget::Value(bytes(value)),
    };
    for (second, visited) in [("1", 3), ("2", 2)] {
        let batch = Command::Batch(Batch {
            compares: vec![has("a", "1"), has("a", second), has("a", "1")],
            ..Batch::default()
        });
        assert_eq!(batch.records(), 3);
        let index = machine.applied().0.next().0;
        let applied = machine
            .apply(&[command_entry(index, batch)])
            .expect("apply");
        assert_eq!(applied[0].records, visited);
    }
}
