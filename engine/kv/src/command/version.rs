//! The versions in which commands are written and read.
//!
//! An acknowledged entry is never skipped because it is old: every version from
//! [`CommandVersion::OLDEST`] on is read, and applied with the meaning that it had when it was
//! written. A member that gets a version above those that it reads stops. So a leader writes a
//! version only once every member has announced that it reads it: `CommandGate` of `dengine-raft`.
//! `docs/upgrades.md` describes how to add one.

use std::fmt;

/// The version in which a command is written: how its bytes are decoded, and what it does.
///
/// `docs/formats.md` lists the meaning of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandVersion(u8);

impl CommandVersion {
    /// The oldest version that is read, and the only one of a member that announces none.
    pub const OLDEST: Self = Self(2);
    /// Decodes as version 2. The number of records that the ranges of one command visit is limited,
    /// and reads of a batch count only what they return.
    pub const V3: Self = Self(3);
    /// Also has what [`Request::version_needed`](super::Request::version_needed) says. All that
    /// version 3 can say is still written as that.
    pub const V4: Self = Self(4);
    /// The newest that this program writes and reads.
    pub const CURRENT: Self = Self::V4;
    /// Every version that this program reads, from the oldest on.
    pub const ALL: [Self; 3] = [Self::OLDEST, Self::V3, Self::V4];

    /// The version up to which a member reads that announces `reads_max` in its Hello or Ack; at
    /// most the newest one of this program. 0 is a member that announces none.
    #[must_use]
    pub fn announced(reads_max: u32) -> Self {
        let reads_max = u8::try_from(reads_max).unwrap_or(u8::MAX);
        Self(reads_max).clamp(Self::OLDEST, Self::CURRENT)
    }

    /// The encoded version: the first byte of a command, and the number in a Hello or Ack.
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
