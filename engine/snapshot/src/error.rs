//! What can go wrong with a snapshot, by what the caller can do about it.

use dengine_log::{DiskError, Position};
use dengine_types::{ClusterId, Index};

/// Why a snapshot could not be read, staged or installed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The disk failed. Staging may begin anew; it has not touched anything else.
    #[error(transparent)]
    Disk(#[from] DiskError),

    /// These bytes are not a manifest, or describe something that cannot be.
    #[error("not the manifest of a snapshot: {0}")]
    Malformed(String),

    /// A newer DEngine made it.
    #[error(
        "the snapshot has format {found}, and this version of dengine reads formats up to {supported}: run \
         the version that made it, or a newer one"
    )]
    NewerFormat {
        /// Its format.
        found: u32,
        /// The newest format this code reads.
        supported: u32,
    },

    /// It belongs to another cluster.
    #[error("the snapshot is one of cluster {found}, not of cluster {own}")]
    WrongCluster {
        /// Whose it is.
        found: ClusterId,
        /// Whose it has to be.
        own: ClusterId,
    },

    /// It is larger than this member takes.
    #[error("the snapshot has {bytes} bytes, and this member takes {limit}")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The bound.
        limit: u64,
    },

    /// The chunk is not the one that is due, or was changed on its way. Nothing was written.
    #[error("the chunk is refused: {0}")]
    Chunk(String),

    /// A file's bytes are not those that its maker had. It has to be sent again, from its beginning.
    #[error("the file {file} of the snapshot is damaged: {what}")]
    Damaged {
        /// Which file.
        file: String,
        /// What is wrong.
        what: &'static str,
    },

    /// Its files are what was announced, but the state in them is not. Everything was thrown away.
    #[error("the state in the snapshot is not the one that was announced: {0}")]
    WrongState(String),

    /// Not all of it is there yet, or nothing was begun.
    #[error("the snapshot is not complete")]
    Incomplete,

    /// The log says that the state is a snapshot's, and there is neither.
    #[error(
        "the log begins behind entry {} of term {}, the state ends at entry {applied}, and there is no \
         snapshot that leads from one to the other ({reason}). What this member acknowledged may be lost, so \
         it must not take part again: keep the folder for inspection, remove the member from its cluster \
         and add a new one with an empty folder",
        base.index, base.term
    )]
    Missing {
        /// Where the log begins.
        base: Position,
        /// Where the state ends.
        applied: Index,
        /// What is there instead.
        reason: String,
    },
}

impl SnapshotError {
    /// Whether the one who sent it is to blame, or the way in between: what is here is in order.
    #[must_use]
    pub fn is_senders_fault(&self) -> bool {
        match self {
            Self::Malformed(_)
            | Self::NewerFormat { .. }
            | Self::WrongCluster { .. }
            | Self::TooLarge { .. }
            | Self::Chunk(_)
            | Self::Damaged { .. }
            | Self::WrongState(_)
            | Self::Incomplete => true,
            Self::Disk(_) | Self::Missing { .. } => false,
        }
    }
}
