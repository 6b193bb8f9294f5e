//! The write-ahead log: what a member must still know after it lost power.
//!
//! A log is a directory of *segments* of one size, written from front to back. [`Log::append`] adds one
//! batch (a hard state, some entries, or both) with one write; [`Log::sync`] makes everything appended
//! durable with one `fdatasync`. [`LogReader`]s read entries at the same time from other threads.
//!
//! # What survives, and what is refused
//! - After a crash or a power loss everything that was synced is there. What was appended later is there
//!   up to some batch.
//! - A *batch* is the unit of the checksum. It names its segment's epoch (so bytes of an earlier use of a
//!   recycled file are never taken for a batch), the checksum of the batch before it, and how far the
//!   segment was durable when it was written.
//! - Where the chain of batches ends, the rest of the last segment is searched. A whole batch that was
//!   written when the broken place was already durable proves that something acknowledged was lost: the
//!   log refuses to open and names the place. Without that proof it is the torn end of appends that were
//!   never synced: it is cut and reported. (The proof is why a power loss that tears several unsynced
//!   batches, and leaves a later one whole, is not mistaken for damage.)
//! - All segments but the last are durable before their successor gets its name: any damage in them is
//!   refused.
//! - A file that is shorter than it was made is refused: no power loss does that.
//! - What no log can hold is refused though its checksum matches (a commit index past the last entry, a
//!   number above [`NUMBER_MAX`](dengine_types::NUMBER_MAX)): consensus could not go on from it.
//!
//! # What may not live here
//! Threads, clocks, randomness and the operating system, except in [`RealDisk`]. Whoever uses the log
//! decides when to sync, and stops the process when a call failed and [`LogError::is_usable`] is false.
//!
//! # Code map
//! [`Log`] is in `writer`, [`LogReader`] in `reader`, opening in `open`, the bytes in `format` (as tables
//! in `docs/formats.md`), the rules of what may follow what in `state`, the index of batches that writer
//! and readers share in `segments`, the making and naming of files in `files` and `names`, the making of the next one meanwhile in
//! `pieces`.

mod anew;
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
mod segments;
mod state;
mod writer;

pub use anew::begin_anew;
pub use disk::{Disk, DiskError, DiskFile};
pub use error::LogError;
pub use format::entry_bytes;
pub use format::{CONTEXT_BYTES_MAX, FORMAT_VERSION, SEGMENT_BYTES_MAX, SEGMENT_BYTES_UNIT};
pub use pieces::{Filled, Piece};
pub use reader::LogReader;
pub use real::{RealDisk, RealFile};
pub use state::Position;
pub use writer::Log;

use dengine_types::{ClusterId, Entry, HardState, Index, MemberId, Term};
use std::path::PathBuf;

/// How a log is kept. [`LogOptions::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Whose log this is: it is written into new segments, and a log of another cluster or member is
    /// refused.
    pub cluster: ClusterId,
    /// See [`LogOptions::cluster`].
    pub member: MemberId,
    /// Drawn at random by the caller each time the log is opened; segments made from then on derive their
    /// epoch from it. With a constant, bytes of a recycled file could be taken for a batch.
    pub epoch_seed: u64,
    /// Length of a segment's file. Smaller ones are dropped sooner and rotated more often, which costs
    /// three syncs each. A larger batch gets a larger file of its own.
    pub segment_bytes: u32,
    /// Where an append is larger, it becomes several batches on disk (still one write). It bounds what is
    /// read and checked to return one entry.
    pub batch_bytes: u32,
    /// How many dropped segments are kept to be used again; more of them are removed, also of those that are found.
    pub spares_max: usize,
    /// What a new segment leaves free on the disk while older ones may be dropped, for those who have to write before they are. See
    /// [`Log::leave_space`].
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

/// What is appended at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The new hard state, if it changed.
    pub hard_state: Option<HardState>,
    /// Entries with consecutive indexes. The first follows the log's last one, or is one that the log
    /// already has: then it and all after it are replaced.
    pub entries: Vec<Entry>,
}

/// What opening a log found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// There was no log, and an empty one was made. A member that once had a log must not go on then: it
    /// has forgotten its votes.
    pub created: bool,
    /// The last hard state. Its commit index is at most `last_index`.
    pub hard_state: HardState,
    /// The entry before the first; also its term is known, which is 0 only where the index is.
    pub base: Position,
    /// The first entry; `last_index` + 1 if there is none.
    pub first_index: Index,
    /// The last entry; `base` if there is none.
    pub last_index: Index,
    /// The term of the last entry, or of `base` if there is none.
    pub last_term: Term,
    /// How many segments there are.
    pub segments: usize,
    /// What was cut off the end.
    pub torn: Option<TornTail>,
}

/// The end of the log that a crash left unfinished; it was never acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// The segment.
    pub file: PathBuf,
    /// Where it was cut.
    pub offset: u64,
    /// How many bytes were overwritten with zeros.
    pub bytes: u64,
}
