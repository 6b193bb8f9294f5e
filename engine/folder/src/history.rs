//! Whether a member's history was given up.
//!
//! After an accepted loss (`dengine recover --accept-lost-writes`) the cluster may go on without entries that this member
//! has. It must take no part then, whatever its folder says otherwise, and a file says so.

use super::{Folder, FolderError, read_file, write_file};
use std::io;
use std::path::PathBuf;

const RECORD: &str = "given-up";

/// Notes that a member's history was given up, from a thread that does not hold the folder.
#[derive(Clone, Debug)]
pub struct HistoryGuard {
    path: PathBuf,
}

impl HistoryGuard {
    /// From now on the folder is refused, and `reason` says why.
    ///
    /// # Errors
    /// The file system refused. If the member starts again, it will find out again.
    pub fn give_up(&self, reason: &str) -> io::Result<()> {
        write_file(&self.path, RECORD, &format!("{reason}\n"))
    }
}

impl Folder {
    /// Refuses a folder whose history the cluster has given up.
    ///
    /// # Errors
    /// [`FolderError::GivenUp`], or the file system refused.
    pub fn check_history(&self) -> Result<(), FolderError> {
        let reason = read_file(&self.path, RECORD)
            .map_err(|error| self.failed("read whether its history was given up", error))?;
        // That it is there is enough, whatever became of its content.
        match reason {
            Some(reason) => Err(FolderError::GivenUp {
                path: self.path.clone(),
                reason: String::from_utf8_lossy(&reason).trim().to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// What notes that this folder's history was given up.
    #[must_use]
    pub fn history_guard(&self) -> HistoryGuard {
        let path = self.path.clone();
        HistoryGuard { path }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_whose_history_was_given_up_stays_refused_and_says_why() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::open(directory.path()).unwrap();
        folder.check_history().unwrap();
        folder.history_guard().give_up("entry 7 differs").unwrap();
        drop(folder);
        for _ in 0..2 {
            let folder = Folder::open(directory.path()).unwrap();
            let refused = folder.check_history().unwrap_err().to_string();
            assert!(refused.contains("entry 7 differs"), "{refused}");
            assert!(refused.contains("join again"), "{refused}");
        }
        // A power loss leaves names, and may leave nothing behind them.
        std::fs::write(directory.path().join(RECORD), [0xff]).unwrap();
        let folder = Folder::open(directory.path()).unwrap();
        folder.check_history().unwrap_err();
        // What a person accepts of a power loss is another matter.
        folder.accept_lost_writes().unwrap();
        folder.check_history().unwrap_err();
    }
}
