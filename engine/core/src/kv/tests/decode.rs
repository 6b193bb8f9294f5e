//! Every decoder: what was encoded comes back, and no other bytes make it panic.

use crate::kv::layout::{
    Stamp, State, Version, check_format, decode_membership, decode_state, encode_state,
    put_data_key, put_version, split_data_key, user_key, version, version_prefix,
};
use crate::kv::store::MemoryStore;
use crate::kv::{Command, Expected, KeyRange, Membership, MembershipChange, StateMachine};
use crate::types::{EntryKind, Index, Revision, Term};
use bytes::Bytes;
use proptest::prelude::*;

fn data_key(key: &[u8], stamp: Stamp) -> Vec<u8> {
    let mut out = Vec::new();
    put_data_key(&mut out, key, stamp);
    out
}

fn stamp() -> impl Strategy<Value = Stamp> {
    (any::<u64>(), any::<u32>()).prop_map(|(revision, sub)| Stamp {
        revision: Revision(revision),
        sub,
    })
}

/// Bytes that often look like the beginning of something.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![any::<u8>(), 0..16_u8, Just(0xff)];
    let body = prop::collection::vec(byte, 0..64);
    let first = prop::sample::select(vec![None, Some(0_u8), Some(1), Some(b'd')]);
    (first, body).prop_map(|(first, body)| first.into_iter().chain(body).collect())
}

fn blob() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..32).prop_map(Bytes::from)
}

fn command() -> impl Strategy<Value = Command> {
    let keys = prop_oneof![
        blob().prop_map(KeyRange::One),
        (blob(), blob()).prop_map(|(start, end)| KeyRange::Between { start, end }),
        blob().prop_map(KeyRange::From),
    ];
    let expected = prop_oneof![
        any::<u64>().prop_map(|number| Expected::ModRevision(Revision(number))),
        blob().prop_map(Expected::Value),
    ];
    prop_oneof![
        (blob(), blob(), any::<bool>()).prop_map(|(key, value, prev_kv)| Command::Put {
            key,
            value,
            prev_kv
        }),
        (keys, any::<bool>()).prop_map(|(keys, prev_kv)| Command::Delete { keys, prev_kv }),
        (blob(), expected, blob()).prop_map(|(key, expected, value)| Command::CompareAndSwap {
            key,
            expected,
            value
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn commands_come_back(command in command()) {
        prop_assert_eq!(Command::decode(command.clone().encode()), Ok(Ok(command)));
    }

    #[test]
    fn data_keys_come_back(key in hostile(), stamp in stamp()) {
        let encoded = data_key(&key, stamp);
        let (prefix, found) = split_data_key(&encoded).expect("a data key");
        prop_assert_eq!(found, stamp);
        prop_assert_eq!(Some(prefix), version_prefix(&encoded));
        prop_assert_eq!(user_key(prefix).expect("our escapes"), key);
    }

    #[test]
    fn data_keys_keep_the_order(
        left in hostile(), right in hostile(), one in stamp(), other in stamp(),
    ) {
        let by_key = data_key(&left, one).cmp(&data_key(&right, other));
        let expected = left.cmp(&right).then(other.cmp(&one));
        prop_assert_eq!(by_key, expected, "by key, then newest first");
    }

    #[test]
    fn records_come_back(create in any::<u64>(), number in any::<u64>(), value in blob()) {
        let live = Version::Live {
            create_revision: Revision(create),
            version: number,
            value: &value,
        };
        for expected in [live, Version::Tombstone] {
            let mut record = Vec::new();
            put_version(&mut record, &expected);
            prop_assert_eq!(version(&record), Ok(expected));
        }
        let state = State {
            applied_index: Index(create),
            applied_term: Term(number),
            revision: Revision(number),
            compact_revision: Revision(create),
        };
        prop_assert_eq!(decode_state(&encode_state(&state)), Ok(state));
    }

    #[test]
    fn no_bytes_make_a_decoder_panic(bytes in hostile()) {
        let _ = Command::decode(Bytes::from(bytes.clone()));
        let _ = MembershipChange::decode(&bytes);
        let _ = Membership::decode(&bytes);
        let _ = decode_membership(&bytes);
        let _ = decode_state(&bytes);
        let _ = check_format(&bytes);
        let _ = version(&bytes);
        let _ = split_data_key(&bytes);
        let _ = user_key(&bytes);
    }

    #[test]
    fn no_entry_makes_the_machine_panic(bytes in hostile(), membership in any::<bool>()) {
        let mut machine = StateMachine::open(MemoryStore::default()).expect("open");
        let kind = if membership { EntryKind::Membership } else { EntryKind::Command };
        let _ = machine.apply(&[super::entry(1, kind, Bytes::from(bytes))]);
    }
}

#[test]
fn the_wire_says_ranges_by_their_end() {
    let (key, end) = (Bytes::from_static(b"a"), Bytes::from_static(b"b"));
    let range = |end: &Bytes| KeyRange::from_wire(key.clone(), end.clone());
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
