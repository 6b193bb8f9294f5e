//! The disk interface of the log: one directory of files, with explicit durability.
//!
//! [`RealDisk`](super::RealDisk) and [`MemoryDisk`](super::memory::MemoryDisk) pass the same suite,
//! [`conformance`](super::conformance).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One directory, used by one log only. Names are plain file names.
///
/// Every change of a name (create, rename, remove) is durable only after [`Disk::sync_dir`].
pub trait Disk: Send + Sync + 'static {
    type File: DiskFile;

    /// The names of all files, in no particular order.
    fn list(&self) -> Result<Vec<String>, DiskError>;

    /// Creates a new, empty file. Fails if it exists.
    fn create(&self, name: &str) -> Result<Self::File, DiskError>;

    /// Opens an existing file for reading and writing.
    fn open(&self, name: &str) -> Result<Self::File, DiskError>;

    /// Renames a file atomically, replacing a file of the new name.
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError>;

    /// Removes a name; the space is freed once no handle has the file open.
    fn remove(&self, name: &str) -> Result<(), DiskError>;

    /// Makes every change of a name so far durable.
    ///
    /// # Errors
    ///
    /// If the disk cannot guarantee that. What is durable then is unknown.
    fn sync_dir(&self) -> Result<(), DiskError>;

    /// The path of a file of that name, for error messages.
    fn path(&self, name: &str) -> PathBuf;
}

/// An open file, which several threads may read and write at given offsets.
pub trait DiskFile: Send + Sync + 'static {
    /// Fills `buffer` from `offset` on; returns how many bytes there were before the end of the
    /// file.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError>;

    /// Writes all of `bytes` at `offset`, growing the file if needed. Not durable before
    /// [`DiskFile::sync_data`].
    ///
    /// # Errors
    /// If the disk cannot write. Part of the bytes may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError>;

    /// Makes every write so far durable (`fdatasync`).
    ///
    /// # Errors
    ///
    /// If the disk cannot guarantee that. What is durable then is unknown, and another call may
    /// succeed although the bytes are lost: the caller has to stop.
    fn sync_data(&self) -> Result<(), DiskError>;

    /// Extends an empty file to `bytes` bytes of zeros, and allocates the space where the disk can
    /// do that; at least `leave` bytes stay free on the disk.
    ///
    /// # Errors
    ///
    /// If there is no space ([`DiskError::is_no_space`]) or the disk cannot write.
    fn reserve(&self, bytes: u64, leave: u64) -> Result<(), DiskError>;

    fn len(&self) -> Result<u64, DiskError>;

    /// Whether the file has no bytes.
    fn is_empty(&self) -> Result<bool, DiskError> {
        Ok(self.len()? == 0)
    }

    /// Cuts the file, or extends it by a hole.
    fn truncate(&self, bytes: u64) -> Result<(), DiskError>;
}

/// A failed operation with its path and the system's reason.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot {operation} {}: {source}", path.display())]
pub struct DiskError {
    /// A verb, as in "cannot `write` /data/log/…".
    pub operation: &'static str,
    pub path: PathBuf,
    pub source: Arc<io::Error>,
}

impl DiskError {
    /// An error of `operation` on `path`.
    pub fn new(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self {
            operation,
            path: path.to_owned(),
            source: Arc::new(source),
        }
    }

    /// Whether the disk or the quota is full.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(
            self.source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        )
    }
}
