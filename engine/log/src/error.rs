//! What can go wrong with the log, by what the caller can do about it.

use super::disk::DiskError;
use dengine_types::{ClusterId, Index, MemberId};
use std::path::PathBuf;

/// Why the log could not do what was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LogError {
    /// There is no space for the next segment. Nothing was changed and the log stays usable: the same
    /// append may be tried again once there is space.
    #[error("the log needs a new segment and there is no space for it: {0}")]
    NoSpace(#[source] DiskError),

    /// The disk failed. What is durable is unknown, so the process has to end; opening the log again
    /// finds out what is there.
    #[error(transparent)]
    Disk(#[from] DiskError),

    /// An earlier call failed; nothing is done any more.
    #[error("the log stopped at an earlier failure: {0}")]
    Poisoned(#[source] Box<LogError>),

    /// Bytes that were durable have changed or are missing.
    #[error(
        "the log is damaged: {}, byte {offset}: {what}. What this member acknowledged may be lost, so \
         it must not take part again: keep the folder for inspection, remove the member from its \
         cluster and add a new one with an empty folder",
        file.display()
    )]
    Corrupt {
        /// The damaged file.
        file: PathBuf,
        /// Where in it.
        offset: u64,
        /// What is wrong there.
        what: String,
    },

    /// There is no log where a member that takes part must have one.
    #[error(
        "there is no log in {}: this member has forgotten its votes and what it acknowledged, so it must \
         not take part again. Remove it from its cluster and add a new one with an empty folder",
        folder.display()
    )]
    Missing {
        /// Where it was looked for.
        folder: PathBuf,
    },

    /// A newer DEngine wrote this log.
    #[error(
        "{} has format {found}, and this version of dengine reads formats up to {supported}: run the \
         version that wrote it, or a newer one",
        file.display()
    )]
    NewerFormat {
        /// The file.
        file: PathBuf,
        /// Its format.
        found: u32,
        /// The newest format this code reads.
        supported: u32,
    },

    /// The log belongs to somebody else.
    #[error(
        "{} belongs to member {found_member} of cluster {found_cluster}, not to member {member} of \
         cluster {cluster}: the folder was exchanged or copied",
        file.display()
    )]
    WrongOwner {
        /// The file.
        file: PathBuf,
        /// Whose log was asked for: the cluster.
        cluster: ClusterId,
        /// Whose log was asked for: the member.
        member: MemberId,
        /// Whose log this is: the cluster.
        found_cluster: ClusterId,
        /// Whose log this is: the member.
        found_member: MemberId,
    },

    /// The batch breaks a rule of the log (a gap, a term that goes back, an overwritten committed
    /// entry). Nothing was changed.
    #[error("the batch breaks a rule of the log: {0}")]
    InvalidBatch(String),

    /// The options are not usable.
    #[error("the log's options are wrong: {0}")]
    InvalidOptions(&'static str),

    /// The log does not have what was asked for, because it was truncated or not yet appended.
    #[error("the log has entries {first} to {last}, not {asked}")]
    OutOfRange {
        /// The first index that was asked for and is not there.
        asked: Index,
        /// The first index there is.
        first: Index,
        /// The last index there is; `first` - 1 if there is none.
        last: Index,
    },
}

impl LogError {
    /// Whether there was no space for an append, and nothing else is wrong: the log is as it was, and the
    /// same append may be tried again. Until then whoever owns the log can take nothing new, and may go on
    /// serving what it has. A member's term and vote need space too: they wait like anything else.
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
