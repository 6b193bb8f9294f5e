//! Commands and membership changes as they stand in the log, and records as they stand in the store.

use super::{joined, parts, words};
use crate::driver::Target;
use bytes::Bytes;
use dengine_kv::outcome::{decode_kept, encode_kept};
use dengine_kv::store::{MemoryStore, WriteBatch};
use dengine_kv::{
    Batch, BatchOperation, Command, CommandVersion, Compare, CompareTarget, Expected, KeyRange,
    Member, Membership, MembershipChange, Outcome, RangeQuery, Relation, Request, SessionInfo,
    SessionStamp, StateMachine, Store as _, layout,
};
use dengine_types::{ClusterId, Entry, EntryKind, Index, MemberId, Revision, SessionId, Term};

/// The data of an entry, decoded, encoded again and applied.
pub(crate) const REQUEST: Target = Target {
    name: "",
    run: request,
    seeds: requests,
    memory: (1 << 20, 64),
};

/// A change of the members, decoded and applied; and their record.
pub(crate) const MEMBERSHIP: Target = Target {
    name: "",
    run: membership,
    seeds: memberships,
    memory: (1 << 20, 64),
};

/// One record or key by itself.
pub(crate) const RECORDS: Target = Target {
    name: "",
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
    name: "",
    run: kept,
    seeds: kept_records,
    memory: (1 << 16, 256),
};

/// A whole store: records with their lengths before them.
pub(crate) const STORE: Target = Target {
    name: "",
    run: store,
    seeds: || vec![framed(&dump()), framed(&dump()[..4])],
    memory: (4 << 20, 256),
};

fn request(input: &[u8]) -> String {
    let decoded = match Request::decode(Bytes::copy_from_slice(input)) {
        Err(error) => words(&error),
        Ok(Err(refusal)) => words(&refusal),
        Ok(Ok(logged)) => {
            let data = logged.request.clone().encode(logged.version);
            let again = Request::decode(data).unwrap().unwrap();
            assert_eq!(again, logged, "a command is what it was encoded from");
            words(&logged.request.command)
        }
    };
    let mut machine = filled();
    let entries = [entry(&machine, EntryKind::Command, input)];
    let applied = machine.apply(&entries);
    // Twice: a session knows the second.
    let entries = [entry(&machine, EntryKind::Command, input)];
    let applied = applied.and_then(|_| machine.apply(&entries));
    let became = applied.map_or_else(|error| words(&error), |all| words(&all[0].outcome));
    let _ = machine.reader().logical_hash().unwrap();
    format!("{decoded} {became}")
}

fn membership(input: &[u8]) -> String {
    let record = Membership::decode(input).map_or_else(
        |error| words(&error),
        |found| {
            assert_eq!(Membership::decode(&found.encode()).unwrap(), found);
            "a record".to_owned()
        },
    );
    let change = MembershipChange::decode(input);
    let empty = StateMachine::open(MemoryStore::default()).unwrap();
    let applied = [empty, begun()].map(|mut machine| {
        let entries = [entry(&machine, EntryKind::Membership, input)];
        let applied = machine.apply(&entries);
        let now = machine.membership();
        assert_eq!(Membership::decode(&now.encode()).unwrap(), *now);
        let _ = now.next_member_id();
        applied.map_or_else(|error| words(&error), |all| words(&all[0].outcome))
    });
    format!("{record} {} {}", words(&change), applied.join(" "))
}

/// A state machine that knows the voters 1 and 2 and the learner 3.
fn begun() -> StateMachine<MemoryStore> {
    let mut machine = StateMachine::open(MemoryStore::default()).unwrap();
    for change in &changes()[..4] {
        let entries = [entry(&machine, EntryKind::Membership, change)];
        machine.apply(&entries).unwrap();
    }
    machine
}

fn records(input: &[u8]) -> String {
    let state = layout::decode_state(input).is_ok();
    let version = layout::version(input).is_ok();
    let data = layout::split_data_key(input).is_ok();
    let change = layout::split_change_key(input).is_ok();
    let changed = layout::change(input).is_ok();
    let expiring = layout::split_expiring_key(input).is_ok();
    let session = layout::split_session_key(input).is_ok();
    let user = layout::user_key(input).is_ok();
    let ttl = layout::ttl(input).is_ok();
    let space = layout::space(input).is_ok();
    let format = layout::check_format(input).is_ok();
    let members = layout::decode_membership(input).is_ok();
    let prefix = layout::version_prefix(input).map(<[u8]>::len);
    format!(
        "{state} {version} {data} {change} {changed} {expiring} {session} {user} {ttl} {space} {format} {members} {}",
        prefix.is_some()
    )
}

fn kept(input: &[u8]) -> String {
    let answer = match decode_kept(Bytes::copy_from_slice(input)) {
        Err(error) => words(&error),
        Ok(Outcome::Trimmed(whole)) => format!("trimmed {}", words(&whole)),
        Ok(outcome) => {
            let again = decode_kept(Bytes::from(encode_kept(&outcome))).unwrap();
            let trimmed = matches!(again, Outcome::Trimmed(_));
            assert!(trimmed || again == outcome, "an answer is what it was");
            words(&outcome)
        }
    };
    let session = SessionInfo::decode(SessionId(3), input);
    format!("{answer}; {}", words(&session))
}

fn kept_records() -> Vec<Vec<u8>> {
    let mut machine = StateMachine::open(MemoryStore::default()).unwrap();
    let mut outcomes = Vec::new();
    for data in requests() {
        let entries = [entry(&machine, EntryKind::Command, &data)];
        let applied = machine.apply(&entries).unwrap();
        outcomes.extend(applied.into_iter().map(|it| it.outcome));
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

fn store(input: &[u8]) -> String {
    let store = MemoryStore::default();
    let mut batch = WriteBatch::default();
    let mut records = parts(input);
    while let (Some(key), Some(value)) = (records.next(), records.next()) {
        batch.put(key, value);
    }
    store.write(&batch).unwrap();
    let mut machine = match StateMachine::open(store) {
        Ok(machine) => machine,
        Err(error) => return words(&error),
    };
    let range = machine
        .reader()
        .range(&RangeQuery::new(KeyRange::From(Bytes::new())));
    let range = range.map_or_else(|error| words(&error), |found| found.kvs.len().to_string());
    let hash = machine.reader().logical_hash();
    let hash = hash.map_or_else(|error| words(&error), |_| String::new());
    let requests = requests();
    let mut became = String::new();
    for data in &requests {
        let entries = [entry(&machine, EntryKind::Command, data)];
        if let Err(error) = machine.apply(&entries) {
            became = words(&error);
            break;
        }
    }
    format!("{range} {hash} {became}")
}

fn framed(records: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    joined(records.iter().flat_map(|(key, value)| [key, value]))
}

/// The next entry that a machine applies.
pub(crate) fn entry(machine: &StateMachine<MemoryStore>, kind: EntryKind, data: &[u8]) -> Entry {
    let (index, term) = machine.applied();
    Entry {
        index: index.next(),
        term: Term(term.0.max(1)),
        kind,
        context: Bytes::new(),
        data: Bytes::copy_from_slice(data),
    }
}

/// A state machine that has applied all the valid commands.
pub(super) fn filled() -> StateMachine<MemoryStore> {
    fill(MemoryStore::default())
}

fn fill(store: MemoryStore) -> StateMachine<MemoryStore> {
    let mut machine = StateMachine::open(store).unwrap();
    for data in requests() {
        let entries = [entry(&machine, EntryKind::Command, &data)];
        machine.apply(&entries).unwrap();
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
    let put = |key: &Bytes, ttl_ms| Command::Put {
        key: key.clone(),
        value: Bytes::from_static(b"value"),
        prev_kv: true,
        ttl_ms,
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
        Command::Batch(Batch {
            compares: vec![Compare {
                keys: KeyRange::One(key.clone()),
                relation: Relation::Equal,
                target: CompareTarget::Value(Bytes::from_static(b"swapped")),
            }],
            then: vec![
                BatchOperation::Put {
                    key: Bytes::from_static(b"batched"),
                    value: Bytes::from_static(b"value"),
                    prev_kv: true,
                    ttl_ms: 9,
                },
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
        }),
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

fn memberships() -> Vec<Vec<u8>> {
    let mut seeds = changes();
    seeds.push(begun().membership().encode());
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
