//! Transactions: requests as batches of the state machine, and outcomes as answers.
//!
//! What may be in a transaction is checked in `checks`, comparisons are translated in `compares`.

mod checks;
mod compares;

use dengine_kv::{Batch, BatchAnswer, BatchOperation, Command, KeyRange, Outcome};
use dengine_types::Revision;

use crate::errors::EtcdError;
use crate::etcdserverpb::request_op::Request;
use crate::etcdserverpb::response_op::Response;
use crate::etcdserverpb::{
    DeleteRangeResponse, PutResponse, RangeResponse, RequestOp, ResponseOp, TxnRequest, TxnResponse,
};
use crate::header::{Header, nested, signed};
use crate::messages::key_value;
use crate::range::Shape;
use crate::writes::{Mutation, check_put_is_served};

/// Whether what this member has applied will do for a transaction that only reads.
#[must_use]
pub fn is_serializable(txn: &TxnRequest) -> bool {
    let mut operations = txn.success.iter().chain(&txn.failure);
    operations.all(|operation| match &operation.request {
        Some(Request::RequestRange(range)) => range.serializable,
        _ => false,
    })
}

impl Mutation for TxnRequest {
    type Response = TxnResponse;

    fn check(&self) -> Result<(), EtcdError> {
        checks::check(self)
    }

    fn command(&self) -> Result<Command, EtcdError> {
        Ok(Command::Batch(Batch {
            compares: compares::compares(&self.compare)?,
            then: operations(&self.success)?,
            otherwise: operations(&self.failure)?,
        }))
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
        let done = match succeeded {
            true => &self.success,
            false => &self.failure,
        };
        Ok(TxnResponse {
            header: header.at(revision),
            succeeded,
            responses: responses(done, revision, answers)?,
        })
    }
}

fn operations(requests: &[RequestOp]) -> Result<Vec<BatchOperation>, EtcdError> {
    requests.iter().map(operation).collect()
}

fn operation(operation: &RequestOp) -> Result<BatchOperation, EtcdError> {
    match &operation.request {
        Some(Request::RequestRange(range)) => {
            if range.revision != 0 {
                return Err(EtcdError::NotServed(
                    "reads of a past revision in a transaction",
                ));
            }
            Ok(BatchOperation::Get {
                keys: KeyRange::from_wire(&range.key, &range.range_end),
                // With a limit it would not count what is beyond.
                limit: 0,
                keys_only: Shape::new(range).needs_no_values(),
                count_only: range.count_only,
            })
        }
        Some(Request::RequestPut(put)) => {
            check_put_is_served(put)?;
            Ok(BatchOperation::Put {
                key: put.key.clone(),
                value: put.value.clone(),
                prev_kv: put.prev_kv,
                ttl_ms: 0,
            })
        }
        Some(Request::RequestDeleteRange(delete)) => Ok(BatchOperation::Delete {
            keys: KeyRange::from_wire(&delete.key, &delete.range_end),
            prev_kv: delete.prev_kv,
        }),
        Some(Request::RequestTxn(_)) => Err(EtcdError::NotServed("transactions in a transaction")),
        None => Err(EtcdError::KeyNotFound),
    }
}

/// The answers to the operations that were done, when the transaction left the store at `revision`.
/// In its own header each has the revision that the store was at for it.
fn responses(
    requests: &[RequestOp],
    revision: Revision,
    answers: Vec<BatchAnswer>,
) -> Result<Vec<ResponseOp>, EtcdError> {
    if requests.len() != answers.len() {
        return Err(EtcdError::OfAnotherKind);
    }
    let mut at = match answers.iter().any(changes) {
        true => Revision(revision.0.saturating_sub(1)),
        false => revision,
    };
    let pairs = requests.iter().zip(answers);
    pairs
        .map(|(request, answer)| {
            if changes(&answer) {
                at = revision;
            }
            response(request, at, answer)
        })
        .collect()
}

fn changes(answer: &BatchAnswer) -> bool {
    match answer {
        BatchAnswer::Put { .. } => true,
        BatchAnswer::Delete { deleted, .. } => *deleted > 0,
        BatchAnswer::Get { .. } => false,
    }
}

fn response(
    request: &RequestOp,
    at: Revision,
    answer: BatchAnswer,
) -> Result<ResponseOp, EtcdError> {
    let header = nested(at);
    let response = match (&request.request, answer) {
        (Some(Request::RequestRange(range)), BatchAnswer::Get { kvs, more, count }) => {
            Response::ResponseRange(RangeResponse {
                header,
                count: signed(count),
                ..Shape::new(range).apply(kvs, more)
            })
        }
        (Some(Request::RequestPut(_)), BatchAnswer::Put { prev }) => {
            Response::ResponsePut(PutResponse {
                header,
                prev_kv: prev.map(key_value),
            })
        }
        (Some(Request::RequestDeleteRange(_)), BatchAnswer::Delete { deleted, prev }) => {
            Response::ResponseDeleteRange(DeleteRangeResponse {
                header,
                deleted: signed(deleted),
                prev_kvs: prev.into_iter().map(key_value).collect(),
            })
        }
        _ => return Err(EtcdError::OfAnotherKind),
    };
    Ok(ResponseOp {
        response: Some(response),
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use dengine_kv::KeyValue;

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
    fn a_range_is_cut_sorted_and_counted_as_outside_of_a_transaction() {
        let descending = range(|range| {
            range.limit = 2;
            range.sort_order = SortOrder::Descend.into();
            range.sort_target = SortTarget::Key.into();
        });
        let limited = range(|range| range.limit = 2);
        let txn = success(vec![descending, limited]);
        let answers = vec![get(&["a", "b", "c"]), get(&["a", "b", "c"])];
        let found = answered(&txn, true, answers).unwrap();
        let expect = [["c", "b"], ["a", "b"]];
        for (response, expect) in found.responses.into_iter().zip(expect) {
            let Some(Response::ResponseRange(range)) = response.response else {
                panic!("{response:?}");
            };
            let keys: Vec<_> = range.kvs.into_iter().map(|kv| kv.key).collect();
            assert_eq!(keys, expect);
            assert!(range.more);
            assert_eq!(range.count, 3);
        }
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
    fn what_only_reads_may_be_stale_if_all_of_it_may() {
        let fresh = || range(|_| ());
        let stale = || range(|range| range.serializable = true);
        assert!(is_serializable(&success(vec![])));
        assert!(is_serializable(&success(vec![stale()])));
        assert!(!is_serializable(&success(vec![stale(), fresh()])));
        let txn = TxnRequest {
            failure: vec![fresh()],
            ..success(vec![stale()])
        };
        assert!(!is_serializable(&txn));
        let request = command(&txn).unwrap();
        assert!(request.read_only().is_some());
        let request = command(&success(vec![put("a")])).unwrap();
        assert!(request.read_only().is_none());
    }

    #[test]
    fn what_the_state_machine_lacks_is_refused_in_words() {
        let refused = |op| command(&success(vec![op])).unwrap_err();
        let nested = op(Request::RequestTxn(TxnRequest::default()));
        assert!(matches!(refused(nested), EtcdError::NotServed(_)));
        let past = range(|range| range.revision = 3);
        assert!(matches!(refused(past), EtcdError::NotServed(_)));
    }
}
