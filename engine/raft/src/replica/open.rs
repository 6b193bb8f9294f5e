//! Opens the log and the state of a data directory, so that they belong together.

use dengine_kv::StoreError;
use dengine_log::{Disk, Log, LogError, Position, Recovered, reset_to_state};
use dengine_planted::planted;
use dengine_snapshot as snapshot;
use dengine_snapshot::{MemberDirs, SnapshotError};
use dengine_types::{ClusterId, Index};

/// A member's log and state. The log reaches to what the state has, at least.
pub struct Opened<L: Disk, S> {
    pub log: Log<L>,
    /// What it holds.
    pub recovered: Recovered,
    pub state: S,
    /// A snapshot whose installation was decided has become the state.
    pub installed: bool,
    /// Where the log ended before it was begun again after the state, as a person has accepted;
    /// `None` if it was not.
    pub reset_and_recovered: Option<Index>,
}

/// Why log and state cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Log(#[from] LogError),
    /// A snapshot that was to become the state.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error(transparent)]
    State(#[from] StoreError),
    /// A log was lost or replaced.
    #[error("the log ends at entry {last}, and the state machine has applied entry {applied}")]
    LogBehindState {
        /// The log's last entry.
        last: Index,
        /// The last applied entry.
        applied: Index,
    },
}

/// Opens the state that belongs to a log; `open_state` opens what is there, and tells the last
/// entry that it has. A state that is ahead of its log is refused, unless a person has accepted
/// that `memory-first` lost writes: the log, which `reopen` opens again, then begins again after
/// what the state has, as after a snapshot.
///
/// # Errors
/// Something could not be opened, or [`OpenError::LogBehindState`].
pub fn open_member<L: Disk, S>(
    dirs: &impl MemberDirs,
    cluster: ClusterId,
    (mut log, mut recovered): (Log<L>, Recovered),
    reopen: impl FnOnce() -> Result<(Log<L>, Recovered), LogError>,
    open_state: impl Fn() -> Result<(S, Position), StoreError>,
    loss_accepted: bool,
) -> Result<Opened<L, S>, OpenError> {
    let open = || {
        let (state, applied) = open_state()?;
        Ok::<_, OpenError>(((state, applied), applied.index))
    };
    let ((state, applied), installed) = snapshot::open_state(dirs, cluster, recovered.base, open)?;
    let mut reset_and_recovered = None;
    let is_behind = recovered.last_index < applied.index;
    if is_behind && loss_accepted && !planted!(StateAheadAfterRecover) {
        reset_and_recovered = Some(recovered.last_index);
        reset_to_state(&mut log, applied)?;
        drop(log);
        (log, recovered) = reopen()?;
    }
    if recovered.last_index < applied.index {
        return Err(OpenError::LogBehindState {
            last: recovered.last_index,
            applied: applied.index,
        });
    }
    Ok(Opened {
        log,
        recovered,
        state,
        installed,
        reset_and_recovered,
    })
}

#[cfg(test)]
mod tests {
    use dengine_log::DiskError;
    use dengine_log::conformance::{batch, small_options};
    use dengine_log::memory::MemoryDisk;
    use dengine_snapshot::MemberDir;
    use dengine_types::Term;

    use super::*;

    /// Nothing is staged in them, and nothing is to be moved.
    struct NoSnapshots;

    impl MemberDirs for NoSnapshots {
        type Disk = MemoryDisk;

        fn incoming(&self) -> Result<MemoryDisk, DiskError> {
            Ok(MemoryDisk::new())
        }

        fn rename(&self, _: MemberDir, _: MemberDir) -> Result<(), DiskError> {
            Ok(())
        }

        fn remove(&self, _: MemberDir) -> Result<(), DiskError> {
            Ok(())
        }

        fn remove_markers(&self) -> Result<(), DiskError> {
            Ok(())
        }

        fn sync(&self) -> Result<(), DiskError> {
            Ok(())
        }
    }

    /// Opens a log of three entries with a state that has applied so many.
    fn opened(applied: u64, accepted: bool) -> Result<Opened<MemoryDisk, ()>, OpenError> {
        let disk = MemoryDisk::new();
        let (mut log, _) = Log::open(disk.clone(), small_options())?;
        log.append(&batch(4, 1..=3, 10))?;
        log.sync()?;
        drop(log);
        let options = small_options();
        let open_log = || Log::open_existing(disk.clone(), options.clone());
        let applied = Position {
            index: Index(applied),
            term: Term(4),
        };
        let first = open_log()?;
        let state = || Ok(((), applied));
        open_member(
            &NoSnapshots,
            options.cluster,
            first,
            open_log,
            state,
            accepted,
        )
    }

    #[test]
    fn a_state_ahead_of_its_log_is_refused_until_the_loss_is_accepted() {
        for (applied, accepted, expected) in [
            (2, false, Ok((3, None))),
            (3, false, Ok((3, None))),
            (3, true, Ok((3, None))),
            (4, false, Err((3, 4))),
            (9, true, Ok((9, Some(Index(3))))),
        ] {
            let found = match opened(applied, accepted) {
                Ok(it) => Ok((it.recovered.last_index.0, it.reset_and_recovered)),
                Err(OpenError::LogBehindState { last, applied }) => Err((last.0, applied.0)),
                Err(error) => panic!("{error}"),
            };
            assert_eq!(found, expected, "applied {applied}, accepted {accepted}");
        }
    }
}
