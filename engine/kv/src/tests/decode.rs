//! Every decoder: what was encoded is decoded, and no other bytes make it panic.

use bytes::Bytes;
use dengine_types::{EntryKind, Index, LeaseId, Revision, SessionId, Term};
use proptest::prelude::*;

use crate::layout::{
    Change, FORMAT_OLDEST, FORMAT_VERSION, Lease, MachineState, STATE_KEY, Version, attached_key,
    attached_range, change, check_format, decode_lease, decode_membership, decode_state,
    encode_lease, encode_state, lease_key, lease_range, put_change, put_data_key, put_version,
    split_attached_key, split_change_key, split_data_key, split_expiring_key, split_lease_key,
    split_session_key, ttl, user_key, version, version_prefix,
};
use crate::outcome::decode_kept;
use crate::scan::live;
use crate::store::{MemoryStore, WriteBatch};
use crate::{
    Batch, BatchOperation, Command, CommandVersion, Compare, CompareTarget, Expected, ExpiredKey,
    KeyRange, LEASES_MAX, LeaseCheckpoint, LoggedRequest, Membership, MembershipChange, Outcome,
    Put, PutLease, RangeRead, Relation, Request, RevisionBounds, SESSIONS_MAX, Selection,
    SessionInfo, SessionStamp, SortBy, SortOrder, StateMachine, Store, StoreError,
};

fn data_key(key: &[u8], revision: Revision) -> Vec<u8> {
    let mut out = Vec::new();
    put_data_key(&mut out, key, revision);
    out
}

fn revision() -> impl Strategy<Value = Revision> {
    any::<u64>().prop_map(Revision)
}

/// Bytes that often resemble the beginning of a record.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![any::<u8>(), 0..16_u8, Just(0xff)];
    let body = prop::collection::vec(byte, 0..64);
    let first = prop::sample::select(vec![None, Some(0_u8), Some(1), Some(2), Some(b'd')]);
    (first, body).prop_map(|(first, body)| first.into_iter().chain(body).collect())
}

fn blob() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..32).prop_map(Bytes::from)
}

fn keys() -> impl Strategy<Value = KeyRange> {
    prop_oneof![
        blob().prop_map(KeyRange::One),
        (blob(), blob()).prop_map(|(start, end)| KeyRange::Between { start, end }),
        blob().prop_map(KeyRange::From),
    ]
}

fn batch(depth: usize) -> BoxedStrategy<Batch> {
    let relation = prop::sample::select(vec![
        Relation::Equal,
        Relation::NotEqual,
        Relation::Greater,
        Relation::Less,
    ]);
    let revision = || any::<u64>().prop_map(Revision);
    let target = prop_oneof![
        any::<u64>().prop_map(CompareTarget::Version),
        revision().prop_map(CompareTarget::CreateRevision),
        revision().prop_map(CompareTarget::ModRevision),
        blob().prop_map(CompareTarget::Value),
        any::<i64>().prop_map(|id| CompareTarget::Lease(LeaseId(id))),
    ];
    let compare = (keys(), relation, target);
    let compare = compare.prop_map(|(keys, relation, target)| Compare {
        keys,
        relation,
        target,
    });
    let operations = || prop::collection::vec(operation(depth), 0..4);
    let compares = prop::collection::vec(compare, 0..4);
    let batch = (compares, operations(), operations());
    batch
        .prop_map(|(compares, then, otherwise)| Batch {
            compares,
            then,
            otherwise,
        })
        .boxed()
}

/// With batches within batches up to this depth.
fn operation(depth: usize) -> BoxedStrategy<BatchOperation> {
    let range = || range_read().prop_map(|read| BatchOperation::Range(Box::new(read)));
    if depth == 0 {
        return prop_oneof![3 => single_operation(), 1 => range()].boxed();
    }
    let inner = batch(depth - 1).prop_map(|batch| BatchOperation::Batch(Box::new(batch)));
    prop_oneof![3 => single_operation(), 1 => range(), 1 => inner].boxed()
}

fn range_read() -> impl Strategy<Value = RangeRead> {
    let revision = || prop::option::of(any::<u64>().prop_map(Revision));
    let bounds = || (revision(), revision()).prop_map(|(min, max)| RevisionBounds { min, max });
    let order = prop::sample::select(vec![
        SortOrder::None,
        SortOrder::Ascending,
        SortOrder::Descending,
    ]);
    let by = prop::sample::select(vec![
        SortBy::Key,
        SortBy::Version,
        SortBy::CreateRevision,
        SortBy::ModRevision,
        SortBy::Value,
    ]);
    let selection =
        (order, by, bounds(), bounds()).prop_map(|(order, by, mod_revisions, create_revisions)| {
            Selection {
                order,
                by,
                mod_revisions,
                create_revisions,
            }
        });
    let flags = any::<(u64, bool, bool)>();
    (keys(), revision(), flags, selection).prop_map(
        |(keys, revision, (limit, keys_only, count_only), selection)| RangeRead {
            keys,
            revision,
            limit,
            keys_only,
            count_only,
            selection,
        },
    )
}

fn single_operation() -> impl Strategy<Value = BatchOperation> {
    let (flag, number) = (any::<bool>, any::<u64>);
    prop_oneof![
        any_put().prop_map(BatchOperation::Put),
        (keys(), flag()).prop_map(|(keys, prev_kv)| BatchOperation::Delete { keys, prev_kv }),
        (keys(), number(), flag(), flag()).prop_map(|(keys, limit, keys_only, count_only)| {
            BatchOperation::Get {
                keys,
                limit,
                keys_only,
                count_only,
            }
        }),
    ]
}

fn command() -> impl Strategy<Value = Command> {
    let number = any::<u64>;
    let session = || number().prop_map(SessionId);
    let expected = prop_oneof![
        number().prop_map(|number| Expected::ModRevision(Revision(number))),
        blob().prop_map(Expected::Value),
    ];
    let expired = (blob(), number()).prop_map(|(key, revision)| ExpiredKey {
        key,
        mod_revision: Revision(revision),
    });
    prop_oneof![
        any_put().prop_map(Command::Put),
        (keys(), any::<bool>()).prop_map(|(keys, prev_kv)| Command::Delete { keys, prev_kv }),
        (blob(), expected, blob(), number()).prop_map(|(key, expected, value, ttl_ms)| {
            Command::CompareAndSwap {
                key,
                expected,
                value,
                ttl_ms,
            }
        }),
        batch(2).prop_map(Command::Batch),
        number().prop_map(|revision| Command::Compact {
            revision: Revision(revision)
        }),
        number().prop_map(|ttl_ms| Command::OpenSession { ttl_ms }),
        session().prop_map(|session| Command::KeepAlive { session }),
        session().prop_map(|session| Command::CloseSession { session }),
        (session(), number()).prop_map(|(session, index)| Command::ExpireSession {
            session,
            last_used: Index(index),
        }),
        prop::collection::vec(expired, 0..4).prop_map(|keys| Command::ExpireKeys { keys }),
        about_leases(),
    ]
}

fn any_put() -> impl Strategy<Value = Put> {
    (
        blob(),
        blob(),
        any::<(bool, bool)>(),
        any::<u64>(),
        put_lease(),
    )
        .prop_map(|(key, value, (ignore_value, prev_kv), ttl_ms, lease)| Put {
            key,
            value,
            ignore_value,
            prev_kv,
            ttl_ms,
            lease,
        })
}

fn put_lease() -> impl Strategy<Value = PutLease> {
    prop_oneof![
        Just(PutLease::None),
        any::<i64>().prop_map(|id| PutLease::Attach(LeaseId(id))),
        Just(PutLease::Keep),
    ]
}

fn about_leases() -> impl Strategy<Value = Command> {
    let lease = || any::<i64>().prop_map(LeaseId);
    let checkpoint = (lease(), any::<u64>(), any::<u64>());
    let checkpoint = checkpoint.prop_map(|(lease, remaining_ms, seen)| LeaseCheckpoint {
        lease,
        remaining_ms,
        seen: Index(seen),
    });
    prop_oneof![
        (lease(), any::<u64>()).prop_map(|(lease, ttl_ms)| Command::GrantLease { lease, ttl_ms }),
        lease().prop_map(|lease| Command::RevokeLease { lease }),
        (lease(), any::<u64>()).prop_map(|(lease, seen)| Command::ExpireLease {
            lease,
            seen: Index(seen),
        }),
        prop::collection::vec(checkpoint, 0..4)
            .prop_map(|leases| Command::CheckpointLeases { leases }),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    let stamp = any::<(u64, u64, u64)>();
    let stamp = stamp.prop_map(|(id, sequence, acknowledged)| SessionStamp {
        id: SessionId(id),
        sequence,
        acknowledged,
    });
    (prop::option::of(stamp), command()).prop_map(|(session, command)| Request { session, command })
}

fn state() -> impl Strategy<Value = MachineState> {
    let index = 0..1_u64 << 62;
    let revision = index
        .clone()
        .prop_flat_map(|index| (Just(index), 1..=index + 1));
    let revisions =
        revision.prop_flat_map(|(index, newest)| (Just(index), Just(newest), 0..=newest));
    let others = (index, 0..=SESSIONS_MAX, prop::option::of(0..=LEASES_MAX));
    (revisions, others).prop_map(|((index, revision, compacted), (term, sessions, leases))| {
        MachineState {
            format: leases.map_or(FORMAT_OLDEST, |_| FORMAT_VERSION),
            applied_index: Index(index),
            applied_term: Term(term),
            revision: Revision(revision),
            compact_revision: Revision(compacted),
            sessions,
            leases: leases.unwrap_or(0),
            ..MachineState::EMPTY
        }
    })
}

/// Found by the fuzz target `kv_store`: a read of the newest revision never ended.
#[test]
fn a_state_whose_newest_revision_is_compacted_is_refused() {
    let state = MachineState {
        compact_revision: Revision(3),
        revision: Revision(2),
        ..MachineState::EMPTY
    };
    decode_state(&encode_state(&state)).unwrap_err();
    let state = MachineState {
        revision: Revision(0),
        ..MachineState::EMPTY
    };
    decode_state(&encode_state(&state)).unwrap_err();
}

/// Found by review: at the largest revision the next put overflowed, and so did a watch of the next
/// revision. Index and term of a snapshot are verified; the rest of its state is whatever the peer
/// sent.
#[test]
fn an_impossible_state_is_refused() {
    let highest = MachineState {
        applied_index: Index((1 << 62) - 1),
        applied_term: Term((1 << 62) - 1),
        revision: Revision(1 << 62),
        compact_revision: Revision(1 << 62),
        sessions: SESSIONS_MAX,
        format: FORMAT_VERSION,
        leases: LEASES_MAX,
        first_revision: Revision(1),
    };
    assert_eq!(decode_state(&encode_state(&highest)), Ok(highest));
    let bend: [fn(&mut MachineState); 9] = [
        |state| state.applied_index = Index(1 << 62),
        |state| state.applied_index = Index(u64::MAX),
        |state| state.applied_term = Term(1 << 62),
        |state| state.revision.0 += 1,
        |state| state.revision = Revision(u64::MAX),
        |state| state.sessions += 1,
        |state| state.leases += 1,
        |state| state.first_revision = Revision(0),
        |state| state.first_revision = Revision(u64::MAX),
    ];
    for bend in bend {
        let mut state = highest;
        bend(&mut state);
        let refused = decode_state(&encode_state(&state));
        assert!(matches!(refused, Err(StoreError::Corrupt(_))), "{state:?}");
    }
    let first = MachineState {
        revision: Revision(2),
        ..MachineState::EMPTY
    };
    decode_state(&encode_state(&first)).expect_err("no entry made that revision");
}

#[test]
fn the_highest_state_that_opens_can_still_be_written_to() {
    let store = MemoryStore::default();
    drop(StateMachine::open(store.clone()).expect("open"));
    let highest = MachineState {
        applied_index: Index((1 << 62) - 1),
        applied_term: Term(1),
        revision: Revision(1 << 62),
        ..MachineState::EMPTY
    };
    let mut batch = WriteBatch::default();
    batch.put(STATE_KEY, &encode_state(&highest));
    store.write(&batch).expect("write");
    let mut machine = StateMachine::open(store).expect("open again");
    let answer = super::apply(&mut machine, super::put("k", "v"));
    let revision = Revision((1 << 62) + 1);
    assert_eq!(
        answer,
        Outcome::Put {
            revision,
            prev: None
        }
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases * 2))]

    #[test]
    fn requests_round_trip_in_every_version(request in request()) {
        for read_by_all in CommandVersion::ALL {
            let decoded = Request::decode(request.clone().encode(read_by_all));
            let request = request.clone();
            // Version 4 is written only for what it takes.
            let version = match request.version_needed() {
                CommandVersion::V4 => CommandVersion::V4,
                _ => read_by_all.min(CommandVersion::V3),
            };
            prop_assert_eq!(decoded, Ok(Ok(LoggedRequest { version, request })));
        }
    }

    #[test]
    fn data_keys_round_trip(key in hostile(), revision in revision()) {
        let encoded = data_key(&key, revision);
        let (prefix, found) = split_data_key(&encoded).expect("a data key");
        prop_assert_eq!(found, revision);
        prop_assert_eq!(Some(prefix), version_prefix(&encoded));
        prop_assert_eq!(user_key(prefix).expect("our escapes"), key);
    }

    #[test]
    fn data_keys_preserve_the_order(
        left in hostile(), right in hostile(), one in revision(), other in revision(),
    ) {
        let by_key = data_key(&left, one).cmp(&data_key(&right, other));
        let expected = left.cmp(&right).then(other.cmp(&one));
        prop_assert_eq!(by_key, expected, "by key, then newest first");
    }

    #[test]
    fn records_round_trip(
        create in any::<u64>(), number in any::<u64>(), ttl_ms in any::<u64>(), value in blob(),
        lease in prop_oneof![Just(0), any::<i64>()], state in state(),
    ) {
        let live = Version::Live {
            create_revision: Revision(create),
            version: number,
            ttl_ms,
            lease: LeaseId(lease),
            value: &value,
        };
        for expected in [live, Version::Tombstone] {
            let mut record = Vec::new();
            put_version(&mut record, &expected);
            prop_assert_eq!(version(&record), Ok(expected));
        }
        for replaces in [None, Some(Revision(create.max(1)))] {
            let expected = Change { key: &value, deletes: number % 2 == 0, replaces };
            let mut record = Vec::new();
            put_change(&mut record, expected);
            prop_assert_eq!(change(&record), Ok(expected));
        }
        prop_assert_eq!(decode_state(&encode_state(&state)), Ok(state));
    }

    #[test]
    fn records_of_leases_round_trip(
        id in any::<i64>(), ttl_ms in any::<u64>(), part in any::<u64>(),
        touched in 0..1_u64 << 62, dying in any::<bool>(), key in hostile(), other in any::<i64>(),
    ) {
        let id = LeaseId(id);
        let lease = Lease {
            ttl_ms,
            remaining_ms: part.min(ttl_ms),
            touched: Index(touched),
            dying,
        };
        prop_assert_eq!(decode_lease(&encode_lease(&lease)), Ok(lease));
        prop_assert_eq!(split_lease_key(&lease_key(id)), Ok(id));
        let attached = attached_key(id, &key);
        prop_assert_eq!(split_attached_key(&attached), Ok((id, &key[..])));
        prop_assert!(attached_range(id).contains(&attached));
        let other = LeaseId(other);
        prop_assert_eq!(attached_range(other).contains(&attached), id == other);
        let after = lease_range(Some(other)).contains(&lease_key(id).to_vec());
        prop_assert_eq!(after, lease_key(id) > lease_key(other));
    }

    #[test]
    fn no_bytes_make_a_decoder_panic(bytes in hostile()) {
        let _ = Request::decode(Bytes::from(bytes.clone()));
        let _ = decode_kept(Bytes::from(bytes.clone()));
        let _ = SessionInfo::decode(SessionId(1), &bytes);
        let _ = MembershipChange::decode(&bytes);
        let _ = Membership::decode(&bytes);
        let _ = decode_membership(&bytes);
        let _ = decode_state(&bytes);
        let _ = check_format(&bytes);
        let _ = version(&bytes);
        let _ = split_data_key(&bytes);
        let _ = split_change_key(&bytes);
        let _ = change(&bytes);
        let _ = split_expiring_key(&bytes);
        let _ = split_session_key(&bytes);
        let _ = ttl(&bytes);
        let _ = decode_lease(&bytes);
        let _ = split_lease_key(&bytes);
        let _ = split_attached_key(&bytes);
        let _ = user_key(&bytes);
    }

    #[test]
    fn no_entry_makes_the_machine_panic(bytes in hostile(), membership in any::<bool>()) {
        let mut machine = StateMachine::open(MemoryStore::default()).expect("open");
        let kind = if membership { EntryKind::Membership } else { EntryKind::Command };
        let _ = machine.apply(&[super::entry(1, kind, Bytes::from(bytes))]);
    }
}

/// The scan of a range steps to the next key by the terminator.
#[test]
fn a_data_key_without_its_terminator_is_refused() {
    let mut key = data_key(b"k", Revision(7));
    let end = key.len() - 8;
    key[end - 1] = 0xff;
    split_data_key(&key).expect_err("its prefix does not end as ours do");
}

/// Each revision changes a key at most once, so a key has at most as many versions as there were
/// revisions.
#[test]
fn an_impossible_version_number_is_refused() {
    let read = |create_revision, number| {
        let mut record = Vec::new();
        let version = Version::Live {
            create_revision: Revision(create_revision),
            version: number,
            ttl_ms: 0,
            lease: LeaseId::NONE,
            value: b"v",
        };
        put_version(&mut record, &version);
        let key = data_key(b"k", Revision(7));
        let found = live(&key, &record);
        found.map(|found| found.map(|it| it.to_key_value(Bytes::new(), true).version))
    };
    assert_eq!(read(7, 1), Ok(Some(1)));
    assert_eq!(read(5, 3), Ok(Some(3)));
    for (create_revision, number) in [(5, 4), (5, 0), (8, 1), (0, 1), (1, u64::MAX)] {
        read(create_revision, number).expect_err("never written");
    }
}

#[test]
fn a_session_of_impossible_sizes_does_not_panic() {
    // Two replies of sequences 1 and 2, each of 2^64 - 1 bytes.
    let size: Vec<u8> = [0xff; 9].into_iter().chain([1]).collect();
    let reply = |sequence| [&[0x22, 13, 8, sequence, 16][..], &size].concat();
    let record = [reply(1), reply(2)].concat();
    let session = SessionInfo::decode(SessionId(1), &record).expect("a session");
    assert_eq!((session.replies, session.reply_bytes), (2, u64::MAX));
}

#[test]
fn ranges_are_encoded_by_their_end() {
    let (key, end) = (Bytes::from_static(b"a"), Bytes::from_static(b"b"));
    let range = |end: &Bytes| KeyRange::from_wire(&key, end);
    assert_eq!(range(&Bytes::new()), KeyRange::One(key.clone()));
    assert_eq!(
        range(&Bytes::from_static(&[0])),
        KeyRange::From(key.clone())
    );
    let between = KeyRange::Between {
        start: key.clone(),
        end: end.clone(),
    };
    assert_eq!(range(&end), between);
}
