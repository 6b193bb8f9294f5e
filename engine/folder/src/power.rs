//! Whether a `memory-first` member may have lost what it acknowledged.
//!
//! Such a member acknowledges writes before they are on its disk. If the machine lost power since, it may
//! have acknowledged what it no longer has; if it voted or answered for the cluster again, an acknowledged
//! write could be lost although a majority had it. The kernel's boot id tells: as long as it is the same,
//! what was written is still there, unless a sync failed: then the kernel may have dropped it.

use super::{Folder, FolderError, read_file, write_file};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;

const RECORD: &str = "power.toml";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// In place of a boot id: no start of a machine has this one.
const SYNC_FAILED: &str = "none, a sync failed";

/// What `power.toml` holds; it is there while a `memory-first` member runs and if one ever ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerMark {
    /// Of the machine's start under which the member ran.
    pub boot_id: String,
    /// The member ended with everything on disk, or a person has accepted what may be missing.
    pub clean: bool,
    /// A person has accepted that writes are lost, and the member has not started since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lost_writes_accepted: bool,
}

/// Marks a folder as suspect while its member runs, from a thread that does not hold the folder.
#[derive(Clone, Debug)]
pub struct PowerGuard {
    path: PathBuf,
}

impl PowerGuard {
    /// What was acknowledged may not be on the disk any more: from now on the folder is refused. The mark need not
    /// be durable, and the disk that failed may not be able to: another boot makes the folder suspect anyway.
    ///
    /// # Errors
    /// The file system refused.
    pub fn mark_suspect(&self) -> io::Result<()> {
        let mark = PowerMark {
            boot_id: SYNC_FAILED.to_owned(),
            clean: false,
            lost_writes_accepted: false,
        };
        let new = self.path.join(format!("{RECORD}.new"));
        std::fs::write(&new, mark.encode())?;
        std::fs::rename(&new, self.path.join(RECORD))
    }
}

impl PowerMark {
    /// The content of the file.
    #[must_use]
    pub fn encode(&self) -> String {
        toml::to_string(self).expect("a text and a truth")
    }

    /// Reads the content of the file. It has no checksum: another boot id than the one that was written makes the
    /// folder suspect, which is safe.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        toml::from_slice(bytes).map_err(|error| error.to_string())
    }
}

impl Folder {
    /// Refuses a folder whose member may have acknowledged what is no longer in it.
    ///
    /// # Errors
    /// [`FolderError::Suspect`], or the file system refused.
    pub fn check_power(&self) -> Result<(), FolderError> {
        match self.power_mark()? {
            Some(mark) if !mark.clean && mark.boot_id != self.boot_id()? => {
                Err(FolderError::Suspect {
                    path: self.path.clone(),
                })
            }
            _ => Ok(()),
        }
    }

    /// What marks this folder as suspect.
    #[must_use]
    pub fn power_guard(&self) -> PowerGuard {
        let path = self.path.clone();
        PowerGuard { path }
    }

    /// From now on this member acknowledges before its disk has it.
    ///
    /// # Errors
    /// The file system refused.
    pub fn mark_memory_first(&self) -> Result<(), FolderError> {
        let boot_id = self.boot_id()?;
        let lost_writes_accepted = self.lost_writes_accepted()?;
        self.write_power_mark(&PowerMark {
            boot_id,
            clean: false,
            lost_writes_accepted,
        })
    }

    /// Whether it ever was one, so that the cluster may have lost what it acknowledged, and a person may have accepted that. Also
    /// if it is none any more.
    ///
    /// # Errors
    /// The file system refused.
    pub fn was_memory_first(&self) -> Result<bool, FolderError> {
        Ok(self.power_mark()?.is_some())
    }

    /// A person has decided to go on without what may be missing: the member may start, also if its log lost
    /// more than its state.
    ///
    /// # Errors
    /// The file system refused.
    pub fn accept_lost_writes(&self) -> Result<(), FolderError> {
        let boot_id = self.boot_id()?;
        self.write_power_mark(&PowerMark {
            boot_id,
            clean: true,
            lost_writes_accepted: true,
        })
    }

    /// Whether a person has accepted that writes are lost, and the member has not started since.
    ///
    /// # Errors
    /// The file system refused.
    pub fn lost_writes_accepted(&self) -> Result<bool, FolderError> {
        let mark = self.power_mark()?;
        Ok(mark.is_some_and(|mark| mark.lost_writes_accepted))
    }

    /// The member has started from what there was: the next loss is another one.
    ///
    /// # Errors
    /// The file system refused.
    pub fn forget_accepted_loss(&self) -> Result<(), FolderError> {
        match self.power_mark()? {
            Some(mark) => self.write_power_mark(&PowerMark {
                lost_writes_accepted: false,
                ..mark
            }),
            None => Ok(()),
        }
    }

    /// Everything that was acknowledged is on disk, and nothing more will be acknowledged early.
    ///
    /// # Errors
    /// The file system refused.
    pub fn mark_clean(&self) -> Result<(), FolderError> {
        match self.power_mark()? {
            Some(mark) => self.write_power_mark(&PowerMark {
                clean: true,
                ..mark
            }),
            None => Ok(()),
        }
    }

    fn power_mark(&self) -> Result<Option<PowerMark>, FolderError> {
        let bytes = read_file(&self.path, RECORD)
            .map_err(|error| self.failed("read its power mark", error))?;
        let mark = bytes.map(|bytes| PowerMark::decode(&bytes)).transpose();
        mark.map_err(|reason| FolderError::Damaged {
            path: self.path.join(RECORD),
            reason,
        })
    }

    fn write_power_mark(&self, mark: &PowerMark) -> Result<(), FolderError> {
        write_file(&self.path, RECORD, &mark.encode())
            .map_err(|error| self.failed("write its power mark", error))
    }

    fn boot_id(&self) -> Result<String, FolderError> {
        let boot_id = std::fs::read_to_string(BOOT_ID);
        let boot_id = boot_id.map_err(|error| self.failed("read the machine's boot id", error))?;
        Ok(boot_id.trim().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_mark(boot_id: &str, clean: bool) -> (tempfile::TempDir, Folder) {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::open(directory.path()).unwrap();
        let boot_id = boot_id.to_owned();
        folder
            .write_power_mark(&PowerMark {
                boot_id,
                clean,
                lost_writes_accepted: false,
            })
            .unwrap();
        (directory, folder)
    }

    #[test]
    fn a_folder_without_a_mark_is_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::open(directory.path()).unwrap();
        folder.check_power().unwrap();
        folder.mark_clean().unwrap();
        assert!(!directory.path().join(RECORD).exists());
    }

    /// It meets those who lost writes long after: nobody accepts a loss and leaves all settings as they were.
    #[test]
    fn what_was_memory_first_once_is_known_for_good() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::open(directory.path()).unwrap();
        assert!(!folder.was_memory_first().unwrap());
        folder.mark_memory_first().unwrap();
        folder.mark_clean().unwrap();
        folder.forget_accepted_loss().unwrap();
        assert!(folder.was_memory_first().unwrap());
    }

    #[test]
    fn a_killed_process_leaves_what_it_wrote() {
        let (_directory, folder) = with_mark("another", true);
        folder.mark_memory_first().unwrap();
        folder.check_power().unwrap();
    }

    #[test]
    fn another_boot_without_a_clean_end_makes_it_suspect() {
        let (_directory, folder) = with_mark("another", false);
        let refused = folder.check_power().unwrap_err();
        assert!(
            refused.to_string().contains("--accept-lost-writes"),
            "{refused}"
        );
        // A person decides to go on with what is there, for one start.
        folder.accept_lost_writes().unwrap();
        folder.check_power().unwrap();
        folder.mark_memory_first().unwrap();
        assert!(folder.lost_writes_accepted().unwrap());
        folder.forget_accepted_loss().unwrap();
        assert!(!folder.lost_writes_accepted().unwrap());
        folder.check_power().unwrap();
    }

    #[test]
    fn a_failed_sync_makes_it_suspect_under_the_same_boot() {
        let (_directory, folder) = with_mark("another", true);
        folder.mark_memory_first().unwrap();
        folder.power_guard().mark_suspect().unwrap();
        folder.check_power().unwrap_err();
    }

    #[test]
    fn a_clean_end_survives_another_boot() {
        let (_directory, folder) = with_mark("another", true);
        folder.check_power().unwrap();
    }
}
