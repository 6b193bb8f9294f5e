//! Transactions as large, as deep and as wide as they may be.

use bytes::Bytes;
use dengine_etcd::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use dengine_etcd::etcdserverpb::request_op::Request;
use dengine_etcd::etcdserverpb::{Compare, PutRequest, RangeRequest, RequestOp, TxnRequest};
use dengine_etcd::{REQUEST_BYTES_MAX, TXN_OPERATIONS_MAX};
use futures::future::BoxFuture;

use super::{TXN, everything};
use crate::attackers::{Arena, Attacker, MANY, crowd, end_of, hold};
use crate::link::Link;

pub(in crate::attackers) const ATTACKERS: &[Attacker] = &[
    Attacker {
        name: "etcd-reading-txns",
        does: "transactions of 1.5 MiB, 31 within each other, that compare the values of all keys \
            and then count all of them 97 times, 128 at a time",
        on: &["listen-etcd", "etcdserverpb.KV/Txn"],
        run: reading,
    },
    Attacker {
        name: "etcd-writing-txns",
        does: "the same, small, that compare 100,000 keys and write in the end, so that all \
            members do what they ask for",
        on: &["etcdserverpb.KV/Txn"],
        run: writing,
    },
];

/// Transactions within each other.
const DEPTH: usize = 31;
/// What is left for the innermost, of the longest lists on the path to it.
const OPERATIONS: usize = TXN_OPERATIONS_MAX - DEPTH;

fn reading(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 8, |arena, _| async move {
        let link = Link::open(arena.doors.etcd).await?;
        let txn = nested(compares_values(), range_of_all(), range_of_all());
        hold(&arena, &link, 16, |_| link.told(TXN, &txn)).await
    })
}

fn writing(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 8, |arena, number| async move {
        let link = Link::open(arena.doors.etcd).await?;
        let put = Request::RequestPut(PutRequest {
            key: format!("hostile/txn/{number}").into(),
            ..PutRequest::default()
        });
        let txn = nested(compares_versions(), range_of_all(), put);
        hold(&arena, &link, 16, |_| link.told(TXN, &txn)).await
    })
}

/// Compares, and if that holds does `most` as often as it may deep within, and `last` in the end.
fn nested(compare: Compare, most: Request, last: Request) -> TxnRequest {
    let mut operations = vec![operation(most); OPERATIONS - 1];
    operations.push(operation(last));
    let innermost = TxnRequest {
        success: operations,
        ..TxnRequest::default()
    };
    let within = |txn, _| TxnRequest {
        success: vec![operation(Request::RequestTxn(txn))],
        ..TxnRequest::default()
    };
    TxnRequest {
        compare: vec![compare],
        ..(1..=DEPTH).fold(innermost, within)
    }
}

fn operation(request: Request) -> RequestOp {
    RequestOp {
        request: Some(request),
    }
}

fn range_of_all() -> Request {
    Request::RequestRange(RangeRequest {
        count_only: true,
        ..everything()
    })
}

/// No key has this value, which takes most of what a request may.
fn compares_values() -> Compare {
    const REST: usize = 64 << 10;
    let value = vec![b'v'; REQUEST_BYTES_MAX - REST].into();
    let RangeRequest { key, range_end, .. } = everything();
    Compare {
        result: CompareResult::NotEqual.into(),
        target: CompareTarget::Value.into(),
        key,
        range_end,
        target_union: Some(TargetUnion::Value(value)),
    }
}

/// Each of these keys was written.
fn compares_versions() -> Compare {
    Compare {
        result: CompareResult::Greater.into(),
        target: CompareTarget::Version.into(),
        key: Bytes::from_static(MANY.as_bytes()),
        range_end: end_of(MANY),
        target_union: Some(TargetUnion::Version(0)),
    }
}
