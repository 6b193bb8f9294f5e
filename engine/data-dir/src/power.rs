//! The file that tells whether a `memory-first` member may have lost what it acknowledged.
//!
//! What it means, and when it is written, is in `crate::marks`. The kernel's boot id tells whether the machine lost
//! power: as long as it is the same, what was written is taken to be there still, unless a sync failed, for then the kernel may have
//! dropped it.
//!
//! That is all that is known. Nothing tells the next start of what the kernel drops when no process is left to be told: if the
//! file system was detached by force, or could not write back what a killed process had left unsynced, the boot id is the same and the
//! member is trusted although it lacks what it acknowledged. So it is if a sync failed and the disk refused the mark as well;
//! then only the log of the process says so.

use super::{DataDir, DataDirError, read_file, write_file};
use crate::marks::PowerMark;
use std::io;
use std::path::PathBuf;

const RECORD: &str = "power.toml";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Marks a folder as suspect while its member runs, from a thread that does not hold the folder.
#[derive(Clone, Debug)]
pub struct PowerGuard {
    path: PathBuf,
}

impl PowerGuard {
    /// What was acknowledged may not be on the disk any more: from now on the folder is refused
    /// ([`PowerMark::sync_failed`]).
    ///
    /// # Errors
    /// The file system refused.
    pub fn mark_suspect(&self) -> io::Result<()> {
        let new = self.path.join(format!("{RECORD}.new"));
        std::fs::write(&new, encode_power_mark(&PowerMark::sync_failed()))?;
        std::fs::rename(&new, self.path.join(RECORD))
    }
}

/// The content of the file.
#[must_use]
pub fn encode_power_mark(mark: &PowerMark) -> String {
    toml::to_string(mark).expect("a text and truths")
}

/// Reads the content of the file. It has no checksum: another boot id than the one that was written makes the
/// folder suspect, which is safe.
///
/// # Errors
/// What is wrong with it, in words.
pub fn decode_power_mark(bytes: &[u8]) -> Result<PowerMark, String> {
    toml::from_slice(bytes).map_err(|error| error.to_string())
}

impl DataDir {
    /// What marks this folder as suspect.
    #[must_use]
    pub fn power_guard(&self) -> PowerGuard {
        let path = self.path.clone();
        PowerGuard { path }
    }

    pub(super) fn power_mark(&self) -> Result<Option<PowerMark>, DataDirError> {
        let bytes = read_file(&self.path, RECORD)
            .map_err(|error| self.failed("read its power mark", error))?;
        let mark = bytes.map(|bytes| decode_power_mark(&bytes)).transpose();
        mark.map_err(|reason| DataDirError::Damaged {
            path: self.path.join(RECORD),
            reason,
        })
    }

    pub(super) fn write_power_mark(&self, mark: &PowerMark) -> Result<(), DataDirError> {
        write_file(&self.path, RECORD, &encode_power_mark(mark))
            .map_err(|error| self.failed("write its power mark", error))
    }

    pub(super) fn boot_id(&self) -> Result<String, DataDirError> {
        let boot_id = std::fs::read_to_string(BOOT_ID);
        let boot_id = boot_id.map_err(|error| self.failed("read the machine's boot id", error))?;
        Ok(boot_id.trim().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is on disks already.
    #[test]
    fn the_file_is_what_it_ever_was() {
        for (mark, text) in [
            (
                PowerMark::sync_failed(),
                "boot_id = \"none, a sync failed\"\nclean = false\n",
            ),
            (
                PowerMark::loss_accepted("a-b").started(),
                "boot_id = \"a-b\"\nclean = true\n",
            ),
            (
                PowerMark::loss_accepted("a-b"),
                "boot_id = \"a-b\"\nclean = true\nlost_writes_accepted = true\n",
            ),
        ] {
            assert_eq!(encode_power_mark(&mark), text);
            assert_eq!(decode_power_mark(text.as_bytes()), Ok(mark));
        }
    }
}
