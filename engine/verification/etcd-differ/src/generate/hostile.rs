//! What no client library sends, and any client can.

use bytes::Bytes;

use crate::operation::Operation;
use crate::pb;
use crate::pb::request_op::Request;
use crate::pb::watch_request::RequestUnion;

use super::watch::message;
use super::{Draw, STREAMS};

/// Operations of one list of a transaction that etcd takes.
const OPERATIONS_MAX: usize = 128;
/// Bytes of a request that etcd takes.
const REQUEST_BYTES_MAX: usize = 3 << 19;
/// How deep malice nests.
const DEPTH: usize = 12;

impl Draw {
    pub(super) fn hostile(&mut self) -> Operation {
        match self.random.below(20) {
            0..5 => match self.calls.range_stream && self.flag(30) {
                true => Operation::RangeStream(self.hostile_range()),
                false => Operation::Range(self.hostile_range()),
            },
            5..8 => Operation::Put(self.hostile_put()),
            8..10 => Operation::Delete(self.hostile_delete()),
            10..15 => Operation::Txn(self.hostile_txn()),
            15 if self.flag(30) => Operation::HashKv(pb::HashKvRequest {
                revision: self.number(),
            }),
            15 => Operation::Compact(pb::CompactionRequest {
                revision: -(self.random.below(3) as i64),
                physical: false,
            }),
            16 if self.calls.leases => match self.flag(50) {
                true => self.hostile_contest(),
                false => self.hostile_lease(),
            },
            _ => self.hostile_watch(),
        }
    }

    pub(super) fn number(&mut self) -> i64 {
        let numbers = [-1, i64::MIN, i64::MAX, -7, 1 << 40];
        numbers[self.random.below(numbers.len())]
    }

    fn unknown(&mut self) -> i32 {
        let numbers = [5, 9, -1, i32::MAX, i32::MIN];
        numbers[self.random.below(numbers.len())]
    }

    fn hostile_range(&mut self) -> pb::RangeRequest {
        let mut request = self.range();
        match self.random.below(9) {
            0 => request.key.clear(),
            1 => request.sort_order = self.unknown(),
            2 => request.sort_target = self.unknown(),
            3 => request.limit = self.number(),
            4 => request.revision = self.number(),
            5 => request.min_mod_revision = self.number(),
            6 => request.max_create_revision = self.number(),
            7 => request.range_end = Bytes::from_static(b"\0"),
            _ => {
                request.count_only = true;
                request.keys_only = true;
                request.limit = 1;
            }
        }
        request
    }

    fn hostile_put(&mut self) -> pb::PutRequest {
        let mut request = self.put();
        match self.random.below(12) {
            0 => request.key.clear(),
            1 | 2 => {
                request.ignore_value = true;
                request.value = Bytes::from_static(b"value");
            }
            3 | 4 => {
                request.ignore_lease = true;
                request.lease = 1;
            }
            5 | 6 => request.ignore_value = true,
            7 | 8 => request.lease = -1,
            9 => request.lease = 1 << 50,
            10 if self.flag(10) => request.value = Bytes::from(vec![b'x'; REQUEST_BYTES_MAX]),
            _ => request.ignore_lease = true,
        }
        request
    }

    fn hostile_delete(&mut self) -> pb::DeleteRangeRequest {
        let mut request = self.delete();
        match self.random.below(3) {
            0 => request.key.clear(),
            1 => request.range_end = Bytes::from_static(b"\0"),
            // Before its beginning, most often.
            _ => request.range_end = Bytes::from_static(b"\x01"),
        }
        request
    }

    fn hostile_txn(&mut self) -> pb::TxnRequest {
        let mut request = self.txn(0);
        match self.random.below(9) {
            0 => request.success.push(pb::RequestOp { request: None }),
            1 => {
                let mut compare = self.compare();
                compare.result = self.unknown();
                request.compare.push(compare);
            }
            2 => {
                let mut compare = self.compare();
                compare.target = self.unknown();
                request.compare.push(compare);
            }
            3 => {
                let mut compare = self.compare();
                compare.target_union = None;
                request.compare.push(compare);
            }
            4 => {
                let mut compare = self.compare();
                // What it names and what it holds are two targets.
                compare.target = (compare.target + 1) % 4;
                request.compare.push(compare);
            }
            5 => {
                let mut compare = self.compare();
                compare.key.clear();
                request.compare.push(compare);
            }
            6 => request.success = self.many(),
            7 => request = self.deep(),
            _ => {
                let put = self.put();
                request
                    .success
                    .push(operation(Request::RequestPut(put.clone())));
                request.failure.push(operation(Request::RequestPut(put)));
            }
        }
        request
    }

    /// As many as are taken, or one more, on keys that differ.
    fn many(&mut self) -> Vec<pb::RequestOp> {
        let count = OPERATIONS_MAX + self.random.below(2);
        let puts = (0..count).map(|number| pb::PutRequest {
            key: Bytes::from(format!("m/{number:03}")),
            ..Default::default()
        });
        puts.map(|put| operation(Request::RequestPut(put)))
            .collect()
    }

    /// Each with a little in it, beside the next.
    fn deep(&mut self) -> pb::TxnRequest {
        let mut inner = self.txn(DEPTH);
        for _ in 0..self.random.below(DEPTH) {
            let mut outer = pb::TxnRequest::default();
            if self.flag(50) {
                outer.compare.push(self.compare());
            }
            let branch = match self.flag(70) {
                true => &mut outer.success,
                false => &mut outer.failure,
            };
            branch.push(operation(Request::RequestTxn(inner)));
            if self.flag(30) {
                let put = self.put();
                outer.success.push(operation(Request::RequestPut(put)));
            }
            inner = outer;
        }
        inner
    }

    fn hostile_lease(&mut self) -> Operation {
        match self.random.below(5) {
            0 => Operation::Grant(pb::LeaseGrantRequest {
                ttl: 9_000_000_001,
                id: 1,
            }),
            1 => Operation::Grant(pb::LeaseGrantRequest {
                ttl: -5,
                id: self.short_lease(),
            }),
            2 => Operation::Revoke(pb::LeaseRevokeRequest { id: self.number() }),
            3 => Operation::KeepAlive(pb::LeaseKeepAliveRequest { id: self.number() }),
            _ => Operation::TimeToLive(pb::LeaseTimeToLiveRequest {
                id: self.number(),
                keys: true,
            }),
        }
    }

    fn hostile_watch(&mut self) -> Operation {
        let stream = self.random.below(STREAMS);
        let mut create = self.watch_create();
        match self.random.below(8) {
            0 => return message(stream, None),
            1 => {
                let watch_id = self.number();
                let cancel = pb::WatchCancelRequest { watch_id };
                return message(stream, Some(RequestUnion::CancelRequest(cancel)));
            }
            2 => create.key.clear(),
            3 => create.range_end = Bytes::from_static(b"\x01"),
            4 => create.start_revision = -1,
            5 => create.filters = vec![self.unknown(), 0, 0],
            6 => create.watch_id = -1 - self.random.below(3) as i64,
            // Most often one that the stream has.
            _ => create.watch_id = 1,
        }
        message(stream, Some(RequestUnion::CreateRequest(create)))
    }
}

fn operation(request: Request) -> pb::RequestOp {
    pb::RequestOp {
        request: Some(request),
    }
}
