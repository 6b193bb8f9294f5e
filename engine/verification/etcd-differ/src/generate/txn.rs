//! Transactions.

use crate::pb;
use crate::pb::compare::TargetUnion;
use crate::pb::request_op::Request;

use super::{Draw, LEASES};

/// How deep transactions are nested without malice.
const DEPTH: usize = 3;

impl Draw {
    pub(super) fn txn(&mut self, depth: usize) -> pb::TxnRequest {
        let read_only = depth == 0 && self.flag(20);
        let compares = self.random.below(4);
        pb::TxnRequest {
            compare: (0..compares).map(|_| self.compare()).collect(),
            success: self.operations(depth, read_only),
            failure: self.operations(depth, read_only),
        }
    }

    fn operations(&mut self, depth: usize, read_only: bool) -> Vec<pb::RequestOp> {
        let count = self.random.below(4);
        let requests = (0..count).map(|_| self.request_op(depth, read_only));
        requests
            .map(|request| pb::RequestOp {
                request: Some(request),
            })
            .collect()
    }

    fn request_op(&mut self, depth: usize, read_only: bool) -> Request {
        match self.random.below(20) {
            _ if read_only => Request::RequestRange(self.range()),
            0..7 => Request::RequestRange(self.range()),
            7..15 => Request::RequestPut(self.put()),
            15..18 => Request::RequestDeleteRange(self.narrow_delete()),
            _ if depth < DEPTH => Request::RequestTxn(self.txn(depth + 1)),
            _ => Request::RequestPut(self.put()),
        }
    }

    /// Wide ones meet the puts beside them, and what was refused shows little.
    fn narrow_delete(&mut self) -> pb::DeleteRangeRequest {
        let mut request = self.delete();
        if request.range_end.len() == 1 && !self.flag(10) {
            request.range_end.clear();
        }
        request
    }

    pub(super) fn compare(&mut self) -> pb::Compare {
        let key = self.key();
        let target = self.random.below(if self.calls.leases { 5 } else { 4 });
        let union = match target {
            0 => TargetUnion::Version(self.random.below(4) as i64),
            1 => TargetUnion::CreateRevision(self.zero_or_revision()),
            2 => TargetUnion::ModRevision(self.zero_or_revision()),
            3 => TargetUnion::Value(self.value()),
            _ => TargetUnion::Lease(self.random.between(0, LEASES + 1) as i64),
        };
        pb::Compare {
            result: self.random.below(4) as i32,
            target: target as i32,
            range_end: match self.flag(20) {
                true => self.range_end(&key),
                false => Default::default(),
            },
            key,
            target_union: Some(union),
        }
    }

    /// 0: there is no such key, as most transactions of clients ask.
    fn zero_or_revision(&mut self) -> i64 {
        if self.flag(40) {
            0
        } else {
            self.some_revision()
        }
    }
}
