//! A member's data folder: who it is, and that nobody else is using it.
//!
//! ```text
//! folder.toml   format version, folder id and, once it has one, the identity
//! log/          the write-ahead log
//! power.toml    with `memory-first`: under which boot of the machine the member ran, and how it ended
//! state/        the state machine (RocksDB)
//! snapshot/     snapshots on their way in and out; see [`snapshots`]
//! ```
//! `folder.toml` is the commit point of becoming a member: what lies in `log/` and `state/` without an
//! identity in it is left over from a bootstrap that was cut short, and takes part in nothing.

mod power;
mod snapshots;

pub(crate) use snapshots::SnapshotPaths;

use dengine_core::types::{ClusterId, MemberId};
use serde::{Deserialize, Serialize};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{fs::File, io};

/// The version that this program writes, and the highest that it reads.
pub const FORMAT: u32 = 1;

const RECORD: &str = "folder.toml";
const RECORD_NEW: &str = "folder.toml.new";
const LOG: &str = "log";
const STATE: &str = "state";

/// Why a data folder cannot be used. It is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The file system refused something.
    #[error("data folder {path}: cannot {what}: {source}")]
    Io {
        /// Which folder.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// Two processes on one folder would destroy it.
    #[error(
        "data folder {path} is in use by another process; stop that one, or choose another --data-dir"
    )]
    Locked {
        /// Which folder.
        path: PathBuf,
    },
    /// A newer dengine wrote it.
    #[error(
        "data folder {path} has format {found}, this dengine reads up to {FORMAT}: run the newer dengine"
    )]
    Newer {
        /// Which folder.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// The record does not parse, or lacks something.
    #[error(
        "{path} is damaged: {reason}. Restore it from a backup, or move the whole data folder away and \
         let the member join again with an empty one"
    )]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A `memory-first` member whose machine lost power: it may have forgotten what it acknowledged.
    #[error(
        "the member in {path} acknowledged writes before they were on its disk (durability memory-first), and \
         the machine has lost power since: some may be missing here. Remove this member from the cluster and \
         let it join again with an empty folder. Only if a majority of the voters is in this state, so that \
         the cluster cannot go on: run `dengine recover --data-dir {path} --accept-lost-writes` for each of \
         them"
    )]
    Suspect {
        /// Which folder.
        path: PathBuf,
    },
    /// There is data, but no record that says whose.
    #[error(
        "data folder {path} holds {found} but no {RECORD}: it is not a dengine folder, or its record \
         was deleted. Choose an empty folder, or restore the record"
    )]
    Foreign {
        /// Which folder.
        path: PathBuf,
        /// The first thing found in it.
        found: String,
    },
}

/// Which member of which cluster a folder is. Given once, never changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub cluster_id: ClusterId,
    /// The member.
    pub member_id: MemberId,
}

/// What `folder.toml` holds. Ids are text, because TOML's integers are signed.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    format: u32,
    folder_id: String,
    cluster_id: Option<String>,
    member_id: Option<String>,
}

/// An open data folder, locked until it is dropped.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    folder_id: String,
    identity: Option<Identity>,
    /// Carries the lock.
    _directory: File,
}

impl Folder {
    /// Opens a folder; an empty or missing one is made and draws its id.
    ///
    /// # Errors
    /// The folder is in use, of a newer format, damaged, or not ours.
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        let failed = |what| {
            move |source| FolderError::Io {
                path: path.to_owned(),
                what,
                source,
            }
        };
        make_durably(path).map_err(failed("make it"))?;
        let directory = File::open(path).map_err(failed("open it"))?;
        lock(&directory, path)?;
        let record_path = path.join(RECORD);
        let (folder_id, identity) = match std::fs::read_to_string(&record_path) {
            Ok(text) => parse(path, &text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                refuse_foreign(path)?;
                // An earlier start may have made it, and ended before its name was durable.
                match sync_parent(path) {
                    // Who may not read the folder above has not made this one.
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                    synced => synced.map_err(failed("make its name durable"))?,
                }
                let folder_id = uuid::Uuid::new_v4().to_string();
                write_record(path, &folder_id, None).map_err(failed("write its record"))?;
                (folder_id, None)
            }
            Err(error) => return Err(failed("read its record")(error)),
        };
        Ok(Self {
            path: path.to_owned(),
            folder_id,
            identity,
            _directory: directory,
        })
    }

    /// Drawn at random when the folder was first opened.
    #[must_use]
    pub fn folder_id(&self) -> &str {
        &self.folder_id
    }

    /// Who this folder is, if it was ever told.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        self.identity
    }

    /// Where the log lies.
    #[must_use]
    pub fn log_path(&self) -> PathBuf {
        self.path.join(LOG)
    }

    /// Where the state machine lies.
    #[must_use]
    pub fn state_path(&self) -> PathBuf {
        self.path.join(STATE)
    }

    /// Removes what a bootstrap that was cut short left behind. Only without an identity: before it,
    /// nothing in the folder was ever promised to anybody.
    ///
    /// # Errors
    /// The file system refused.
    ///
    /// # Panics
    /// The folder has an identity.
    pub fn discard_leftovers(&self) -> Result<(), FolderError> {
        assert!(
            self.identity.is_none(),
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

    /// Makes the folder this member's, durably.
    ///
    /// # Errors
    /// The file system refused; the folder has no identity then.
    ///
    /// # Panics
    /// The folder is another member's already.
    pub fn adopt(&mut self, identity: Identity) -> Result<(), FolderError> {
        assert!(
            self.identity.is_none_or(|old| old == identity),
            "an identity is given once"
        );
        write_record(&self.path, &self.folder_id, Some(identity))
            .map_err(|error| self.failed("write its record", error))?;
        self.identity = Some(identity);
        Ok(())
    }

    fn failed(&self, what: &'static str, source: io::Error) -> FolderError {
        FolderError::Io {
            path: self.path.clone(),
            what,
            source,
        }
    }
}

fn lock(directory: &File, path: &Path) -> Result<(), FolderError> {
    use rustix::fs::{FlockOperation, flock};
    flock(directory, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
        rustix::io::Errno::WOULDBLOCK => FolderError::Locked {
            path: path.to_owned(),
        },
        other => FolderError::Io {
            path: path.to_owned(),
            what: "lock it",
            source: other.into(),
        },
    })
}

/// Makes a folder, and those above it that are missing. Their names are durable before anything below them is
/// promised to anybody.
fn make_durably(path: &Path) -> io::Result<()> {
    let missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
    let made: Vec<&Path> = path.ancestors().take_while(missing).collect();
    std::fs::create_dir_all(path)?;
    made.into_iter().try_for_each(sync_parent)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        None => Ok(()),
        Some(parent) if parent.as_os_str().is_empty() => File::open(".")?.sync_all(),
        Some(parent) => File::open(parent)?.sync_all(),
    }
}

/// A volume's own file system may bring a `lost+found`; an interrupted first start, a new record.
fn refuse_foreign(path: &Path) -> Result<(), FolderError> {
    let failed = |source| FolderError::Io {
        path: path.to_owned(),
        what: "list it",
        source,
    };
    for item in std::fs::read_dir(path).map_err(failed)? {
        let name = item.map_err(failed)?.file_name();
        if name != "lost+found" && name != RECORD_NEW {
            return Err(FolderError::Foreign {
                path: path.to_owned(),
                found: name.to_string_lossy().into_owned(),
            });
        }
    }
    Ok(())
}

fn parse(folder: &Path, text: &str) -> Result<(String, Option<Identity>), FolderError> {
    let damaged = |reason: String| FolderError::Damaged {
        path: folder.join(RECORD),
        reason,
    };
    // The version comes first: a newer record may hold fields that this program does not know.
    let table: toml::Table = text.parse().map_err(|e| damaged(format!("{e}")))?;
    let format = table.get("format").and_then(toml::Value::as_integer);
    let format = format.ok_or_else(|| damaged("it has no format".to_owned()))?;
    if format > i64::from(FORMAT) {
        return Err(FolderError::Newer {
            path: folder.to_owned(),
            found: u32::try_from(format).unwrap_or(u32::MAX),
        });
    }
    let record: Record = table.try_into().map_err(|e| damaged(format!("{e}")))?;
    let id = |what: &str, text: &str| match text.parse::<u64>() {
        Ok(id) if id > 0 => Ok(id),
        _ => Err(damaged(format!("{what} {text:?} is not a positive number"))),
    };
    let identity = match (&record.cluster_id, &record.member_id) {
        (None, None) => None,
        (Some(cluster), Some(member)) => Some(Identity {
            cluster_id: ClusterId(id("cluster_id", cluster)?),
            member_id: MemberId(id("member_id", member)?),
        }),
        _ => return Err(damaged("it has half an identity".to_owned())),
    };
    if record.folder_id.is_empty() {
        return Err(damaged("folder_id is empty".to_owned()));
    }
    Ok((record.folder_id, identity))
}

/// Replaces the record as a whole: a crash leaves the old one or the new one.
fn write_record(folder: &Path, folder_id: &str, identity: Option<Identity>) -> io::Result<()> {
    let record = Record {
        format: FORMAT,
        folder_id: folder_id.to_owned(),
        cluster_id: identity.map(|i| i.cluster_id.to_string()),
        member_id: identity.map(|i| i.member_id.to_string()),
    };
    let text = toml::to_string(&record).map_err(io::Error::other)?;
    let remark = "# Who this data folder is. Never edit or copy it: two members with one identity lose data.";
    write_file(folder, RECORD, &format!("{remark}\n{text}"))
}

/// Replaces a small file of the folder as a whole, durably.
fn write_file(folder: &Path, name: &str, text: &str) -> io::Result<()> {
    let new = folder.join(format!("{name}.new"));
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, folder.join(name))?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity = Identity {
        cluster_id: ClusterId(u64::MAX),
        member_id: MemberId(7),
    };

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn refusal(path: &Path) -> String {
        Folder::open(path).unwrap_err().to_string()
    }

    #[test]
    fn an_identity_survives_and_the_folder_id_stays() {
        let dir = folder();
        let mut first = Folder::open(dir.path()).unwrap();
        let id = first.folder_id().to_owned();
        assert_eq!(first.identity(), None);
        first.adopt(IDENTITY).unwrap();
        drop(first);
        let again = Folder::open(dir.path()).unwrap();
        assert_eq!(
            (again.folder_id(), again.identity()),
            (id.as_str(), Some(IDENTITY))
        );
    }

    #[test]
    fn a_wiped_folder_is_another_one() {
        let dir = folder();
        let id = Folder::open(dir.path()).unwrap().folder_id().to_owned();
        std::fs::remove_file(dir.path().join(RECORD)).unwrap();
        assert_ne!(Folder::open(dir.path()).unwrap().folder_id(), id);
    }

    #[test]
    fn two_processes_never_share_a_folder() {
        let dir = folder();
        let _open = Folder::open(dir.path()).unwrap();
        assert!(refusal(dir.path()).contains("in use by another process"));
    }

    #[test]
    fn foreign_newer_and_damaged_folders_are_refused_and_unchanged() {
        let dir = folder();
        std::fs::write(dir.path().join("letters.txt"), "dear").unwrap();
        assert!(refusal(dir.path()).contains("letters.txt but no folder.toml"));
        std::fs::remove_file(dir.path().join("letters.txt")).unwrap();
        let record = dir.path().join(RECORD);
        for (text, expected) in [
            (
                "format = 2\nfolder_id = 'x'\nnew = 1\n",
                "reads up to 1: run the newer dengine",
            ),
            ("folder_id = 'x'\n", "it has no format"),
            ("format = 1\n", "folder_id"),
            (
                "format = 1\nfolder_id = 'x'\nmember_id = '3'\n",
                "half an identity",
            ),
            (
                "format = 1\nfolder_id = 'x'\nmember_id = '0'\ncluster_id = '1'\n",
                "not a positive number",
            ),
            ("form", "damaged"),
        ] {
            std::fs::write(&record, text).unwrap();
            let message = refusal(dir.path());
            assert!(message.contains(expected), "{text:?}: {message}");
            assert_eq!(std::fs::read_to_string(&record).unwrap(), text);
        }
    }
}
