//! The errors of snapshots, by what the caller can do about them.

use dengine_log::{DiskError, Position};
use dengine_types::{ClusterId, Index};

/// Why a snapshot could not be read, staged or installed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The disk failed. Staging may start again; nothing else was changed.
    #[error(transparent)]
    Disk(#[from] DiskError),

    /// These bytes are not a manifest, or describe an impossible snapshot.
    #[error("not the manifest of a snapshot: {0}")]
    Malformed(String),

    #[error(
        "the snapshot has format {found}, and this version of dengine reads formats up to \
         {supported}: run the version that made it, or a newer one"
    )]
    NewerFormat {
        found: u32,
        /// The newest format that this program reads.
        supported: u32,
    },

    #[error("the snapshot is one of cluster {found}, not of cluster {own}")]
    WrongCluster { found: ClusterId, own: ClusterId },

    #[error("the snapshot has {bytes} bytes, and this member takes {limit}")]
    TooLarge { bytes: u64, limit: u64 },

    /// The chunk is not the expected one, or was corrupted on its way. Nothing was written.
    #[error("the chunk is refused: {0}")]
    Chunk(String),

    /// The checksum of a file does not match. It has to be sent again, from its beginning.
    #[error("the file {file} of the snapshot is damaged: {what}")]
    Damaged { file: String, what: &'static str },

    /// The files match the manifest, but the state in them does not. All of them were removed.
    #[error("the state in the snapshot is not the one that was announced: {0}")]
    WrongState(String),

    /// Some files are missing, or no snapshot was begun.
    #[error("the snapshot is not complete")]
    Incomplete,

    /// The log was reset to a snapshot, and neither the state nor the staged snapshot matches.
    #[error(
        "the log begins behind entry {} of term {}, the state ends at entry {applied}, and there \
         is no snapshot that leads from one to the other ({reason}). Writes that this member \
         acknowledged may be lost, so it must not take part again: keep the data directory for \
         inspection, remove the member from its cluster and add a new one with an empty data \
         directory",
        base.index, base.term
    )]
    Missing {
        /// Where the log begins.
        base: Position,
        /// Where the state ends.
        applied: Index,
        /// What was found instead.
        reason: String,
    },
}
