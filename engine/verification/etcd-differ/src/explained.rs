//! Where two systems answer differently, and both are meant to.

use std::collections::BTreeSet;

use tonic::Code;

use crate::operation::Operation;
use crate::pb;
use crate::pb::request_op::Request;
use crate::pb::response_op::Response;
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
               it, or changes a key in two nested transactions: etcd applies it, or refuses it for \
               what its keys, revisions and leases come to; DEngine refuses it as a duplicate",
        why: "no revision changes a key twice, and etcd's check misses these",
        ends: true,
        applies: duplicate_key,
    },
    Explained {
        name: "duplicate-key-ends-etcd",
        what: "a transaction that deletes a range to the end of all keys and puts a key of it with \
               `ignore_value` or `ignore_lease`: etcd ends, and whenever it is started again; \
               DEngine refuses it as a duplicate",
        why: "etcd looks for the key after it checked that there is one, when it is deleted",
        ends: true,
        applies: duplicate_key_ends,
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
        name: "stream-target-without-order",
        what: "a RangeStream with a target to sort by and no order: DEngine refuses it as an order",
        why: "etcd sorts each piece by itself, and goes on behind the last key of each: it tells \
              keys twice, and leaves others out",
        ends: false,
        applies: stream_target_without_order,
    },
    Explained {
        name: "keys-only-lease",
        what: "pairs without their values have their lease, unless etcd is 3.7",
        why: "etcd makes them of its index since then, which knows of no lease",
        ends: false,
        applies: keys_only_lease,
    },
    Explained {
        name: "hash-of-no-revision",
        what: "HashKV of a revision below 0, and of 0 once Compact(0) was taken: etcd hashes \
               nothing, DEngine what there is now",
        why: "neither names a revision, and 0 asks for the newest",
        ends: false,
        applies: hash_of_none,
    },
    Explained {
        name: "hash-of-compaction",
        what: "HashKV of a revision that was compacted last, or by one of the nine compactions \
               before: etcd names the compaction before that one, once it has gone through its \
               store; to DEngine those before the last are compacted",
        why: "etcd keeps the hashes that it took while it compacted, the last ten",
        ends: false,
        applies: hash_of_compaction,
    },
    Explained {
        name: "lease-before-key",
        what: "a transaction with a put that keeps the value of a key and names a lease, where \
               both are missing: DEngine tells of the lease, and etcd before 3.7 of the key",
        why: "etcd looks for the lease first since then, and of a put by itself always has",
        ends: false,
        applies: lease_before_key,
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
/// `VALUE` of `SortTarget`.
const VALUE: i32 = 4;

/// Why these two answers to one call are no difference, if there is a reason, on stores that have
/// both been compacted at these revisions.
pub(crate) fn reason(
    operation: &Operation,
    left: &Reply,
    right: &Reply,
    compacted: &BTreeSet<i64>,
) -> Option<&'static Explained> {
    // Any answer but of such a revision says that one of the two was not compacted as the other.
    if let Operation::HashKv(request) = operation
        && request.revision > 0
        && !compacted.contains(&request.revision)
    {
        return None;
    }
    let mut all = EXPLAINED.iter();
    all.find(|it| (it.applies)(operation, left, right) || (it.applies)(operation, right, left))
}

fn duplicate_key(operation: &Operation, done: &Reply, refused: &Reply) -> bool {
    // Refused for what only the state tells, and so after that check.
    let is_later = match done {
        Reply::Txn(_) | Reply::Refused(Code::OutOfRange | Code::NotFound, _) => true,
        Reply::Refused(_, said) => said == "etcdserver: key not found",
        _ => false,
    };
    is_later && is_duplicate(refused) && matches!(operation, Operation::Txn(it) if is_unnoticed(it))
}

fn duplicate_key_ends(operation: &Operation, ended: &Reply, refused: &Reply) -> bool {
    let Operation::Txn(request) = operation else {
        return false;
    };
    let lists = [&request.success, &request.failure];
    let keeps = lists.into_iter().flatten().any(|it| {
        let put = it.request.as_ref();
        matches!(put, Some(Request::RequestPut(it)) if it.ignore_value || it.ignore_lease)
    });
    // What the client makes of a connection that ends.
    let has_ended =
        matches!(ended, Reply::Refused(Code::Unknown, said) if said == "transport error");
    has_ended && is_duplicate(refused) && keeps && is_unnoticed(request)
}

fn is_duplicate(refused: &Reply) -> bool {
    let text = "etcdserver: duplicate key given in txn request";
    matches!(refused, Reply::Refused(Code::InvalidArgument, said) if said == text)
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

fn stream_target_without_order(operation: &Operation, done: &Reply, refused: &Reply) -> bool {
    let Operation::RangeStream(request) = operation else {
        return false;
    };
    let text = "RangeStream does not support custom sort orders";
    (request.sort_order == 0 && request.sort_target != 0)
        && matches!(
            done,
            Reply::Range(_) | Reply::Broken(_) | Reply::Refused(Code::OutOfRange, _)
        )
        && matches!(refused, Reply::Refused(Code::Unimplemented, said) if said == text)
}

fn keys_only_lease(operation: &Operation, without: &Reply, with: &Reply) -> bool {
    let mut forgetful = with.clone();
    match (operation, &mut forgetful) {
        (Operation::Range(request) | Operation::RangeStream(request), Reply::Range(response)) => {
            forget_leases(request, response);
        }
        (Operation::Txn(request), Reply::Txn(response)) => forget_leases_within(request, response),
        _ => return false,
    }
    forgetful == *without
}

fn forget_leases(request: &pb::RangeRequest, response: &mut pb::RangeResponse) {
    // What is sorted by values is read with them.
    if request.keys_only && request.sort_target != VALUE {
        response.kvs.iter_mut().for_each(|kv| kv.lease = 0);
    }
}

fn forget_leases_within(request: &pb::TxnRequest, response: &mut pb::TxnResponse) {
    let requests = match response.succeeded {
        true => &request.success,
        false => &request.failure,
    };
    for (request, response) in requests.iter().zip(&mut response.responses) {
        match (&request.request, &mut response.response) {
            (Some(Request::RequestRange(request)), Some(Response::ResponseRange(response))) => {
                forget_leases(request, response);
            }
            (Some(Request::RequestTxn(request)), Some(Response::ResponseTxn(response))) => {
                forget_leases_within(request, response);
            }
            _ => {}
        }
    }
}

fn hash_of_none(operation: &Operation, of_nothing: &Reply, of_now: &Reply) -> bool {
    let (Operation::HashKv(request), Reply::HashKv(of_nothing), Reply::HashKv(of_now)) =
        (operation, of_nothing, of_now)
    else {
        return false;
    };
    let as_asked = pb::HashKvResponse {
        hash_revision: request.revision,
        // That of when Compact(0) was taken.
        compact_revision: of_nothing.compact_revision,
        ..*of_now
    };
    request.revision <= 0 && *of_nothing == as_asked
}

fn hash_of_compaction(operation: &Operation, kept: &Reply, made: &Reply) -> bool {
    let (Operation::HashKv(request), Reply::HashKv(kept)) = (operation, kept) else {
        return false;
    };
    let is_of_before = kept.compact_revision < request.revision;
    let made = match made {
        Reply::HashKv(made) => made,
        Reply::Refused(Code::OutOfRange, said) => {
            let compacted = "etcdserver: mvcc: required revision has been compacted";
            return said == compacted && kept.hash_revision == request.revision && is_of_before;
        }
        _ => return false,
    };
    let as_made = pb::HashKvResponse {
        compact_revision: made.compact_revision,
        ..*kept
    };
    request.revision == made.compact_revision && is_of_before && as_made == *made
}

fn lease_before_key(operation: &Operation, of_key: &Reply, of_lease: &Reply) -> bool {
    let Operation::Txn(request) = operation else {
        return false;
    };
    let (no_key, no_lease) = (
        "etcdserver: key not found",
        "etcdserver: requested lease not found",
    );
    keeps_value_on_lease(request)
        && matches!(of_key, Reply::Refused(Code::InvalidArgument, said) if said == no_key)
        && matches!(of_lease, Reply::Refused(Code::NotFound, said) if said == no_lease)
}

fn keeps_value_on_lease(request: &pb::TxnRequest) -> bool {
    let lists = [&request.success, &request.failure];
    lists.into_iter().flatten().any(|it| match &it.request {
        Some(Request::RequestPut(put)) => put.ignore_value && put.lease != 0,
        Some(Request::RequestTxn(inner)) => keeps_value_on_lease(inner),
        _ => false,
    })
}

fn long_key(operation: &Operation, _done: &Reply, refused: &Reply) -> bool {
    let keys = match operation {
        Operation::Put(request) => [&request.key, &request.key],
        Operation::Range(request) | Operation::RangeStream(request) => {
            [&request.key, &request.range_end]
        }
        Operation::Delete(request) => [&request.key, &request.range_end],
        _ => return false,
    };
    keys.iter().any(|key| key.len() > KEY_BYTES_MAX) && refused.code() == Code::InvalidArgument
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(operation: &Operation, left: &Reply, right: &Reply) -> Option<&'static Explained> {
        reason(operation, left, right, &BTreeSet::new())
    }

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
        let name =
            |operation, left: &Reply, right: &Reply| why(&operation, left, right).map(|it| it.name);
        let unnoticed = Some("duplicate-key-unnoticed");
        assert_eq!(name(deletes_to(b"\0"), &done, &duplicate()), unnoticed);
        assert_eq!(name(deletes_to(b"\0"), &duplicate(), &done), unnoticed);
        assert_eq!(name(deletes_to(b"b"), &done, &duplicate()), None);
        let later = Reply::Refused(Code::OutOfRange, "of the future".to_owned());
        assert_eq!(name(deletes_to(b"\0"), &later, &duplicate()), unnoticed);
        let other = Reply::Refused(Code::InvalidArgument, "another".to_owned());
        assert_eq!(name(deletes_to(b"\0"), &done, &other), None);
    }

    #[test]
    fn a_server_ends_only_by_a_put_that_keeps_what_is_deleted_with_all_keys() {
        let put = |ignore_value| pb::RequestOp {
            request: Some(Request::RequestPut(pb::PutRequest {
                ignore_value,
                ..Default::default()
            })),
        };
        let ended = Reply::Refused(Code::Unknown, "transport error".to_owned());
        for (range_end, ignore_value, explained) in [
            (&b"\0"[..], true, Some("duplicate-key-ends-etcd")),
            (b"\0", false, None),
            (b"b", true, None),
        ] {
            let Operation::Txn(mut request) = deletes_to(range_end) else {
                panic!("it is a transaction");
            };
            request.success.push(put(ignore_value));
            let asked = Operation::Txn(request);
            let name = |other: &Reply| why(&asked, &ended, other).map(|it| it.name);
            assert_eq!(name(&duplicate()), explained);
            let other = Reply::Refused(Code::InvalidArgument, "another".to_owned());
            assert_eq!(name(&other), None);
        }
    }

    #[test]
    fn a_lease_may_be_missing_beside_a_key_without_its_value_and_nothing_else() {
        let told = |lease, version| {
            let kv = pb::KeyValue {
                lease,
                version,
                ..Default::default()
            };
            Reply::Range(pb::RangeResponse {
                kvs: vec![kv],
                ..Default::default()
            })
        };
        for (keys_only, one, other, explained) in [
            (true, told(0, 1), told(2, 1), true),
            (true, told(3, 1), told(2, 1), false),
            (true, told(0, 1), told(2, 2), false),
            (false, told(0, 1), told(2, 1), false),
        ] {
            let request = pb::RangeRequest {
                keys_only,
                ..Default::default()
            };
            let asked = Operation::RangeStream(request.clone());
            assert_eq!(why(&asked, &one, &other).is_some(), explained);
            let inner = |reply: &Reply| {
                let Reply::Range(range) = reply.clone() else {
                    panic!("{reply:?}");
                };
                Reply::Txn(pb::TxnResponse {
                    succeeded: true,
                    responses: vec![pb::ResponseOp {
                        response: Some(Response::ResponseRange(range)),
                    }],
                    ..Default::default()
                })
            };
            let asked = Operation::Txn(pb::TxnRequest {
                success: vec![pb::RequestOp {
                    request: Some(Request::RequestRange(request)),
                }],
                ..Default::default()
            });
            let found = why(&asked, &inner(&other), &inner(&one));
            assert_eq!(found.is_some(), explained);
        }
    }

    #[test]
    fn a_target_without_an_order_is_refused_by_one_side_only() {
        let text = "RangeStream does not support custom sort orders";
        let refused = Reply::Refused(Code::Unimplemented, text.to_owned());
        let told = Reply::Broken("the keys of 2 pieces do not ascend".to_owned());
        for (sort_target, sort_order, explained) in [(4, 0, true), (4, 1, false), (0, 0, false)] {
            let asked = Operation::RangeStream(pb::RangeRequest {
                sort_target,
                sort_order,
                ..Default::default()
            });
            assert_eq!(why(&asked, &told, &refused).is_some(), explained);
        }
    }

    #[test]
    fn which_of_two_that_are_missing_is_told_matters_only_where_both_are_named() {
        let refused = |code, said: &str| Reply::Refused(code, said.to_owned());
        let of_key = refused(Code::InvalidArgument, "etcdserver: key not found");
        let of_lease = refused(Code::NotFound, "etcdserver: requested lease not found");
        for (ignore_value, lease, explained) in
            [(true, 7, true), (true, 0, false), (false, 7, false)]
        {
            let put = pb::PutRequest {
                ignore_value,
                lease,
                ..Default::default()
            };
            let asked = Operation::Txn(pb::TxnRequest {
                failure: vec![pb::RequestOp {
                    request: Some(Request::RequestPut(put)),
                }],
                ..Default::default()
            });
            assert_eq!(why(&asked, &of_key, &of_lease).is_some(), explained);
        }
    }

    #[test]
    fn a_hash_that_was_kept_is_of_the_compaction_that_is_asked_for() {
        let hash = |hash_revision, compact_revision| {
            Reply::HashKv(pb::HashKvResponse {
                hash_revision,
                compact_revision,
                ..Default::default()
            })
        };
        let refused = |said: &str| Reply::Refused(Code::OutOfRange, said.to_owned());
        let compacted = refused("etcdserver: mvcc: required revision has been compacted");
        let asked = Operation::HashKv(pb::HashKvRequest { revision: 7 });
        for (kept, made, explained) in [
            (hash(7, 3), hash(7, 7), true),
            (hash(7, 3), hash(7, 9), false),
            (hash(7, 7), hash(7, 3), false),
            (hash(7, 3), compacted.clone(), true),
            (hash(8, 3), compacted.clone(), false),
            (hash(7, 7), compacted, false),
            (hash(7, 3), refused("another"), false),
        ] {
            let found = hash_of_compaction(&asked, &kept, &made);
            assert_eq!(found, explained, "{kept:?} {made:?}");
            let found = reason(&asked, &kept, &made, &BTreeSet::from([3, 7, 9]));
            // Either side may be the one that keeps it.
            assert!(found.is_some() || !explained, "{kept:?} {made:?}");
            // It is the answer to any revision that is not compacted.
            let found = reason(&asked, &kept, &made, &BTreeSet::from([3, 9]));
            assert!(found.is_none(), "{kept:?} {made:?}");
        }
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
            let found = why(&Operation::Compact(request), &done, &compacted);
            assert_eq!(found.is_some(), explained, "{revision}");
        }
    }
}
