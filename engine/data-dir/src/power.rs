//! The file that records whether a `memory-first` member may have lost writes that it acknowledged.
//!
//! `crate::marks` defines its meaning and when it is written. The kernel's boot id tells whether
//! the machine lost power: as long as it is the same, writes are assumed to be still there, unless
//! a sync failed, after which the kernel may have dropped them.
//!
//! The boot id does not cover everything. If the file system was detached by force, or the kernel
//! could not write back what a killed process had left unsynced, the boot id is the same and the
//! member is trusted although it lacks acknowledged writes. The same holds if a sync failed and the
//! disk refused the mark as well; then only the log of the process shows it.

use std::io;
use std::path::PathBuf;

use super::{DataDir, DataDirError, read_file, write_file};
use crate::marks::PowerMark;

const RECORD: &str = "power.toml";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Marks a data directory as suspect while its member runs, from a thread that does not hold the
/// [`DataDir`].
#[derive(Clone, Debug)]
pub struct PowerGuard {
    path: PathBuf,
}

impl PowerGuard {
    /// Records that acknowledged writes may be missing on the disk, so that later starts are
    /// refused ([`PowerMark::sync_failed`]).
    pub fn mark_suspect(&self) -> io::Result<()> {
        let new = self.path.join(format!("{RECORD}.new"));
        std::fs::write(&new, encode_power_mark(&PowerMark::sync_failed()))?;
        std::fs::rename(&new, self.path.join(RECORD))
    }
}

#[must_use]
pub fn encode_power_mark(mark: &PowerMark) -> String {
    toml::to_string(mark).expect("a string and booleans can be encoded")
}

/// Parses the content of the file. It needs no checksum: a changed boot id makes the data directory
/// suspect, which is safe.
///
/// # Errors
///
/// What is wrong with it, as text.
pub fn decode_power_mark(bytes: &[u8]) -> Result<PowerMark, String> {
    toml::from_slice(bytes).map_err(|error| error.to_string())
}

impl DataDir {
    /// A handle that can mark this data directory as suspect.
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

    /// Files in this format exist on disks.
    #[test]
    fn the_format_of_the_file_is_stable() {
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
