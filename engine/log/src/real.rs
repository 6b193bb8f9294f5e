//! A directory of the operating system as a [`Disk`].

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FallocateFlags, FlockOperation};

use super::disk::{Disk, DiskError, DiskFile};
use crate::durable::create_dir_all;

/// A directory of the operating system, locked (`flock`) until this value is dropped.
#[derive(Debug)]
pub struct RealDisk {
    path: PathBuf,
    directory: Directory,
}

/// Remembers a failed sync. The system reports it once, to the thread that asks first, and without
/// this the others would take their own names for durable.
#[derive(Debug)]
struct Directory {
    file: File,
    failed: Mutex<Option<DiskError>>,
}

/// A file in a [`RealDisk`].
#[derive(Debug)]
pub struct RealFile {
    path: PathBuf,
    file: File,
}

impl RealDisk {
    /// Opens the directory `path`, and creates it if it is missing. Fails if another process has
    /// locked it.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, DiskError> {
        let path = path.into();
        create_dir_all(&path).map_err(|error| DiskError::new("make directory", &path, error))?;
        let directory =
            File::open(&path).map_err(|error| DiskError::new("open directory", &path, error))?;
        rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive).map_err(
            |error| {
                let error = match error {
                    rustix::io::Errno::WOULDBLOCK => {
                        io::Error::new(io::ErrorKind::ResourceBusy, "another process is using it")
                    }
                    other => other.into(),
                };
                DiskError::new("lock directory", &path, error)
            },
        )?;
        let directory = Directory {
            file: directory,
            failed: Mutex::default(),
        };
        Ok(Self { path, directory })
    }

    fn open_file(
        &self,
        operation: &'static str,
        name: &str,
        options: &OpenOptions,
    ) -> Result<RealFile, DiskError> {
        let path = self.path.join(name);
        match options.open(&path) {
            Ok(file) => Ok(RealFile { path, file }),
            Err(error) => Err(DiskError::new(operation, &path, error)),
        }
    }
}

impl Disk for RealDisk {
    type File = RealFile;

    fn list(&self) -> Result<Vec<String>, DiskError> {
        let fail = |error| DiskError::new("list directory", &self.path, error);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(fail)? {
            // The log's own names are UTF-8.
            if let Ok(name) = entry.map_err(fail)?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn create(&self, name: &str) -> Result<RealFile, DiskError> {
        let mut options = OpenOptions::new();
        self.open_file(
            "create",
            name,
            options.read(true).write(true).create_new(true),
        )
    }

    fn open(&self, name: &str) -> Result<RealFile, DiskError> {
        self.open_file("open", name, OpenOptions::new().read(true).write(true))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        let path = self.path.join(from);
        std::fs::rename(&path, self.path.join(to))
            .map_err(|error| DiskError::new("rename", &path, error))
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        let path = self.path.join(name);
        std::fs::remove_file(&path).map_err(|error| DiskError::new("remove", &path, error))
    }

    fn sync_dir(&self) -> Result<(), DiskError> {
        let sync = |directory: &File| {
            let synced = directory.sync_all();
            synced.map_err(|error| DiskError::new("sync directory", &self.path, error))
        };
        self.directory.sync(sync)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Directory {
    /// One sync at a time, so that none succeeds while another is about to report a failure.
    fn sync(&self, sync: impl FnOnce(&File) -> Result<(), DiskError>) -> Result<(), DiskError> {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = &*failed {
            return Err(error.clone());
        }
        sync(&self.file).inspect_err(|error| *failed = Some(error.clone()))
    }
}

impl RealFile {
    fn fail(&self, operation: &'static str, error: impl Into<io::Error>) -> DiskError {
        DiskError::new(operation, &self.path, error.into())
    }
}

impl DiskFile for RealFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        let mut done = 0;
        while done < buffer.len() {
            match self.file.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.fail("read", error)),
            }
        }
        Ok(done)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.file
            .write_all_at(bytes, offset)
            .map_err(|error| self.fail("write", error))
    }

    fn sync_data(&self) -> Result<(), DiskError> {
        self.file
            .sync_data()
            .map_err(|error| self.fail("sync", error))
    }

    fn reserve(&self, bytes: u64, leave: u64) -> Result<(), DiskError> {
        // A large allocation may take all remaining space for a moment, so that others find none.
        let free = rustix::fs::fstatvfs(&self.file);
        let needed = bytes.saturating_add(leave);
        let is_free =
            |disk: &rustix::fs::StatVfs| disk.f_bavail.saturating_mul(disk.f_frsize) >= needed;
        if free.is_ok_and(|disk| !is_free(&disk)) {
            return Err(self.fail("reserve space for", rustix::io::Errno::NOSPC));
        }
        // Finds a full disk before anything is written, and allocates one extent. Some file systems
        // do not support it; there the first write to each place allocates.
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
            Err(error) => return Err(self.fail("reserve space for", error)),
        }
        self.file
            .set_len(bytes)
            .map_err(|error| self.fail("reserve space for", error))
    }

    fn len(&self) -> Result<u64, DiskError> {
        match self.file.metadata() {
            Ok(metadata) => Ok(metadata.len()),
            Err(error) => Err(self.fail("measure", error)),
        }
    }

    fn truncate(&self, bytes: u64) -> Result<(), DiskError> {
        self.file
            .set_len(bytes)
            .map_err(|error| self.fail("truncate", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_is_free_is_not_reserved() {
        let directory = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(directory.path()).unwrap();
        let file = disk.create("f").unwrap();
        let all = rustix::fs::statvfs(directory.path()).unwrap();
        // The same on a disk as large as a file can be.
        let capacity = all.f_blocks * all.f_frsize;
        for (bytes, leave) in [(capacity + 1, 0), (4096, capacity)] {
            let error = file.reserve(bytes, leave).unwrap_err();
            assert!(error.is_no_space(), "{error}");
            assert_eq!(file.len().unwrap(), 0);
        }
        file.reserve(4096, 0).unwrap();
        assert_eq!(file.len().unwrap(), 4096);
    }

    /// The failure must reach the log's own thread even if another one syncs the directory.
    #[test]
    fn a_failed_sync_of_the_directory_fails_every_later_one() {
        let directory = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(directory.path()).unwrap();
        disk.sync_dir().unwrap();
        let broken = || {
            DiskError::new(
                "sync directory",
                directory.path(),
                io::Error::other("broken"),
            )
        };
        disk.directory.sync(|_| Err(broken())).unwrap_err();
        let reported = disk.sync_dir().unwrap_err();
        assert_eq!(reported.to_string(), broken().to_string());
    }
}
