//! What version 4 added to commands, and format 4 to the state: their bytes and their meaning.

use std::fmt::Write as _;

use dengine_types::{Index, LeaseId, Revision, SessionId};
use expect_test::expect_file;

use super::versions::{hex, replayed, unhex};
use super::{between, bytes, compact, delete_keys, everything, put, put_for, stamped};
use crate::store::{MemoryStore, Store as _, WriteBatch};
use crate::{
    Batch, BatchOperation, Command, CommandVersion, Compare, CompareTarget, KeyRange,
    LeaseCheckpoint, Put, PutLease, RangeRead, Relation, Request, RevisionBounds, Selection,
    SortBy, SortOrder, StateMachine,
};

const SESSION: SessionId = SessionId(1);
const LEASE: LeaseId = LeaseId(7);
/// A negative number takes the most bytes.
const REVOKED: LeaseId = LeaseId(-3);
const EXPIRED: LeaseId = LeaseId(i64::MAX);
const UNKNOWN: LeaseId = LeaseId(99);

fn grant(lease: LeaseId, ttl_ms: u64) -> Command {
    Command::GrantLease { lease, ttl_ms }
}

fn expire(lease: LeaseId, seen: u64) -> Command {
    let seen = Index(seen);
    Command::ExpireLease { lease, seen }
}

fn attach(key: &str, lease: LeaseId) -> Put {
    Put {
        lease: PutLease::Attach(lease),
        ..Put::new(bytes(key), bytes("of a lease"))
    }
}

/// The value stays, and with it the lease if `lease` says so.
fn keep(key: &str, lease: PutLease) -> Put {
    Put {
        ignore_value: true,
        prev_kv: true,
        lease,
        ..Put::new(bytes(key), "")
    }
}

fn compare(key: &str, target: CompareTarget) -> Compare {
    Compare {
        keys: KeyRange::One(bytes(key)),
        relation: Relation::Equal,
        target,
    }
}

fn range(read: RangeRead) -> BatchOperation {
    BatchOperation::Range(Box::new(read))
}

fn of_past(keys: KeyRange, revision: u64) -> BatchOperation {
    range(RangeRead {
        revision: Some(Revision(revision)),
        ..RangeRead::new(keys)
    })
}

fn then(then: Vec<BatchOperation>) -> Batch {
    Batch {
        then,
        ..Batch::default()
    }
}

fn within(batch: Batch) -> BatchOperation {
    BatchOperation::Batch(Box::new(batch))
}

/// One that is not done within one that is.
fn nested() -> Batch {
    let innermost = Batch {
        compares: vec![compare("a", CompareTarget::Value(bytes("another")))],
        then: vec![BatchOperation::put("never", "x")],
        otherwise: vec![BatchOperation::Put(keep("a", PutLease::Attach(LEASE)))],
    };
    let inner = Batch {
        compares: vec![compare("b", CompareTarget::Version(1))],
        then: vec![
            range(RangeRead::new(KeyRange::One(bytes("a")))),
            within(innermost),
        ],
        otherwise: Vec::new(),
    };
    Batch {
        compares: vec![
            compare("leased", CompareTarget::Lease(LEASE)),
            compare("b", CompareTarget::Lease(LeaseId::NONE)),
        ],
        then: vec![
            BatchOperation::Put(attach("nested", LEASE)),
            within(inner),
            range(RangeRead::new(between("a", "b"))),
        ],
        otherwise: Vec::new(),
    }
}

/// Every field of a read.
fn reads() -> Batch {
    let bounds = |min, max| RevisionBounds {
        min: Some(Revision(min)),
        max: Some(Revision(max)),
    };
    let sorted = |order, by| RangeRead {
        keys_only: true,
        selection: Selection {
            order,
            by,
            ..Selection::default()
        },
        ..RangeRead::new(everything())
    };
    let selected = RangeRead {
        limit: 2,
        selection: Selection {
            order: SortOrder::Descending,
            by: SortBy::Value,
            mod_revisions: bounds(2, 100),
            create_revisions: bounds(1, 5),
        },
        ..RangeRead::new(everything())
    };
    let counted = RangeRead {
        count_only: true,
        ..RangeRead::new(KeyRange::From(bytes("b")))
    };
    then(vec![
        range(selected),
        range(counted),
        range(sorted(SortOrder::Ascending, SortBy::Key)),
        range(sorted(SortOrder::Ascending, SortBy::Version)),
        range(sorted(SortOrder::Descending, SortBy::CreateRevision)),
        range(sorted(SortOrder::None, SortBy::ModRevision)),
        of_past(everything(), 3),
        BatchOperation::put("read", "x"),
    ])
}

/// What a session keeps the outcomes of.
fn in_session() -> Vec<Command> {
    let refused = |operation| Command::Batch(then(vec![operation]));
    vec![
        Command::Put(attach("leased", LEASE)),
        Command::Put(attach("none", UNKNOWN)),
        Command::Put(keep("none", PutLease::None)),
        Command::Put(keep("leased", PutLease::Keep)),
        Command::Batch(nested()),
        Command::Batch(reads()),
        refused(of_past(everything(), 1_000)),
        refused(BatchOperation::Put(keep("none", PutLease::Keep))),
        refused(BatchOperation::Put(attach("none", UNKNOWN))),
        Command::Batch(Batch {
            compares: vec![compare("leased", CompareTarget::Lease(UNKNOWN))],
            ..nested()
        }),
    ]
}

/// Every kind of command and field that version 4 added, with its outcomes. Their indexes count
/// from 1.
fn requests() -> Vec<Request> {
    let checkpoint = |lease, remaining_ms, seen| LeaseCheckpoint {
        lease,
        remaining_ms,
        seen: Index(seen),
    };
    let first = [
        Command::OpenSession { ttl_ms: 10_000 },
        put("a", "1"),
        put_for("b", "2", 500),
        grant(LEASE, 5_000),
        grant(REVOKED, 1),
        grant(EXPIRED, 9_000_000_000_000),
        grant(LEASE, 1),
        Command::CheckpointLeases {
            leases: vec![
                checkpoint(LEASE, 1_234, 4),
                checkpoint(REVOKED, 1, 1),
                checkpoint(UNKNOWN, 1, 4),
            ],
        },
        Command::Put(attach("gone", REVOKED)),
        Command::Put(attach("gone too", REVOKED)),
        Command::Put(attach("over", EXPIRED)),
    ];
    let last = [
        Command::RevokeLease { lease: REVOKED },
        Command::RevokeLease { lease: REVOKED },
        expire(EXPIRED, 1),
        expire(EXPIRED, 6),
        compact(6),
        Command::Batch(then(vec![of_past(everything(), 5)])),
        delete_keys(KeyRange::One(bytes("nested"))),
    ];
    let mut requests: Vec<_> = first.into_iter().map(Request::from).collect();
    for (sequence, command) in (1..).zip(in_session()) {
        requests.push(stamped(SESSION, sequence, 0, command));
    }
    requests.extend(last.map(Request::from));
    requests
}

fn written() -> &'static str {
    include_str!("golden/commands_v4.hex")
}

/// The bytes are in logs, so neither they nor what they mean may change.
#[test]
fn version_4_keeps_its_meaning() {
    assert_eq!(written().lines().count(), requests().len());
    for (line, request) in written().lines().zip(requests()) {
        let logged = Request::decode(unhex(line))
            .expect("it reads")
            .expect("it is whole");
        assert_eq!(logged.request, request);
        assert_eq!(
            logged.version,
            request.version_needed().max(CommandVersion::V3)
        );
    }
    let meant = replayed(MemoryStore::default(), written().lines().map(unhex));
    expect_file!["golden/commands_v4.answers"].assert_eq(&meant);
}

#[test]
fn the_encoding_of_version_4_is_stable() {
    let encoded = requests()
        .into_iter()
        .map(|request| hex(&request.encode(CommandVersion::V4)) + "\n");
    expect_file!["golden/commands_v4.hex"].assert_eq(&encoded.collect::<String>());
}

/// Leases, the keys that are attached to them, and the outcomes that sessions keep, among all other
/// records: they are on disks and in snapshots.
#[test]
fn the_records_of_format_4_are_stable() {
    let store = MemoryStore::default();
    replayed(store.clone(), written().lines().map(unhex));
    let mut records = String::new();
    for (key, value) in store.dump() {
        writeln!(records, "{} {}", hex(&key), hex(&value)).expect("text");
    }
    expect_file!["golden/state_v4.hex"].assert_eq(&records);
}

/// Whoever opens such a state finds in it what was applied.
#[test]
fn the_records_of_format_4_are_read() {
    let store = MemoryStore::default();
    let mut batch = WriteBatch::default();
    for line in include_str!("golden/state_v4.hex").lines() {
        let (key, value) = line.split_once(' ').expect("a key and a value");
        batch.put(&unhex(key), &unhex(value));
    }
    store.write(&batch).expect("write");
    let machine = StateMachine::open(store).expect("open");
    let lease = machine.reader().lease_with_keys(LEASE, None, usize::MAX);
    let (_, keys) = lease.expect("read").expect("it lives");
    assert_eq!(keys, [bytes("a"), bytes("leased")]);
    for ended in [REVOKED, EXPIRED] {
        assert_eq!(machine.reader().lease(ended).expect("read"), None);
    }
}
