//! What the log asks of a disk: one directory of files, and to be told the truth about what is durable.
//!
//! [`RealDisk`](super::RealDisk) and [`MemoryDisk`](super::memory::MemoryDisk) pass the same suite,
//! [`conformance`](super::conformance).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One directory, used by one log alone. Names are plain file names.
///
/// Every change of a name (create, rename, remove) is durable only after [`Disk::sync_dir`].
pub trait Disk: Send + Sync + 'static {
    /// An open file.
    type File: DiskFile;

    /// The names of all files, in no particular order.
    ///
    /// # Errors
    /// If the directory cannot be read.
    fn list(&self) -> Result<Vec<String>, DiskError>;

    /// Makes a new, empty file.
    ///
    /// # Errors
    /// If the file exists or cannot be made.
    fn create(&self, name: &str) -> Result<Self::File, DiskError>;

    /// Opens an existing file for reading and writing.
    ///
    /// # Errors
    /// If the file does not exist or cannot be opened.
    fn open(&self, name: &str) -> Result<Self::File, DiskError>;

    /// Gives a file another name, atomically; a file that had that name is gone.
    ///
    /// # Errors
    /// If the file does not exist or the directory cannot be changed.
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError>;

    /// Removes a name; the bytes go once nobody holds the file open.
    ///
    /// # Errors
    /// If the file does not exist or the directory cannot be changed.
    fn remove(&self, name: &str) -> Result<(), DiskError>;

    /// Makes every change of a name so far durable.
    ///
    /// # Errors
    /// If the disk could not promise that. What is durable then is unknown.
    fn sync_dir(&self) -> Result<(), DiskError>;

    /// Where a file of that name is, for error messages.
    fn path(&self, name: &str) -> PathBuf;
}

/// An open file, read and written at given places, by several threads if they like.
pub trait DiskFile: Send + Sync + 'static {
    /// Fills `buffer` from `offset` on; returns how many bytes there were before the file's end.
    ///
    /// # Errors
    /// If the disk cannot read.
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
    /// If the disk could not promise that. What is durable then is unknown, and another call may
    /// succeed although the bytes are lost: the caller has to stop.
    fn sync_data(&self) -> Result<(), DiskError>;

    /// Makes an empty file `bytes` long, with zeros, and sets the space aside where the disk can do that. So many bytes as `leave` stay
    /// free for others.
    ///
    /// # Errors
    /// If there is no space ([`DiskError::is_no_space`]) or the disk cannot write.
    fn reserve(&self, bytes: u64, leave: u64) -> Result<(), DiskError>;

    /// Length in bytes.
    ///
    /// # Errors
    /// If the disk cannot tell.
    fn len(&self) -> Result<u64, DiskError>;

    /// Whether the file has no bytes.
    ///
    /// # Errors
    /// If the disk cannot tell.
    fn is_empty(&self) -> Result<bool, DiskError> {
        Ok(self.len()? == 0)
    }

    /// Cuts the file, or grows it by a hole.
    ///
    /// # Errors
    /// If the disk cannot do that.
    fn truncate(&self, bytes: u64) -> Result<(), DiskError>;
}

/// A failed operation: what was tried, on which path, and the system's reason.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot {operation} {}: {source}", path.display())]
pub struct DiskError {
    /// What was tried: a verb, as in "cannot `write` /data/log/…".
    pub operation: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    /// The system's reason.
    pub source: Arc<io::Error>,
}

impl DiskError {
    /// Puts what was tried, and where, beside the system's reason.
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
