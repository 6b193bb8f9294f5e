//! Valid requests of clients.

use bytes::Bytes;
use dengine_kv::{Command, Put};
use dengine_protocol::KvCall as _;
use dengine_protocol::checks::forward;
use dengine_protocol::v1::compare_and_swap_request::Expected;
use dengine_protocol::v1::pipelined_call::Call;
use dengine_protocol::v1::{
    BatchRequest, CloseSessionRequest, CompactRequest, Compare, CompareAndSwapRequest, Consistency,
    DeleteRequest, GetRequest, KeepAliveSessionRequest, OpenSessionRequest, Operation, Position,
    PutRequest, RangeRequest, SessionStamp, compare, operation,
};

use super::requests::CLUSTER;

/// A valid request of each kind, of those that have several shapes one of each; and with the
/// largest numbers.
pub(super) fn calls() -> Vec<Call> {
    let largest = SessionStamp {
        session_id: 3,
        sequence: u64::MAX,
        acknowledged: u64::MAX - 1,
    };
    let stamp = SessionStamp {
        session_id: 3,
        sequence: 2,
        acknowledged: 1,
    };
    let mut calls = with_numbers(stamp, 5, 2);
    calls.extend(with_numbers(largest, u64::MAX - 1, u64::MAX - 1));
    calls
}

fn with_numbers(stamp: SessionStamp, ttl_ms: u64, revision: u64) -> Vec<Call> {
    let key = || Bytes::from_static(b"key");
    let session = Some(stamp);
    let put = PutRequest {
        key: key(),
        value: "value".into(),
        prev_kv: true,
        ttl_ms,
        session,
    };
    let delete = DeleteRequest {
        key: key(),
        range_end: "kez".into(),
        prev_kv: true,
        session: None,
    };
    let swap = |expected| CompareAndSwapRequest {
        key: key(),
        expected: Some(expected),
        value: "swapped".into(),
        ttl_ms,
        session,
    };
    let get = |consistency: Consistency| GetRequest {
        key: key(),
        revision,
        consistency: consistency.into(),
        at_least: Some(Position {
            cluster_id: CLUSTER.0,
            revision,
        }),
    };
    let range = RangeRequest {
        key: "a".into(),
        range_end: Bytes::from_static(b"\0"),
        limit: 3,
        ..RangeRequest::default()
    };
    vec![
        put.framed(),
        delete.framed(),
        swap(Expected::ModRevision(0)).framed(),
        swap(Expected::CurrentValue("swapped".into())).framed(),
        batch().framed(),
        CompactRequest { revision, session }.framed(),
        forward::request(forwarded(ttl_ms)).framed(),
        OpenSessionRequest { ttl_ms }.framed(),
        KeepAliveSessionRequest { session_id: 3 }.framed(),
        CloseSessionRequest { session_id: 3 }.framed(),
        get(Consistency::Linearizable).framed(),
        get(Consistency::Lease).framed(),
        get(Consistency::Eventual).framed(),
        get(Consistency::Session).framed(),
        range.framed(),
    ]
}

/// What a member passes on for a client of another protocol.
fn forwarded(ttl_ms: u64) -> Command {
    Command::Put(Put {
        prev_kv: true,
        ttl_ms,
        ..Put::new("key", "value")
    })
}

/// A batch with every kind of comparison and operation.
fn batch() -> BatchRequest {
    let targets = [
        compare::Target::Version(1),
        compare::Target::CreateRevision(2),
        compare::Target::ModRevision(2),
        compare::Target::Value("value".into()),
    ];
    let compares = (1..).zip(targets).map(|(relation, target)| Compare {
        key: "key".into(),
        range_end: "kez".into(),
        relation,
        target: Some(target),
    });
    let put = operation::Put {
        key: "batched".into(),
        value: "value".into(),
        prev_kv: true,
        ttl_ms: 9,
    };
    let delete = operation::Delete {
        key: "other".into(),
        range_end: "otheq".into(),
        prev_kv: true,
    };
    let get = operation::Get {
        key: "a".into(),
        range_end: Bytes::from_static(b"\0"),
        limit: 2,
        ..operation::Get::default()
    };
    let operation = |operation| Operation {
        operation: Some(operation),
    };
    let then = [
        operation::Operation::Put(put),
        operation::Operation::Delete(delete),
        operation::Operation::Get(get),
    ];
    BatchRequest {
        compares: compares.collect(),
        then: then.clone().map(operation).into(),
        otherwise: then.map(operation).into(),
        session: None,
    }
}
