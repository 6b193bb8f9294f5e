//! In which versions commands are written and read.
//!
//! An acknowledged entry is never skipped because it is old: every version from [`CommandVersion::OLDEST`] on is read,
//! and applied with the meaning that it had when it was written. A member that meets a version above those that it
//! reads stops. So a leader writes a version only once every member has said that it reads it:
//! [`crate::replica::CommandGate`]. `docs/upgrades.md` says how one is added.

use std::fmt;

/// The version in which a command is written: how its bytes read, and what it does.
///
/// `docs/formats.md` lists what each of them means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandVersion(u8);

impl CommandVersion {
    /// The oldest that is read. A member that does not say what it reads, reads only this one.
    pub const OLDEST: Self = Self(2);
    /// Reads as version 2 does. What the ranges of one command visit is bounded, and reads of a batch count no more than they
    /// return.
    pub const V3: Self = Self(3);
    /// The newest that this program writes and reads.
    pub const CURRENT: Self = Self::V3;
    /// Every version that this program reads, from the oldest on.
    pub const ALL: [Self; 2] = [Self::OLDEST, Self::V3];

    /// What a member reads that announces `reads_max` in its Hello or Ack, as far as it matters to this one: no more
    /// than this program writes. 0 is a member that does not say.
    #[must_use]
    pub fn announced(reads_max: u32) -> Self {
        let reads_max = u8::try_from(reads_max).unwrap_or(u8::MAX);
        Self(reads_max).clamp(Self::OLDEST, Self::CURRENT)
    }

    /// As it is written: the first byte of a command, and the number in a Hello or Ack.
    #[must_use]
    pub fn number(self) -> u8 {
        self.0
    }

    /// The version with this number, if a member that reads up to `reads_max` reads it.
    pub(super) fn read(number: u8, reads_max: Self) -> Result<Self, NotRead> {
        match Self(number) {
            older if older < Self::OLDEST => Err(NotRead::Older),
            newer if newer > reads_max => Err(NotRead::Newer),
            read => Ok(read),
        }
    }
}

/// Why a version is not read.
pub(super) enum NotRead {
    /// It was never released.
    Older,
    /// A newer program wrote it.
    Newer,
}

impl fmt::Display for CommandVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
