//! The errors of the log, by what the caller can do about them.

use std::path::PathBuf;

use dengine_types::{ClusterId, Index, MemberId};

use super::disk::DiskError;

#[derive(Clone, Debug, thiserror::Error)]
pub enum LogError {
    /// There is no space for the next segment. Nothing was changed and the log stays usable: the
    /// same append may be tried again once there is space.
    #[error("the log needs a new segment and there is no space for it: {0}")]
    NoSpace(#[source] DiskError),

    /// The disk failed. What is durable is unknown, so the process has to end; the next opening
    /// recovers what is on the disk.
    #[error(transparent)]
    Disk(#[from] DiskError),

    /// An earlier call failed, after which the log refuses every call.
    #[error("the log stopped at an earlier failure: {0}")]
    Poisoned(#[source] Box<LogError>),

    /// Bytes that were durable have changed or are missing.
    #[error(
        "the log is damaged: {}, byte {offset}: {what}. Writes that this member acknowledged may \
         be lost, so it must not take part again: keep the data directory for inspection, remove \
         the member from its cluster and add a new one with an empty data directory",
        file.display()
    )]
    Corrupt {
        file: PathBuf,
        offset: u64,
        what: String,
    },

    /// The log of a member that takes part is missing.
    #[error(
        "there is no log in {}: this member's votes and acknowledged writes are lost, so it must \
         not take part again. Remove it from its cluster and add a new one with an empty data \
         directory",
        dir.display()
    )]
    Missing {
        /// Where it was expected.
        dir: PathBuf,
    },

    #[error(
        "{} has format {found}, and this version of dengine reads formats up to {supported}: run \
         the version that wrote it, or a newer one",
        file.display()
    )]
    NewerFormat {
        file: PathBuf,
        found: u32,
        /// The newest format that this program reads.
        supported: u32,
    },

    /// The log belongs to another member.
    #[error(
        "{} belongs to member {found_member} of cluster {found_cluster}, not to member {member} of \
         cluster {cluster}: the data directory was exchanged or copied. Put back what belongs \
         there; if that is lost, move the whole data directory away, remove this member from its \
         cluster and let it join again with an empty one",
        file.display()
    )]
    WrongOwner {
        file: PathBuf,
        /// The cluster whose log was asked for.
        cluster: ClusterId,
        /// The member whose log was asked for.
        member: MemberId,
        /// The cluster that the log belongs to.
        found_cluster: ClusterId,
        /// The member that the log belongs to.
        found_member: MemberId,
    },

    /// The batch breaks a rule of the log (a gap, a term that goes back, an overwritten committed
    /// entry). Nothing was changed.
    #[error("the batch breaks a rule of the log: {0}")]
    InvalidBatch(String),

    #[error("the log's options are wrong: {0}")]
    InvalidOptions(&'static str),

    /// Entries that were asked for were truncated or not yet appended.
    #[error("the log has entries {first} to {last}, not {asked}")]
    OutOfRange {
        /// The first missing index that was asked for.
        asked: Index,
        /// The log's first index.
        first: Index,
        /// The log's last index; `first` - 1 if it has no entries.
        last: Index,
    },
}

impl LogError {
    /// Whether an append found no space and nothing else is wrong: the log is unchanged, and the
    /// same append may be tried again. Until it succeeds the owner can append nothing, including a
    /// term or a vote, and may go on serving reads.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::NoSpace(_))
    }

    /// Whether the log still works after this error.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        match self {
            Self::NoSpace(_) | Self::InvalidBatch(_) | Self::OutOfRange { .. } => true,
            Self::Disk(_)
            | Self::Poisoned(_)
            | Self::Corrupt { .. }
            | Self::Missing { .. }
            | Self::NewerFormat { .. }
            | Self::WrongOwner { .. }
            | Self::InvalidOptions(_) => false,
        }
    }
}
