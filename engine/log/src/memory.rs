//! A directory in memory that loses unsynced data and fails on demand, as disks do.
//!
//! It tracks what was synced: [`MemoryDisk::power_loss`] keeps any part of the rest, sector by
//! sector, that its caller chooses. A failed sync behaves as on Linux: the pages count as clean
//! afterwards, reads return the new bytes until [`MemoryDisk::evict`], and the next sync succeeds
//! without them.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dengine_types::sync::{Mutex, MutexGuard};

use super::disk::{Disk, DiskError, DiskFile};

/// The unit that a disk writes atomically.
pub const SECTOR_BYTES: usize = 512;

/// A directory in memory. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct MemoryDisk {
    state: Arc<Mutex<DiskState>>,
}

/// A file in a [`MemoryDisk`]. It cannot be used after a power loss.
#[derive(Debug)]
pub struct MemoryFile {
    disk: MemoryDisk,
    content: Arc<Mutex<Content>>,
    name: String,
    boot: u64,
}

type Names = BTreeMap<String, Arc<Mutex<Content>>>;

#[derive(Debug, Default)]
struct DiskState {
    names: Names,
    names_durable: Names,
    /// The changes that lead from `names_durable` to `names`.
    changes: Vec<Change>,
    /// Counts power losses.
    boot: u64,
    space_bytes: Option<u64>,
    cannot_reserve: bool,
    failing_sync: Countdown,
    failing_write: Countdown,
    failing_read: Countdown,
    counts: Counts,
}

/// How many calls of each kind the disk has received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub writes: u64,
    pub syncs: u64,
    pub dir_syncs: u64,
}

#[derive(Debug)]
enum Change {
    Create(String, Arc<Mutex<Content>>),
    Rename(String, String),
    Remove(String),
}

#[derive(Debug, Default)]
struct Content {
    current: Vec<u8>,
    durable: Vec<u8>,
    dirty: Vec<Range<usize>>,
    /// A sync failed: more than the dirty sectors is not durable.
    unwritten: bool,
    /// The last bytes of the file, which take no space yet.
    hole: usize,
}

/// Fires once, after some calls.
#[derive(Debug, Default)]
struct Countdown(Option<u64>);

impl Countdown {
    fn fires(&mut self) -> bool {
        self.0 = match self.0 {
            Some(0) => {
                self.0 = None;
                return true;
            }
            left => left.map(|left| left - 1),
        };
        false
    }
}

impl MemoryDisk {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Cuts the power. For every change of a name since the last `sync_dir`, in order until the
    /// first refusal, and for every sector written since its file's last sync, `keep` decides
    /// whether it reached the disk. Files that were open fail from now on.
    pub fn power_loss(&self, mut keep: impl FnMut() -> bool) {
        let mut state = self.lock();
        let state = &mut *state;
        state.boot += 1;
        for change in state.changes.drain(..) {
            if !keep() {
                break;
            }
            change.apply(&mut state.names_durable);
        }
        state.names = state.names_durable.clone();
        for content in state.names.values() {
            let mut content = lock(content);
            content.write_back(&mut keep);
            content.current = content.durable.clone();
            content.dirty.clear();
            content.unwritten = false;
        }
    }

    /// Writes any part of what is not yet synced, as the operating system does on its own. It may
    /// be overwritten later, so that a power loss leaves the older of two versions of a sector.
    pub fn background_write(&self, mut keep: impl FnMut() -> bool) {
        for content in self.lock().names.values() {
            lock(content).write_back(&mut keep);
        }
    }

    /// Evicts the pages that a failed sync left unwritten, as the operating system does when it
    /// needs memory: they are read from the disk from now on.
    pub fn evict(&self) {
        for content in self.lock().names.values() {
            lock(content).evict();
        }
    }

    /// Whether the sync of a file has failed, and its pages were not evicted since.
    #[must_use]
    pub fn has_unwritten(&self) -> bool {
        let state = self.lock();
        state.names.values().any(|content| lock(content).unwritten)
    }

    /// Limits the size of all files together; `None` for no limit.
    pub fn set_space_bytes(&self, space_bytes: Option<u64>) {
        self.lock().space_bytes = space_bytes;
    }

    /// Limits the space to `bytes` beyond what is taken now.
    pub fn leave_space(&self, bytes: u64) {
        let mut state = self.lock();
        state.space_bytes = Some(state.used() + bytes);
    }

    /// Allocates no space in advance from now on, as some file systems: a reserved file takes its
    /// space as it is written.
    pub fn cannot_reserve(&self) {
        self.lock().cannot_reserve = true;
    }

    /// Has one `sync_data` or `sync_dir` fail, after `calls` successful ones.
    pub fn fail_sync_after(&self, calls: u64) {
        self.lock().failing_sync = Countdown(Some(calls));
    }

    /// Has one `write_at` fail halfway, after `calls` successful ones.
    pub fn fail_write_after(&self, calls: u64) {
        self.lock().failing_write = Countdown(Some(calls));
    }

    /// Has one `read_at` fail, after `calls` successful ones.
    pub fn fail_read_after(&self, calls: u64) {
        self.lock().failing_read = Countdown(Some(calls));
    }

    /// Flips one bit of a file, also where it is durable.
    ///
    /// # Panics
    /// If the file has no such byte.
    pub fn flip_bit(&self, name: &str, byte: usize, bit: u8) {
        self.edit(name, |bytes| bytes[byte] ^= 1 << bit);
    }

    /// Changes a file without its users, also where it is durable.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn edit(&self, name: &str, edit: impl Fn(&mut Vec<u8>)) {
        let state = self.lock();
        let mut content = lock(state.names.get(name).expect("the file to edit exists"));
        edit(&mut content.current);
        edit(&mut content.durable);
    }

    /// The bytes of a file as a reader gets them.
    ///
    /// # Panics
    /// If there is no such file.
    #[must_use]
    pub fn contents(&self, name: &str) -> Vec<u8> {
        lock(
            self.lock()
                .names
                .get(name)
                .expect("the file to read exists"),
        )
        .current
        .clone()
    }

    /// An independent directory with the same bytes, all of them durable.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        let copy = Self::new();
        for (name, content) in &self.lock().names {
            let current = lock(content).current.clone();
            let content = Content {
                durable: current.clone(),
                current,
                ..Content::default()
            };
            copy.lock()
                .names
                .insert(name.clone(), Arc::new(Mutex::new(content)));
        }
        let names = copy.lock().names.clone();
        copy.lock().names_durable = names;
        copy
    }

    /// How many calls the disk has received so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    fn lock(&self) -> MutexGuard<'_, DiskState> {
        lock(&self.state)
    }

    fn file(&self, state: &DiskState, name: &str, content: &Arc<Mutex<Content>>) -> MemoryFile {
        MemoryFile {
            disk: self.clone(),
            content: Arc::clone(content),
            name: name.to_owned(),
            boot: state.boot,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .expect("nothing panics while it holds this lock")
}

fn fail(operation: &'static str, name: &str, kind: io::ErrorKind) -> DiskError {
    DiskError::new(operation, Path::new(name), kind.into())
}

impl Change {
    fn apply(self, names: &mut Names) {
        match self {
            Self::Create(name, content) => {
                names.insert(name, content);
            }
            Self::Rename(from, to) => {
                let content = names.remove(&from).expect("changes apply in order");
                names.insert(to, content);
            }
            Self::Remove(name) => {
                names.remove(&name);
            }
        }
    }
}

impl Content {
    fn space(&self) -> u64 {
        self.current.len().saturating_sub(self.hole) as u64
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.current.len() < end {
            self.current.resize(end, 0);
        }
        self.current[offset..end].copy_from_slice(bytes);
        self.hole = self.hole.min(self.current.len() - end);
        match self.dirty.last_mut() {
            Some(last) if last.end == offset => last.end = end,
            _ => self.dirty.push(offset..end),
        }
    }

    fn sync(&mut self) {
        self.durable.resize(self.current.len(), 0);
        for dirty in self.dirty.drain(..) {
            let dirty = dirty.start..dirty.end.min(self.current.len());
            if !dirty.is_empty() {
                self.durable[dirty.clone()].copy_from_slice(&self.current[dirty]);
            }
        }
    }

    /// The length stays, because the system keeps it apart from the pages.
    fn evict(&mut self) {
        if !std::mem::take(&mut self.unwritten) {
            return;
        }
        let mut left = self.durable.clone();
        left.resize(self.current.len(), 0);
        for dirty in &self.dirty {
            let dirty = dirty.start..dirty.end.min(left.len());
            if !dirty.is_empty() {
                left[dirty.clone()].copy_from_slice(&self.current[dirty]);
            }
        }
        self.current = left;
    }

    /// Writes some unsynced sectors to the durable content.
    fn write_back(&mut self, keep: &mut impl FnMut() -> bool) {
        if self.durable.len() != self.current.len() && keep() {
            self.durable.resize(self.current.len(), 0);
        }
        for dirty in &self.dirty {
            for sector in dirty.start / SECTOR_BYTES..dirty.end.div_ceil(SECTOR_BYTES) {
                let start = (sector * SECTOR_BYTES).max(dirty.start);
                let end = ((sector + 1) * SECTOR_BYTES).min(dirty.end);
                if keep() && end <= self.durable.len().min(self.current.len()) {
                    self.durable[start..end].copy_from_slice(&self.current[start..end]);
                }
            }
        }
    }
}

impl DiskState {
    fn used(&self) -> u64 {
        let contents = self.names.values();
        contents.map(|content| lock(content).space()).sum()
    }

    fn check_space(&self, operation: &'static str, name: &str, more: u64) -> Result<(), DiskError> {
        match self.space_bytes {
            Some(space) if self.used() + more > space => {
                Err(fail(operation, name, io::ErrorKind::StorageFull))
            }
            _ => Ok(()),
        }
    }
}

impl Disk for MemoryDisk {
    type File = MemoryFile;

    fn list(&self) -> Result<Vec<String>, DiskError> {
        Ok(self.lock().names.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> Result<MemoryFile, DiskError> {
        let mut state = self.lock();
        if state.names.contains_key(name) {
            return Err(fail("create", name, io::ErrorKind::AlreadyExists));
        }
        let content = Arc::new(Mutex::new(Content::default()));
        state.names.insert(name.to_owned(), Arc::clone(&content));
        state
            .changes
            .push(Change::Create(name.to_owned(), Arc::clone(&content)));
        Ok(self.file(&state, name, &content))
    }

    fn open(&self, name: &str) -> Result<MemoryFile, DiskError> {
        let state = self.lock();
        match state.names.get(name) {
            Some(content) => Ok(self.file(&state, name, content)),
            None => Err(fail("open", name, io::ErrorKind::NotFound)),
        }
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        let mut state = self.lock();
        let Some(content) = state.names.remove(from) else {
            return Err(fail("rename", from, io::ErrorKind::NotFound));
        };
        state.names.insert(to.to_owned(), content);
        state
            .changes
            .push(Change::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        let mut state = self.lock();
        if state.names.remove(name).is_none() {
            return Err(fail("remove", name, io::ErrorKind::NotFound));
        }
        state.changes.push(Change::Remove(name.to_owned()));
        Ok(())
    }

    fn sync_dir(&self) -> Result<(), DiskError> {
        let mut state = self.lock();
        state.counts.dir_syncs += 1;
        if state.failing_sync.fires() {
            return Err(fail("sync directory", ".", io::ErrorKind::Other));
        }
        state.changes.clear();
        state.names_durable = state.names.clone();
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(name)
    }
}

impl MemoryFile {
    /// Locks the disk and the content of this file; fails if the power was cut since it was opened.
    fn lock(
        &self,
        operation: &'static str,
    ) -> Result<(MutexGuard<'_, DiskState>, MutexGuard<'_, Content>), DiskError> {
        let state = self.disk.lock();
        if state.boot == self.boot {
            Ok((state, lock(&self.content)))
        } else {
            Err(fail(operation, &self.name, io::ErrorKind::BrokenPipe))
        }
    }

    fn check_space(&self, operation: &'static str, bytes: u64) -> Result<(), DiskError> {
        let more = bytes.saturating_sub(lock(&self.content).space());
        self.disk.lock().check_space(operation, &self.name, more)
    }
}

impl DiskFile for MemoryFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        let (mut state, content) = self.lock("read")?;
        if state.failing_read.fires() {
            return Err(fail("read", &self.name, io::ErrorKind::Other));
        }
        let offset = to_usize(offset).min(content.current.len());
        let bytes = &content.current[offset..];
        let read = bytes.len().min(buffer.len());
        buffer[..read].copy_from_slice(&bytes[..read]);
        Ok(read)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.check_space("write", offset + bytes.len() as u64)?;
        let (mut state, mut content) = self.lock("write")?;
        state.counts.writes += 1;
        if state.failing_write.fires() {
            content.write(to_usize(offset), &bytes[..bytes.len() / 2]);
            return Err(fail("write", &self.name, io::ErrorKind::Other));
        }
        content.write(to_usize(offset), bytes);
        Ok(())
    }

    fn sync_data(&self) -> Result<(), DiskError> {
        let (mut state, mut content) = self.lock("sync")?;
        state.counts.syncs += 1;
        if state.failing_sync.fires() {
            content.dirty.clear();
            content.unwritten = true;
            return Err(fail("sync", &self.name, io::ErrorKind::Other));
        }
        content.sync();
        Ok(())
    }

    fn reserve(&self, bytes: u64, leave: u64) -> Result<(), DiskError> {
        let sets_aside = !self.disk.lock().cannot_reserve;
        if sets_aside {
            self.check_space("reserve space for", bytes.saturating_add(leave))?;
        }
        let (_state, mut content) = self.lock("reserve space for")?;
        content.write(0, &vec![0; to_usize(bytes)]);
        if !sets_aside {
            content.hole = to_usize(bytes);
        }
        Ok(())
    }

    fn len(&self) -> Result<u64, DiskError> {
        Ok(self.lock("measure")?.1.current.len() as u64)
    }

    fn truncate(&self, bytes: u64) -> Result<(), DiskError> {
        self.check_space("truncate", bytes)?;
        self.lock("truncate")?.1.current.resize(to_usize(bytes), 0);
        Ok(())
    }
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a file in memory fits into memory")
}
