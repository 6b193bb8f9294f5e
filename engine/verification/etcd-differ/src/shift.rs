//! Sequences are written for a store whose first revision is 1. On one that has had others, every
//! revision of a request is moved.

use crate::operation::Operation;
use crate::pb;
use crate::pb::compare::TargetUnion;
use crate::pb::request_op::Request;
use crate::pb::watch_request::RequestUnion;

/// The same call on a store whose revisions are so many more. Numbers from 0 down name none, and
/// stay.
pub(crate) fn shifted(mut operation: Operation, by: i64) -> Operation {
    if by == 0 {
        return operation;
    }
    match &mut operation {
        Operation::Range(request) | Operation::RangeStream(request) => range(request, by),
        Operation::Txn(request) => txn(request, by),
        Operation::Compact(request) => revision(&mut request.revision, by),
        Operation::HashKv(request) => revision(&mut request.revision, by),
        Operation::Proclaim(request) => leader(&mut request.leader, by),
        Operation::Resign(request) => leader(&mut request.leader, by),
        Operation::Watch { request, .. } => {
            if let Some(RequestUnion::CreateRequest(create)) = &mut request.request_union {
                revision(&mut create.start_revision, by);
            }
        }
        _ => {}
    }
    operation
}

fn revision(revision: &mut i64, by: i64) {
    if *revision > 0 {
        *revision = revision.saturating_add(by);
    }
}

fn range(request: &mut pb::RangeRequest, by: i64) {
    for bound in [
        &mut request.revision,
        &mut request.min_mod_revision,
        &mut request.max_mod_revision,
        &mut request.min_create_revision,
        &mut request.max_create_revision,
    ] {
        revision(bound, by);
    }
}

fn leader(key: &mut Option<pb::LeaderKey>, by: i64) {
    if let Some(key) = key {
        revision(&mut key.rev, by);
    }
}

fn txn(request: &mut pb::TxnRequest, by: i64) {
    for compare in &mut request.compare {
        if let Some(TargetUnion::CreateRevision(at) | TargetUnion::ModRevision(at)) =
            &mut compare.target_union
        {
            revision(at, by);
        }
    }
    for operation in request.success.iter_mut().chain(&mut request.failure) {
        match &mut operation.request {
            Some(Request::RequestRange(request)) => range(request, by),
            Some(Request::RequestTxn(request)) => txn(request, by),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{Calls, Mood, sequence};

    #[test]
    fn what_is_moved_and_moved_back_is_the_same() {
        // Saturation is not undone, so only what is not near the largest number.
        for operation in sequence(5, Mood::Valid, 2_000, Calls::ALL) {
            let there = shifted(operation.clone(), 1 << 20);
            assert_eq!(shifted(there, -(1 << 20)), operation);
        }
    }

    #[test]
    fn revisions_are_moved_wherever_they_are() {
        let compare = pb::Compare {
            target_union: Some(TargetUnion::ModRevision(3)),
            ..Default::default()
        };
        let inner = pb::TxnRequest {
            compare: vec![compare],
            ..Default::default()
        };
        let outer = pb::TxnRequest {
            failure: vec![pb::RequestOp {
                request: Some(Request::RequestTxn(inner)),
            }],
            ..Default::default()
        };
        let text = format!("{:?}", shifted(Operation::Txn(outer), 10));
        assert!(text.contains("ModRevision(13)"), "{text}");
        let newest = Operation::Range(pb::RangeRequest::default());
        assert_eq!(shifted(newest.clone(), 10), newest);
    }
}
