//! Who waits for which entry.

use super::env::{Caller, Written};
use super::error::RequestError;
use crate::kv::Applied;
use crate::planted::planted;
use crate::types::Index;
use bytes::Bytes;
use std::collections::BTreeMap;

/// Somebody waits for the entry at `index`, which is theirs only if it carries `context`.
#[derive(Debug)]
pub struct Expected<C> {
    /// Where it was put.
    pub index: Index,
    /// What it carries.
    pub context: Bytes,
    /// Who waits.
    pub caller: C,
}

/// The callers whose proposals are in the log and not yet applied.
pub(super) struct Pending<C> {
    by_index: BTreeMap<Index, Expected<C>>,
}

impl<C> Default for Pending<C> {
    fn default() -> Self {
        Self {
            by_index: BTreeMap::new(),
        }
    }
}

impl<C: Caller<Written>> Pending<C> {
    pub(super) fn expect(&mut self, expected: Expected<C>) {
        // Two proposals at one index: this member led twice, and the first was overwritten.
        if let Some(lost) = self.by_index.insert(expected.index, expected) {
            lost.overwritten();
        }
    }

    /// Answers whoever waits for this entry. An entry of somebody else at a position that was waited for
    /// proves that the proposal is in no log any more.
    pub(super) fn applied(&mut self, applied: Applied) {
        let Some(expected) = self.by_index.remove(&applied.index) else {
            return;
        };
        if expected.context == applied.context || planted!(AnsweredByAnotherEntry) {
            // A caller that gave up is gone; the write stands all the same.
            expected.caller.answer(Ok(Written {
                term: applied.term,
                outcome: applied.outcome,
            }));
        } else {
            expected.overwritten();
        }
    }

    /// Forgets callers that gave up.
    pub(super) fn prune(&mut self) {
        self.by_index
            .retain(|_, expected| !expected.caller.is_gone());
    }
}

impl<C: Caller<Written>> Expected<C> {
    fn overwritten(self) {
        self.caller.answer(Err(RequestError::NotServed {
            reason: "the leader changed before a quorum had it".to_owned(),
        }));
    }
}
