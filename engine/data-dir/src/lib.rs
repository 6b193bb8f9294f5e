//! A member's data directory: its layout, the identity of its member, and a lock against a second
//! process.
//!
//! ```text
//! folder.toml   format version, folder id and, after a bootstrap or join, the identity
//! given-up      present if the cluster goes on without writes of this member; names one
//! log/          the write-ahead log
//! power.toml    with `memory-first`: under which boot the member ran, and how it ended
//! state/        the state machine (RocksDB)
//! snapshot/     snapshots that are received and sent; see [`snapshots`]
//! ```
//! `folder.toml` is the commit point of becoming a member: without an identity in it, `log/` and
//! `state/` are left over from an interrupted bootstrap and are not used.

mod admission;
mod history;
pub mod marks;
mod power;
mod record;
mod snapshots;

pub use history::HistoryGuard;
pub use power::{PowerGuard, decode_power_mark, encode_power_mark};
pub use record::{FORMAT, Identity, Record, RecordError};
pub use snapshots::SnapshotPaths;

use std::fs::File;
use std::io;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use dengine_log::durable::{create_dir_all, sync_dir};

const RECORD: &str = "folder.toml";
const RECORD_NEW: &str = "folder.toml.new";
const LOG: &str = "log";
const STATE: &str = "state";

/// Why a data directory cannot be used. It was not changed.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    #[error("data directory {path}: cannot {what}: {source}")]
    Io {
        path: PathBuf,
        what: &'static str,
        source: io::Error,
    },
    /// A file is in the place of the directory or of one of its parents.
    #[error(
        "data directory {path} cannot be created: {file} is not a directory. Choose another \
         --data-dir"
    )]
    NotADirectory {
        path: PathBuf,
        /// What is in its way.
        file: PathBuf,
    },
    /// Two processes in one data directory would destroy it.
    #[error(
        "data directory {path} is in use by another process; stop that one, or choose another \
         --data-dir"
    )]
    Locked { path: PathBuf },
    /// A newer dengine wrote it.
    #[error(
        "data directory {path} has format {found}, this dengine reads up to {FORMAT}: run the \
         newer dengine"
    )]
    Newer { path: PathBuf, found: u32 },
    /// The record does not parse, or lacks something.
    #[error(
        "{path} is damaged: {reason}. Restore it from a backup, or move the whole data directory \
         away and let the member join again with an empty one"
    )]
    Damaged { path: PathBuf, reason: String },
    /// The machine of a `memory-first` member lost power: writes that it acknowledged may be
    /// missing.
    #[error(
        "the member in {path} acknowledged writes before they were on its disk (durability \
         memory-first), and since then the machine has lost power or its disk has failed: some may \
         be missing here. Remove this member from the cluster and let it join again with an empty \
         data directory. Only if a majority of the voters is in this state, so that the cluster \
         cannot go on: run `dengine recover --data-dir {path} --accept-lost-writes` for each of \
         them"
    )]
    Suspect { path: PathBuf },
    /// After an accepted loss the cluster goes on without writes that are in this data directory.
    #[error(
        "the history in data directory {path} was given up: {reason}. This member must not take \
         part any more. If you need what only it has, keep a copy of it; then remove this member \
         from the cluster and let it join again with an empty data directory. The operator does \
         that by itself. If nobody accepted lost writes in this cluster, something else posed as \
         its leader: keep strangers from the members' port, copy the data directories of all \
         members while none of them runs, and only then delete the file given-up in this one and \
         start the member again"
    )]
    GivenUp {
        path: PathBuf,
        /// How the member found out.
        reason: String,
    },
    /// The directory holds data, but no record of its member.
    #[error(
        "data directory {path} holds {found} but no {RECORD}: it is not one of dengine, or its \
         record was deleted. Choose an empty directory, or restore the record"
    )]
    Foreign {
        path: PathBuf,
        /// The first name found in the directory.
        found: String,
    },
}

/// An open data directory, locked until it is dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    record: Record,
    /// Holds the lock.
    _directory: File,
}

impl DataDir {
    /// Opens a data directory; a missing or empty one is initialized with a new folder id.
    pub fn open(path: &Path) -> Result<Self, DataDirError> {
        let failed = |what| {
            move |source| DataDirError::Io {
                path: path.to_owned(),
                what,
                source,
            }
        };
        create_dir_all(path).map_err(|error| not_made(path, error))?;
        let directory = File::open(path).map_err(failed("open it"))?;
        lock(&directory, path)?;
        let record = match read_file(path, RECORD).map_err(failed("read its record"))? {
            Some(bytes) => Record::decode(&bytes).map_err(|error| refused(path, error))?,
            None => {
                refuse_foreign(path)?;
                let record = Record {
                    format: FORMAT,
                    folder_id: uuid::Uuid::new_v4().to_string(),
                    identity: None,
                };
                write_file(path, RECORD, &record.encode()).map_err(failed("write its record"))?;
                record
            }
        };
        Ok(Self {
            path: path.to_owned(),
            record,
            _directory: directory,
        })
    }

    /// Drawn at random when the directory was first opened.
    #[must_use]
    pub fn folder_id(&self) -> &str {
        &self.record.folder_id
    }

    /// Which member this is, after a bootstrap or join.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        self.record.identity
    }

    #[must_use]
    pub fn log_path(&self) -> PathBuf {
        self.path.join(LOG)
    }

    #[must_use]
    pub fn state_path(&self) -> PathBuf {
        self.path.join(STATE)
    }

    /// Removes what an interrupted bootstrap left behind. That is safe only without an identity:
    /// before the identity is recorded, nothing in the directory was acknowledged to anyone.
    ///
    /// # Panics
    /// The directory has an identity.
    pub fn discard_leftovers(&self) -> Result<(), DataDirError> {
        assert!(
            self.record.identity.is_none(),
            "the data of a member is never discarded"
        );
        let own = [self.log_path(), self.state_path()];
        for path in own.into_iter().chain(self.snapshot_paths().all()) {
            match std::fs::remove_dir_all(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(self.failed("remove leftovers", error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Records durably that this data directory belongs to the member `identity`.
    ///
    /// # Errors
    ///
    /// The file system refused; the directory has no identity then.
    ///
    /// # Panics
    ///
    /// It has an identity already.
    pub fn adopt(&mut self, identity: Identity) -> Result<(), DataDirError> {
        assert!(
            self.identity().is_none_or(|old| old == identity),
            "an identity is given once"
        );
        let record = Record {
            identity: Some(identity),
            ..self.record.clone()
        };
        write_file(&self.path, RECORD, &record.encode())
            .map_err(|error| self.failed("write its record", error))?;
        self.record = record;
        Ok(())
    }

    fn failed(&self, what: &'static str, source: io::Error) -> DataDirError {
        DataDirError::Io {
            path: self.path.clone(),
            what,
            source,
        }
    }
}

/// The system's error ("File exists" or "Not a directory") does not name the path that is in the
/// way.
fn not_made(path: &Path, source: io::Error) -> DataDirError {
    let there = path.ancestors().find(|it| it.symlink_metadata().is_ok());
    match there.filter(|it| !it.is_dir()) {
        Some(file) => DataDirError::NotADirectory {
            path: path.to_owned(),
            file: file.to_owned(),
        },
        None => DataDirError::Io {
            path: path.to_owned(),
            what: "make it",
            source,
        },
    }
}

fn lock(directory: &File, path: &Path) -> Result<(), DataDirError> {
    use rustix::fs::{FlockOperation, flock};
    flock(directory, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
        rustix::io::Errno::WOULDBLOCK => DataDirError::Locked {
            path: path.to_owned(),
        },
        other => DataDirError::Io {
            path: path.to_owned(),
            what: "lock it",
            source: other.into(),
        },
    })
}

/// A volume's own file system may contain a `lost+found`, and an interrupted first start leaves a
/// new record.
fn refuse_foreign(path: &Path) -> Result<(), DataDirError> {
    let failed = |source| DataDirError::Io {
        path: path.to_owned(),
        what: "list it",
        source,
    };
    // Whatever else lies there, and in whatever order.
    if let Some(held) = [LOG, STATE].into_iter().find(|it| path.join(it).exists()) {
        return Err(DataDirError::Damaged {
            path: path.join(RECORD),
            reason: format!("it is missing beside {held}"),
        });
    }
    for item in std::fs::read_dir(path).map_err(failed)? {
        let name = item.map_err(failed)?.file_name();
        if name != "lost+found" && name != RECORD_NEW {
            return Err(DataDirError::Foreign {
                path: path.to_owned(),
                found: name.to_string_lossy().into_owned(),
            });
        }
    }
    Ok(())
}

fn refused(dir: &Path, error: RecordError) -> DataDirError {
    match error {
        RecordError::Newer(found) => DataDirError::Newer {
            path: dir.to_owned(),
            found,
        },
        RecordError::Damaged(reason) => DataDirError::Damaged {
            path: dir.join(RECORD),
            reason,
        },
    }
}

/// The content of a small file, if it exists; a file that is too long is cut, which its checksum
/// detects.
fn read_file(dir: &Path, name: &str) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(dir.join(name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(record::BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Replaces a small file atomically and durably.
fn write_file(dir: &Path, name: &str, text: &str) -> io::Result<()> {
    let new = dir.join(format!("{name}.new"));
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, dir.join(name))?;
    sync_dir(dir)
}

#[cfg(test)]
mod tests {
    use dengine_types::{ClusterId, MemberId};

    use super::*;

    const IDENTITY: Identity = Identity {
        cluster_id: ClusterId(u64::MAX),
        member_id: MemberId(7),
    };

    fn temp_dir() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn refusal(path: &Path) -> String {
        DataDir::open(path).unwrap_err().to_string()
    }

    #[test]
    fn the_identity_and_the_folder_id_survive_a_restart() {
        let dir = temp_dir();
        let mut first = DataDir::open(dir.path()).unwrap();
        let id = first.folder_id().to_owned();
        assert_eq!(first.identity(), None);
        first.adopt(IDENTITY).unwrap();
        drop(first);
        let again = DataDir::open(dir.path()).unwrap();
        assert_eq!(
            (again.folder_id(), again.identity()),
            (id.as_str(), Some(IDENTITY))
        );
    }

    #[test]
    fn a_wiped_data_directory_gets_a_new_folder_id() {
        let dir = temp_dir();
        let id = DataDir::open(dir.path()).unwrap().folder_id().to_owned();
        std::fs::remove_file(dir.path().join(RECORD)).unwrap();
        assert_ne!(DataDir::open(dir.path()).unwrap().folder_id(), id);
    }

    #[test]
    fn a_data_directory_is_locked_against_a_second_process() {
        let dir = temp_dir();
        let _open = DataDir::open(dir.path()).unwrap();
        assert!(refusal(dir.path()).contains("in use by another process"));
    }

    #[test]
    fn a_file_in_the_way_of_the_data_directory_is_named() {
        let dir = temp_dir();
        let file = dir.path().join("data");
        std::fs::write(&file, "dear").unwrap();
        for path in [file.clone(), file.join("a"), file.join("a/b")] {
            let refused = refusal(&path);
            let named = format!("{} is not a directory", file.display());
            assert!(refused.contains(&named), "{refused}");
        }
        assert_eq!(std::fs::read(&file).unwrap(), b"dear");
    }

    /// Under a new identity it would take what it finds for its own.
    #[test]
    fn a_record_that_is_missing_beside_data_is_damage() {
        for held in [LOG, STATE] {
            let dir = temp_dir();
            std::fs::create_dir(dir.path().join(held)).unwrap();
            for other in ["a", "snapshot", "z"] {
                std::fs::write(dir.path().join(other), "").unwrap();
            }
            let refused = DataDir::open(dir.path()).unwrap_err();
            assert!(matches!(refused, DataDirError::Damaged { .. }), "{refused}");
            let missing = format!("is damaged: it is missing beside {held}");
            assert!(refused.to_string().contains(&missing), "{refused}");
        }
    }

    #[test]
    fn foreign_newer_and_damaged_data_directories_are_refused_and_unchanged() {
        let dir = temp_dir();
        std::fs::write(dir.path().join("letters.txt"), "dear").unwrap();
        assert!(refusal(dir.path()).contains("letters.txt but no folder.toml"));
        std::fs::remove_file(dir.path().join("letters.txt")).unwrap();
        let newer = Record {
            format: FORMAT + 1,
            folder_id: "x".to_owned(),
            identity: None,
        };
        let newer = newer.encode().into_bytes();
        let huge = vec![b' '; 1 << 20];
        let record = dir.path().join(RECORD);
        for (bytes, expected) in [
            (newer, "reads up to 1: run the newer dengine"),
            (b"form".to_vec(), "is damaged: it has no checksum"),
            (b"\xff".to_vec(), "is damaged: invalid utf-8"),
            (huge, "is damaged: it has no checksum"),
        ] {
            std::fs::write(&record, &bytes).unwrap();
            let message = refusal(dir.path());
            assert!(message.contains(expected), "{message}");
            assert_eq!(std::fs::read(&record).unwrap(), bytes);
        }
    }
}
