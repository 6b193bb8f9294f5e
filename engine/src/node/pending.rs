//! Who waits for which entry.

use super::Written;
use super::input::Reply;
use crate::error::RequestError;
use bytes::Bytes;
use dengine_core::kv::Applied;
use dengine_core::types::Index;
use std::collections::BTreeMap;

/// Somebody waits for the entry at `index`, which is theirs only if it carries `context`.
pub(super) struct Expected {
    pub(super) index: Index,
    pub(super) context: Bytes,
    pub(super) reply: Reply<Written>,
}

/// The callers whose proposals are in the log and not yet applied.
#[derive(Default)]
pub(super) struct Pending {
    by_index: BTreeMap<Index, Expected>,
}

impl Pending {
    pub(super) fn expect(&mut self, expected: Expected) {
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
        if expected.context == applied.context {
            // A caller that gave up has dropped its end; the write stands all the same.
            let _ = expected.reply.send(Ok(Written {
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
            .retain(|_, expected| !expected.reply.is_closed());
    }
}

impl Expected {
    fn overwritten(self) {
        let _ = self.reply.send(Err(RequestError::NotServed {
            reason: "the leader changed before a quorum had it".to_owned(),
        }));
    }
}
