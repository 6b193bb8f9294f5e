//! Whatever a client sends: nothing panics, and what is refused as a duplicate is what a plain
//! search finds.

use bytes::Bytes;
use dengine_kv::{Batch, BatchAnswer, BatchOperation, Command, KeyRange, KeyValue, Outcome};
use dengine_types::{LeaseId, Revision};
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message as _;

use crate::etcdserverpb::compare::TargetUnion;
use crate::etcdserverpb::request_op::Request;
use crate::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
    WatchCreateRequest,
};
use crate::range::Range;
use crate::writes::{answer, command};
use crate::{EtcdError, Header, codec, watch};

/// Few, so that they meet.
fn key() -> impl Strategy<Value = Bytes> {
    let some = prop::sample::select(vec!["\0", "a", "b", "c", "d"]);
    prop_oneof![99 => some, 1 => Just("")].prop_map(Bytes::from)
}

fn range_end() -> impl Strategy<Value = Bytes> {
    prop_oneof![Just(Bytes::new()), key()]
}

/// Mostly one of an enum that has so many.
fn choice(known: i32) -> impl Strategy<Value = i32> {
    prop_oneof![49 => 0..known, 1 => Just(-1), 1 => Just(known)]
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![-2..9_i64, Just(i64::MIN), Just(i64::MAX)]
}

fn range() -> impl Strategy<Value = RangeRequest> {
    let bounds = (number(), number(), number(), number());
    let sort = (choice(3), choice(5));
    let flags = any::<(bool, bool, bool)>();
    let query = (key(), range_end(), number(), number());
    (query, sort, flags, bounds).prop_map(|(query, sort, flags, bounds)| RangeRequest {
        key: query.0,
        range_end: query.1,
        limit: query.2,
        revision: query.3,
        sort_order: sort.0,
        sort_target: sort.1,
        serializable: flags.0,
        keys_only: flags.1,
        count_only: flags.2,
        min_mod_revision: bounds.0,
        max_mod_revision: bounds.1,
        min_create_revision: bounds.2,
        max_create_revision: bounds.3,
    })
}

fn put() -> impl Strategy<Value = PutRequest> {
    let rarely = || prop::bool::weighted(0.02);
    let lease = prop_oneof![9 => Just(0), 1 => number()];
    (key(), range_end(), lease, any::<bool>(), rarely(), rarely()).prop_map(
        |(key, value, lease, prev_kv, ignore_value, ignore_lease)| PutRequest {
            key,
            value,
            lease,
            prev_kv,
            ignore_value,
            ignore_lease,
        },
    )
}

fn delete() -> impl Strategy<Value = DeleteRangeRequest> {
    (key(), range_end(), any::<bool>()).prop_map(|(key, range_end, prev_kv)| DeleteRangeRequest {
        key,
        range_end,
        prev_kv,
    })
}

fn compare() -> impl Strategy<Value = Compare> {
    let target = prop_oneof![
        Just(None),
        number().prop_map(|it| Some(TargetUnion::Version(it))),
        number().prop_map(|it| Some(TargetUnion::CreateRevision(it))),
        number().prop_map(|it| Some(TargetUnion::ModRevision(it))),
        key().prop_map(|it| Some(TargetUnion::Value(it))),
        number().prop_map(|it| Some(TargetUnion::Lease(it))),
    ];
    (choice(4), choice(5), key(), range_end(), target).prop_map(
        |(result, target, key, range_end, target_union)| Compare {
            result,
            target,
            key,
            range_end,
            target_union,
        },
    )
}

fn operation() -> impl Strategy<Value = RequestOp> {
    let leaf = prop_oneof![
        1 => Just(None),
        30 => range().prop_map(|it| Some(Request::RequestRange(it))),
        60 => put().prop_map(|it| Some(Request::RequestPut(it))),
        30 => delete().prop_map(|it| Some(Request::RequestDeleteRange(it))),
    ];
    let leaf = leaf.prop_map(|request| RequestOp { request });
    leaf.prop_recursive(3, 24, 4, |inner| {
        let lists = (vec(inner.clone(), 0..3), vec(inner, 0..3));
        (vec(compare(), 0..2), lists).prop_map(|(compare, (success, failure))| RequestOp {
            request: Some(Request::RequestTxn(TxnRequest {
                compare,
                success,
                failure,
            })),
        })
    })
}

fn txn() -> impl Strategy<Value = TxnRequest> {
    let operations = || vec(operation(), 0..4);
    (vec(compare(), 0..3), operations(), operations()).prop_map(|(compare, success, failure)| {
        TxnRequest {
            compare,
            success,
            failure,
        }
    })
}

/// What a list of operations may change, in whichever branches.
enum Change {
    Put(Bytes),
    Delete(KeyRange),
}

fn changes(operation: &RequestOp) -> Vec<Change> {
    match &operation.request {
        Some(Request::RequestPut(it)) => vec![Change::Put(it.key.clone())],
        Some(Request::RequestDeleteRange(it)) => {
            vec![Change::Delete(KeyRange::from_wire(&it.key, &it.range_end))]
        }
        Some(Request::RequestTxn(it)) => {
            let both = it.success.iter().chain(&it.failure);
            both.flat_map(changes).collect()
        }
        Some(Request::RequestRange(_)) | None => Vec::new(),
    }
}

fn meet(one: &Change, other: &Change) -> bool {
    match (one, other) {
        (Change::Put(one), Change::Put(other)) => one == other,
        (Change::Put(key), Change::Delete(keys)) | (Change::Delete(keys), Change::Put(key)) => {
            keys.contains(key)
        }
        (Change::Delete(_), Change::Delete(_)) => false,
    }
}

/// Compares each operation with each other of its list.
fn changes_twice(operations: &[RequestOp]) -> bool {
    let each: Vec<_> = operations.iter().map(changes).collect();
    let here = each.iter().enumerate().any(|(at, one)| {
        let mut others = each[at + 1..].iter().flatten();
        others.any(|other| one.iter().any(|one| meet(one, other)))
    });
    let within = operations.iter().any(|it| match &it.request {
        Some(Request::RequestTxn(it)) => changes_twice(&it.success) || changes_twice(&it.failure),
        _ => false,
    });
    here || within
}

/// Pairs and counts of no store in particular.
fn answers(operations: &[BatchOperation]) -> Vec<BatchAnswer> {
    let pair = |key: &'static str, at: u64| KeyValue {
        key: key.into(),
        value: key.into(),
        create_revision: Revision(at),
        mod_revision: Revision(u64::MAX - at),
        version: at,
        ttl_ms: 0,
        lease: LeaseId::NONE,
    };
    let pairs = || vec![pair("a", 3), pair("b", 1), pair("c", 2)];
    let answer = |operation: &BatchOperation| match operation {
        BatchOperation::Put(_) => BatchAnswer::Put {
            prev: pairs().pop(),
        },
        BatchOperation::Delete { .. } => BatchAnswer::Delete {
            deleted: 3,
            prev: pairs(),
        },
        BatchOperation::Get { .. } | BatchOperation::Range(_) => BatchAnswer::Get {
            kvs: pairs(),
            more: true,
            count: u64::MAX,
        },
        BatchOperation::Batch(batch) => BatchAnswer::Batch {
            succeeded: false,
            answers: answers(&batch.otherwise),
        },
    };
    operations.iter().map(answer).collect()
}

proptest! {
    #[test]
    fn whatever_a_transaction_is_it_is_served_or_refused(txn in txn()) {
        let sent = Bytes::from(txn.encode_to_vec());
        prop_assert_eq!(&codec::decode::<TxnRequest>(sent).unwrap(), &txn);
        let Ok(request) = command(&txn) else {
            return Ok(());
        };
        let Command::Batch(Batch { then, otherwise, .. }) = &request.command else {
            panic!("{request:?}");
        };
        for (succeeded, done) in [(true, then), (false, otherwise)] {
            let outcome = Outcome::Batch {
                revision: Revision(0),
                succeeded,
                answers: answers(done),
            };
            let response = answer(&txn, Header::default(), outcome).unwrap();
            prop_assert_eq!(response.responses.len(), done.len());
        }
    }

    #[test]
    fn a_duplicate_is_what_a_plain_search_finds(txn in txn()) {
        let found = command(&txn).map(drop);
        let form = [EtcdError::EmptyKey, EtcdError::KeyNotFound, EtcdError::InvalidSortOption,
            EtcdError::ValueProvided, EtcdError::LeaseProvided];
        if found.is_err_and(|error| form.contains(&error)) {
            return Ok(());
        }
        let twice = changes_twice(&txn.success) || changes_twice(&txn.failure);
        prop_assert_eq!(found == Err(EtcdError::DuplicateKey), twice);
    }

    #[test]
    fn whatever_a_range_is_it_is_served_or_refused(range in range()) {
        let bad = range.key.is_empty()
            || !(0..3).contains(&range.sort_order)
            || !(0..5).contains(&range.sort_target);
        prop_assert_eq!(Range::new(&range).is_err(), bad);
    }

    #[test]
    fn no_bytes_panic(bytes in vec(any::<u8>(), 0..64)) {
        let bytes = Bytes::from(bytes);
        if let Ok(txn) = codec::decode::<TxnRequest>(bytes.clone()) {
            drop(command(&txn));
        }
        if let Ok(put) = codec::decode::<PutRequest>(bytes.clone()) {
            drop(command(&put));
        }
        if let Ok(range) = codec::decode::<RangeRequest>(bytes.clone()) {
            drop(Range::new(&range));
        }
        if let Ok(create) = codec::decode::<WatchCreateRequest>(bytes) {
            drop(watch::Create::new(&create));
        }
    }
}
