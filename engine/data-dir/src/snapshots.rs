//! Where snapshots are in a data directory, and how one becomes the state.
//!
//! ```text
//! snapshot/incoming/      a snapshot that `dengine_snapshot::Staging` receives; at most one
//! snapshot/outgoing/N/    a checkpoint that is being sent; at most one, removed at startup
//! state.old/              the state that a snapshot has replaced, until it is removed
//! ```
//! `dengine_snapshot` decides what is moved, and when.

use std::io;
use std::path::{Path, PathBuf};

use dengine_log::durable::sync_dir;
use dengine_log::{DiskError, RealDisk};
use dengine_snapshot as snapshot;
use dengine_snapshot::{MemberDirs, RESERVED, SnapshotError, Staging};
use dengine_types::ClusterId;

use super::{DataDir, DataDirError};

const SNAPSHOT: &str = "snapshot";
const INCOMING: &str = "incoming";
const OUTGOING: &str = "outgoing";
const STATE_OLD: &str = "state.old";

/// The paths of a member's snapshots.
#[derive(Clone, Debug)]
pub struct SnapshotPaths {
    dir: PathBuf,
    state: PathBuf,
}

impl DataDir {
    pub fn snapshot_paths(&self) -> SnapshotPaths {
        SnapshotPaths {
            dir: self.path.clone(),
            state: self.state_path(),
        }
    }
}

impl SnapshotPaths {
    /// The directory of a snapshot that is being received.
    pub fn incoming(&self) -> PathBuf {
        self.dir.join(SNAPSHOT).join(INCOMING)
    }

    fn path(&self, dir: snapshot::MemberDir) -> PathBuf {
        match dir {
            snapshot::MemberDir::State => self.state.clone(),
            snapshot::MemberDir::StateOld => self.dir.join(STATE_OLD),
            snapshot::MemberDir::Incoming => self.incoming(),
        }
    }

    /// The directory of the checkpoint `name` that is being sent.
    pub fn outgoing(&self, name: &str) -> PathBuf {
        self.dir.join(SNAPSHOT).join(OUTGOING).join(name)
    }

    /// Everything of snapshots, to be removed with an abandoned bootstrap.
    pub(super) fn all(&self) -> [PathBuf; 2] {
        [self.dir.join(SNAPSHOT), self.dir.join(STATE_OLD)]
    }

    /// Creates the directories, and removes what a restart leaves unused. Nothing may have them
    /// open.
    pub fn prepare(&self) -> Result<(), DataDirError> {
        let outgoing = self.dir.join(SNAPSHOT).join(OUTGOING);
        let prepare = || {
            remove_folder(&outgoing)?;
            std::fs::create_dir_all(&outgoing)?;
            sync_dir(&self.dir.join(SNAPSHOT))?;
            sync_dir(&self.dir)
        };
        prepare().map_err(|error| self.failed("prepare it for snapshots", error))
    }

    /// Opens what is staged.
    pub fn open_staging(
        &self,
        cluster: ClusterId,
        bytes_max: u64,
    ) -> Result<Staging<RealDisk>, SnapshotError> {
        Staging::open(RealDisk::open(self.incoming())?, cluster, bytes_max)
    }

    fn failed(&self, what: &'static str, source: io::Error) -> DataDirError {
        DataDirError::Io {
            path: self.dir.clone(),
            what,
            source,
        }
    }
}

impl MemberDirs for SnapshotPaths {
    type Disk = RealDisk;

    fn incoming(&self) -> Result<RealDisk, DiskError> {
        RealDisk::open(self.path(snapshot::MemberDir::Incoming))
    }

    fn rename(&self, from: snapshot::MemberDir, to: snapshot::MemberDir) -> Result<(), DiskError> {
        let from = self.path(from);
        match std::fs::rename(&from, self.path(to)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done.map_err(|error| DiskError::new("rename", &from, error)),
        }
    }

    fn remove(&self, dir: snapshot::MemberDir) -> Result<(), DiskError> {
        let path = self.path(dir);
        remove_folder(&path).map_err(|error| DiskError::new("remove", &path, error))
    }

    fn remove_markers(&self) -> Result<(), DiskError> {
        remove_markers(&self.state)
            .map_err(|error| DiskError::new("remove markers from", &self.state, error))
    }

    fn sync(&self) -> Result<(), DiskError> {
        for path in [&self.dir, &self.dir.join(SNAPSHOT)] {
            sync_dir(path).map_err(|error| DiskError::new("sync directory", path, error))?;
        }
        Ok(())
    }
}

fn remove_markers(state: &Path) -> io::Result<()> {
    let items = match std::fs::read_dir(state) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        items => items?,
    };
    for item in items {
        let item = item?;
        if item.file_name().to_string_lossy().starts_with(RESERVED) {
            std::fs::remove_file(item.path())?;
        }
    }
    Ok(())
}

fn remove_folder(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use dengine_log::Position;
    use dengine_snapshot::{Chunk, FileEntry, Manifest, Place, SnapshotId, open_state};
    use dengine_types::{Index, Term};

    use super::*;

    const CLUSTER: ClusterId = ClusterId(3);
    const BASE: Position = Position {
        index: Index(20),
        term: Term(2),
    };

    /// A data directory with a state and a complete staged snapshot.
    fn staged() -> (tempfile::TempDir, SnapshotPaths) {
        let dir = tempfile::tempdir().unwrap();
        let paths = DataDir::open(dir.path()).unwrap().snapshot_paths();
        paths.prepare().unwrap();
        std::fs::create_dir(dir.path().join("state")).unwrap();
        std::fs::write(dir.path().join("state/content"), "old").unwrap();
        let entry = FileEntry {
            name: "content".to_owned(),
            bytes: 3,
            crc: Chunk::new(Place::default(), Bytes::from_static(b"new")).crc,
        };
        let manifest = Manifest::new(CLUSTER, SnapshotId(1), BASE, vec![entry]).unwrap();
        let mut staging = paths.open_staging(CLUSTER, 3).unwrap();
        staging.begin(manifest).unwrap();
        let chunk = Chunk::new(Place::default(), Bytes::from_static(b"new"));
        staging.receive(&chunk).unwrap();
        staging.finish(|_| Ok(BASE)).unwrap();
        (dir, paths)
    }

    fn listed(path: &Path) -> Vec<String> {
        let items = std::fs::read_dir(path).unwrap();
        let name = |item: io::Result<std::fs::DirEntry>| item.unwrap().file_name();
        let mut names: Vec<_> = items.map(|i| name(i).into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Opens the state as a member whose log begins at `base` does; returns its content.
    fn open(paths: &SnapshotPaths, base: Position) -> Result<String, SnapshotError> {
        let content = paths.state.join("content");
        let open = || {
            std::fs::create_dir_all(&paths.state).unwrap();
            let text = std::fs::read_to_string(&content).unwrap_or_default();
            let applied = match &*text {
                "" => Index(0),
                "old" => Index(10),
                _ => BASE.index,
            };
            Ok((text, applied))
        };
        paths.prepare().unwrap();
        open_state(paths, CLUSTER, base, open).map(|(text, _)| text)
    }

    fn check_installed(dir: &Path, paths: &SnapshotPaths) {
        assert_eq!(open(paths, BASE).unwrap(), "new");
        assert_eq!(listed(&dir.join("state")), ["content"]);
        // The next start has nothing left to do.
        assert_eq!(open(paths, BASE).unwrap(), "new");
        assert_eq!(listed(dir), ["folder.toml", "snapshot", "state"]);
        assert_eq!(listed(&paths.incoming()), Vec::<String>::new());
    }

    #[test]
    fn a_committed_snapshot_becomes_the_state() {
        let (dir, paths) = staged();
        assert_eq!(open(&paths, Position::default()).unwrap(), "old");
        check_installed(dir.path(), &paths);
    }

    #[test]
    fn an_interrupted_installation_is_finished() {
        let cuts: [fn(&Path); 5] = [
            // The state was moved away.
            |dir| std::fs::rename(dir.join("state"), dir.join("state.old")).unwrap(),
            // And an empty one was created by an open of the store.
            |dir| {
                std::fs::rename(dir.join("state"), dir.join("state.old")).unwrap();
                std::fs::create_dir(dir.join("state")).unwrap();
            },
            // The snapshot was moved, and nothing after that.
            |dir| {
                std::fs::rename(dir.join("state"), dir.join("state.old")).unwrap();
                std::fs::rename(dir.join("snapshot/incoming"), dir.join("state")).unwrap();
            },
            // The state before the last one was not removed yet.
            |dir| std::fs::create_dir(dir.join("state.old")).unwrap(),
            // A checkpoint was being made.
            |dir| std::fs::create_dir(dir.join("snapshot/outgoing/1.tmp")).unwrap(),
        ];
        for cut in cuts {
            let (dir, paths) = staged();
            cut(dir.path());
            check_installed(dir.path(), &paths);
        }
    }

    #[test]
    fn an_overtaken_snapshot_is_discarded_and_a_missing_one_refused() {
        let (dir, paths) = staged();
        let ahead = Position {
            index: Index(21),
            ..BASE
        };
        let error = open(&paths, ahead).unwrap_err();
        assert!(error.to_string().contains("must not take part"), "{error}");
        std::fs::write(dir.path().join("state/content"), "overtaken").unwrap();
        assert_eq!(open(&paths, BASE).unwrap(), "overtaken");
        assert_eq!(listed(&paths.incoming()), Vec::<String>::new());
    }
}
