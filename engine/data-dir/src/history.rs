//! The file that says that a member's history was given up.
//!
//! After an accepted loss (`dengine recover --accept-lost-writes`) the cluster may go on without entries that this member
//! has. It must take no part then, whatever its folder says otherwise.

use super::{DataDir, DataDirError, read_file, write_file};
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

impl DataDir {
    /// What notes that this folder's history was given up.
    #[must_use]
    pub fn history_guard(&self) -> HistoryGuard {
        let path = self.path.clone();
        HistoryGuard { path }
    }

    /// Why its history was given up, if it was: that the file is there is enough, whatever became of its content.
    pub(super) fn given_up(&self) -> Result<Option<String>, DataDirError> {
        let reason = read_file(&self.path, RECORD)
            .map_err(|error| self.failed("read whether its history was given up", error))?;
        Ok(reason.map(|reason| String::from_utf8_lossy(&reason).trim().to_owned()))
    }
}
