//! Makes a sequence short that shows a difference.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::operation::Operation;
use crate::pb;

/// How often a sequence may be tried, and for how long: each try starts both systems.
const TRIES_MAX: usize = 400;
const TIME_MAX: Duration = Duration::from_secs(300);

/// The fewest and simplest calls that were found to differ still. `differs` runs them on equal
/// systems.
///
/// # Errors
/// `differs` fails.
pub(crate) async fn shrink(
    operations: Vec<Operation>,
    mut differs: impl AsyncFnMut(&[Operation]) -> Result<bool>,
) -> Result<Vec<Operation>> {
    let mut tries = Tries {
        done: 0,
        begun: Instant::now(),
    };
    let mut operations = operations;
    let mut chunk = operations.len() / 2;
    while chunk > 0 && tries.left() {
        let mut from = 0;
        let mut shorter = false;
        while from < operations.len() && tries.left() {
            let to = (from + chunk).min(operations.len());
            let without = [&operations[..from], &operations[to..]].concat();
            tries.done += 1;
            if !without.is_empty() && differs(&without).await? {
                operations = without;
                shorter = true;
            } else {
                from = to;
            }
        }
        // What could not be removed before may be now.
        if !shorter || chunk > 1 {
            chunk /= 2;
        }
    }
    simplify(&mut operations, &mut differs, &mut tries).await?;
    Ok(operations)
}

struct Tries {
    done: usize,
    begun: Instant,
}

impl Tries {
    fn left(&self) -> bool {
        self.done < TRIES_MAX && self.begun.elapsed() < TIME_MAX
    }
}

async fn simplify(
    operations: &mut [Operation],
    differs: &mut impl AsyncFnMut(&[Operation]) -> Result<bool>,
    tries: &mut Tries,
) -> Result<()> {
    for place in 0..operations.len() {
        let mut number = 0;
        while tries.left()
            && let Some(simpler) = simpler(&operations[place], number)
        {
            let before = std::mem::replace(&mut operations[place], simpler);
            tries.done += 1;
            if !differs(operations).await? {
                operations[place] = before;
                number += 1;
            }
        }
    }
    Ok(())
}

/// The call without one of its parts; `None` if it has no more than that many.
fn simpler(operation: &Operation, number: usize) -> Option<Operation> {
    match operation {
        Operation::Txn(request) => txn_without(request, number).map(Operation::Txn),
        Operation::Range(request) => range_without(request, number).map(Operation::Range),
        Operation::RangeStream(request) => {
            range_without(request, number).map(Operation::RangeStream)
        }
        _ => None,
    }
}

fn range_without(request: &pb::RangeRequest, number: usize) -> Option<pb::RangeRequest> {
    let mut plainer: [pb::RangeRequest; 5] = std::array::from_fn(|_| request.clone());
    plainer[0].limit = 0;
    (plainer[1].sort_order, plainer[1].sort_target) = (0, 0);
    plainer[2].serializable = false;
    (plainer[3].min_mod_revision, plainer[3].max_mod_revision) = (0, 0);
    (
        plainer[4].min_create_revision,
        plainer[4].max_create_revision,
    ) = (0, 0);
    let mut changed = plainer.into_iter().filter(|plain| plain != request);
    changed.nth(number)
}

fn txn_without(request: &pb::TxnRequest, number: usize) -> Option<pb::TxnRequest> {
    let mut request = request.clone();
    let (compares, successes) = (request.compare.len(), request.success.len());
    if number < compares {
        request.compare.remove(number);
    } else if number < compares + successes {
        request.success.remove(number - compares);
    } else if number < compares + successes + request.failure.len() {
        request.failure.remove(number - compares - successes);
    } else {
        return None;
    }
    Some(request)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{Calls, Mood, sequence};

    #[tokio::test]
    async fn only_what_is_needed_stays() {
        let operations = sequence(2, Mood::Valid, 1_000, Calls::default());
        let compacts = |it: &&Operation| matches!(it, Operation::Compact(_));
        let needed = operations.iter().filter(compacts).count();
        assert!(needed > 1);
        let short = shrink(operations, async |tried| {
            Ok(tried.iter().filter(compacts).count() == needed)
        });
        assert_eq!(short.await.unwrap().len(), needed);
    }

    #[tokio::test]
    async fn a_transaction_loses_what_it_does_not_need() {
        let put = |key: &'static str| pb::RequestOp {
            request: Some(pb::request_op::Request::RequestPut(pb::PutRequest {
                key: key.into(),
                ..Default::default()
            })),
        };
        let request = pb::TxnRequest {
            compare: vec![pb::Compare::default()],
            success: vec![put("a"), put("b"), put("c")],
            failure: vec![put("d")],
        };
        let short = shrink(vec![Operation::Txn(request)], async |tried| {
            Ok(crate::operation::to_text(tried).contains("b\"b\""))
        });
        let expected = pb::TxnRequest {
            success: vec![put("b")],
            ..Default::default()
        };
        assert_eq!(short.await.unwrap(), [Operation::Txn(expected)]);
    }
}
