//! A disk that dies at a chosen operation, over the one in memory that knows what was synced.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use dengine_log::memory::{MemoryDisk, MemoryFile};
use dengine_log::{Disk, DiskError, DiskFile};

/// How often the disk was asked to change something.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) writes: u64,
    pub(crate) syncs: u64,
    pub(crate) dir_syncs: u64,
    /// Making, naming, removing, sizing.
    pub(crate) others: u64,
}

impl Counts {
    pub(crate) fn all(self) -> u64 {
        self.writes + self.syncs + self.dir_syncs + self.others
    }
}

/// Clones are the same disk.
#[derive(Clone, Debug)]
pub(crate) struct CutDisk {
    pub(crate) memory: MemoryDisk,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    counts: Counts,
    /// The first operation that is not done any more.
    cut: u64,
    /// Half of that one is done if it is a write.
    torn: bool,
}

/// What an operation may still do.
enum Left {
    All,
    Half,
}

impl CutDisk {
    /// A disk that dies before its operation `cut`, or in the middle of it.
    pub(crate) fn new(cut: u64, torn: bool) -> Self {
        let state = State {
            counts: Counts::default(),
            cut,
            torn,
        };
        Self {
            memory: MemoryDisk::new(),
            state: Arc::new(Mutex::new(state)),
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.state.lock().unwrap().counts
    }

    /// Whether it is dead.
    pub(crate) fn is_cut(&self) -> bool {
        let state = self.state.lock().unwrap();
        state.counts.all() > state.cut
    }

    fn operation(&self, count: impl FnOnce(&mut Counts)) -> Result<Left, DiskError> {
        let mut state = self.state.lock().unwrap();
        let nth = state.counts.all();
        count(&mut state.counts);
        match nth.cmp(&state.cut) {
            std::cmp::Ordering::Less => Ok(Left::All),
            std::cmp::Ordering::Equal if state.torn => Ok(Left::Half),
            _ => Err(dead()),
        }
    }

    /// For operations that are done or not.
    fn whole(&self, count: impl FnOnce(&mut Counts)) -> Result<(), DiskError> {
        match self.operation(count)? {
            Left::All => Ok(()),
            Left::Half => Err(dead()),
        }
    }

    fn file(&self, file: MemoryFile) -> CutFile {
        CutFile {
            file,
            disk: self.clone(),
        }
    }
}

fn dead() -> DiskError {
    let gone = io::Error::from(io::ErrorKind::BrokenPipe);
    DiskError::new("use", Path::new("a disk that is cut off"), gone)
}

impl Disk for CutDisk {
    type File = CutFile;

    fn list(&self) -> Result<Vec<String>, DiskError> {
        self.memory.list()
    }

    fn create(&self, name: &str) -> Result<CutFile, DiskError> {
        self.whole(|counts| counts.others += 1)?;
        Ok(self.file(self.memory.create(name)?))
    }

    fn open(&self, name: &str) -> Result<CutFile, DiskError> {
        Ok(self.file(self.memory.open(name)?))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.whole(|counts| counts.others += 1)?;
        self.memory.rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        self.whole(|counts| counts.others += 1)?;
        self.memory.remove(name)
    }

    fn sync_dir(&self) -> Result<(), DiskError> {
        self.whole(|counts| counts.dir_syncs += 1)?;
        self.memory.sync_dir()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.memory.path(name)
    }
}

/// A file on a [`CutDisk`].
#[derive(Debug)]
pub(crate) struct CutFile {
    file: MemoryFile,
    disk: CutDisk,
}

impl DiskFile for CutFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        self.file.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        match self.disk.operation(|counts| counts.writes += 1)? {
            Left::All => self.file.write_at(offset, bytes),
            Left::Half => {
                self.file.write_at(offset, &bytes[..bytes.len() / 2])?;
                Err(dead())
            }
        }
    }

    fn sync_data(&self) -> Result<(), DiskError> {
        self.disk.whole(|counts| counts.syncs += 1)?;
        self.file.sync_data()
    }

    fn reserve(&self, bytes: u64, leave: u64) -> Result<(), DiskError> {
        self.disk.whole(|counts| counts.others += 1)?;
        self.file.reserve(bytes, leave)
    }

    fn len(&self) -> Result<u64, DiskError> {
        self.file.len()
    }

    fn truncate(&self, bytes: u64) -> Result<(), DiskError> {
        self.disk.whole(|counts| counts.others += 1)?;
        self.file.truncate(bytes)
    }
}
