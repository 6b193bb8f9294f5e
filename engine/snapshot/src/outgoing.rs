//! Reads a checkpoint's files in chunks.

use bytes::Bytes;
use dengine_log::{Disk, DiskFile as _, Position};
use dengine_types::ClusterId;

use super::files::checksum;
use super::{
    CHUNK_BYTES_MAX, Chunk, FILES_MAX, FileEntry, Manifest, Place, SnapshotError, SnapshotId,
};

/// A checkpoint that can be sent. Its files must not change; they are opened when they are needed.
#[derive(Debug)]
pub struct Outgoing<D: Disk> {
    disk: D,
    manifest: Manifest,
}

impl<D: Disk> Outgoing<D> {
    /// Describes the checkpoint in `disk`, which contains its files and no others. Reads all of
    /// them once.
    ///
    /// # Errors
    ///
    /// If the disk fails, or the content cannot be described.
    pub fn new(
        disk: D,
        cluster: ClusterId,
        id: SnapshotId,
        last: Position,
    ) -> Result<Self, SnapshotError> {
        let names = disk.list()?;
        if names.len() > FILES_MAX {
            let what = format!("the checkpoint has {} files", names.len());
            return Err(SnapshotError::Malformed(what));
        }
        let mut files = Vec::with_capacity(names.len());
        for name in names {
            let file = disk.open(&name)?;
            let bytes = file.len()?;
            let crc = checksum(&file, bytes)?;
            files.push(FileEntry { name, bytes, crc });
        }
        let manifest = Manifest::new(cluster, id, last, files)?;
        Ok(Self { disk, manifest })
    }

    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Whether this is the snapshot that a leader's message announces: another one may have been
    /// made since then.
    #[must_use]
    pub fn answers(&self, announced: Option<Position>) -> bool {
        self.manifest.answers(announced)
    }

    /// The bytes from `place` on, up to the end of its file and at most `bytes_max` (or
    /// [`CHUNK_BYTES_MAX`]) of them; `None` at the end. [`Outgoing::after`] is the next place.
    ///
    /// # Errors
    ///
    /// If the disk fails or the file has changed; [`SnapshotError::Chunk`] if there is no such
    /// place.
    pub fn read(&self, place: Place, bytes_max: usize) -> Result<Option<Chunk>, SnapshotError> {
        if place == self.manifest.end() {
            return Ok(None);
        }
        let no_such_place = || SnapshotError::Chunk(format!("there is no place {place:?}"));
        let file = self.manifest.file(place).ok_or_else(no_such_place)?;
        let left = file.bytes.checked_sub(place.offset);
        let left = left.filter(|left| *left > 0).ok_or_else(no_such_place)?;
        let wanted = bytes_max.clamp(1, CHUNK_BYTES_MAX) as u64;
        let mut bytes =
            vec![0; usize::try_from(left.min(wanted)).expect("bounded by CHUNK_BYTES_MAX")];
        let read = self
            .disk
            .open(&file.name)?
            .read_at(place.offset, &mut bytes)?;
        if read < bytes.len() {
            return Err(SnapshotError::Damaged {
                file: file.name.clone(),
                what: "it is shorter than it was",
            });
        }
        Ok(Some(Chunk::new(place, Bytes::from(bytes))))
    }

    /// The place after a chunk.
    #[must_use]
    pub fn after(&self, chunk: &Chunk) -> Place {
        advance(&self.manifest, chunk.place, chunk.bytes.len() as u64)
    }
}

/// The place `bytes` further in the same file, or the beginning of the next file that is not empty.
pub(super) fn advance(manifest: &Manifest, place: Place, bytes: u64) -> Place {
    let mut next = Place {
        offset: place.offset + bytes,
        ..place
    };
    while manifest
        .file(next)
        .is_some_and(|file| next.offset >= file.bytes)
    {
        next = Place {
            file: next.file + 1,
            offset: 0,
        };
    }
    next
}
