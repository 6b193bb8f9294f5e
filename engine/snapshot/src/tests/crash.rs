//! A power loss at every step: afterwards a snapshot is complete and correct, or can be completed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dengine_log::memory::MemoryFile;
use dengine_log::{DiskError, DiskFile};
use dengine_testkit::Random;

use super::*;
use crate::Decision;

/// A disk that fails after a number of changes.
#[derive(Clone)]
struct Dying {
    disk: MemoryDisk,
    left: Arc<AtomicU64>,
}

struct DyingFile {
    file: MemoryFile,
    left: Arc<AtomicU64>,
}

fn change(left: &AtomicU64) -> Result<(), DiskError> {
    let less = |left: u64| left.checked_sub(1);
    match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
        Ok(_) => Ok(()),
        Err(_) => Err(DiskError::new(
            "go on with",
            Path::new("."),
            io::ErrorKind::Other.into(),
        )),
    }
}

impl Dying {
    fn file(&self, file: MemoryFile) -> DyingFile {
        DyingFile {
            file,
            left: Arc::clone(&self.left),
        }
    }
}

impl Disk for Dying {
    type File = DyingFile;

    fn list(&self) -> Result<Vec<String>, DiskError> {
        self.disk.list()
    }

    fn create(&self, name: &str) -> Result<DyingFile, DiskError> {
        change(&self.left)?;
        Ok(self.file(self.disk.create(name)?))
    }

    fn open(&self, name: &str) -> Result<DyingFile, DiskError> {
        Ok(self.file(self.disk.open(name)?))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        change(&self.left)?;
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        change(&self.left)?;
        self.disk.remove(name)
    }

    fn sync_dir(&self) -> Result<(), DiskError> {
        change(&self.left)?;
        self.disk.sync_dir()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.disk.path(name)
    }
}

impl DiskFile for DyingFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        self.file.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        change(&self.left)?;
        self.file.write_at(offset, bytes)
    }

    fn sync_data(&self) -> Result<(), DiskError> {
        change(&self.left)?;
        self.file.sync_data()
    }

    fn reserve(&self, bytes: u64, leave: u64) -> Result<(), DiskError> {
        change(&self.left)?;
        self.file.reserve(bytes, leave)
    }

    fn len(&self) -> Result<u64, DiskError> {
        self.file.len()
    }

    fn truncate(&self, bytes: u64) -> Result<(), DiskError> {
        change(&self.left)?;
        self.file.truncate(bytes)
    }
}

/// Ways in which a power loss keeps what was not synced: nothing, all, and any part.
fn keeps() -> impl Iterator<Item = Box<dyn FnMut() -> bool>> {
    let random = (1..=6).map(|seed| {
        let mut random = Random::new(seed);
        Box::new(move || random.chance(50)) as Box<dyn FnMut() -> bool>
    });
    let fixed = [false, true].map(|kept| Box::new(move || kept) as Box<dyn FnMut() -> bool>);
    fixed.into_iter().chain(random)
}

/// Runs `work` on copies of `before`, cut after every number of changes and in every way, and
/// checks the result with `judge`, which also gets whether `work` had ended.
fn cut_everywhere(
    before: &MemoryDisk,
    work: impl Fn(&mut Staging<Dying>) -> Result<(), SnapshotError>,
    judge: impl Fn(&MemoryDisk, bool),
) {
    for steps in 0.. {
        let mut done = false;
        for mut keep in keeps() {
            let disk = before.duplicate();
            let dying = Dying {
                disk: disk.clone(),
                left: Arc::new(AtomicU64::new(steps)),
            };
            done = work(&mut open(dying)).is_ok();
            disk.power_loss(&mut keep);
            judge(&disk, done);
        }
        if done {
            assert!(steps > 5, "it takes some steps");
            return;
        }
    }
}

/// A complete snapshot is correct; any other can be completed.
fn check_whole_or_resumable(disk: &MemoryDisk, from: &Outgoing<MemoryDisk>) {
    let mut to = open(disk.clone());
    if to.holds(position(LAST, 3)) {
        let staged = to.manifest().unwrap().id();
        assert!(holds_files(disk, &outgoing(staged.0)));
        assert_eq!(
            to.decide(position(LAST, 3), Index(1)).unwrap(),
            Decision::Install
        );
    } else {
        to.decide(position(LAST, 3), Index(1)).unwrap_err();
    }
    assert!(to.decide(position(5, 1), Index(10)).is_ok());
    // A file that a power loss damaged shows it only once it is complete.
    let mut attempts = 0;
    while let Err(error) = send(from, &mut to) {
        attempts += 1;
        assert!(
            matches!(error, SnapshotError::Damaged { .. }) && attempts < 5,
            "{error}"
        );
    }
    assert!(holds_files(disk, from));
    assert!(to.holds(position(LAST, 3)));
}

#[test]
fn a_power_loss_while_receiving() {
    let from = outgoing(1);
    cut_everywhere(
        &MemoryDisk::new(),
        |to| send(&from, to),
        |disk, done| {
            assert!(
                !done || open(disk.clone()).holds(position(LAST, 3)),
                "a finished snapshot survives"
            );
            check_whole_or_resumable(disk, &from);
        },
    );
}

#[test]
fn a_power_loss_while_a_staged_snapshot_is_replaced() {
    let (old, new) = (MemoryDisk::new(), outgoing(2));
    send(&outgoing(1), &mut open(old.clone())).unwrap();
    cut_everywhere(
        &old,
        |to| send(&new, to),
        |disk, done| {
            let to = open(disk.clone());
            let new_there = to.manifest() == Some(new.manifest());
            assert!(
                !done || (new_there && to.holds(position(LAST, 3))),
                "a finished snapshot survives"
            );
            check_whole_or_resumable(disk, &new);
        },
    );
}

#[test]
fn a_power_loss_while_a_snapshot_is_removed() {
    let (disk, other) = (MemoryDisk::new(), outgoing(2));
    send(&outgoing(1), &mut open(disk.clone())).unwrap();
    cut_everywhere(&disk, Staging::clear, |disk, done| {
        assert!(
            !done || disk.list().unwrap().is_empty(),
            "a finished removal survives"
        );
        check_whole_or_resumable(disk, &other);
    });
}

/// After a failed sync a file may read well and still not be on disk.
#[test]
fn after_a_failed_sync_no_incomplete_snapshot_is_complete() {
    let from = outgoing(1);
    for syncs in 0.. {
        let disk = MemoryDisk::new();
        disk.fail_sync_after(syncs);
        let mut to = open(disk.clone());
        let failed = send(&from, &mut to).is_err();
        if failed {
            send(&from, &mut to).unwrap();
        }
        disk.power_loss(|| false);
        assert!(open(disk.clone()).holds(position(LAST, 3)), "sync {syncs}");
        check_whole_or_resumable(&disk, &from);
        if !failed {
            return;
        }
    }
}
