//! How much is handed out to be applied and was not applied yet.
//!
//! A state machine that falls behind must not make this module hold the log in memory: beyond a bound,
//! what is committed stays in the log until there is room.

use super::log_view::entry_bytes;
use crate::types::{Entry, Index};
use std::collections::VecDeque;

/// So many full batches may be out: one that is applied, and some that wait for it.
const BATCHES_OUT: u64 = 4;

pub(super) struct ApplyWindow {
    /// The last entry that was handed out.
    handed_out: u64,
    /// The last entry that may be.
    committed: u64,
    /// Each batch that is out: its last index and its bytes.
    out: VecDeque<(u64, u64)>,
    out_bytes: u64,
    out_bytes_max: u64,
}

impl ApplyWindow {
    pub(super) fn new(applied: Index, batch_bytes_max: u64) -> Self {
        Self {
            handed_out: applied.0,
            committed: applied.0,
            out: VecDeque::new(),
            out_bytes: 0,
            out_bytes_max: batch_bytes_max.saturating_mul(BATCHES_OUT),
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.out_bytes >= self.out_bytes_max
    }

    /// Takes note of committed entries; returns them if they are next and there is room.
    pub(super) fn offer(&mut self, entries: Vec<Entry>) -> Option<Vec<Entry>> {
        let (first, last) = (entries.first()?.index.0, entries.last()?.index.0);
        assert_eq!(first, self.committed + 1, "committed entries come in order");
        self.committed = last;
        let now = first == self.handed_out + 1 && !self.is_full();
        now.then(|| {
            self.hand_out(&entries);
            entries
        })
    }

    /// The range to read from the log and hand out now, if there is one: from, and up to before.
    pub(super) fn next(&self) -> Option<(u64, u64)> {
        let behind = self.handed_out < self.committed && !self.is_full();
        behind.then_some((self.handed_out + 1, self.committed + 1))
    }

    pub(super) fn hand_out(&mut self, entries: &[Entry]) {
        let Some(last) = entries.last() else { return };
        let bytes = entries.iter().map(entry_bytes).sum();
        self.handed_out = last.index.0;
        self.out.push_back((last.index.0, bytes));
        self.out_bytes += bytes;
    }

    pub(super) fn applied(&mut self, index: Index) {
        assert!(
            index.0 <= self.handed_out,
            "entry {index} was applied, but only {} was handed out",
            self.handed_out
        );
        while let Some((_, bytes)) = self.out.front().filter(|(last, _)| *last <= index.0) {
            self.out_bytes -= bytes;
            self.out.pop_front();
        }
    }
}
