//! Reads a checkpoint's files in chunks.

use super::files::checksum;
use super::{
    CHUNK_BYTES_MAX, Chunk, FILES_MAX, FileEntry, Manifest, Place, SnapshotError, SnapshotId,
};
use bytes::Bytes;
use dengine_log::{Disk, DiskFile as _, Position};
use dengine_types::ClusterId;

/// A checkpoint that can be sent. Its files must not change; they are opened when they are needed.
#[derive(Debug)]
pub struct Outgoing<D: Disk> {
    disk: D,
    manifest: Manifest,
}

impl<D: Disk> Outgoing<D> {
    /// Describes the checkpoint whose files, and no others, are in `disk`. Reads all of them once.
    ///
    /// # Errors
    /// If the disk fails, or what is there cannot be described.
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

    /// What is to be sent.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Whether this is the snapshot of which a leader's message speaks: another one may have been made since the message was.
    #[must_use]
    pub fn answers(&self, announced: Option<Position>) -> bool {
        self.manifest.answers(announced)
    }

    /// The bytes from `place` on, up to the end of its file and at most `bytes_max` (or
    /// [`CHUNK_BYTES_MAX`]) of them; `None` if nothing is left. [`Outgoing::after`] tells what follows.
    ///
    /// # Errors
    /// If the disk fails or the file is not what it was; [`SnapshotError::Chunk`] if there is no such place.
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

    /// The place behind a chunk.
    #[must_use]
    pub fn after(&self, chunk: &Chunk) -> Place {
        advance(&self.manifest, chunk.place, chunk.bytes.len() as u64)
    }
}

/// The place `bytes` further in the same file, or the beginning of the next file that has any.
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
