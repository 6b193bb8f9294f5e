//! The folders of a machine, as far as an installation moves them. A rename is durable only once
//! all were synced, what is removed is gone at once, and the process may end between any two steps.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use dengine_kv::StoreError;
use dengine_log::memory::MemoryDisk;
use dengine_log::{Disk, DiskError};
use dengine_snapshot::{Checkpoint, MemberDir, MemberDirs, RESERVED};

use super::random::Random;
use super::store::SimStore;

#[derive(Default)]
pub(super) struct SimFolders(RefCell<Inner>);

#[derive(Default)]
struct Inner {
    names: Names,
    names_durable: Names,
    /// Since the last sync, in order.
    changes: Vec<Change>,
    contents: Vec<Content>,
    /// After so many steps the process ends.
    steps_left: Option<u32>,
    /// It did.
    cut_short: bool,
}

/// The place of each folder's content.
type Names = BTreeMap<MemberDir, usize>;

#[derive(Clone, Copy)]
enum Change {
    Make(MemberDir, usize),
    Rename(MemberDir, MemberDir),
    Remove(MemberDir),
}

enum Content {
    Store(SimStore),
    /// A snapshot: whole, or on its way.
    Files(MemoryDisk),
    /// What is left of something that was removed.
    Rest,
}

impl Change {
    fn apply(self, names: &mut Names) {
        match self {
            Self::Make(folder, content) => {
                names.insert(folder, content);
            }
            Self::Rename(from, to) => {
                if let Some(content) = names.remove(&from) {
                    names.insert(to, content);
                }
            }
            Self::Remove(folder) => {
                names.remove(&folder);
            }
        }
    }
}

impl Inner {
    fn change(&mut self, change: Change) {
        change.apply(&mut self.names);
        self.changes.push(change);
    }

    fn make(&mut self, folder: MemberDir, content: Content) {
        self.contents.push(content);
        self.change(Change::Make(folder, self.contents.len() - 1));
    }

    fn content(&mut self, folder: MemberDir) -> Option<&mut Content> {
        let at = *self.names.get(&folder)?;
        self.contents.get_mut(at)
    }

    fn sync(&mut self) {
        self.changes.clear();
        self.names_durable = self.names.clone();
    }

    /// One more step of an installation, if the process lives so long.
    fn step(&mut self, what: &'static str) -> Result<(), DiskError> {
        match &mut self.steps_left {
            Some(0) => {
                self.cut_short = true;
                Err(failed(what))
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

fn failed(what: &'static str) -> DiskError {
    DiskError::new(what, Path::new("."), std::io::ErrorKind::Interrupted.into())
}

impl SimFolders {
    /// The state, made again if there is none. Like RocksDB's shell, this makes all renames so far
    /// durable.
    pub(super) fn open_store(&self) -> Result<SimStore, StoreError> {
        let mut inner = self.0.borrow_mut();
        let store = match inner.content(MemberDir::State) {
            Some(Content::Store(store)) => store.clone(),
            Some(Content::Files(files)) => SimStore::open_checkpoint(files)?,
            Some(Content::Rest) => {
                return Err(StoreError::Corrupt("most of it is gone".to_owned()));
            }
            None => SimStore::default(),
        };
        let content = Content::Store(store.clone());
        match inner.content(MemberDir::State) {
            Some(before) => *before = content,
            None => inner.make(MemberDir::State, content),
        }
        inner.sync();
        Ok(store)
    }

    /// Lets the next flush of the state fail.
    pub(super) fn fail_flush(&self) {
        if let Some(Content::Store(store)) = self.0.borrow_mut().content(MemberDir::State) {
            store.fail_flush();
        }
    }

    /// Whether something is staged, or was.
    pub(super) fn has_staged(&self) -> bool {
        match self.0.borrow_mut().content(MemberDir::Incoming) {
            Some(Content::Files(files)) => files.list().is_ok_and(|names| !names.is_empty()),
            _ => false,
        }
    }

    /// Ends the process after so many more steps; `None`: not at all.
    pub(super) fn end_after(&self, steps: Option<u32>) {
        let mut inner = self.0.borrow_mut();
        inner.steps_left = steps;
        inner.cut_short = false;
    }

    /// Whether an installation was cut short by that.
    pub(super) fn was_cut_short(&self) -> bool {
        self.0.borrow().cut_short
    }

    /// The process ends: its store forgets what it did not flush.
    pub(super) fn kill(&self, random: &mut Random) {
        let mut inner = self.0.borrow_mut();
        inner.steps_left = None;
        if let Some(Content::Store(store)) = inner.content(MemberDir::State) {
            *store = store.reopen(random);
        }
    }

    /// The machine loses its power: renames that were not synced are forgotten, from some point on.
    /// What becomes of the files in the folders has nothing to do with that.
    pub(super) fn lose_power(&self, random: &mut Random) {
        let mut inner = self.0.borrow_mut();
        let inner = &mut *inner;
        let mut kept = || [0, 500_000, 1_000_000][random.below(3) as usize];
        let (renames, files) = (kept(), kept());
        for change in inner.changes.drain(..) {
            if !random.chance(renames) {
                break;
            }
            change.apply(&mut inner.names_durable);
        }
        inner.names = inner.names_durable.clone();
        for content in &inner.contents {
            if let Content::Files(disk) = content {
                disk.power_loss(|| random.chance(files));
            }
        }
    }
}

impl MemberDirs for SimFolders {
    type Disk = MemoryDisk;

    fn incoming(&self) -> Result<MemoryDisk, DiskError> {
        let mut inner = self.0.borrow_mut();
        if let Some(Content::Files(files)) = inner.content(MemberDir::Incoming) {
            return Ok(files.clone());
        }
        let files = MemoryDisk::new();
        inner.make(MemberDir::Incoming, Content::Files(files.clone()));
        inner.sync();
        Ok(files)
    }

    fn rename(&self, from: MemberDir, to: MemberDir) -> Result<(), DiskError> {
        let mut inner = self.0.borrow_mut();
        inner.step("rename")?;
        if inner.names.contains_key(&from) {
            assert!(!inner.names.contains_key(&to), "{to:?} is not there yet");
            inner.change(Change::Rename(from, to));
        }
        Ok(())
    }

    fn remove(&self, folder: MemberDir) -> Result<(), DiskError> {
        let mut inner = self.0.borrow_mut();
        if let Some(content) = inner.content(folder) {
            // Whatever comes of its name, its files are gone from here on.
            *content = Content::Rest;
            inner.step("remove")?;
            inner.change(Change::Remove(folder));
        }
        Ok(())
    }

    fn remove_markers(&self) -> Result<(), DiskError> {
        let mut inner = self.0.borrow_mut();
        if let Some(Content::Files(files)) = inner.content(MemberDir::State) {
            let files = files.clone();
            for name in files.list()? {
                if name.starts_with(RESERVED) {
                    inner.step("remove")?;
                    files.remove(&name)?;
                }
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), DiskError> {
        let mut inner = self.0.borrow_mut();
        inner.step("sync")?;
        inner.sync();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use dengine_kv::store::{Store as _, WriteBatch};
    use dengine_log::Position;
    use dengine_snapshot::{Outgoing, SnapshotError, SnapshotId, Staging, open_state};
    use dengine_types::{ClusterId, Index, Term};

    use super::*;

    const CLUSTER: ClusterId = ClusterId(3);
    const BASE: Position = Position {
        index: Index(20),
        term: Term(2),
    };

    fn put(store: &SimStore, value: &[u8]) {
        let mut batch = WriteBatch::default();
        batch.put(b"k", value);
        store.write(&batch).unwrap();
        store.flush().unwrap();
    }

    /// The folders of a member with a state, and a complete snapshot that the log demands.
    fn decided() -> SimFolders {
        let folders = SimFolders::default();
        put(&folders.open_store().unwrap(), b"old");
        let (other, files) = (SimStore::default(), MemoryDisk::new());
        put(&other, b"new");
        other.checkpoint(&files).unwrap();
        let outgoing = Outgoing::new(files, CLUSTER, SnapshotId(1), BASE).unwrap();
        let mut staging = Staging::open(folders.incoming().unwrap(), CLUSTER, u64::MAX).unwrap();
        let mut place = staging.begin(outgoing.manifest().clone()).unwrap();
        while let Some(chunk) = outgoing.read(place, 1024).unwrap() {
            place = staging.receive(&chunk).unwrap();
        }
        staging.finish(|_| Ok(BASE)).unwrap();
        folders
    }

    /// Opens the state as a member does; what it holds then.
    fn open(folders: &SimFolders) -> Result<Vec<u8>, SnapshotError> {
        let opened = open_state(folders, CLUSTER, BASE, || {
            let found = folders.open_store().unwrap().get(b"k").unwrap();
            let found = found.map(|value| value.to_vec()).unwrap_or_default();
            let applied = match &found[..] {
                b"" => Index(0),
                b"old" => Index(10),
                _ => BASE.index,
            };
            Ok((found, applied))
        });
        opened.map(|(found, _)| found)
    }

    #[test]
    fn an_installation_that_ends_at_any_step_is_finished_by_the_next_start() {
        let mut cuts = 0;
        for steps in 0..8 {
            for seed in 0..64 {
                let folders = decided();
                folders.end_after(Some(steps));
                let ended = open(&folders).is_err();
                assert_eq!(folders.was_cut_short(), ended);
                cuts += u64::from(ended);
                folders.end_after(None);
                if seed > 0 {
                    folders.lose_power(&mut Random::new(seed));
                }
                assert_eq!(
                    open(&folders).unwrap(),
                    b"new",
                    "{steps} steps, seed {seed}"
                );
                assert!(!folders.0.borrow().names.contains_key(&MemberDir::StateOld));
                assert!(!folders.has_staged());
            }
        }
        assert!(cuts >= 5 * 64, "{cuts} of the steps end it");
    }
}
