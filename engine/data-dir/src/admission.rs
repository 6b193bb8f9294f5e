//! Whether a member may take part with its data directory. `crate::marks` decides; this module
//! reads and writes the files.

use super::{DataDir, DataDirError};
use crate::marks::{Beginning, Marks, PowerMark, Unfit};

impl DataDir {
    /// Refuses a data directory whose history the cluster has given up, or from which acknowledged
    /// writes may be missing.
    pub fn check(&self) -> Result<(), DataDirError> {
        let (marks, boot_id) = self.marks(false)?;
        marks.check(&boot_id).map_err(|unfit| self.refused(unfit))
    }

    /// Records that a member starts with this data directory; with `memory_first` it acknowledges
    /// writes before they are on its disk. Call this before anything in the directory is opened.
    pub fn begin(&self, memory_first: bool) -> Result<Beginning, DataDirError> {
        let (marks, boot_id) = self.marks(memory_first)?;
        let begun = marks.begin(&boot_id, memory_first);
        let beginning = begun.map_err(|unfit| self.refused(unfit))?;
        if let Some(mark) = &beginning.mark {
            self.write_power_mark(mark)?;
        }
        Ok(beginning)
    }

    /// Records [`PowerMark::loss_accepted`].
    pub fn accept_lost_writes(&self) -> Result<(), DataDirError> {
        self.write_power_mark(&PowerMark::loss_accepted(&self.boot_id()?))
    }

    /// Records [`PowerMark::started`].
    pub fn mark_started(&self) -> Result<(), DataDirError> {
        self.change_power_mark(PowerMark::started)
    }

    /// Records [`PowerMark::ended`].
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

    /// The marks, and the boot id of the machine. The boot id is read only if the decision depends
    /// on it: a history that was given up is refused whatever the power mark is.
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
    use std::path::Path;

    use super::*;

    fn opened() -> (tempfile::TempDir, DataDir) {
        let directory = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(directory.path()).unwrap();
        (directory, data_dir)
    }

    /// Makes the mark one of an earlier boot of the machine.
    fn pretend_another_boot(directory: &Path) {
        let mark = directory.join("power.toml");
        let text = std::fs::read_to_string(&mark).unwrap();
        std::fs::write(&mark, text.replace("boot_id = \"", "boot_id = \"0")).unwrap();
    }

    #[test]
    fn a_member_with_fsync_leaves_no_mark() {
        let (directory, data_dir) = opened();
        assert!(!data_dir.begin(false).unwrap().acknowledged_unsynced);
        data_dir.mark_ended().unwrap();
        data_dir.mark_started().unwrap();
        data_dir.check().unwrap();
        assert!(!directory.path().join("power.toml").exists());
    }

    /// It may still meet members that lost writes: a loss can be accepted long after the settings
    /// changed.
    #[test]
    fn a_member_that_once_was_memory_first_stays_marked() {
        let (_directory, data_dir) = opened();
        data_dir.begin(true).unwrap();
        data_dir.mark_ended().unwrap();
        data_dir.mark_started().unwrap();
        assert!(data_dir.begin(false).unwrap().acknowledged_unsynced);
    }

    #[test]
    fn another_boot_without_a_clean_end_makes_it_suspect() {
        let (directory, data_dir) = opened();
        data_dir.begin(true).unwrap();
        data_dir.check().unwrap();
        pretend_another_boot(directory.path());
        let refused = data_dir.check().unwrap_err().to_string();
        assert!(refused.contains("--accept-lost-writes"), "{refused}");
        data_dir.begin(true).unwrap_err();
        // A person accepts the loss, for one start.
        data_dir.accept_lost_writes().unwrap();
        data_dir.check().unwrap();
        assert!(data_dir.begin(true).unwrap().lost_writes_accepted);
        data_dir.mark_started().unwrap();
        assert!(!data_dir.begin(true).unwrap().lost_writes_accepted);
        data_dir.mark_ended().unwrap();
        pretend_another_boot(directory.path());
        data_dir.check().unwrap();
    }

    #[test]
    fn a_failed_sync_makes_it_suspect_under_the_same_boot() {
        let (_directory, data_dir) = opened();
        data_dir.begin(true).unwrap();
        data_dir.power_guard().mark_suspect().unwrap();
        data_dir.check().unwrap_err();
    }

    #[test]
    fn a_given_up_history_stays_refused_with_its_reason() {
        let (directory, data_dir) = opened();
        data_dir.check().unwrap();
        data_dir.history_guard().give_up("entry 7 differs").unwrap();
        drop(data_dir);
        for _ in 0..2 {
            let data_dir = DataDir::open(directory.path()).unwrap();
            let refused = data_dir.check().unwrap_err().to_string();
            assert!(refused.contains("entry 7 differs"), "{refused}");
            assert!(refused.contains("join again"), "{refused}");
        }
        // After a power loss a file may be there without its content.
        std::fs::write(directory.path().join("given-up"), [0xff]).unwrap();
        let data_dir = DataDir::open(directory.path()).unwrap();
        data_dir.check().unwrap_err();
        // Accepting a power loss does not bring back a history that was given up.
        data_dir.accept_lost_writes().unwrap();
        data_dir.check().unwrap_err();
    }
}
