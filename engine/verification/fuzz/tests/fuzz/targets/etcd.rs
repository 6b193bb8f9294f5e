//! Requests of clients of etcd's API, up to the response.

use std::fmt::Debug;

use bytes::Bytes;
use dengine_etcd::etcdserverpb::compare::TargetUnion;
use dengine_etcd::etcdserverpb::request_op::Request;
use dengine_etcd::etcdserverpb::watch_request::RequestUnion;
use dengine_etcd::etcdserverpb::{
    CompactionRequest, Compare, DeleteRangeRequest, LeaseRevokeRequest, PutRequest, RangeRequest,
    RequestOp, TxnRequest, WatchCreateRequest, WatchRequest, WatchResponse,
};
use dengine_etcd::range::Range;
use dengine_etcd::watch::{self, Create, WatchIds};
use dengine_etcd::{EtcdError, Header, Mutation, REQUEST_BYTES_MAX, codec, writes};
use dengine_kv as kv;
use dengine_kv::store::MemoryStore;
use dengine_kv::watch::EventBatch;
use dengine_kv::{ChangesQuery, Event, Stamp, StateMachine};
use dengine_types::{EntryKind, MemberId, Revision, Term};
use prost::Message;
use tonic::Status;

use super::assert_fits;
use super::kv::{self as state, filled};
use super::requests::CLUSTER;
use crate::driver::Target;

/// The first byte says which request it is.
pub(crate) const REQUEST: Target = Target {
    run: request,
    seeds: requests,
    // As for calls of our own API.
    memory: (1 << 20, 512),
};

/// A request of a stream of watches.
pub(crate) const WATCH: Target = Target {
    run: watch,
    seeds: watches,
    memory: (1 << 20, 256),
};

/// A message to a client has to fit into response headers.
const MESSAGE_BYTES_MAX: usize = 512;

fn request(input: &[u8]) {
    let Some((number, bytes)) = input.split_first() else {
        return;
    };
    let served = match number % 6 {
        0 => received(bytes).and_then(|it: RangeRequest| range(&it)),
        1 => received(bytes).and_then(|it: PutRequest| write(&it)),
        2 => received(bytes).and_then(|it: DeleteRangeRequest| write(&it)),
        3 => received(bytes).and_then(|it: TxnRequest| write(&it)),
        4 => received(bytes).and_then(|it: CompactionRequest| write(&it)),
        _ => received(bytes).and_then(|it: LeaseRevokeRequest| write(&it)),
    };
    if let Err(status) = served {
        assert_fits(&status, MESSAGE_BYTES_MAX);
    }
}

fn received<M: Message + Default + 'static>(bytes: &[u8]) -> Result<M, Status> {
    codec::decode(Bytes::copy_from_slice(bytes))
}

fn range(request: &RangeRequest) -> Result<(), Status> {
    let machine = filled();
    let range = Range::new(request)?;
    let read = |query: &kv::RangeQuery| {
        let read = machine.reader().range(query);
        read.map_err(|error| EtcdError::from(&error))
    };
    let result = read(&range.query)?;
    let counted = match range.count_query(&result) {
        Some(query) => read(&query)?.count.expect("it counts"),
        None => 0,
    };
    let response = range.response(header(&machine), result, counted);
    let returned = i64::try_from(response.kvs.len()).unwrap();
    assert!(returned <= response.count, "{response:?} to {request:?}");
    assert!(request.limit <= 0 || returned <= request.limit);
    answered(&response);
    Ok(())
}

fn write<M: Mutation + Debug>(request: &M) -> Result<(), Status>
where
    M::Response: Message + Default + PartialEq + Debug,
{
    let mut machine = filled();
    let command = writes::command(request)?;
    let data = command.clone().encode(kv::CommandVersion::CURRENT);
    assert!(data.len() <= 2 * REQUEST_BYTES_MAX);
    let again = kv::Request::decode(data.clone()).unwrap().unwrap();
    assert_eq!(
        again.request, command,
        "a command is what it was encoded from"
    );
    let applied = state::apply(&mut machine, EntryKind::Command, &data);
    let outcome = applied.expect("what was checked applies").remove(0);
    let answer = writes::answer(request, header(&machine), outcome);
    assert_ne!(
        answer.as_ref().err(),
        Some(&EtcdError::OfAnotherKind),
        "{request:?}"
    );
    answered(&answer?);
    Ok(())
}

/// A client decodes what was encoded.
fn answered<M: Message + Default + PartialEq + Debug>(response: &M) {
    let bytes = response.encode_to_vec();
    assert!(M::decode(&bytes[..]).unwrap() == *response, "{response:?}");
}

fn header(machine: &StateMachine<MemoryStore>) -> Header {
    Header {
        cluster_id: CLUSTER,
        member_id: MemberId(1),
        term: Term(1),
        revision: machine.revision(),
    }
}

fn watch(input: &[u8]) {
    let machine = filled();
    let header = header(&machine);
    let Ok(request) = received::<WatchRequest>(input) else {
        return;
    };
    let Some(RequestUnion::CreateRequest(request)) = request.request_union else {
        return;
    };
    let create = match Create::new(&request) {
        Ok(create) => create,
        Err(refusal) => return answered(&watch::refused(header, refusal.to_string())),
    };
    let taken = |id| id == 1;
    let id = match WatchIds::default().choose(create.id, taken) {
        Ok(id) => id,
        Err(refusal) => return answered(&watch::refused(header, refusal.to_string())),
    };
    assert!(!taken(id));
    answered(&watch::created(id, header, header.revision));
    for response in events(&machine, &create, id) {
        answered(&response);
    }
}

/// The whole history, a revision at a time; for a client that takes fragments, an event at a time.
fn events(machine: &StateMachine<MemoryStore>, create: &Create, id: i64) -> Vec<WatchResponse> {
    let from = create.first.unwrap_or(Revision(1));
    let query = ChangesQuery {
        prev_kv: create.spec.prev_kv,
        no_put: create.spec.no_put,
        no_delete: create.spec.no_delete,
        ..ChangesQuery::new(from, create.spec.keys.clone())
    };
    let Ok(changes) = machine.reader().changes(&query) else {
        return Vec::new();
    };
    let revision = |event: &Event| event.kv.mod_revision;
    let revisions = changes
        .events
        .chunk_by(|one, next| revision(one) == revision(next));
    let batch = |events: &[Event], fragment| EventBatch {
        events: events.to_vec(),
        revision: revision(&events[0]),
        fragment,
        next: Stamp::end_of(revision(&events[0])),
    };
    let batches = revisions.flat_map(|events| match create.fragment {
        false => vec![batch(events, false)],
        true => (1..=events.len())
            .map(|end| batch(&events[end - 1..end], end < events.len()))
            .collect(),
    });
    batches
        .map(|batch| {
            watch::told(&[id], header(machine), batch)
                .remove(0)
                .response
        })
        .collect()
}

fn watches() -> Vec<Vec<u8>> {
    let create = |request: WatchCreateRequest| WatchRequest {
        request_union: Some(RequestUnion::CreateRequest(request)),
    };
    let all = WatchCreateRequest {
        range_end: Bytes::from_static(b"\0"),
        start_revision: 1,
        prev_kv: true,
        ..WatchCreateRequest::default()
    };
    let some = WatchCreateRequest {
        key: "key".into(),
        filters: vec![0, 1],
        fragment: true,
        watch_id: i64::MAX,
        start_revision: 2,
        ..WatchCreateRequest::default()
    };
    [all, some]
        .into_iter()
        .map(|it| create(it).encode_to_vec())
        .collect()
}

/// A valid request of each kind.
fn requests() -> Vec<Vec<u8>> {
    let range = RangeRequest {
        key: "a".into(),
        range_end: Bytes::from_static(b"\0"),
        limit: 2,
        sort_order: 2,
        sort_target: 4,
        max_mod_revision: 5,
        ..RangeRequest::default()
    };
    let page = RangeRequest {
        limit: 2,
        revision: 3,
        ..RangeRequest {
            key: "a".into(),
            range_end: "z".into(),
            ..RangeRequest::default()
        }
    };
    let put = PutRequest {
        key: "key".into(),
        value: "value".into(),
        prev_kv: true,
        ..PutRequest::default()
    };
    let delete = DeleteRangeRequest {
        key: "key".into(),
        range_end: "kez".into(),
        prev_kv: true,
    };
    let compact = CompactionRequest {
        revision: 3,
        physical: true,
    };
    let numbered = |number: u8, bytes: Vec<u8>| [&[number], &bytes[..]].concat();
    vec![
        numbered(0, range.encode_to_vec()),
        numbered(0, page.encode_to_vec()),
        numbered(1, put.encode_to_vec()),
        numbered(2, delete.encode_to_vec()),
        numbered(3, txn(range, put, delete).encode_to_vec()),
        numbered(4, compact.encode_to_vec()),
        numbered(5, LeaseRevokeRequest { id: 7 }.encode_to_vec()),
    ]
}

/// With every kind of comparison and operation.
fn txn(range: RangeRequest, put: PutRequest, delete: DeleteRangeRequest) -> TxnRequest {
    let targets = [
        TargetUnion::Version(1),
        TargetUnion::CreateRevision(2),
        TargetUnion::ModRevision(-2),
        TargetUnion::Value("value".into()),
        TargetUnion::Lease(-1),
    ];
    let compares = (0..).zip(targets).map(|(number, target)| Compare {
        result: number % 4,
        target: number,
        key: "key".into(),
        range_end: "kez".into(),
        target_union: Some(target),
    });
    let op = |request| RequestOp {
        request: Some(request),
    };
    let nested = TxnRequest {
        compare: Vec::new(),
        success: vec![
            op(Request::RequestRange(range.clone())),
            op(Request::RequestPut(put)),
        ],
        failure: vec![op(Request::RequestDeleteRange(delete.clone()))],
    };
    TxnRequest {
        compare: compares.collect(),
        success: vec![
            op(Request::RequestTxn(nested)),
            op(Request::RequestRange(range)),
        ],
        failure: vec![op(Request::RequestDeleteRange(delete))],
    }
}
