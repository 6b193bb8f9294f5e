//! Snapshots: the state machine's files on their way from a member that has them to one that needs them.
//!
//! ```text
//! Store ── Checkpoint ──▶ files ── Outgoing ──▶ chunks ~~~ network ~~~▶ Staging ──▶ files ── Install ──▶ Store
//! ```
//! [`Checkpoint`] has a store write a picture of itself, as files. [`Outgoing`] describes them in a
//! [`Manifest`] and reads them in [`Chunk`]s. [`Staging`] puts them together again in a folder of its own,
//! goes on where a broken stream ended, and says when all of them are there and on disk. [`open_state`]
//! completes what was decided, whenever a member is opened.
//!
//! # What survives, and what is refused
//! - Staging changes nothing but its own folder. What installs a snapshot is one record in the log
//!   ([`Log::reset`](dengine_log::Log::reset)); it may be written only if [`Staging::holds`] says so.
//! - Whoever opens a member asks [`Staging::decide`] before opening the state. If the log begins behind the
//!   state, the staged snapshot becomes the state; it has to be the one that the log names, to the last bit.
//! - Every chunk, every file and the manifest carry a CRC32C. The marker that says "complete" is written
//!   after everything else is durable, and removed, durably, before anything else is.
//! - A peer that lies can waste one staged snapshot and no more: names cannot leave the folder, and nothing
//!   is written past the lengths that were announced, which have a bound.
//!
//! # What may not live here
//! Streams, threads, clocks and the operating system: files are reached through the log's
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
pub use install::{Commit, Folder, Folders, NotStaged, commit, open_state, settle};
pub use manifest::{
    FILES_MAX, FORMAT_VERSION, FileEntry, MANIFEST_BYTES_MAX, Manifest, NAME_BYTES_MAX, SnapshotId,
};
pub use outgoing::Outgoing;
pub use staging::{Decision, RESERVED, Staging};

use bytes::Bytes;

/// The largest chunk that is taken.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;

/// A place in a snapshot: the next byte to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Which file, as the manifest counts them from 0. The number of files: there is nothing left.
    pub file: u32,
    /// Where in it; below its length.
    pub offset: u64,
}

/// A piece of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Where it begins.
    pub place: Place,
    /// Never empty, at most [`CHUNK_BYTES_MAX`].
    pub bytes: Bytes,
    /// CRC32C of `bytes`.
    pub crc: u32,
}

impl Chunk {
    /// A chunk with the checksum that belongs to it.
    #[must_use]
    pub fn new(place: Place, bytes: Bytes) -> Self {
        let crc = crc32c::crc32c(&bytes);
        Self { place, bytes, crc }
    }
}
