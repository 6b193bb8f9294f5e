//! The log's index in memory: its segments, and where in them each batch with entries is. The
//! writer changes it, readers look entries up in it.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use dengine_planted::planted;
use dengine_types::{Index, Term};

use super::disk::DiskFile;
use super::error::LogError;
use super::state::{Change, LogState};

/// A segment's open file, and what is needed to verify a batch read from it.
#[derive(Debug)]
pub(super) struct SegmentFile<F> {
    pub(super) file: F,
    pub(super) path: PathBuf,
    pub(super) number: u64,
    pub(super) epoch: u64,
    pub(super) capacity: u32,
}

impl<F: DiskFile> SegmentFile<F> {
    pub(super) fn corrupt(&self, offset: u32, what: impl Into<String>) -> LogError {
        LogError::Corrupt {
            file: self.path.clone(),
            offset: u64::from(offset),
            what: what.into(),
        }
    }
}

/// A batch with entries. It is live from `first` to the next batch's `first`: the rest was replaced
/// by a later batch with a lower first index.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchRef {
    pub(super) first: Index,
    pub(super) offset: u32,
    pub(super) bytes: u32,
}

#[derive(Debug)]
pub(super) struct Segment<F> {
    pub(super) file: Arc<SegmentFile<F>>,
    /// Ascending by `first`; only those with live entries.
    batches: Vec<BatchRef>,
}

/// A batch to read, and which of its entries are requested.
#[derive(Debug)]
pub(super) struct Piece<F> {
    pub(super) file: Arc<SegmentFile<F>>,
    pub(super) batch: BatchRef,
    pub(super) from: Index,
    pub(super) to: Index,
}

/// What is known of the log without reading it.
#[derive(Debug)]
pub(super) struct Segments<F> {
    pub(super) state: LogState,
    segments: VecDeque<Segment<F>>,
}

impl<F: DiskFile> Segments<F> {
    pub(super) fn new(state: LogState) -> Self {
        Self {
            state,
            segments: VecDeque::new(),
        }
    }

    pub(super) fn push_segment(&mut self, file: Arc<SegmentFile<F>>) {
        self.segments.push_back(Segment {
            file,
            batches: Vec::new(),
        });
    }

    /// The segment that takes appends.
    pub(super) fn current(&self) -> &Arc<SegmentFile<F>> {
        &self
            .segments
            .back()
            .expect("an open log has a segment")
            .file
    }

    /// Size of the segments' files, preallocated space included.
    pub(super) fn bytes(&self) -> u64 {
        let capacities = self.segments.iter().map(|s| u64::from(s.file.capacity));
        capacities.sum()
    }

    pub(super) fn count(&self) -> usize {
        self.segments.len()
    }

    /// Applies a change that [`LogState::check`] accepted and that was written as `batches` at the
    /// end of the current segment.
    pub(super) fn apply<T: Iterator<Item = Term>>(
        &mut self,
        change: Change<T>,
        batches: impl IntoIterator<Item = BatchRef>,
    ) {
        if change.resets {
            self.drop_from(Index(0));
        }
        self.state.apply(change);
        for batch in batches {
            if !planted!(ConflictStaysInLog) {
                self.drop_from(batch.first);
            }
            self.segments
                .back_mut()
                .expect("an open log has a segment")
                .batches
                .push(batch);
        }
    }

    /// Drops every batch that begins at `first` or later, and ends the live part of an earlier one
    /// there.
    fn drop_from(&mut self, first: Index) {
        for segment in self.segments.iter_mut().rev() {
            let kept = segment.batches.partition_point(|batch| batch.first < first);
            segment.batches.truncate(kept);
            if kept > 0 {
                break;
            }
        }
    }

    /// The first entry of the newest batches that hold at least `bytes` together; the log's first
    /// entry if all of them hold less.
    pub(super) fn keep_from(&self, bytes: u64) -> Index {
        let mut held = 0;
        let newest_first = self.segments.iter().rev();
        let mut batches = newest_first.flat_map(|segment| segment.batches.iter().rev());
        let enough = batches.find(|batch| {
            held += u64::from(batch.bytes);
            held >= bytes
        });
        let first = self.state.first_index();
        enough.map_or(first, |batch| batch.first.max(first))
    }

    /// The first live entry of the current segment, which is never dropped; the one after the last
    /// if it holds none.
    pub(super) fn current_first(&self) -> Index {
        let current = self.segments.back();
        let batch = current.and_then(|segment| segment.batches.first());
        let behind = self.state.last().index.next();
        batch.map_or(behind, |batch| batch.first.max(self.state.first_index()))
    }

    /// Removes the oldest segment if all its live entries are at most `upto` and it is not the
    /// current one; the log then begins after them.
    pub(super) fn pop_segment(&mut self, upto: Index) -> Option<Arc<SegmentFile<F>>> {
        if self.segments.len() < 2 {
            return None;
        }
        if let Some(batch) = self.segments[0].batches.len().checked_sub(1) {
            let end = self.end_of(0, batch);
            if end > upto {
                return None;
            }
            self.state.drop_prefix(end);
        }
        self.segments.pop_front().map(|segment| segment.file)
    }

    /// The last live entry of a batch.
    fn end_of(&self, segment: usize, batch: usize) -> Index {
        let next = self.segments[segment].batches.get(batch + 1).or_else(|| {
            self.segments
                .range(segment + 1..)
                .find_map(|segment| segment.batches.first())
        });
        next.map_or(self.state.last().index, |next| Index(next.first.0 - 1))
    }

    /// Where the entries `from..to` are, up to `bytes_max` bytes of batches; at least one batch.
    /// The caller has checked the range.
    pub(super) fn pieces(&self, from: Index, to: Index, bytes_max: u64) -> Vec<Piece<F>> {
        let holds = |segment: &Segment<F>| {
            segment
                .batches
                .first()
                .is_some_and(|batch| batch.first <= from)
        };
        let mut segment = self
            .segments
            .iter()
            .rposition(holds)
            .expect("the range is within the log");
        let mut batch = self.segments[segment]
            .batches
            .partition_point(|batch| batch.first <= from)
            - 1;
        let mut pieces = Vec::new();
        let mut bytes = 0;
        let mut next = from;
        while next < to && (pieces.is_empty() || bytes < bytes_max) {
            let Some(found) = self.segments[segment].batches.get(batch) else {
                (segment, batch) = (segment + 1, 0);
                continue;
            };
            let end = self.end_of(segment, batch).next().min(to);
            // The first batch may be needed for its last entry only, so it does not count.
            bytes += if pieces.is_empty() {
                0
            } else {
                u64::from(found.bytes)
            };
            pieces.push(Piece {
                file: Arc::clone(&self.segments[segment].file),
                batch: *found,
                from: next,
                to: end,
            });
            (next, batch) = (end, batch + 1);
        }
        pieces
    }
}
