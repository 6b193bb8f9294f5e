//! Whether a member may take part with its folder. What decides is `crate::marks`; this reads and writes.

use super::{DataDir, DataDirError};
use crate::marks::{Beginning, Marks, PowerMark, Unfit};

impl DataDir {
    /// Refuses a folder whose history the cluster has given up, or whose member may have acknowledged what is no longer in it.
    ///
    /// # Errors
    /// [`DataDirError::GivenUp`], [`DataDirError::Suspect`], or the file system refused.
    pub fn check(&self) -> Result<(), DataDirError> {
        let (marks, boot_id) = self.marks(false)?;
        marks.check(&boot_id).map_err(|unfit| self.refused(unfit))
    }

    /// A member begins with this folder, and acknowledges before its disk has it if it is `memory_first`; to be called
    /// before anything of the folder is opened.
    ///
    /// # Errors
    /// As [`DataDir::check`].
    pub fn begin(&self, memory_first: bool) -> Result<Beginning, DataDirError> {
        let (marks, boot_id) = self.marks(memory_first)?;
        let begun = marks.begin(&boot_id, memory_first);
        let beginning = begun.map_err(|unfit| self.refused(unfit))?;
        if let Some(mark) = &beginning.mark {
            self.write_power_mark(mark)?;
        }
        Ok(beginning)
    }

    /// See [`PowerMark::loss_accepted`].
    ///
    /// # Errors
    /// The file system refused.
    pub fn accept_lost_writes(&self) -> Result<(), DataDirError> {
        self.write_power_mark(&PowerMark::loss_accepted(&self.boot_id()?))
    }

    /// See [`PowerMark::started`].
    ///
    /// # Errors
    /// The file system refused.
    pub fn mark_started(&self) -> Result<(), DataDirError> {
        self.change_power_mark(PowerMark::started)
    }

    /// See [`PowerMark::ended`].
    ///
    /// # Errors
    /// The file system refused.
    pub fn mark_ended(&self) -> Result<(), DataDirError> {
        self.change_power_mark(PowerMark::ended)
    }

    fn change_power_mark(
        &self,
        change: impl FnOnce(PowerMark) -> PowerMark,
    ) -> Result<(), DataDirError> {
        match self.power_mark()? {
            Some(mark) => self.write_power_mark(&change(mark)),
            None => Ok(()),
        }
    }

    /// The marks, and under which start of the machine that is. Nothing is asked of the machine where nothing depends on it, and
    /// of a history that was given up nothing else counts.
    fn marks(&self, memory_first: bool) -> Result<(Marks, String), DataDirError> {
        let given_up = self.given_up()?;
        let power = match given_up {
            Some(_) => None,
            None => self.power_mark()?,
        };
        let boot_id = match memory_first || power.is_some() {
            true => self.boot_id()?,
            false => String::new(),
        };
        Ok((Marks { given_up, power }, boot_id))
    }

    fn refused(&self, unfit: Unfit) -> DataDirError {
        let path = self.path.clone();
        match unfit {
            Unfit::GivenUp(reason) => DataDirError::GivenUp { path, reason },
            Unfit::Suspect => DataDirError::Suspect { path },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn folder() -> (tempfile::TempDir, DataDir) {
        let directory = tempfile::tempdir().unwrap();
        let folder = DataDir::open(directory.path()).unwrap();
        (directory, folder)
    }

    /// As if the machine had been started again.
    fn pretend_another_boot(directory: &Path) {
        let mark = directory.join("power.toml");
        let text = std::fs::read_to_string(&mark).unwrap();
        std::fs::write(&mark, text.replace("boot_id = \"", "boot_id = \"0")).unwrap();
    }

    #[test]
    fn a_member_that_syncs_leaves_no_mark() {
        let (directory, folder) = folder();
        assert!(!folder.begin(false).unwrap().acknowledged_unsynced);
        folder.mark_ended().unwrap();
        folder.mark_started().unwrap();
        folder.check().unwrap();
        assert!(!directory.path().join("power.toml").exists());
    }

    /// It meets those who lost writes long after: nobody accepts a loss and leaves all settings as they were.
    #[test]
    fn what_was_memory_first_once_is_known_for_good() {
        let (_directory, folder) = folder();
        folder.begin(true).unwrap();
        folder.mark_ended().unwrap();
        folder.mark_started().unwrap();
        assert!(folder.begin(false).unwrap().acknowledged_unsynced);
    }

    #[test]
    fn another_boot_without_a_clean_end_makes_it_suspect() {
        let (directory, folder) = folder();
        folder.begin(true).unwrap();
        folder.check().unwrap();
        pretend_another_boot(directory.path());
        let refused = folder.check().unwrap_err().to_string();
        assert!(refused.contains("--accept-lost-writes"), "{refused}");
        folder.begin(true).unwrap_err();
        // A person decides to go on with what is there, for one start.
        folder.accept_lost_writes().unwrap();
        folder.check().unwrap();
        assert!(folder.begin(true).unwrap().lost_writes_accepted);
        folder.mark_started().unwrap();
        assert!(!folder.begin(true).unwrap().lost_writes_accepted);
        folder.mark_ended().unwrap();
        pretend_another_boot(directory.path());
        folder.check().unwrap();
    }

    #[test]
    fn a_failed_sync_makes_it_suspect_under_the_same_boot() {
        let (_directory, folder) = folder();
        folder.begin(true).unwrap();
        folder.power_guard().mark_suspect().unwrap();
        folder.check().unwrap_err();
    }

    #[test]
    fn a_folder_whose_history_was_given_up_stays_refused_and_says_why() {
        let (directory, folder) = folder();
        folder.check().unwrap();
        folder.history_guard().give_up("entry 7 differs").unwrap();
        drop(folder);
        for _ in 0..2 {
            let folder = DataDir::open(directory.path()).unwrap();
            let refused = folder.check().unwrap_err().to_string();
            assert!(refused.contains("entry 7 differs"), "{refused}");
            assert!(refused.contains("join again"), "{refused}");
        }
        // A power loss leaves names, and may leave nothing behind them.
        std::fs::write(directory.path().join("given-up"), [0xff]).unwrap();
        let folder = DataDir::open(directory.path()).unwrap();
        folder.check().unwrap_err();
        // What a person accepts of a power loss is another matter.
        folder.accept_lost_writes().unwrap();
        folder.check().unwrap_err();
    }
}
