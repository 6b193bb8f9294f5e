//! How a staged snapshot becomes the state of a member that is being opened.
//!
//! The log was reset before, durably, so whatever happens in between is finished by the next opening, from
//! wherever it stopped:
//!
//! ```text
//! state → state.old      the state that the snapshot replaces
//! incoming → state       the staged snapshot
//! (sync)
//! state.old              removed
//! state                  without what staging noted beside the files
//! ```
//! It is for [`Folders`] to carry that out; the simulator's lose power between any two steps.

use super::{Decision, SnapshotError, Staging};
use dengine_log::{Disk, DiskError, Log, LogError, Position};
use dengine_planted::planted;
use dengine_types::{ClusterId, HardState, Index};

/// A folder within a member's, as far as an installation moves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Folder {
    /// What the state machine holds.
    State,
    /// The state that a snapshot has replaced, until it is removed.
    StateOld,
    /// A snapshot that is put together by [`Staging`].
    Incoming,
}

/// The folders of one member. Nobody may have a store open in them while they are moved.
pub trait Folders {
    /// The disk of [`Folder::Incoming`].
    type Disk: Disk;

    /// Opens [`Folder::Incoming`], making it if it is missing.
    ///
    /// # Errors
    /// The disk failed, or somebody else has it open.
    fn incoming(&self) -> Result<Self::Disk, DiskError>;

    /// Gives a folder the name of another that is not there. Does nothing if there is none to move.
    ///
    /// # Errors
    /// The disk failed.
    fn rename(&self, from: Folder, to: Folder) -> Result<(), DiskError>;

    /// Removes a folder and all that is in it, if there is one. A crash may leave any part of it.
    ///
    /// # Errors
    /// The disk failed.
    fn remove(&self, folder: Folder) -> Result<(), DiskError>;

    /// Removes the files of [`Folder::State`] whose names begin with [`RESERVED`](super::RESERVED).
    ///
    /// # Errors
    /// The disk failed.
    fn remove_markers(&self) -> Result<(), DiskError>;

    /// Makes every rename so far durable.
    ///
    /// # Errors
    /// The disk could not promise that.
    fn sync(&self) -> Result<(), DiskError>;
}

/// What became of an installation that consensus has decided.
#[derive(Debug)]
pub enum Commit {
    /// The member is the one that the snapshot describes. It has to be opened again.
    Committed,
    /// Nothing was done: the member is opened again as it was.
    GoOn(NotStaged),
}

/// Why a snapshot does not become the state.
#[derive(Debug, thiserror::Error)]
pub enum NotStaged {
    /// Another one was sent while consensus decided.
    #[error("the snapshot was replaced")]
    Replaced,
    /// What is staged cannot be read.
    #[error("the snapshot is not there: {0}")]
    Unreadable(SnapshotError),
}

/// The commit point of an installation: resets the log to the snapshot's last entry, durably, if the snapshot is still
/// `staged`.
///
/// # Errors
/// Those of the log. It is not known then on which side of the commit point the member is.
pub fn commit<S: Disk, L: Disk>(
    staged: Result<&Staging<S>, SnapshotError>,
    log: &mut Log<L>,
    base: Position,
    hard_state: HardState,
) -> Result<Commit, LogError> {
    match staged {
        Ok(staging) if staging.holds(base) => {
            log.reset(base, hard_state)?;
            log.sync()?;
            Ok(Commit::Committed)
        }
        Ok(_) => Ok(Commit::GoOn(NotStaged::Replaced)),
        Err(error) => Ok(Commit::GoOn(NotStaged::Unreadable(error))),
    }
}

/// Opens a member's state, after a snapshot whose installation was decided has become it; whether one has.
/// `base` is where the log begins; `open` opens what [`Folder::State`] holds, or makes an empty state if there is
/// none, and tells the last entry that it has.
///
/// # Errors
/// Those of `open`. The log demands a snapshot that is not here, or the disk failed: then the folders are such
/// that another opening may succeed.
pub fn open_state<F, S, E>(
    folders: &F,
    cluster: ClusterId,
    base: Position,
    open: impl Fn() -> Result<(S, Index), E>,
) -> Result<(S, bool), E>
where
    F: Folders,
    E: From<SnapshotError>,
{
    let failed = |error: DiskError| E::from(error.into());
    folders.remove_markers().map_err(failed)?;
    let (state, applied) = open()?;
    if applied >= base.index {
        settle(folders, cluster, base, applied)?;
        return Ok((state, false));
    }
    drop(state);
    let installed = settle(folders, cluster, base, applied)?;
    Ok((open()?.0, installed))
}

/// Completes the installation of a staged snapshot or discards it, as the log says; see
/// [`Staging::decide`]. Returns whether the state is another one now.
///
/// # Errors
/// The log demands a snapshot that is not here, or the disk failed.
pub fn settle<F: Folders>(
    folders: &F,
    cluster: ClusterId,
    base: Position,
    applied: Index,
) -> Result<bool, SnapshotError> {
    // What was staged was let in under the bound that held then.
    let mut staging = Staging::open(folders.incoming()?, cluster, u64::MAX)?;
    let decision = staging.decide(base, applied)?;
    if decision == Decision::Discard {
        staging.clear()?;
    }
    drop(staging);
    if decision == Decision::Install {
        install(folders)?;
    } else {
        // What an installation replaced, if it was cut short at the very end.
        folders.remove(Folder::StateOld)?;
    }
    Ok(decision == Decision::Install)
}

fn install(folders: &impl Folders) -> Result<(), DiskError> {
    folders.remove(Folder::StateOld)?;
    folders.rename(Folder::State, Folder::StateOld)?;
    folders.rename(Folder::Incoming, Folder::State)?;
    if !planted!(InstallNotSynced) {
        folders.sync()?;
    }
    folders.remove(Folder::StateOld)?;
    folders.remove_markers()
}
