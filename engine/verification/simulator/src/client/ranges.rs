//! Operations on ranges, and what they are to the checkers: one step for each key.
//!
//! That loses nothing. The answer tells for each key what became of it, and what the checkers
//! demand of steps at one revision they demand of a range.

use bytes::Bytes;
use dengine_checker::{BatchStep, Reply};
use dengine_kv::{Batch, BatchAnswer, BatchOperation, Compare, KeyRange, KeyValue};

use super::operation::seen;
use crate::plan::KEYS_MAX;

/// How an operation names its keys; each form comes as often as the others.
enum Form {
    One,
    RangeOfOne,
    Range,
}

/// Not drawn, so that the other draws are the same as without ranges.
fn form(unique: &str) -> Form {
    match unique.bytes().map(u64::from).sum::<u64>() % 3 {
        0 => Form::One,
        1 => Form::RangeOfOne,
        _ => Form::Range,
    }
}

/// A key, or it and those that follow it.
pub(super) fn some_range(key: &str, unique: &str) -> KeyRange {
    let keys = (0..KEYS_MAX).map(|number| format!("k{number}"));
    let from_here: Vec<_> = keys.skip_while(|other| other < &key.to_owned()).collect();
    match (form(unique), from_here.get(2)) {
        (Form::Range, None) => KeyRange::From(Bytes::from(key.to_owned())),
        (Form::Range, Some(end)) => KeyRange::Between {
            start: Bytes::from(key.to_owned()),
            end: Bytes::from(end.clone()),
        },
        _ => just(key.to_owned(), unique),
    }
}

/// A single key, as itself or as a range.
pub(super) fn just(key: String, unique: &str) -> KeyRange {
    match form(unique) {
        Form::One => KeyRange::One(Bytes::from(key)),
        Form::RangeOfOne | Form::Range => KeyRange::Between {
            end: Bytes::from(format!("{key}\0")),
            start: Bytes::from(key),
        },
    }
}

pub(super) fn is_range(keys: &KeyRange) -> bool {
    !matches!(keys, KeyRange::One(_))
}

/// All keys of a range that can exist.
pub(super) fn keys_of(keys: &KeyRange) -> Vec<String> {
    let all = (0..KEYS_MAX).map(|number| format!("k{number}"));
    all.filter(|key| keys.contains(key.as_bytes())).collect()
}

/// What an operation of a batch does, key by key.
pub(super) fn steps_of(operation: &BatchOperation) -> Vec<BatchStep> {
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    match operation {
        BatchOperation::Put(put) => vec![match put.ttl_ms {
            0 => BatchStep::Put(text(&put.key), text(&put.value)),
            _ => BatchStep::PutExpiring(text(&put.key), text(&put.value)),
        }],
        BatchOperation::Delete { keys, .. } => {
            keys_of(keys).into_iter().map(BatchStep::Delete).collect()
        }
        BatchOperation::Get { keys, .. } => keys_of(keys).into_iter().map(BatchStep::Get).collect(),
        BatchOperation::Range(read) => {
            let keys = keys_of(&read.keys).into_iter();
            keys.map(BatchStep::Get).collect()
        }
        // Of these lists one is empty.
        BatchOperation::Batch(batch) => {
            let steps = batch.then.iter().chain(&batch.otherwise);
            steps.flat_map(steps_of).collect()
        }
    }
}

/// The same operations, the last ones in a batch within the batch if there are several. `holds` is
/// whether they are done if the comparisons hold: so are those within, which are the same.
///
/// Not drawn, so that the other draws are the same as without.
pub(super) fn nested(
    mut operations: Vec<BatchOperation>,
    compares: &[Compare],
    holds: bool,
    unique: &str,
) -> Vec<BatchOperation> {
    if operations.len() < 2 || matches!(form(unique), Form::One) {
        return operations;
    }
    let last = operations.split_off(1);
    let (then, otherwise) = match holds {
        true => (last, Vec::new()),
        false => (Vec::new(), last),
    };
    operations.push(BatchOperation::Batch(Box::new(Batch {
        compares: compares.to_vec(),
        then,
        otherwise,
    })));
    operations
}

/// The answers to [`steps_of`] an operation.
pub(super) fn replies_of(operation: &BatchOperation, answer: &BatchAnswer) -> Vec<Reply> {
    match (operation, answer) {
        (
            BatchOperation::Delete { keys, .. },
            BatchAnswer::Delete {
                deleted: count,
                prev,
            },
        ) => match is_range(keys) {
            true => deleted(keys, prev),
            false => vec![Reply::Delete(*count > 0)],
        },
        (BatchOperation::Batch(batch), BatchAnswer::Batch { succeeded, answers }) => {
            let done = match succeeded {
                true => &batch.then,
                false => &batch.otherwise,
            };
            let replies = done.iter().zip(answers);
            replies
                .flat_map(|(it, answer)| replies_of(it, answer))
                .collect()
        }
        (BatchOperation::Get { keys, .. }, BatchAnswer::Get { kvs, .. }) => {
            let found = keys_of(keys).into_iter().map(|key| {
                let pair = kvs.iter().find(|pair| pair.key == key.as_bytes());
                Reply::Get(pair.map(seen))
            });
            found.collect()
        }
        _ => vec![Reply::Put],
    }
}

/// What became of each key of a range that was deleted.
pub(super) fn deleted(keys: &KeyRange, prev: &[KeyValue]) -> Vec<Reply> {
    let was_there = |key: String| prev.iter().any(|pair| pair.key == key.as_bytes());
    let replies = keys_of(keys).into_iter().map(was_there);
    replies.map(Reply::Delete).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_within_a_batch_is_the_same_steps() {
        let delete = |key: &str| BatchOperation::Delete {
            keys: KeyRange::One(Bytes::from(key.to_owned())),
            prev_kv: false,
        };
        let flat = || ["k1", "k2", "k3"].map(delete).to_vec();
        let steps: Vec<_> = flat().iter().flat_map(steps_of).collect();
        for holds in [true, false] {
            let forms = ["1.0", "1.1", "1.2"].map(|unique| nested(flat(), &[], holds, unique));
            let lengths = forms.each_ref().map(Vec::len);
            assert_eq!(lengths.iter().sum::<usize>(), 3 + 2 + 2, "{forms:?}");
            for form in forms {
                let found: Vec<_> = form.iter().flat_map(steps_of).collect();
                assert_eq!(found, steps);
            }
        }
    }

    #[test]
    fn each_form_of_a_range_comes_and_has_its_key() {
        let forms = ["1.0", "1.1", "1.2"].map(|unique| some_range("k3", unique));
        let lengths = forms.each_ref().map(|keys| keys_of(keys).len());
        assert_eq!(lengths.iter().sum::<usize>(), 4, "{forms:?}");
        assert_eq!(forms.iter().filter(|keys| is_range(keys)).count(), 2);
        assert!(forms.iter().all(|keys| keys_of(keys)[0] == "k3"));
        let last = ["1.0", "1.1", "1.2"].map(|unique| some_range("k7", unique));
        assert!(last.iter().all(|keys| keys_of(keys) == ["k7"]));
    }
}
