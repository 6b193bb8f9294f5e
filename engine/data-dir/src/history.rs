//! The file that records that a member's history was given up.
//!
//! After an accepted loss (`dengine recover --accept-lost-writes`) the cluster may go on without
//! entries that this member has. The member must not take part then, whatever else its data
//! directory holds.

use std::io;
use std::path::PathBuf;

use super::{DataDir, DataDirError, read_file, write_file};

const RECORD: &str = "given-up";

/// Records that a member's history was given up, from a thread that does not hold the [`DataDir`].
#[derive(Clone, Debug)]
pub struct HistoryGuard {
    path: PathBuf,
}

impl HistoryGuard {
    /// Has every later start refuse the data directory with `reason`.
    ///
    /// # Errors
    ///
    /// The file system refused. The member meets the contradiction again at its next start.
    pub fn give_up(&self, reason: &str) -> io::Result<()> {
        write_file(&self.path, RECORD, &format!("{reason}\n"))
    }
}

impl DataDir {
    /// A handle that can record that this history was given up.
    #[must_use]
    pub fn history_guard(&self) -> HistoryGuard {
        let path = self.path.clone();
        HistoryGuard { path }
    }

    /// Why the history was given up, if it was. The presence of the file is enough, because a power
    /// loss may have taken its content.
    pub(super) fn given_up(&self) -> Result<Option<String>, DataDirError> {
        let reason = read_file(&self.path, RECORD)
            .map_err(|error| self.failed("read whether its history was given up", error))?;
        Ok(reason.map(|reason| String::from_utf8_lossy(&reason).trim().to_owned()))
    }
}
