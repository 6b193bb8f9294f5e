//! Operations of staging on single files.

use dengine_log::{Disk, DiskError, DiskFile};

use super::SnapshotError;
use super::manifest::{FileEntry, MANIFEST_BYTES_MAX};

/// Files are read back in pieces of this size.
const PIECE_BYTES: usize = 1 << 20;

/// Creates an empty file, and replaces one that is left over, or that was received after a file
/// that turned out to be damaged.
pub(super) fn create<D: Disk>(disk: &D, name: &str) -> Result<D::File, DiskError> {
    if disk.list()?.iter().any(|other| other == name) {
        disk.remove(name)?;
    }
    disk.create(name)
}

/// Syncs a complete file if its checksum matches, and removes it otherwise.
pub(super) fn finish_file<D: Disk>(
    disk: &D,
    entry: &FileEntry,
    file: &D::File,
    crc: u32,
) -> Result<(), SnapshotError> {
    if crc != entry.crc {
        disk.remove(&entry.name)?;
        return Err(SnapshotError::Damaged {
            file: entry.name.clone(),
            what: "its checksum does not match",
        });
    }
    sync(disk, entry, file)
}

/// Syncs a file, and removes it if that fails: it may read well and still not be on disk.
pub(super) fn sync<D: Disk>(
    disk: &D,
    entry: &FileEntry,
    file: &D::File,
) -> Result<(), SnapshotError> {
    if let Err(error) = file.sync_data() {
        disk.remove(&entry.name)?;
        return Err(error.into());
    }
    Ok(())
}

/// CRC32C of a file's first `bytes` bytes.
pub(super) fn checksum(file: &impl DiskFile, bytes: u64) -> Result<u32, DiskError> {
    let mut buffer = vec![0; PIECE_BYTES];
    let (mut offset, mut crc) = (0, 0);
    while offset < bytes {
        let piece =
            usize::try_from(bytes - offset).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
        let read = file.read_at(offset, &mut buffer[..piece])?;
        crc = crc32c::crc32c_append(crc, &buffer[..read]);
        if read < piece {
            break;
        }
        offset += read as u64;
    }
    Ok(crc)
}

/// A small file of staging; one that is longer than any of them is cut, and will not decode.
pub(super) fn read_small<D: Disk>(disk: &D, name: &str) -> Result<Vec<u8>, DiskError> {
    let file = disk.open(name)?;
    let bytes = file.len()?.min(MANIFEST_BYTES_MAX as u64 + 1);
    let mut content = vec![0; usize::try_from(bytes).expect("bounded by MANIFEST_BYTES_MAX")];
    let read = file.read_at(0, &mut content)?;
    content.truncate(read);
    Ok(content)
}
