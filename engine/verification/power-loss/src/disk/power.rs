//! When the power is lost: counts what a disk is asked to change, and cuts it off at one of those
//! operations.

use super::Error;

/// What a disk was asked to change so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// `fsync` and `fdatasync` of files.
    pub file_syncs: u64,
    /// `fsync` of directories.
    pub directory_syncs: u64,
    pub writes: u64,
    /// Making, naming, removing, sizing.
    pub others: u64,
}

impl Counts {
    /// Of files and of directories.
    #[must_use]
    pub fn syncs(self) -> u64 {
        self.file_syncs + self.directory_syncs
    }

    /// Whatever a sync makes durable.
    #[must_use]
    pub fn changes(self) -> u64 {
        self.writes + self.others
    }
}

/// The operation at which the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    pub at: CutAt,
    /// Whether it is still done.
    pub moment: Moment,
}

/// An operation by its number, from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutAt {
    /// Among syncs of files and directories.
    Sync(u64),
    /// Among writes and other changes.
    Change(u64),
}

/// Where in an operation the power goes. The one in between is no third: what was done and not
/// synced survives in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// It is not done.
    Before,
    /// It is done, and not answered.
    After,
}

/// What an operation is counted as.
#[derive(Clone, Copy, Debug)]
pub(super) enum Counted {
    FileSync,
    DirectorySync,
    Write,
    Other,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Power {
    pub(super) counts: Counts,
    pub(super) cut: Option<Cut>,
    gone: bool,
}

impl Power {
    pub(super) fn is_gone(&self) -> bool {
        self.gone
    }

    /// # Errors
    /// The power is gone.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.gone {
            return Err(Error::PowerLost);
        }
        Ok(())
    }

    /// Counts an operation. If this returns, it is to be done; and answered only if
    /// [`check`](Self::check) still finds power then.
    ///
    /// # Errors
    /// The power is gone, or goes before this operation.
    pub(super) fn spend(&mut self, counted: Counted) -> Result<(), Error> {
        self.check()?;
        let counts = &mut self.counts;
        let (counter, of_syncs) = match counted {
            Counted::FileSync => (&mut counts.file_syncs, true),
            Counted::DirectorySync => (&mut counts.directory_syncs, true),
            Counted::Write => (&mut counts.writes, false),
            Counted::Other => (&mut counts.others, false),
        };
        *counter += 1;
        let now = match of_syncs {
            true => CutAt::Sync(counts.syncs()),
            false => CutAt::Change(counts.changes()),
        };
        match self.cut {
            Some(cut) if cut.at == now => {
                self.gone = true;
                match cut.moment {
                    Moment::Before => Err(Error::PowerLost),
                    Moment::After => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}
