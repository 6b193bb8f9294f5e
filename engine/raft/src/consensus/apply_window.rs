//! How much is handed out to be applied and was not applied yet.
//!
//! A state machine that falls behind must not make this module hold the log in memory: beyond a
//! bound, what is committed stays in the log until there is room.

use std::collections::VecDeque;

use dengine_types::{Entry, Index};

use super::log_view::entry_bytes;

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

    /// Whether there is more to apply than there is room for.
    pub(super) fn is_behind(&self) -> bool {
        self.handed_out < self.committed || self.is_full()
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

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;

    use bytes::Bytes;
    use dengine_types::{EntryKind, Term};

    use super::*;

    fn entries(indexes: RangeInclusive<u64>) -> Vec<Entry> {
        let entry = |index| Entry {
            index: Index(index),
            term: Term(1),
            kind: EntryKind::Command,
            context: Bytes::new(),
            data: Bytes::from_static(b"data"),
        };
        indexes.map(entry).collect()
    }

    /// Everything up to entry 10 is applied, and one entry fills the window.
    fn window() -> ApplyWindow {
        ApplyWindow::new(Index(10), 1)
    }

    #[test]
    fn what_waits_for_room_is_handed_out_from_where_it_stopped() {
        let mut window = window();
        assert_eq!(window.next(), None, "nothing is committed");
        assert_eq!(window.offer(entries(11..=12)), Some(entries(11..=12)));
        assert_eq!(window.next(), None, "all of it is out");
        assert_eq!(window.offer(entries(13..=14)), None, "there is no room");
        assert_eq!(window.next(), None, "there is no room");
        window.applied(Index(11));
        assert_eq!(window.next(), None, "the batch is not done");
        window.applied(Index(12));
        assert_eq!(window.next(), Some((13, 15)));
        // As much as was read at once; the rest is next when that is applied.
        window.hand_out(&entries(13..=13));
        assert_eq!(window.next(), None);
        window.applied(Index(13));
        assert_eq!(window.next(), Some((14, 15)));
    }

    #[test]
    fn what_is_committed_waits_for_what_was_committed_before() {
        let mut window = window();
        window.offer(entries(11..=11));
        window.offer(entries(12..=12));
        window.applied(Index(11));
        assert_eq!(window.offer(entries(13..=13)), None);
        assert_eq!(window.next(), Some((12, 14)));
    }

    #[test]
    fn four_batches_are_out_and_no_more() {
        let batch_bytes = entry_bytes(&entries(1..=1)[0]);
        let mut window = ApplyWindow::new(Index(0), batch_bytes);
        for index in 1..=4 {
            assert!(window.offer(entries(index..=index)).is_some(), "{index}");
        }
        assert_eq!(window.offer(entries(5..=5)), None);
    }
}
