//! What may be in a transaction, before anything of it is looked up.

use std::collections::BTreeSet;
use std::mem;
use std::ops::Bound;

use bytes::Bytes;
use dengine_kv::KeyRange;

use crate::errors::EtcdError;
use crate::etcdserverpb::request_op::Request;
use crate::etcdserverpb::{RequestOp, TxnRequest};
use crate::writes::{check_delete, check_put};
use crate::{TXN_OPERATIONS_MAX, range};

/// Checks what can be judged by the request alone, in etcd's order.
pub(super) fn check(txn: &TxnRequest) -> Result<(), EtcdError> {
    check_operations(txn, TXN_OPERATIONS_MAX)?;
    changes(&txn.success)?;
    changes(&txn.failure)?;
    Ok(())
}

/// Checks the operations of a transaction, which may have so many, nested ones included.
fn check_operations(txn: &TxnRequest, most: usize) -> Result<(), EtcdError> {
    let longest = [txn.compare.len(), txn.success.len(), txn.failure.len()];
    let longest = longest.into_iter().max().unwrap_or(0);
    let rest = most.checked_sub(longest).ok_or(EtcdError::TooManyOps)?;
    if txn.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(EtcdError::EmptyKey);
    }
    let mut operations = txn.success.iter().chain(&txn.failure);
    operations.try_for_each(|operation| check_operation(operation, rest))
}

fn check_operation(operation: &RequestOp, most: usize) -> Result<(), EtcdError> {
    match &operation.request {
        Some(Request::RequestRange(range)) => range::check(range),
        Some(Request::RequestPut(put)) => check_put(put),
        Some(Request::RequestDeleteRange(delete)) => check_delete(delete),
        Some(Request::RequestTxn(txn)) => check_operations(txn, most),
        None => Err(EtcdError::KeyNotFound),
    }
}

/// What a list of operations may change, whatever the comparisons in it come to.
#[derive(Default)]
struct Changes<'a> {
    puts: BTreeSet<&'a Bytes>,
    deletes: Vec<KeyRange>,
}

/// What a list of operations may change. Its operations may not put a key twice, nor put what
/// another one deletes; deleting twice is harmless. Of the two lists of a nested transaction only
/// one is done.
///
/// Here etcd lets through a range to the end that deletes what is put, and a nested transaction
/// that deletes what its neighbour puts: one revision would change a key twice.
fn changes(operations: &[RequestOp]) -> Result<Changes<'_>, EtcdError> {
    let each = operations.iter().map(changes_of);
    let each: Vec<Changes<'_>> = each.collect::<Result<_, _>>()?;
    let mut later = BTreeSet::new();
    for changes in each.iter().rev() {
        check_not_put(&changes.deletes, &later)?;
        later.extend(&changes.puts);
    }
    let mut all = Changes::default();
    for mut changes in each {
        check_not_put(&changes.deletes, &all.puts)?;
        if changes.puts.len() > all.puts.len() {
            mem::swap(&mut changes.puts, &mut all.puts);
        }
        for key in changes.puts {
            if !all.puts.insert(key) {
                return Err(EtcdError::DuplicateKey);
            }
        }
        all.deletes.extend(changes.deletes);
    }
    Ok(all)
}

fn changes_of(operation: &RequestOp) -> Result<Changes<'_>, EtcdError> {
    let mut changed = Changes::default();
    match &operation.request {
        Some(Request::RequestPut(put)) => {
            changed.puts.insert(&put.key);
        }
        Some(Request::RequestDeleteRange(delete)) => {
            let keys = KeyRange::from_wire(&delete.key, &delete.range_end);
            changed.deletes.push(keys);
        }
        Some(Request::RequestTxn(txn)) => {
            changed = changes(&txn.success)?;
            let otherwise = changes(&txn.failure)?;
            changed.puts.extend(otherwise.puts);
            changed.deletes.extend(otherwise.deletes);
        }
        Some(Request::RequestRange(_)) | None => {}
    }
    Ok(changed)
}

fn check_not_put(deletes: &[KeyRange], puts: &BTreeSet<&Bytes>) -> Result<(), EtcdError> {
    let meets_put = |keys: &KeyRange| {
        // Only the first key at or after the start can be in the range.
        let from = (Bound::Included(keys.start()), Bound::Unbounded);
        let first = puts.range::<Bytes, _>(from).next();
        first.is_some_and(|key| keys.contains(key))
    };
    match deletes.iter().any(meets_put) {
        true => Err(EtcdError::DuplicateKey),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcdserverpb::{Compare, DeleteRangeRequest, PutRequest, RangeRequest};

    fn op(request: Request) -> RequestOp {
        RequestOp {
            request: Some(request),
        }
    }

    fn put(key: &'static str) -> RequestOp {
        op(Request::RequestPut(PutRequest {
            key: key.into(),
            ..PutRequest::default()
        }))
    }

    fn delete(key: &'static str, range_end: &'static str) -> RequestOp {
        op(Request::RequestDeleteRange(DeleteRangeRequest {
            key: key.into(),
            range_end: range_end.into(),
            prev_kv: false,
        }))
    }

    fn range(key: &'static str) -> RequestOp {
        op(Request::RequestRange(RangeRequest {
            key: key.into(),
            ..RangeRequest::default()
        }))
    }

    fn txn(success: Vec<RequestOp>, failure: Vec<RequestOp>) -> RequestOp {
        op(Request::RequestTxn(TxnRequest {
            compare: Vec::new(),
            success,
            failure,
        }))
    }

    fn check_list(success: Vec<RequestOp>, expect: Result<(), EtcdError>) {
        let txn = TxnRequest {
            success,
            ..TxnRequest::default()
        };
        assert_eq!(check(&txn), expect, "{txn:?}");
    }

    #[test]
    fn a_key_is_changed_once() {
        let twice = Err(EtcdError::DuplicateKey);
        check_list(vec![put("a"), put("b")], Ok(()));
        check_list(vec![put("a"), put("a")], twice);
        check_list(vec![put("a"), delete("a", "")], twice);
        check_list(vec![delete("a", ""), put("a")], twice);
        check_list(vec![delete("a", "c"), put("b")], twice);
        check_list(vec![delete("a", "c"), put("c")], Ok(()));
        check_list(vec![delete("c", "a"), put("b")], Ok(()));
        check_list(vec![put("b"), delete("a", "\0")], twice);
        check_list(vec![delete("a", ""), delete("a", "\0")], Ok(()));
        check_list(vec![put("a"), range("a")], Ok(()));
    }

    #[test]
    fn a_key_is_changed_once_by_nested_ones_as_well() {
        let twice = Err(EtcdError::DuplicateKey);
        check_list(vec![txn(vec![put("a")], vec![put("a")])], Ok(()));
        check_list(vec![txn(vec![put("a")], vec![delete("a", "")])], Ok(()));
        check_list(vec![txn(vec![put("a"), put("a")], vec![])], twice);
        check_list(vec![txn(vec![], vec![put("a")]), put("a")], twice);
        check_list(vec![put("a"), txn(vec![], vec![put("a")])], twice);
        check_list(vec![txn(vec![delete("a", "c")], vec![]), put("b")], twice);
        check_list(vec![put("b"), txn(vec![delete("a", "c")], vec![])], twice);
        let siblings = || {
            vec![
                txn(vec![put("a")], vec![]),
                txn(vec![delete("a", "")], vec![]),
            ]
        };
        check_list(siblings(), twice);
        check_list(siblings().into_iter().rev().collect(), twice);
        let twins = vec![txn(vec![put("a")], vec![]), txn(vec![put("a")], vec![])];
        check_list(twins, twice);
    }

    #[test]
    fn operations_are_summed_down_the_path() {
        let puts = |count| vec![range("a"); count];
        check_list(puts(TXN_OPERATIONS_MAX), Ok(()));
        let many = Err(EtcdError::TooManyOps);
        check_list(puts(TXN_OPERATIONS_MAX + 1), many);
        let nested = |outer: usize, inner: usize| {
            let mut list = puts(outer - 1);
            list.push(txn(vec![], puts(inner)));
            list
        };
        check_list(nested(64, 64), Ok(()));
        check_list(nested(64, 65), many);
        check_list(nested(128, 0), Ok(()));
        // What stands beside each other does not add up.
        let wide = vec![txn(puts(64), puts(64)); 64];
        check_list(wide, Ok(()));
        let compares = TxnRequest {
            compare: vec![Compare::default(); TXN_OPERATIONS_MAX + 1],
            ..TxnRequest::default()
        };
        assert_eq!(check(&compares), many);
    }

    #[test]
    fn what_is_wrong_with_the_form_is_said_first() {
        let empty = Err(EtcdError::EmptyKey);
        check_list(vec![put("a"), put("a"), range("")], empty);
        check_list(vec![put("")], empty);
        check_list(vec![delete("", "b")], empty);
        check_list(vec![txn(vec![], vec![put("")])], empty);
        check_list(vec![RequestOp::default()], Err(EtcdError::KeyNotFound));
        let compared = TxnRequest {
            compare: vec![Compare::default()],
            success: vec![RequestOp::default()],
            failure: vec![],
        };
        assert_eq!(check(&compared), empty);
    }
}
