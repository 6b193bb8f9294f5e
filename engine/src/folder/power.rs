//! Whether a `memory-first` member may have lost what it acknowledged.
//!
//! Such a member acknowledges writes before they are on its disk. If the machine lost power since, it may
//! have acknowledged what it no longer has; if it voted or answered for the cluster again, an acknowledged
//! write could be lost although a majority had it. The kernel's boot id tells: as long as it is the same,
//! what was written is still there.

use super::{Folder, FolderError, write_file};
use serde::{Deserialize, Serialize};
use std::io;

const RECORD: &str = "power.toml";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// What `power.toml` holds; it is there only while a `memory-first` member runs or if one ran last.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mark {
    /// Of the machine's start under which the member ran.
    boot_id: String,
    /// The member ended with everything on disk.
    clean: bool,
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

    /// From now on this member acknowledges before its disk has it.
    ///
    /// # Errors
    /// The file system refused.
    pub fn mark_memory_first(&self) -> Result<(), FolderError> {
        let boot_id = self.boot_id()?;
        self.write_power_mark(&Mark {
            boot_id,
            clean: false,
        })
    }

    /// Everything that was acknowledged is on disk, and nothing more will be acknowledged early; or a
    /// person has decided to go on without what may be missing.
    ///
    /// # Errors
    /// The file system refused.
    pub fn mark_clean(&self) -> Result<(), FolderError> {
        match self.power_mark()? {
            Some(mark) => self.write_power_mark(&Mark {
                clean: true,
                ..mark
            }),
            None => Ok(()),
        }
    }

    fn power_mark(&self) -> Result<Option<Mark>, FolderError> {
        let path = self.path.join(RECORD);
        match std::fs::read_to_string(&path) {
            Ok(text) => toml::from_str(&text).map(Some).map_err(|error| {
                let reason = error.to_string();
                FolderError::Damaged { path, reason }
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed("read its power mark", error)),
        }
    }

    fn write_power_mark(&self, mark: &Mark) -> Result<(), FolderError> {
        let text = toml::to_string(mark).expect("a mark is plain text");
        write_file(&self.path, RECORD, &text)
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
        folder.write_power_mark(&Mark { boot_id, clean }).unwrap();
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
        // A person decides to go on with what is there.
        folder.mark_clean().unwrap();
        folder.check_power().unwrap();
    }

    #[test]
    fn a_clean_end_survives_another_boot() {
        let (_directory, folder) = with_mark("another", true);
        folder.check_power().unwrap();
    }
}
