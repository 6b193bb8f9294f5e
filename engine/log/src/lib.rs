//! The write-ahead log: the state of a member that must survive a power loss.
//!
//! A log is a directory of *segments* of one size, written from front to back. [`Log::append`] adds
//! one batch (a hard state, some entries, or both) with one write; [`Log::sync`] makes everything
//! appended durable with one `fdatasync`. [`LogReader`]s read entries at the same time from other
//! threads.
//!
//! # What survives, and what is refused
//! - After a crash or a power loss everything that was synced is there. Later appends are there up
//!   to some batch.
//! - A *batch* is the unit of the checksum. It names its segment's epoch (so bytes of an earlier
//!   use of a recycled file are never taken for a batch), the checksum of the batch before it, and
//!   how far the segment was durable when it was written.
//! - Where the chain of batches ends, the rest of the last segment is searched. A whole batch that
//!   was written when the broken place was already durable proves that something acknowledged was
//!   lost: the log refuses to open and names the place. Without that proof it is the torn end of
//!   appends that were never synced: it is cut and reported. (The proof distinguishes damage from a
//!   power loss that tears several unsynced batches and leaves a later one whole.)
//! - All segments but the last are durable before their successor gets its name: any damage in them
//!   is refused.
//! - A file that is shorter than it was created is refused: no power loss does that.
//! - Contents that no log can have are refused despite a matching checksum (a commit index past the
//!   last entry, a number above [`NUMBER_MAX`](dengine_types::NUMBER_MAX)), because consensus could
//!   not continue from them.
//!
//! # What may not live here
//! Threads, clocks, randomness and the operating system, except in [`RealDisk`]. The owner of a log
//! decides when to sync, and stops the process when a call failed and [`LogError::is_usable`] is
//! false.
//!
//! # Code map
//! [`Log`] is in `writer`, [`LogReader`] in `reader`, recovery in `open`, the bytes in `format` (as
//! tables in `docs/formats.md`), the rules for consecutive batches in `state`, the index of batches
//! that writer and readers share in `segments`, creating and naming files in `files` and `names`,
//! and preparing the next segment in `pieces`.

#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod disk;
pub mod durable;
mod error;
mod files;
mod format;
#[cfg(any(test, feature = "testing"))]
pub mod memory;
mod names;
mod open;
mod pieces;
mod reader;
mod real;
#[cfg(test)]
mod reset_tests;
mod reset_to_state;
mod segments;
mod state;
mod writer;

pub use disk::{Disk, DiskError, DiskFile};
pub use error::LogError;
pub use files::FILL_BYTES;
pub use format::{
    CONTEXT_BYTES_MAX, FORMAT_VERSION, SEGMENT_BYTES_MAX, SEGMENT_BYTES_UNIT, entry_bytes,
};
pub use pieces::{Filled, Piece};
pub use reader::LogReader;
pub use real::{RealDisk, RealFile};
pub use reset_to_state::reset_to_state;
pub use state::Position;
pub use writer::Log;

use std::path::PathBuf;

use dengine_types::{ClusterId, Entry, HardState, Index, MemberId, Term};

/// The options of a log. [`LogOptions::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// The owner of the log: it is written into new segments, and a log of another cluster or
    /// member is refused.
    pub cluster: ClusterId,
    /// See [`LogOptions::cluster`].
    pub member: MemberId,
    /// Drawn at random by the caller at each opening; the epochs of new segments derive from it.
    /// With a constant, bytes of a recycled file could be taken for a batch.
    pub epoch_seed: u64,
    /// Length of a segment's file. Smaller segments are dropped sooner and rotated more often,
    /// which costs three syncs each. A larger batch gets a larger file of its own.
    pub segment_bytes: u32,
    /// A larger append becomes several batches on disk (still one write). It bounds what is read
    /// and checked to return one entry.
    pub batch_bytes: u32,
    /// How many dropped segments are kept for reuse; further ones are removed, also at the opening.
    pub spares_max: usize,
    /// The space that a new segment leaves free on the disk while older segments may be dropped,
    /// for writes that have to precede their removal. See [`Log::leave_space`].
    pub leave_bytes: u64,
}

impl LogOptions {
    /// Segments of 64 MiB, batches of 1 MiB, and two spare segments.
    #[must_use]
    pub fn new(cluster: ClusterId, member: MemberId, epoch_seed: u64) -> Self {
        Self {
            cluster,
            member,
            epoch_seed,
            segment_bytes: 64 << 20,
            batch_bytes: 1 << 20,
            spares_max: 2,
            leave_bytes: 0,
        }
    }

    fn validate(&self) -> Result<(), LogError> {
        let least = 2 * SEGMENT_BYTES_UNIT;
        let blocks = self.segment_bytes.is_multiple_of(SEGMENT_BYTES_UNIT);
        if !(least..=SEGMENT_BYTES_MAX).contains(&self.segment_bytes) || !blocks {
            return Err(LogError::InvalidOptions(
                "segment_bytes has to be a multiple of 4 KiB from 8 KiB to 1 GiB",
            ));
        }
        Ok(())
    }
}

/// The argument of one append.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The new hard state, if it changed.
    pub hard_state: Option<HardState>,
    /// Entries with consecutive indexes. The first follows the log's last one, or replaces an
    /// existing entry and all after it.
    pub entries: Vec<Entry>,
}

/// The result of opening a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// There was no log, and an empty one was created. A member that once had a log must not go on
    /// then: its votes are lost.
    pub created: bool,
    /// The last hard state. Its commit index is at most `last_index`.
    pub hard_state: HardState,
    /// The entry before the first; its term is 0 only if its index is.
    pub base: Position,
    /// The first entry; `last_index` + 1 if there is none.
    pub first_index: Index,
    /// The last entry; `base` if there is none.
    pub last_index: Index,
    /// The term of the last entry, or of `base` if there is none.
    pub last_term: Term,
    pub segments: usize,
    /// The unsynced end of the log that was cut off.
    pub torn: Option<TornTail>,
}

/// The unsynced end of the log that a crash left; it was never acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    pub file: PathBuf,
    pub offset: u64,
    /// How many bytes were overwritten with zeros.
    pub bytes: u64,
}
