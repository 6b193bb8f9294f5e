//! What was acknowledged is in the history of every member in the end, at the revision that was
//! told.

use dengine_checker::{Answer, Call, Operation};

use super::{End, Invariant};

pub(super) struct NoAcknowledgedWriteLost;

/// The key, value and revision of a write that was acknowledged, if it was one.
fn acknowledged(operation: &Operation) -> Option<(&str, &str, u64)> {
    match (&operation.call, &operation.answer) {
        (Call::Put { key, value, .. }, Answer::Put { revision })
        | (
            Call::CompareAndSwap { key, value, .. },
            Answer::CompareAndSwap {
                revision,
                succeeded: true,
                ..
            },
        ) => Some((key, value, *revision)),
        _ => None,
    }
}

impl Invariant for NoAcknowledgedWriteLost {
    fn name(&self) -> &'static str {
        "no acknowledged write lost"
    }

    fn end(&mut self, end: &End<'_>) -> Result<(), String> {
        for (key, value, revision) in end.history.operations.iter().filter_map(acknowledged) {
            let Some(found) = (end.value_at)(key, revision) else {
                continue;
            };
            if found.as_deref() != Some(value) {
                return Err(format!(
                    "{value} was written to {key} at revision {revision}, where {found:?} is found"
                ));
            }
        }
        Ok(())
    }
}
