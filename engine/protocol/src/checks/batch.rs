//! Batches: between the types of `dengine-kv` and the protocol's messages, and the checks of what
//! arrives.

use bytes::Bytes;
use dengine_kv::{
    Batch, BatchAnswer, BatchOperation, Command, Compare, CompareTarget, KeyRange, Outcome, Put,
    Relation,
};
use dengine_types::Revision;
use tonic::Status;

use crate::checks::header::Header;
use crate::checks::limits::RequestLimits;
use crate::checks::messages::key_value;
use crate::checks::writes::{Mutation, check_stamp};
use crate::v1::compare::{Relation as WireRelation, Target};
use crate::v1::operation::Operation as Wire;
use crate::v1::operation_result::{self, Result as WireResult};
use crate::v1::{self, BatchRequest, BatchResponse, ResponseHeader};

impl Mutation for BatchRequest {
    fn command(&self, limits: &RequestLimits) -> Result<Command, Status> {
        check_stamp(self.session)?;
        check_sizes(self, limits)?;
        let compares = self.compares.iter().map(|it| compare(it, limits));
        let batch = Batch {
            compares: compares.collect::<Result<_, _>>()?,
            then: operations(&self.then, limits)?,
            otherwise: operations(&self.otherwise, limits)?,
        };
        match batch.duplicate_key() {
            Some(key) => Err(Status::invalid_argument(format!(
                "duplicate key in one list of the batch: {}",
                shown(key)
            ))),
            None => Ok(Command::Batch(batch)),
        }
    }

    fn answer(&self, header: Header, outcome: Outcome) -> Result<BatchResponse, Outcome> {
        let nests = |answer: &BatchAnswer| matches!(answer, BatchAnswer::Batch { .. });
        match outcome {
            Outcome::Batch {
                revision,
                succeeded,
                answers,
            } if !answers.iter().any(nests) => Ok(BatchResponse {
                header: header.at(revision),
                succeeded,
                results: answers.into_iter().map(result).collect(),
            }),
            other => Err(other),
        }
    }

    fn leave_out_pairs(answer: &mut BatchResponse) -> Option<&mut ResponseHeader> {
        answer.results = Vec::new();
        answer.header.as_mut()
    }
}

/// The beginning of a key: the words of a status travel in headers, and a client takes only so many
/// bytes of these.
fn shown(key: &[u8]) -> String {
    const SHOWN_BYTES: usize = 64;
    match key.split_at_checked(SHOWN_BYTES) {
        Some((beginning, rest)) if !rest.is_empty() => format!("{}...", beginning.escape_ascii()),
        _ => key.escape_ascii().to_string(),
    }
}

fn check_sizes(batch: &BatchRequest, limits: &RequestLimits) -> Result<(), Status> {
    let most = limits.max_batch_operations;
    for (what, count) in [
        ("compares", batch.compares.len()),
        ("then", batch.then.len()),
        ("otherwise", batch.otherwise.len()),
    ] {
        if count > most {
            return Err(Status::invalid_argument(format!(
                "the batch has {count} entries in `{what}`; this member takes at most {most} \
                 (--max-batch-operations)"
            )));
        }
    }
    let bytes = prost::Message::encoded_len(batch);
    let most = limits.max_batch_request_bytes;
    if bytes > most {
        return Err(Status::invalid_argument(format!(
            "the batch has {bytes} bytes; this member takes at most {most} \
             (--max-batch-request-bytes)"
        )));
    }
    Ok(())
}

fn compare(compare: &v1::Compare, limits: &RequestLimits) -> Result<Compare, Status> {
    limits.check_key(&compare.key)?;
    limits.check_range_end(&compare.range_end)?;
    let relation = match compare.relation() {
        WireRelation::Equal => Relation::Equal,
        WireRelation::NotEqual => Relation::NotEqual,
        WireRelation::Greater => Relation::Greater,
        WireRelation::Less => Relation::Less,
        WireRelation::Unspecified => {
            return Err(Status::invalid_argument(format!(
                "the comparison's relation ({}) is missing or not known to this version of the \
                 server",
                compare.relation
            )));
        }
    };
    let target = match &compare.target {
        Some(Target::Version(it)) => CompareTarget::Version(*it),
        Some(Target::CreateRevision(it)) => CompareTarget::CreateRevision(Revision(*it)),
        Some(Target::ModRevision(it)) => CompareTarget::ModRevision(Revision(*it)),
        Some(Target::Value(it)) => {
            limits.check_value(it)?;
            CompareTarget::Value(it.clone())
        }
        None => {
            return Err(Status::invalid_argument(
                "the comparison's target is missing",
            ));
        }
    };
    Ok(Compare {
        keys: keys(&compare.key, &compare.range_end),
        relation,
        target,
    })
}

fn operations(
    operations: &[v1::Operation],
    limits: &RequestLimits,
) -> Result<Vec<BatchOperation>, Status> {
    operations.iter().map(|it| operation(it, limits)).collect()
}

fn operation(operation: &v1::Operation, limits: &RequestLimits) -> Result<BatchOperation, Status> {
    match &operation.operation {
        Some(Wire::Put(put)) => {
            limits.check_key(&put.key)?;
            limits.check_value(&put.value)?;
            Ok(BatchOperation::Put(Put {
                prev_kv: put.prev_kv,
                ttl_ms: put.ttl_ms,
                ..Put::new(put.key.clone(), put.value.clone())
            }))
        }
        Some(Wire::Delete(delete)) => {
            limits.check_key(&delete.key)?;
            limits.check_range_end(&delete.range_end)?;
            Ok(BatchOperation::Delete {
                keys: keys(&delete.key, &delete.range_end),
                prev_kv: delete.prev_kv,
            })
        }
        Some(Wire::Get(get)) => {
            limits.check_key(&get.key)?;
            limits.check_range_end(&get.range_end)?;
            Ok(BatchOperation::Get {
                keys: keys(&get.key, &get.range_end),
                limit: u64::from(get.limit),
                keys_only: get.keys_only,
                count_only: get.count_only,
            })
        }
        None => Err(Status::invalid_argument(
            "an operation of the batch is missing, or not known to this version of the server",
        )),
    }
}

fn keys(key: &Bytes, range_end: &Bytes) -> KeyRange {
    KeyRange::from_wire(key, range_end)
}

fn result(answer: BatchAnswer) -> v1::OperationResult {
    let result = match answer {
        BatchAnswer::Put { prev } => Some(WireResult::Put(operation_result::Put {
            prev_kv: prev.map(key_value),
        })),
        BatchAnswer::Delete { deleted, prev } => {
            Some(WireResult::Delete(operation_result::Delete {
                deleted,
                prev_kvs: prev.into_iter().map(key_value).collect(),
            }))
        }
        BatchAnswer::Get { kvs, more, count } => Some(WireResult::Get(operation_result::Get {
            kvs: kvs.into_iter().map(key_value).collect(),
            more,
            // Members of version 0.1 count them all the same.
            count: (!more || count > 0).then_some(count),
        })),
        // This protocol has no batches within batches.
        BatchAnswer::Batch { .. } => None,
    };
    v1::OperationResult { result }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::limits::TEST_LIMITS;

    fn put(key: &'static str) -> v1::Operation {
        v1::Operation {
            operation: Some(Wire::Put(v1::operation::Put {
                key: key.into(),
                ..v1::operation::Put::default()
            })),
        }
    }

    fn check(batch: &BatchRequest, expect: &str) {
        let limits = RequestLimits {
            max_batch_operations: 2,
            max_batch_request_bytes: 64,
            ..TEST_LIMITS
        };
        match batch.command(&limits) {
            Ok(_) => assert_eq!(expect, ""),
            Err(status) => {
                assert_eq!(status.code(), tonic::Code::InvalidArgument);
                let told = !expect.is_empty() && status.message().contains(expect);
                assert!(told, "{expect}: {status}");
            }
        }
    }

    #[test]
    fn a_refusal_fits_into_headers_however_long_the_key_is() {
        for (bytes, expect) in [(0, 0), (64, 256), (65, 259), (1 << 15, 259)] {
            assert_eq!(shown(&vec![0xff; bytes]).len(), expect, "{bytes}");
        }
    }

    #[test]
    fn bad_batches_are_refused_before_they_are_proposed() {
        let then = |then: Vec<v1::Operation>| BatchRequest {
            then,
            ..BatchRequest::default()
        };
        check(&then(vec![put("a"), put("b")]), "");
        check(&then(vec![put("a"), put("a")]), "duplicate key");
        check(
            &then(vec![put("a"), put("b"), put("c")]),
            "--max-batch-operations",
        );
        check(&then(vec![put("")]), "empty");
        check(&then(vec![v1::Operation::default()]), "missing");
        let long = "a-key-that-takes-more-bytes-than-a-whole-request-may-have-here-and-more";
        check(&then(vec![put(long)]), "--max-batch-request-bytes");
        let compares = vec![v1::Compare {
            key: "a".into(),
            ..v1::Compare::default()
        }];
        let compared = BatchRequest {
            compares,
            ..BatchRequest::default()
        };
        check(&compared, "relation");
    }
}
