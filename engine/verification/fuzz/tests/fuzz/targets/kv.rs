//! Commands and membership changes as they are in the log, and records as they are in the store.

use bytes::Bytes;
use dengine_kv::outcome::{decode_kept, encode_kept};
use dengine_kv::store::{MemoryStore, WriteBatch};
use dengine_kv::{
    Batch, BatchOperation, Command, CommandVersion, Compare, CompareTarget, Expected, KeyRange,
    Member, Membership, MembershipChange, Outcome, Put, RangeQuery, RangeRead, Relation, Request,
    Selection, SessionInfo, SessionStamp, SortBy, SortOrder, StateMachine, Store as _, StoreError,
    layout,
};
use dengine_types::{ClusterId, Entry, EntryKind, Index, MemberId, Revision, SessionId, Term};

use super::{joined, parts, round_trip};
use crate::driver::Target;

/// The data of an entry, decoded, encoded again and applied.
pub(crate) const REQUEST: Target = Target {
    run: request,
    seeds: requests,
    memory: (1 << 20, 64),
};

/// A change of the members, decoded and applied; and their record.
pub(crate) const MEMBERSHIP: Target = Target {
    run: membership,
    seeds: memberships,
    memory: (1 << 20, 64),
};

/// One record or key by itself.
pub(crate) const RECORDS: Target = Target {
    run: records,
    seeds: || {
        dump()
            .into_iter()
            .flat_map(|(key, value)| [key, value])
            .collect()
    },
    memory: (1 << 16, 64),
};

/// What is kept of a session: an answer, or the session's own record.
pub(crate) const KEPT: Target = Target {
    run: kept,
    seeds: kept_records,
    memory: (1 << 16, 256),
};

/// A whole store: records with their lengths before them.
pub(crate) const STORE: Target = Target {
    run: store,
    seeds: || vec![framed(&dump()), framed(&dump()[..4])],
    memory: (4 << 20, 256),
};

fn request(input: &[u8]) {
    if let Ok(Ok(logged)) = Request::decode(Bytes::copy_from_slice(input)) {
        let data = logged.request.clone().encode(logged.version);
        let again = Request::decode(data).unwrap().unwrap();
        assert_eq!(
            again.request, logged.request,
            "a command is what it was encoded from"
        );
        // What needs no newer version is not written in one.
        assert!(again.version <= logged.version);
    }
    let mut machine = filled();
    // Twice: the second is a retry, if it is of a session.
    let applied = apply(&mut machine, EntryKind::Command, input);
    drop(applied.and_then(|_| apply(&mut machine, EntryKind::Command, input)));
    machine.reader().logical_hash().unwrap();
}

fn membership(input: &[u8]) {
    round_trip(input, Membership::decode, Membership::encode);
    drop(MembershipChange::decode(input));
    let empty = StateMachine::open(MemoryStore::default()).unwrap();
    for mut machine in [empty, with_members()] {
        drop(apply(&mut machine, EntryKind::Membership, input));
        let now = machine.membership();
        assert_eq!(Membership::decode(&now.encode()).unwrap(), *now);
        let _ = now.next_member_id();
    }
}

/// A state machine that knows the voters 1 and 2 and the learner 3.
fn with_members() -> StateMachine<MemoryStore> {
    let mut machine = StateMachine::open(MemoryStore::default()).unwrap();
    for change in &changes()[..4] {
        apply(&mut machine, EntryKind::Membership, change).unwrap();
    }
    machine
}

fn records(input: &[u8]) {
    drop(layout::decode_state(input));
    drop(layout::version(input));
    drop(layout::split_data_key(input));
    drop(layout::split_change_key(input));
    drop(layout::change(input));
    drop(layout::split_expiring_key(input));
    drop(layout::split_session_key(input));
    drop(layout::user_key(input));
    drop(layout::ttl(input));
    drop(layout::space(input));
    drop(layout::check_format(input));
    drop(layout::decode_membership(input));
    let _ = layout::version_prefix(input);
}

fn kept(input: &[u8]) {
    match decode_kept(Bytes::copy_from_slice(input)) {
        Err(_) | Ok(Outcome::Trimmed(_)) => {}
        Ok(outcome) => {
            let again = decode_kept(Bytes::from(encode_kept(&outcome))).unwrap();
            let trimmed = matches!(again, Outcome::Trimmed(_));
            assert!(trimmed || again == outcome, "an answer is what it was");
        }
    }
    drop(SessionInfo::decode(SessionId(3), input));
}

fn kept_records() -> Vec<Vec<u8>> {
    let mut machine = StateMachine::open(MemoryStore::default()).unwrap();
    let mut outcomes = Vec::new();
    for data in requests() {
        outcomes.extend(apply(&mut machine, EntryKind::Command, &data).unwrap());
    }
    // What a stamped command may be answered.
    outcomes.retain(|outcome| {
        matches!(
            outcome,
            Outcome::Put { .. }
                | Outcome::Delete { .. }
                | Outcome::CompareAndSwap { .. }
                | Outcome::Batch { .. }
        )
    });
    let answers = outcomes.iter().map(encode_kept);
    answers
        .chain(dump().into_iter().map(|(_, value)| value))
        .collect()
}

fn store(input: &[u8]) {
    let store = MemoryStore::default();
    let mut batch = WriteBatch::default();
    let mut records = parts(input);
    while let (Some(key), Some(value)) = (records.next(), records.next()) {
        batch.put(key, value);
    }
    store.write(&batch).unwrap();
    let Ok(mut machine) = StateMachine::open(store) else {
        return;
    };
    let all = RangeQuery::new(KeyRange::From(Bytes::new()));
    drop(machine.reader().range(&all));
    drop(machine.reader().logical_hash());
    let requests = requests();
    let mut applied = requests
        .iter()
        .map(|it| apply(&mut machine, EntryKind::Command, it));
    applied.find(Result::is_err);
}

fn framed(records: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    joined(records.iter().flat_map(|(key, value)| [key, value]))
}

/// Applies the next entry; returns the outcomes.
pub(crate) fn apply(
    machine: &mut StateMachine<MemoryStore>,
    kind: EntryKind,
    data: &[u8],
) -> Result<Vec<Outcome>, StoreError> {
    let (index, term) = machine.applied();
    let entry = Entry {
        index: index.next(),
        term: Term(term.0.max(1)),
        kind,
        context: Bytes::new(),
        data: Bytes::copy_from_slice(data),
    };
    let applied = machine.apply(&[entry])?;
    Ok(applied.into_iter().map(|it| it.outcome).collect())
}

/// A state machine that has applied all the valid commands.
pub(super) fn filled() -> StateMachine<MemoryStore> {
    fill(MemoryStore::default())
}

fn fill(store: MemoryStore) -> StateMachine<MemoryStore> {
    let mut machine = StateMachine::open(store).unwrap();
    for data in requests() {
        apply(&mut machine, EntryKind::Command, &data).unwrap();
    }
    machine
}

fn dump() -> Vec<(Vec<u8>, Vec<u8>)> {
    let store = MemoryStore::default();
    drop(fill(store.clone()));
    let records = store.dump().into_iter();
    records
        .map(|(key, value)| (key.to_vec(), value.to_vec()))
        .collect()
}

fn requests() -> Vec<Vec<u8>> {
    let key = Bytes::from_static(b"key");
    let put = |key: &Bytes, ttl_ms| {
        Command::Put(Put {
            prev_kv: true,
            ttl_ms,
            ..Put::new(key.clone(), Bytes::from_static(b"value"))
        })
    };
    let commands = vec![
        put(&key, 0),
        put(&Bytes::from_static(b"other"), 1000),
        Command::OpenSession { ttl_ms: 1000 },
        Command::Delete {
            keys: KeyRange::Between {
                start: key.clone(),
                end: Bytes::from_static(b"kez"),
            },
            prev_kv: true,
        },
        Command::CompareAndSwap {
            key: key.clone(),
            expected: Expected::ModRevision(Revision(0)),
            value: Bytes::from_static(b"swapped"),
            ttl_ms: 0,
        },
        Command::Batch(batch(&key)),
        Command::Batch(nested(&key)),
        Command::KeepAlive {
            session: SessionId(3),
        },
        Command::ExpireSession {
            session: SessionId(9),
            last_used: Index(9),
        },
        Command::ExpireKeys { keys: Vec::new() },
        Command::Compact {
            revision: Revision(2),
        },
    ];
    let stamped = Request {
        session: Some(SessionStamp {
            id: SessionId(3),
            sequence: 1,
            acknowledged: 0,
        }),
        command: put(&key, 5),
    };
    let plain = commands.into_iter().map(Request::from);
    plain
        .chain([stamped])
        .flat_map(|request| CommandVersion::ALL.map(|version| request.clone().encode(version)))
        .map(|data| data.to_vec())
        .collect()
}

/// Compares the value that the command before it in [`requests`] swapped in.
fn batch(key: &Bytes) -> Batch {
    Batch {
        compares: vec![Compare {
            keys: KeyRange::One(key.clone()),
            relation: Relation::Equal,
            target: CompareTarget::Value(Bytes::from_static(b"swapped")),
        }],
        then: vec![
            BatchOperation::Put(Put {
                prev_kv: true,
                ttl_ms: 9,
                ..Put::new(Bytes::from_static(b"batched"), Bytes::from_static(b"value"))
            }),
            BatchOperation::Get {
                keys: KeyRange::From(Bytes::new()),
                limit: 2,
                keys_only: false,
                count_only: false,
            },
        ],
        otherwise: vec![BatchOperation::Delete {
            keys: KeyRange::One(key.clone()),
            prev_kv: false,
        }],
    }
}

/// What takes version 4: a batch within a batch, a read of the past, and a put that keeps a value.
fn nested(key: &Bytes) -> Batch {
    let selection = Selection {
        order: SortOrder::Descending,
        by: SortBy::ModRevision,
        ..Selection::default()
    };
    let past = RangeRead {
        revision: Some(Revision(2)),
        limit: 1,
        selection,
        ..RangeRead::new(KeyRange::From(Bytes::new()))
    };
    let keep = BatchOperation::Put(Put {
        ignore_value: true,
        ..Put::new(key.clone(), Bytes::new())
    });
    let inner = Batch {
        then: vec![keep, BatchOperation::Range(Box::new(past))],
        ..batch(key)
    };
    Batch {
        then: vec![BatchOperation::Batch(Box::new(inner))],
        ..Batch::default()
    }
}

fn memberships() -> Vec<Vec<u8>> {
    let mut seeds = changes();
    seeds.push(with_members().membership().encode());
    seeds
}

/// One after the other, from the beginning of a cluster on, each is accepted.
fn changes() -> Vec<Vec<u8>> {
    let member = |id: u64| Member {
        id: MemberId(id),
        name: format!("m{id}"),
        peer_address: format!("m{id}:1"),
        client_address: format!("m{id}:2"),
        folder_id: format!("f{id}"),
        voter: false,
    };
    let changes = [
        MembershipChange::Bootstrap {
            cluster_id: ClusterId(7),
            member: member(1),
            first_revision: Revision(1),
        },
        MembershipChange::AddLearner(member(2)),
        MembershipChange::Promote(MemberId(2)),
        MembershipChange::AddLearner(member(3)),
        MembershipChange::Promote(MemberId(3)),
        MembershipChange::Remove(MemberId(1)),
        MembershipChange::AddLearner(member(4)),
    ];
    let encoded = changes.map(MembershipChange::encode);
    encoded.iter().map(|data| data.to_vec()).collect()
}
