//! Transactions: requests as batches of the state machine, and outcomes as answers.
//!
//! What may be in a transaction is checked in `checks`, comparisons are translated in `compares`.

mod checks;
mod compares;

use dengine_kv::{
    Batch, BatchAnswer, BatchOperation, Command, KeyRange, Outcome, Put, RangeRead, RunningRevision,
};
use dengine_types::Revision;

use crate::errors::EtcdError;
use crate::etcdserverpb::request_op::Request;
use crate::etcdserverpb::response_op::Response;
use crate::etcdserverpb::{
    DeleteRangeResponse, PutResponse, RangeResponse, RequestOp, ResponseHeader, ResponseOp,
    TxnRequest, TxnResponse,
};
use crate::header::{Header, nested, signed};
use crate::messages::key_value;
use crate::range::{limit, requested, selection};
use crate::writes::{Mutation, put_lease};

impl Mutation for TxnRequest {
    type Response = TxnResponse;

    fn check(&self) -> Result<(), EtcdError> {
        checks::check(self)
    }

    /// As in etcd: if each of its operations is a range that may be. Comparisons are as fresh as
    /// these, and a transaction without any range is serializable.
    fn is_serializable(&self) -> bool {
        let mut operations = self.success.iter().chain(&self.failure);
        operations.all(|operation| match &operation.request {
            Some(Request::RequestRange(range)) => range.serializable,
            _ => false,
        })
    }

    fn command(&self) -> Result<Command, EtcdError> {
        batch(self).map(Command::Batch)
    }

    fn answer(&self, header: Header, outcome: Outcome) -> Result<TxnResponse, EtcdError> {
        let Outcome::Batch {
            revision,
            succeeded,
            answers,
        } = outcome
        else {
            return Err(EtcdError::OfAnotherKind);
        };
        let mut running = RunningRevision::new(revision, &answers);
        Ok(TxnResponse {
            header: header.at(revision),
            ..response(self, succeeded, &mut running, answers)?
        })
    }
}

fn batch(txn: &TxnRequest) -> Result<Batch, EtcdError> {
    Ok(Batch {
        compares: compares::compares(&txn.compare),
        then: operations(&txn.success)?,
        otherwise: operations(&txn.failure)?,
    })
}

fn operations(requests: &[RequestOp]) -> Result<Vec<BatchOperation>, EtcdError> {
    requests.iter().map(operation).collect()
}

fn operation(operation: &RequestOp) -> Result<BatchOperation, EtcdError> {
    match &operation.request {
        Some(Request::RequestRange(range)) => {
            // A revision below all of history. etcd says so only if the read is done.
            if range.revision < 0 {
                return Err(EtcdError::Compacted);
            }
            Ok(BatchOperation::Range(Box::new(RangeRead {
                keys: KeyRange::from_wire(&range.key, &range.range_end),
                revision: requested(range.revision),
                limit: limit(range),
                keys_only: range.keys_only,
                count_only: range.count_only,
                selection: selection(range),
            })))
        }
        Some(Request::RequestPut(put)) => Ok(BatchOperation::Put(Put {
            ignore_value: put.ignore_value,
            prev_kv: put.prev_kv,
            lease: put_lease(put),
            ..Put::new(put.key.clone(), put.value.clone())
        })),
        Some(Request::RequestDeleteRange(delete)) => Ok(BatchOperation::Delete {
            keys: KeyRange::from_wire(&delete.key, &delete.range_end),
            prev_kv: delete.prev_kv,
        }),
        Some(Request::RequestTxn(txn)) => Ok(BatchOperation::Batch(Box::new(batch(txn)?))),
        None => Err(EtcdError::KeyNotFound),
    }
}

/// The answer to a transaction, which has an empty header, and those to the operations of it that
/// were done, each with the revision that the store was at for it.
fn response(
    txn: &TxnRequest,
    succeeded: bool,
    running: &mut RunningRevision,
    answers: Vec<BatchAnswer>,
) -> Result<TxnResponse, EtcdError> {
    let done = match succeeded {
        true => &txn.success,
        false => &txn.failure,
    };
    if done.len() != answers.len() {
        return Err(EtcdError::OfAnotherKind);
    }
    let mut responses = Vec::with_capacity(done.len());
    for (operation, answer) in done.iter().zip(answers) {
        let response = Some(operation_response(operation, running, answer)?);
        responses.push(ResponseOp { response });
    }
    Ok(TxnResponse {
        header: Some(ResponseHeader::default()),
        succeeded,
        responses,
    })
}

fn operation_response(
    operation: &RequestOp,
    running: &mut RunningRevision,
    answer: BatchAnswer,
) -> Result<Response, EtcdError> {
    // Of a nested transaction each operation has its own.
    let at = match &answer {
        BatchAnswer::Batch { .. } => Revision(0),
        answer => running.after(answer),
    };
    match (&operation.request, answer) {
        (Some(Request::RequestRange(_)), BatchAnswer::Get { kvs, more, count }) => {
            Ok(Response::ResponseRange(RangeResponse {
                header: nested(at),
                kvs: kvs.into_iter().map(key_value).collect(),
                more,
                count: signed(count),
            }))
        }
        (Some(Request::RequestPut(_)), BatchAnswer::Put { prev }) => {
            Ok(Response::ResponsePut(PutResponse {
                header: nested(at),
                prev_kv: prev.map(key_value),
            }))
        }
        (Some(Request::RequestDeleteRange(_)), BatchAnswer::Delete { deleted, prev }) => {
            Ok(Response::ResponseDeleteRange(DeleteRangeResponse {
                header: nested(at),
                deleted: signed(deleted),
                prev_kvs: prev.into_iter().map(key_value).collect(),
            }))
        }
        (Some(Request::RequestTxn(txn)), BatchAnswer::Batch { succeeded, answers }) => {
            response(txn, succeeded, running, answers).map(Response::ResponseTxn)
        }
        _ => Err(EtcdError::OfAnotherKind),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use dengine_kv::{KeyValue, Selection};
    use dengine_types::LeaseId;

    use super::*;
    use crate::etcdserverpb::range_request::{SortOrder, SortTarget};
    use crate::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest};
    use crate::writes::{answer, command};

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

    fn delete(key: &'static str) -> RequestOp {
        op(Request::RequestDeleteRange(DeleteRangeRequest {
            key: key.into(),
            ..DeleteRangeRequest::default()
        }))
    }

    fn range(change: impl FnOnce(&mut RangeRequest)) -> RequestOp {
        let mut range = RangeRequest {
            key: "a".into(),
            range_end: "\0".into(),
            ..RangeRequest::default()
        };
        change(&mut range);
        op(Request::RequestRange(range))
    }

    fn success(success: Vec<RequestOp>) -> TxnRequest {
        TxnRequest {
            success,
            ..TxnRequest::default()
        }
    }

    fn pair(key: &'static str) -> KeyValue {
        KeyValue {
            key: key.into(),
            value: Bytes::new(),
            create_revision: Revision(2),
            mod_revision: Revision(2),
            version: 1,
            ttl_ms: 0,
            lease: LeaseId::NONE,
        }
    }

    fn get(keys: &[&'static str]) -> BatchAnswer {
        BatchAnswer::Get {
            kvs: keys.iter().copied().map(pair).collect(),
            more: false,
            count: keys.len() as u64,
        }
    }

    fn answered(
        txn: &TxnRequest,
        succeeded: bool,
        answers: Vec<BatchAnswer>,
    ) -> Result<TxnResponse, EtcdError> {
        let outcome = Outcome::Batch {
            revision: Revision(9),
            succeeded,
            answers,
        };
        answer(txn, Header::default(), outcome)
    }

    fn revision(response: &ResponseOp) -> i64 {
        let header = match response.response.as_ref().unwrap() {
            Response::ResponseRange(it) => &it.header,
            Response::ResponsePut(it) => &it.header,
            Response::ResponseDeleteRange(it) => &it.header,
            Response::ResponseTxn(it) => &it.header,
        };
        header.unwrap().revision
    }

    #[test]
    fn each_answer_has_the_revision_of_its_moment() {
        let ops = vec![range(|_| ()), delete("x"), put("a"), range(|_| ())];
        let none = || BatchAnswer::Delete {
            deleted: 0,
            prev: Vec::new(),
        };
        let put_answer = BatchAnswer::Put { prev: None };
        let answers = vec![get(&[]), none(), put_answer, get(&["a"])];
        let found = answered(&success(ops), true, answers).unwrap();
        assert_eq!(found.header.unwrap().revision, 9);
        let revisions: Vec<_> = found.responses.iter().map(revision).collect();
        assert_eq!(revisions, [8, 8, 9, 9]);

        let ops = vec![range(|_| ()), delete("x")];
        let found = answered(&success(ops), true, vec![get(&[]), none()]).unwrap();
        let revisions: Vec<_> = found.responses.iter().map(revision).collect();
        assert_eq!(revisions, [9, 9], "nothing was changed");
    }

    #[test]
    fn a_nested_transaction_has_an_empty_header_and_its_operations_have_their_revisions() {
        let inner = TxnRequest {
            failure: vec![put("b"), range(|_| ())],
            ..TxnRequest::default()
        };
        let txn = success(vec![
            range(|_| ()),
            op(Request::RequestTxn(inner)),
            range(|_| ()),
        ]);
        let inner = BatchAnswer::Batch {
            succeeded: false,
            answers: vec![BatchAnswer::Put { prev: None }, get(&["b"])],
        };
        let found = answered(&txn, true, vec![get(&[]), inner, get(&["b"])]).unwrap();
        let revisions: Vec<_> = found.responses.iter().map(revision).collect();
        assert_eq!(revisions, [8, 0, 9]);
        let Some(Response::ResponseTxn(inner)) = &found.responses[1].response else {
            panic!("{found:?}");
        };
        assert!(!inner.succeeded);
        let revisions: Vec<_> = inner.responses.iter().map(revision).collect();
        assert_eq!(revisions, [9, 9]);
    }

    #[test]
    fn a_range_is_asked_for_as_outside_of_a_transaction() {
        let sorted = range(|range| {
            range.limit = 2;
            range.revision = 7;
            range.keys_only = true;
            range.sort_order = SortOrder::Descend.into();
            range.sort_target = SortTarget::Value.into();
        });
        let request = command(&success(vec![sorted])).unwrap();
        let Command::Batch(batch) = request.command else {
            panic!("{request:?}");
        };
        let expect = RangeRead {
            revision: Some(Revision(7)),
            limit: 2,
            keys_only: true,
            selection: Selection {
                order: dengine_kv::SortOrder::Descending,
                by: dengine_kv::SortBy::Value,
                ..Selection::default()
            },
            ..RangeRead::new(KeyRange::From("a".into()))
        };
        assert_eq!(batch.then, [BatchOperation::Range(Box::new(expect))]);
        let before = range(|range| range.revision = -1);
        let refused = command(&success(vec![before])).unwrap_err();
        assert_eq!(refused, EtcdError::Compacted);
    }

    #[test]
    fn the_answer_is_to_the_list_that_was_done() {
        let txn = TxnRequest {
            success: vec![put("a")],
            failure: vec![range(|_| ())],
            ..TxnRequest::default()
        };
        let found = answered(&txn, false, vec![get(&[])]).unwrap();
        assert!(!found.succeeded);
        assert!(matches!(
            found.responses[0].response,
            Some(Response::ResponseRange(_))
        ));
        for answers in [vec![get(&[])], Vec::new()] {
            let found = answered(&txn, true, answers);
            assert_eq!(found, Err(EtcdError::OfAnotherKind));
        }
    }

    #[test]
    fn a_transaction_is_serializable_if_all_its_ranges_are() {
        let read = |serializable| range(|range| range.serializable = serializable);
        for (success, failure, expect) in [
            (vec![], vec![], true),
            (vec![read(true)], vec![read(true)], true),
            (vec![read(true)], vec![read(false)], false),
            (
                vec![op(Request::RequestTxn(TxnRequest::default()))],
                vec![],
                false,
            ),
        ] {
            let txn = TxnRequest {
                success,
                failure,
                ..TxnRequest::default()
            };
            assert_eq!(txn.is_serializable(), expect, "{txn:?}");
        }
    }

    #[test]
    fn what_only_reads_is_a_batch_that_only_reads() {
        let txn = TxnRequest {
            failure: vec![range(|_| ())],
            ..success(vec![range(|_| ())])
        };
        let request = command(&txn).unwrap();
        assert!(request.read_only().is_some());
        let request = command(&success(vec![put("a")])).unwrap();
        assert!(request.read_only().is_none());
    }
}
