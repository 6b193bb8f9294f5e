//! Commands of older versions are applied with their original meaning, and those of newer ones are
//! not.

use std::fmt::Write as _;

use bytes::Bytes;
use dengine_types::{EntryKind, Index, Revision, SessionId, Term};
use expect_test::expect_file;

use super::{
    Machine, between, bytes, compact, delete, delete_keys, entry, everything, machine, put,
    put_for, stamped,
};
use crate::store::MemoryStore;
use crate::{
    Batch, BatchOperation, Command, CommandVersion, Compare, CompareTarget, Expected, ExpiredKey,
    KeyRange, LoggedRequest, Outcome, Put, Relation, Request, StateMachine, StoreError,
};

const SESSION: SessionId = SessionId(1);

fn swap(key: &str, expected: Expected, value: &str) -> Command {
    Command::CompareAndSwap {
        key: bytes(key),
        expected,
        value: bytes(value),
        ttl_ms: 0,
    }
}

/// Its comparisons hold if key `a` has this version.
fn batch(version: u64) -> Batch {
    let compare = |key: &str, relation, target| Compare {
        keys: KeyRange::One(bytes(key)),
        relation,
        target,
    };
    let get = |keys, limit, count_only| BatchOperation::Get {
        keys,
        limit,
        keys_only: false,
        count_only,
    };
    Batch {
        compares: vec![
            compare("a", Relation::Equal, CompareTarget::Version(version)),
            compare(
                "b",
                Relation::Greater,
                CompareTarget::ModRevision(Revision(2)),
            ),
            compare(
                "b",
                Relation::Less,
                CompareTarget::CreateRevision(Revision(9)),
            ),
            compare("a", Relation::NotEqual, CompareTarget::Value(bytes("no"))),
        ],
        then: vec![
            BatchOperation::Put(Put {
                prev_kv: true,
                ttl_ms: 7,
                ..Put::new(bytes("batch"), bytes("then"))
            }),
            BatchOperation::Delete {
                keys: between("d0", "d2"),
                prev_kv: true,
            },
            get(everything(), 2, false),
            get(between("a", "c"), 0, true),
        ],
        otherwise: vec![get(KeyRange::One(bytes("a")), 0, false)],
    }
}

/// Every kind of command, with each of its outcomes.
fn requests() -> Vec<Request> {
    let mut plain = vec![
        Command::OpenSession { ttl_ms: 10_000 },
        put("a", "1"),
        put_for("b", "2", 500),
    ];
    plain.extend(["d0", "d1", "d2", "d3", "d4"].map(|key| put(key, "-")));
    let mut requests: Vec<_> = plain.into_iter().map(Request::from).collect();
    let in_session = [
        put("a", "3"),
        swap("a", Expected::Value(bytes("3")), "4"),
        swap("a", Expected::Value(bytes("3")), "5"),
        swap("new", Expected::ModRevision(Revision(0)), "6"),
        Command::Batch(batch(2)),
        Command::Batch(batch(3)),
        delete("d4"),
        delete("d4"),
        delete_keys(KeyRange::From(bytes("d3"))),
        compact(5),
        compact(5),
        compact(1_000),
    ];
    for (sequence, command) in (1..).zip(in_session) {
        requests.push(stamped(SESSION, sequence, sequence / 2, command));
    }
    requests.push(stamped(SESSION, 10, 4, compact(5)));
    requests.push(stamped(SessionId(99), 1, 0, put("a", "never")));
    let expired = |key: &str, revision| ExpiredKey {
        key: bytes(key),
        mod_revision: Revision(revision),
    };
    let last = [
        put_for("c", "x", 9),
        Command::ExpireKeys {
            keys: vec![expired("b", 3), expired("c", 15), expired("none", 4)],
        },
        Command::KeepAlive { session: SESSION },
        Command::ExpireSession {
            session: SESSION,
            last_used: Index(3),
        },
        Command::OpenSession { ttl_ms: 1 },
        Command::CloseSession { session: SESSION },
        Command::KeepAlive { session: SESSION },
        delete_keys(between("d0", "d9")),
    ];
    requests.extend(last.map(Request::from));
    requests
}

pub(super) fn hex(data: &[u8]) -> String {
    data.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn unhex(text: &str) -> Bytes {
    let digits = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
    (0..text.len()).step_by(2).map(digits).collect()
}

fn apply(machine: &mut Machine, data: Bytes) -> Result<Outcome, StoreError> {
    let index = machine.applied().0.next().0;
    let applied = machine.apply(&[entry(index, EntryKind::Command, data)]);
    applied.map(|mut applied| applied.remove(0).outcome)
}

/// The outcomes of a machine for each of the commands, one a line, and then its pairs.
pub(super) fn replayed(store: MemoryStore, commands: impl IntoIterator<Item = Bytes>) -> String {
    let mut machine = StateMachine::open(store).expect("open");
    let mut text = String::new();
    for data in commands {
        let outcome = apply(&mut machine, data).expect("apply");
        writeln!(text, "{outcome:?}").expect("text");
    }
    let query = crate::RangeQuery::new(everything());
    for pair in machine.reader().range(&query).expect("read").kvs {
        writeln!(text, "{pair:?}").expect("text");
    }
    text
}

/// As the first released version shows them.
fn answers(commands: impl IntoIterator<Item = Bytes>) -> String {
    replayed(MemoryStore::default(), commands).replace(", lease: LeaseId(0)", "")
}

/// The bytes were written by the first released version, and are in logs. So neither file may
/// change.
#[test]
fn version_2_keeps_its_meaning() {
    let written = include_str!("golden/commands_v2.hex");
    for (line, request) in written.lines().zip(requests()) {
        let logged = LoggedRequest {
            version: CommandVersion::OLDEST,
            request,
        };
        assert_eq!(Request::decode(unhex(line)), Ok(Ok(logged)));
    }
    assert_eq!(written.lines().count(), requests().len());
    let meant = answers(written.lines().map(unhex));
    expect_file!["golden/commands_v2.answers"].assert_eq(&meant);
}

#[test]
fn the_encoding_of_version_2_is_stable() {
    let written = requests()
        .into_iter()
        .map(|request| hex(&request.encode(CommandVersion::OLDEST)) + "\n");
    expect_file!["golden/commands_v2.hex"].assert_eq(&written.collect::<String>());
}

/// The one difference in these commands; the limit of ranges is tested in `visits.rs`.
fn without_count_of_more(answers: &str) -> String {
    assert_eq!(answers.matches("more: true, count: 7").count(), 1);
    answers.replace("more: true, count: 7", "more: true, count: 0")
}

#[test]
fn version_3_differs_from_version_2_in_its_counts_only() {
    let of = |version| answers(requests().into_iter().map(|it| it.encode(version)));
    let meant = without_count_of_more(&of(CommandVersion::OLDEST));
    assert_eq!(of(CommandVersion::V3), meant);
}

/// As for version 2, of the last program that wrote no later version.
#[test]
fn version_3_keeps_its_meaning() {
    let written = include_str!("golden/commands_v3.hex");
    for (line, request) in written.lines().zip(requests()) {
        let logged = LoggedRequest {
            version: CommandVersion::V3,
            request,
        };
        assert_eq!(Request::decode(unhex(line)), Ok(Ok(logged)));
    }
    assert_eq!(written.lines().count(), requests().len());
    let meant = answers(written.lines().map(unhex));
    expect_file!["golden/commands_v3.answers"].assert_eq(&meant);
}

/// What version 3 can say is written as that also where every member reads later ones.
#[test]
fn the_encoding_of_version_3_is_stable() {
    for read_by_all in [CommandVersion::V3, CommandVersion::V4] {
        let written = requests()
            .into_iter()
            .map(|request| hex(&request.encode(read_by_all)) + "\n");
        expect_file!["golden/commands_v3.hex"].assert_eq(&written.collect::<String>());
    }
}

#[test]
fn unreleased_versions_are_rejected_without_stopping() {
    for number in 0..CommandVersion::OLDEST.number() {
        let mut data = Request::from(put("a", "1"))
            .encode(CommandVersion::OLDEST)
            .to_vec();
        data[0] = number;
        let mut machine = machine();
        let outcome = apply(&mut machine, Bytes::from(data)).expect("it does not stop");
        assert!(
            matches!(outcome, Outcome::Rejected(_)),
            "{number}: {outcome:?}"
        );
        assert_eq!(machine.revision(), Revision(1));
    }
}

#[test]
fn a_member_stops_before_the_first_command_of_a_newer_version() {
    let oldest = CommandVersion::OLDEST;
    let store = MemoryStore::default();
    let machine = StateMachine::open(store.clone()).expect("open");
    let mut machine = machine.reads_commands_up_to(oldest);
    let of = |version| Request::from(put("a", "1")).encode(version);
    apply(&mut machine, of(oldest)).expect("it reads that");
    let before = store.dump();
    let error = apply(&mut machine, of(CommandVersion::V3)).expect_err("it reads no such");
    let expected = StoreError::NewerFormat {
        what: "a command in the log",
        found: 3,
        supported: 2,
    };
    assert_eq!(error, expected);
    assert_eq!(store.dump(), before);
    assert_eq!(machine.applied(), (Index(1), Term(1)));
    // The same store, opened by a program that reads the version.
    let mut machine = StateMachine::open(store).expect("open");
    apply(&mut machine, of(CommandVersion::V3)).expect("it reads that");
}

#[test]
fn announced_versions_are_capped_at_the_newest_known() {
    for (announced, expected) in [
        (0, 2),
        (1, 2),
        (2, 2),
        (3, 3),
        (4, 4),
        (5, 4),
        (u32::MAX, 4),
    ] {
        let version = CommandVersion::announced(announced);
        assert_eq!(version.number(), expected, "{announced}");
    }
    let numbers = CommandVersion::ALL.map(CommandVersion::number);
    assert_eq!(numbers.first(), Some(&CommandVersion::OLDEST.number()));
    assert_eq!(numbers.last(), Some(&CommandVersion::CURRENT.number()));
    assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]));
}

/// Entries of several versions, in any order, as in a log during an upgrade.
#[test]
fn versions_may_alternate() {
    let versions = CommandVersion::ALL.into_iter().cycle();
    let mixed = requests().into_iter().zip(versions);
    let of_one = requests()
        .into_iter()
        .map(|it| it.encode(CommandVersion::OLDEST));
    let mixed = answers(mixed.map(|(request, version)| request.encode(version)));
    // The batch whose read is limited has version 3 here.
    assert_eq!(mixed, without_count_of_more(&answers(of_one)));
}
