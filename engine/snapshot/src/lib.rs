//! Snapshots: transfer of the state machine's files from one member to another.
//!
//! ```text
//! Store ─ Checkpoint ▶ files ─ Outgoing ▶ chunks ~ network ~▶ Staging ▶ files ─ Install ▶ Store
//! ```
//! [`Checkpoint`] has a store write its records as files. [`Outgoing`] describes them in a
//! [`Manifest`] and reads them in [`Chunk`]s. [`Staging`] assembles them in a directory of its own,
//! resumes after a broken stream, and completes once all of them are on disk. [`open_state`]
//! completes a decided installation whenever a member is opened.
//!
//! # What survives, and what is refused
//! - Staging changes nothing but its own directory. One record in the log installs a snapshot
//!   ([`Log::reset`](dengine_log::Log::reset)); it may be written only if [`Staging::holds`] is
//!   true.
//! - [`Staging::decide`] must be called before the state is opened. If the log begins after the
//!   state, the staged snapshot becomes the state; it has to match the one that the log names in
//!   every bit.
//! - Every chunk, every file and the manifest carry a CRC32C. The marker "complete" is written
//!   after everything else is durable, and removed, durably, before anything else is.
//! - A malicious peer can spoil one staged snapshot and no more: names cannot leave the directory,
//!   and nothing is written past the announced lengths, which are bounded.
//!
//! # What may not live here
//! Streams, threads, clocks and the operating system: files are accessed through the log's
//! [`Disk`](dengine_log::Disk), so that a simulator can tear them.

mod checkpoint;
mod error;
mod files;
mod install;
mod manifest;
#[cfg(any(test, feature = "testing"))]
mod memory_store;
mod outgoing;
mod staging;
#[cfg(test)]
mod tests;

#[cfg(any(test, feature = "testing"))]
pub use checkpoint::conformance;
pub use checkpoint::{Checkpoint, describe};
pub use error::SnapshotError;
pub use install::{Commit, MemberDir, MemberDirs, NotStaged, commit, open_state, settle};
pub use manifest::{
    FILES_MAX, FORMAT_VERSION, FileEntry, MANIFEST_BYTES_MAX, Manifest, NAME_BYTES_MAX, SnapshotId,
};
pub use outgoing::Outgoing;
pub use staging::{Decision, RESERVED, Staging};

use bytes::Bytes;

/// The largest chunk that is accepted.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;

/// A place in a snapshot: the next byte to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The number of the file in the manifest, from 0. The number of files stands for the end.
    pub file: u32,
    /// The offset in the file, below its length.
    pub offset: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub place: Place,
    /// Never empty, at most [`CHUNK_BYTES_MAX`].
    pub bytes: Bytes,
    /// CRC32C of `bytes`.
    pub crc: u32,
}

impl Chunk {
    /// A chunk with its checksum.
    #[must_use]
    pub fn new(place: Place, bytes: Bytes) -> Self {
        let crc = crc32c::crc32c(&bytes);
        Self { place, bytes, crc }
    }
}
