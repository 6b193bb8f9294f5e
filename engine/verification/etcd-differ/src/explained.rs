//! Where two systems answer differently, and both are meant to.

use tonic::Code;

use crate::operation::Operation;
use crate::pb;
use crate::pb::request_op::Request;
use crate::reply::Reply;

/// A difference that is not reported.
pub struct Explained {
    pub name: &'static str,
    pub what: &'static str,
    pub why: &'static str,
    /// The two stores are no longer equal, so the sequence ends with it.
    pub ends: bool,
    applies: fn(&Operation, &Reply, &Reply) -> bool,
}

/// All of them; docs/etcd.md names each.
pub const EXPLAINED: &[Explained] = &[
    Explained {
        name: "duplicate-key-unnoticed",
        what: "a transaction that puts a key and deletes a range to the end of all keys which has \
               it, or changes a key in two nested transactions: etcd applies it, DEngine refuses \
               it as a duplicate",
        why: "no revision changes a key twice, and etcd's check misses these",
        ends: true,
        applies: duplicate_key,
    },
    Explained {
        name: "compact-zero",
        what: "Compact(0) on a store that was never compacted: etcd takes it once, DEngine says \
               that it is compacted already",
        why: "etcd counts from -1 there, and nothing changes by it",
        ends: false,
        applies: compact_zero,
    },
    Explained {
        name: "long-key",
        what: "keys beyond 32 KiB are refused by DEngine",
        why: "etcd bounds only the request",
        ends: true,
        applies: long_key,
    },
];

const KEY_BYTES_MAX: usize = 32 << 10;

/// Why these two answers to one call are no difference, if there is a reason.
pub(crate) fn reason(
    operation: &Operation,
    left: &Reply,
    right: &Reply,
) -> Option<&'static Explained> {
    let mut all = EXPLAINED.iter();
    all.find(|it| (it.applies)(operation, left, right) || (it.applies)(operation, right, left))
}

fn duplicate_key(operation: &Operation, done: &Reply, refused: &Reply) -> bool {
    let Operation::Txn(request) = operation else {
        return false;
    };
    let text = "etcdserver: duplicate key given in txn request";
    matches!(done, Reply::Txn(_))
        && matches!(refused, Reply::Refused(Code::InvalidArgument, said) if said == text)
        && is_unnoticed(request)
}

/// Whether etcd's check does not see all of it.
fn is_unnoticed(request: &pb::TxnRequest) -> bool {
    let lists = [&request.success, &request.failure];
    lists.into_iter().flatten().any(|it| match &it.request {
        Some(Request::RequestDeleteRange(request)) => &request.range_end[..] == b"\0",
        Some(Request::RequestTxn(_)) => true,
        _ => false,
    })
}

fn compact_zero(operation: &Operation, done: &Reply, refused: &Reply) -> bool {
    matches!(operation, Operation::Compact(request) if request.revision == 0)
        && matches!(done, Reply::Compact(_))
        && refused.code() == Code::OutOfRange
}

fn long_key(operation: &Operation, _done: &Reply, refused: &Reply) -> bool {
    let keys = match operation {
        Operation::Put(request) => [&request.key, &request.key],
        Operation::Range(request) => [&request.key, &request.range_end],
        Operation::Delete(request) => [&request.key, &request.range_end],
        _ => return false,
    };
    keys.iter().any(|key| key.len() > KEY_BYTES_MAX) && refused.code() == Code::InvalidArgument
}

#[cfg(test)]
mod tests {
    use super::*;

    fn duplicate() -> Reply {
        let text = "etcdserver: duplicate key given in txn request";
        Reply::Refused(Code::InvalidArgument, text.to_owned())
    }

    fn deletes_to(range_end: &'static [u8]) -> Operation {
        let delete = pb::DeleteRangeRequest {
            range_end: range_end.into(),
            ..Default::default()
        };
        Operation::Txn(pb::TxnRequest {
            success: vec![pb::RequestOp {
                request: Some(Request::RequestDeleteRange(delete)),
            }],
            ..Default::default()
        })
    }

    #[test]
    fn only_what_the_reason_names_is_explained() {
        let done = Reply::Txn(pb::TxnResponse::default());
        let name = |operation, left: &Reply, right: &Reply| {
            reason(&operation, left, right).map(|explained| explained.name)
        };
        let unnoticed = Some("duplicate-key-unnoticed");
        assert_eq!(name(deletes_to(b"\0"), &done, &duplicate()), unnoticed);
        assert_eq!(name(deletes_to(b"\0"), &duplicate(), &done), unnoticed);
        assert_eq!(name(deletes_to(b"b"), &done, &duplicate()), None);
        let other = Reply::Refused(Code::InvalidArgument, "another".to_owned());
        assert_eq!(name(deletes_to(b"\0"), &done, &other), None);
    }

    #[test]
    fn a_compaction_to_nothing_is_explained_and_another_is_not() {
        let compacted = Reply::Refused(Code::OutOfRange, String::new());
        let done = Reply::Compact(pb::CompactionResponse::default());
        for (revision, explained) in [(0, true), (1, false)] {
            let request = pb::CompactionRequest {
                revision,
                physical: false,
            };
            let found = reason(&Operation::Compact(request), &done, &compacted);
            assert_eq!(found.is_some(), explained, "{revision}");
        }
    }
}
