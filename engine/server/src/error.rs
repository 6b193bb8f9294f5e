//! The errors of the library: why a member did not start, why it ended, why it did not serve a
//! request.

use std::path::PathBuf;
use std::sync::Arc;

pub use dengine_data_dir::DataDirError;
use dengine_kv::StoreError;
use dengine_log::{DiskError, LogError};
use dengine_raft::Divergence;
pub use dengine_raft::replica::{LeaderHint, RequestError};
use dengine_snapshot::SnapshotError;

/// Why a member did not start. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration cannot work.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The log in the data directory cannot be used.
    #[error("the log in {path}: {source}")]
    Log {
        /// Where it lies.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The state in the data directory cannot be used.
    #[error("the state in {path}: {source}")]
    State {
        /// Where it lies.
        path: PathBuf,
        /// What is wrong with it.
        source: StoreError,
    },
    /// A snapshot that was received cannot become the state.
    #[error(transparent)]
    Snapshot(SnapshotError),
    /// Somebody still reads the state that a snapshot is to replace.
    #[error(
        "the state is still in use: a reader was kept for more than a minute. Start the member \
         again; it then goes on from the snapshot"
    )]
    StateInUse,
    /// The log ends before what the state machine has applied: a log was lost or replaced.
    #[error(
        "the log in {path} ends at entry {last}, but the state machine has applied entry \
         {applied}: this log does not belong to this state. Restore the missing log, or move the \
         whole data directory away, remove this member from the cluster and let it join again with \
         an empty data directory"
    )]
    LogBehindState {
        /// Where the log lies.
        path: PathBuf,
        /// The log's last entry.
        last: u64,
        /// The last applied entry.
        applied: u64,
    },
    /// An address cannot be listened on.
    #[error(
        "cannot listen on {address}: {source}. Is another member running with the same address?"
    )]
    Listen {
        /// Which one.
        address: std::net::SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

impl StartError {
    /// What the member knew is damaged or may be incomplete: starting it again does not help, and
    /// it must not take part under its identity any more. It has to be removed from its cluster and
    /// to join again with an empty data directory.
    #[must_use]
    pub fn needs_replacement(&self) -> bool {
        match self {
            Self::DataDir(error) => {
                matches!(
                    error,
                    DataDirError::Damaged { .. }
                        | DataDirError::Suspect { .. }
                        | DataDirError::GivenUp { .. }
                )
            }
            Self::Log { source, .. } => source.downcast_ref().is_some_and(is_damage),
            Self::State { source, .. } => matches!(source, StoreError::Corrupt(_)),
            Self::LogBehindState { .. } => true,
            Self::Config(_)
            | Self::Snapshot(_)
            | Self::StateInUse
            | Self::Listen { .. }
            | Self::Thread(_) => false,
        }
    }

    /// Nothing is known to be wrong with the data directory: the machine, its disk, or a wrong
    /// command line keeps the member from running. Once that is put right, the member continues
    /// with its identity.
    #[must_use]
    pub fn is_of_the_environment(&self) -> bool {
        match self {
            Self::DataDir(error) => matches!(
                error,
                DataDirError::Io { .. }
                    | DataDirError::NotADirectory { .. }
                    | DataDirError::Locked { .. }
                    | DataDirError::Newer { .. }
                    | DataDirError::Foreign { .. }
            ),
            Self::Log { source, .. } => {
                let of_log = source.downcast_ref::<LogError>();
                source.is::<DiskError>() || of_log.is_some_and(is_of_the_disk)
            }
            Self::State { source, .. } => matches!(
                source,
                StoreError::Failed { .. }
                    | StoreError::NoSpace { .. }
                    | StoreError::NewerFormat { .. }
                    | StoreError::Foreign(_)
            ),
            Self::Snapshot(error) => matches!(error, SnapshotError::Disk(_)),
            Self::Listen { .. } | Self::Thread(_) => true,
            Self::Config(_) | Self::StateInUse | Self::LogBehindState { .. } => false,
        }
    }
}

fn is_damage(error: &LogError) -> bool {
    match error {
        LogError::Corrupt { .. } | LogError::Missing { .. } => true,
        LogError::Poisoned(first) => is_damage(first),
        LogError::NoSpace(_)
        | LogError::Disk(_)
        | LogError::NewerFormat { .. }
        | LogError::WrongOwner { .. }
        | LogError::InvalidBatch(_)
        | LogError::InvalidOptions(_)
        | LogError::OutOfRange { .. } => false,
    }
}

/// Damage itself says that the member has to be removed.
fn unless_damaged(is_damage: bool) -> &'static str {
    match is_damage {
        true => "",
        false => ". Check the disk, then start the member again",
    }
}

/// The disk failed or is full, or a newer program wrote the log.
fn is_of_the_disk(error: &LogError) -> bool {
    match error {
        LogError::NoSpace(_) | LogError::Disk(_) | LogError::NewerFormat { .. } => true,
        LogError::Poisoned(first) => is_of_the_disk(first),
        LogError::Corrupt { .. }
        | LogError::Missing { .. }
        | LogError::WrongOwner { .. }
        | LogError::InvalidBatch(_)
        | LogError::InvalidOptions(_)
        | LogError::OutOfRange { .. } => false,
    }
}

/// Why a running member ended by itself. What it had acknowledged is safe on a quorum.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Fatal {
    /// The log could not be written or synced. A sync that failed once may succeed the next time
    /// with the data gone, so there is no second try.
    #[error("the log failed: {0}{advice}", advice = unless_damaged(is_damage(.0)))]
    Log(Arc<LogError>),
    /// The state machine failed.
    #[error(
        "the state machine failed: {0}{advice}",
        advice = unless_damaged(matches!(.0, StoreError::Corrupt(_)))
    )]
    State(StoreError),
    /// The member received a snapshot and did not start from it.
    #[error("the member did not start from a snapshot that it received: {0}")]
    Restart(Arc<StartError>),
    /// After an accepted loss the cluster goes on without writes that this member has.
    #[error(
        "this member's history was given up: {0}. Its data directory is refused from now on; let \
         it join again with an empty one"
    )]
    GivenUp(Divergence),
    /// A thread of the member panicked: a bug.
    #[error("the {0} thread panicked; this is a bug in dengine, please report it with the log")]
    Panicked(&'static str),
}

impl Fatal {
    /// The same as [`StartError::needs_replacement`]. Decided when damage is found at run time,
    /// because the next start may not read the damaged place and would succeed.
    #[must_use]
    pub fn needs_replacement(&self) -> bool {
        match self {
            Self::State(error) => matches!(error, StoreError::Corrupt(_)),
            Self::Restart(error) => error.needs_replacement(),
            Self::Log(error) => is_damage(error),
            Self::GivenUp(_) => true,
            Self::Panicked(_) => false,
        }
    }

    /// The same as [`StartError::is_of_the_environment`].
    #[must_use]
    pub fn is_of_the_environment(&self) -> bool {
        match self {
            Self::Log(error) => is_of_the_disk(error),
            Self::State(error) => matches!(
                error,
                StoreError::Failed { .. }
                    | StoreError::NoSpace { .. }
                    | StoreError::NewerFormat { .. }
            ),
            Self::Restart(error) => error.is_of_the_environment(),
            Self::GivenUp(_) | Self::Panicked(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn io_error() -> std::io::Error {
        std::io::Error::other("Input/output error")
    }

    fn at_disk() -> DiskError {
        DiskError::new("write", "log".as_ref(), io_error())
    }

    fn log(source: impl std::error::Error + Send + Sync + 'static) -> StartError {
        StartError::Log {
            path: "/data/log".into(),
            source: Box::new(source),
        }
    }

    fn state(source: StoreError) -> StartError {
        StartError::State {
            path: "/data/state".into(),
            source,
        }
    }

    fn missing() -> LogError {
        LogError::Missing {
            dir: "/data/log".into(),
        }
    }

    fn corrupt() -> StoreError {
        StoreError::Corrupt("a block".to_owned())
    }

    /// What a store says whose disk fails, and one whose disk is full.
    fn at_the_stores_disk() -> [StoreError; 2] {
        [
            StoreError::Failed {
                doing: "opening its folder",
                reason: "Input/output error".to_owned(),
            },
            StoreError::NoSpace {
                doing: "opening its folder",
                reason: "No space left on device".to_owned(),
            },
        ]
    }

    #[test]
    fn a_disk_that_fails_at_the_start_says_nothing_against_the_folder_and_damage_does() {
        let [failed, no_space] = at_the_stores_disk();
        for error in [
            log(at_disk()),
            log(LogError::NoSpace(at_disk())),
            log(LogError::Poisoned(Box::new(LogError::Disk(at_disk())))),
            state(failed),
            state(no_space),
            StartError::DataDir(DataDirError::NotADirectory {
                path: "/data".into(),
                file: "/data".into(),
            }),
            StartError::Thread(io_error()),
        ] {
            assert!(error.is_of_the_environment(), "{error}");
            assert!(!error.needs_replacement(), "{error}");
        }
        // A cut or a read failed first, and the caller of the next step hears of it.
        let after = LogError::Poisoned(Box::new(missing()));
        for error in [log(missing()), log(after), state(corrupt())] {
            assert!(!error.is_of_the_environment(), "{error}");
            assert!(error.needs_replacement(), "{error}");
        }
    }

    #[test]
    fn a_disk_that_fails_while_it_runs_says_nothing_against_the_folder_and_damage_does() {
        let [failed, no_space] = at_the_stores_disk();
        let of_log = |error| Fatal::Log(Arc::new(error));
        for fatal in [
            Fatal::State(failed),
            Fatal::State(no_space),
            Fatal::Restart(Arc::new(log(LogError::NoSpace(at_disk())))),
            of_log(LogError::Disk(at_disk())),
        ] {
            assert!(fatal.is_of_the_environment(), "{fatal}");
            assert!(!fatal.needs_replacement(), "{fatal}");
        }
        let damaged = Arc::new(state(corrupt()));
        for fatal in [Fatal::State(corrupt()), Fatal::Restart(damaged)] {
            assert!(!fatal.is_of_the_environment(), "{fatal}");
            assert!(fatal.needs_replacement(), "{fatal}");
            assert!(
                !fatal.to_string().contains("start the member again"),
                "{fatal}"
            );
        }
        let bug = of_log(LogError::InvalidBatch("a hole".into()));
        for bug in [Fatal::Panicked("applier"), bug] {
            assert!(!bug.is_of_the_environment() && !bug.needs_replacement());
        }
    }
}
