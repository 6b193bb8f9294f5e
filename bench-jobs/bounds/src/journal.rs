//! The file of a process, with the very calls of the engine's log: space reserved, filled with
//! zeros in pieces of the same size, made durable, and only then written to.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use dengine_log::{Disk as _, DiskFile as _, FILL_BYTES, RealDisk, RealFile};

/// Its name in the folder.
const NAME: &str = "journal";

pub(crate) struct Journal {
    file: RealFile,
    bytes: u64,
    /// Where the next append goes.
    next: u64,
    /// Its lock.
    _disk: RealDisk,
}

impl Journal {
    pub(crate) fn create(folder: &Path, bytes: u64) -> Result<Self> {
        let disk = RealDisk::open(folder)?;
        let file = disk.create(NAME)?;
        file.reserve(bytes, 0)?;
        let zeros = vec![0; u64::from(FILL_BYTES).min(bytes) as usize];
        let mut at = 0;
        while at < bytes {
            let piece = (zeros.len() as u64).min(bytes - at);
            file.write_at(at, &zeros[..piece as usize])?;
            at += piece;
        }
        file.sync_data()?;
        disk.sync_dir()?;
        Ok(Self {
            file,
            bytes,
            next: 0,
            _disk: disk,
        })
    }

    /// Writes behind what was written last, and makes it durable.
    pub(crate) fn append(&mut self, payload: &[u8]) -> Result<()> {
        let bytes = payload.len() as u64;
        ensure!(
            bytes <= self.bytes,
            "{bytes} bytes do not fit into a file of {}: raise --file-bytes",
            self.bytes
        );
        if self.bytes - self.next < bytes {
            self.next = 0;
        }
        self.file.write_at(self.next, payload)?;
        self.next += bytes;
        self.file.sync_data().context("a failed sync ends it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_append_is_behind_the_last_and_the_first_again_at_the_front() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::create(folder.path(), 8).unwrap();
        let file = || std::fs::read(folder.path().join(NAME)).unwrap();
        assert_eq!(file(), [0; 8]);
        journal.append(b"abc").unwrap();
        journal.append(b"def").unwrap();
        assert_eq!(&file(), b"abcdef\0\0");
        journal.append(b"ghi").unwrap();
        assert_eq!(&file(), b"ghidef\0\0");
        assert!(journal.append(b"too long!").is_err());
    }
}
