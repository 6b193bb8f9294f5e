//! How a staged snapshot becomes the state of a member that is being opened.
//!
//! The log was reset before, durably, so the next opening completes an interrupted installation
//! from wherever it stopped:
//!
//! ```text
//! state → state.old      the state that the snapshot replaces
//! incoming → state       the staged snapshot
//! (sync)
//! state.old              removed
//! state                  the markers of staging are removed from it
//! ```
//! [`MemberDirs`] does the operations; those of the simulator lose power between any two steps.

use dengine_log::{Disk, DiskError, Log, LogError, Position};
use dengine_planted::planted;
use dengine_types::{ClusterId, HardState, Index};

use super::{Decision, SnapshotError, Staging};

/// A directory of a member that an installation moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemberDir {
    /// The content of the state machine.
    State,
    /// The state that a snapshot has replaced, until it is removed.
    StateOld,
    /// A snapshot that [`Staging`] assembles.
    Incoming,
}

/// The directories of one member. No store may be open in them while they are moved.
pub trait MemberDirs {
    type Disk: Disk;

    /// Opens [`MemberDir::Incoming`], creating it if it is missing. Fails if it is open elsewhere.
    fn incoming(&self) -> Result<Self::Disk, DiskError>;

    /// Renames a directory to a name that is free. Does nothing if `from` is missing.
    fn rename(&self, from: MemberDir, to: MemberDir) -> Result<(), DiskError>;

    /// Removes a directory and its content, if it exists. A crash may leave any part of it.
    fn remove(&self, dir: MemberDir) -> Result<(), DiskError>;

    /// Removes the files of [`MemberDir::State`] whose names begin with
    /// [`RESERVED`](super::RESERVED).
    fn remove_markers(&self) -> Result<(), DiskError>;

    /// Makes every rename so far durable.
    fn sync(&self) -> Result<(), DiskError>;
}

/// The outcome of an installation that consensus has decided.
#[derive(Debug)]
pub enum Commit {
    /// The log was reset to the snapshot. The member has to be opened again.
    Committed,
    /// Nothing was changed: the member is opened again as it was.
    Unchanged(NotStaged),
}

/// Why a snapshot does not become the state.
#[derive(Debug, thiserror::Error)]
pub enum NotStaged {
    /// Another snapshot was staged while consensus decided.
    #[error("the snapshot was replaced")]
    Replaced,
    /// The staged snapshot cannot be read.
    #[error("the snapshot is not there: {0}")]
    Unreadable(SnapshotError),
}

/// The commit point of an installation: resets the log to the snapshot's last entry, durably, if
/// the snapshot is still `staged`.
///
/// # Errors
///
/// Those of the log. The member may then be before or after the commit point.
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
        Ok(_) => Ok(Commit::Unchanged(NotStaged::Replaced)),
        Err(error) => Ok(Commit::Unchanged(NotStaged::Unreadable(error))),
    }
}

/// Opens a member's state, after completing the installation of a snapshot if one was decided;
/// returns whether it was. `base` is where the log begins; `open` opens the content of
/// [`MemberDir::State`], or creates an empty state, and returns its last applied entry.
///
/// # Errors
///
/// Those of `open`, or if the snapshot that the log requires is not here, or the disk failed.
/// Another opening may succeed then.
pub fn open_state<F, S, E>(
    dirs: &F,
    cluster: ClusterId,
    base: Position,
    open: impl Fn() -> Result<(S, Index), E>,
) -> Result<(S, bool), E>
where
    F: MemberDirs,
    E: From<SnapshotError>,
{
    let failed = |error: DiskError| E::from(error.into());
    dirs.remove_markers().map_err(failed)?;
    let (state, applied) = open()?;
    if applied >= base.index {
        settle(dirs, cluster, base, applied)?;
        return Ok((state, false));
    }
    drop(state);
    let installed = settle(dirs, cluster, base, applied)?;
    Ok((open()?.0, installed))
}

/// Completes the installation of a staged snapshot or discards it, as the log requires; see
/// [`Staging::decide`]. Returns whether the state was replaced.
///
/// # Errors
///
/// The snapshot that the log requires is not here, or the disk failed.
pub fn settle<F: MemberDirs>(
    dirs: &F,
    cluster: ClusterId,
    base: Position,
    applied: Index,
) -> Result<bool, SnapshotError> {
    // The staged snapshot was accepted under the limit of that time.
    let mut staging = Staging::open(dirs.incoming()?, cluster, u64::MAX)?;
    let decision = staging.decide(base, applied)?;
    if decision == Decision::Discard {
        staging.clear()?;
    }
    drop(staging);
    if decision == Decision::Install {
        install(dirs)?;
    } else {
        // The replaced state that an interrupted installation left.
        dirs.remove(MemberDir::StateOld)?;
    }
    Ok(decision == Decision::Install)
}

fn install(dirs: &impl MemberDirs) -> Result<(), DiskError> {
    dirs.remove(MemberDir::StateOld)?;
    dirs.rename(MemberDir::State, MemberDir::StateOld)?;
    dirs.rename(MemberDir::Incoming, MemberDir::State)?;
    if !planted!(InstallNotSynced) {
        dirs.sync()?;
    }
    dirs.remove(MemberDir::StateOld)?;
    dirs.remove_markers()
}
