//! Assembles a snapshot, in a directory of its own, from the chunks of a sender.
//!
//! ```text
//! dengine-snapshot.manifest   the snapshot that is staged; durable before its first file
//! (the snapshot's files)      written from front to back, one after the other
//! dengine-snapshot.complete   the manifest's checksum; written once all else is durable
//! dengine-snapshot.tmp        one of the two above while it is written
//! ```
//! Files are removed in the opposite order.

use dengine_kv::StoreError;
use dengine_log::{Disk, DiskError, DiskFile, Position};
use dengine_planted::planted;
use dengine_types::{ClusterId, Index};

use super::files::{checksum, create, finish_file, read_small, sync};
use super::outgoing::advance;
use super::{CHUNK_BYTES_MAX, Chunk, FileEntry, Manifest, Place, SnapshotError};

/// The prefix of staging's own files, which no file of a snapshot has.
pub const RESERVED: &str = "dengine-";
const MANIFEST: &str = "dengine-snapshot.manifest";
const COMPLETE: &str = "dengine-snapshot.complete";
const UNFINISHED: &str = "dengine-snapshot.tmp";

const COMPLETE_MAGIC: [u8; 8] = *b"DEngSnC\n";
/// A file is synced after every this many bytes, so that no sync has much to write and the log's
/// own do not wait behind it.
const SYNC_BYTES: u64 = 8 << 20;

/// A directory in which at most one snapshot is assembled.
#[derive(Debug)]
pub struct Staging<D: Disk> {
    disk: D,
    cluster: ClusterId,
    bytes_max: u64,
    staged: Option<Staged<D::File>>,
}

#[derive(Debug)]
struct Staged<F> {
    manifest: Manifest,
    complete: bool,
    /// Unknown after an opening and after a failure: then the files are examined.
    progress: Option<Progress<F>>,
}

/// What has been received.
#[derive(Debug)]
struct Progress<F> {
    /// The next expected byte.
    place: Place,
    /// Of the received part of the file at `place`.
    crc: u32,
    /// How many bytes of the file at `place` are not synced.
    unsynced: u64,
    /// The file at `place`, if it exists.
    file: Option<F>,
}

/// What the opening of a member has to do with a staged snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Keep it: there is none, or it may still be completed.
    Nothing,
    /// Its installation was decided: its files become the state.
    Install,
    /// The state is already further than it.
    Discard,
}

impl<D: Disk> Staging<D> {
    /// Opens what is staged in `disk`. Snapshots of other clusters or of more than `bytes_max`
    /// bytes will be refused.
    ///
    /// # Errors
    ///
    /// If the disk fails. Nothing is changed.
    pub fn open(disk: D, cluster: ClusterId, bytes_max: u64) -> Result<Self, SnapshotError> {
        let names = disk.list()?;
        let has = |name: &str| names.iter().any(|other| other == name);
        let mut staged = None;
        if has(MANIFEST) {
            let bytes = read_small(&disk, MANIFEST)?;
            // An unreadable manifest counts as none; `decide` knows whether that is an error.
            staged = Manifest::decode(&bytes).ok();
        }
        let staged = match staged {
            Some(manifest) => {
                let complete = has(COMPLETE) && read_small(&disk, COMPLETE)? == marker(&manifest);
                Some(Staged {
                    manifest,
                    complete,
                    progress: None,
                })
            }
            None => None,
        };
        Ok(Self {
            disk,
            cluster,
            bytes_max,
            staged,
        })
    }

    /// What to do before the state is opened. `base` is where the log begins, `applied` the last
    /// applied entry of the state, or 0 without a state. Files to be installed were verified.
    ///
    /// # Errors
    /// [`SnapshotError::Missing`] if the log begins after the state and the snapshot between them
    /// is missing or damaged.
    pub fn decide(&self, base: Position, applied: Index) -> Result<Decision, SnapshotError> {
        if base.index > applied {
            let missing = |reason| SnapshotError::Missing {
                base,
                applied,
                reason,
            };
            return match &self.staged {
                Some(staged) if self.holds(base) => match self.verify(&staged.manifest) {
                    Err(SnapshotError::Damaged { file, what }) => Err(missing(format!(
                        "the staged one is damaged: {file}: {what}"
                    ))),
                    verified => verified.map(|()| Decision::Install),
                },
                Some(staged) => Err(missing(format!(
                    "the staged one is {} and ends at entry {}",
                    if staged.complete {
                        "complete"
                    } else {
                        "not complete"
                    },
                    staged.manifest.last().index
                ))),
                None => Err(missing("there is none".to_owned())),
            };
        }
        Ok(match &self.staged {
            Some(staged) if planted!(InstallWithoutCommitRecord) && staged.complete => {
                Decision::Install
            }
            Some(staged) if staged.manifest.last().index > applied => Decision::Nothing,
            None if self.disk.list()?.is_empty() => Decision::Nothing,
            _ => Decision::Discard,
        })
    }

    /// Whether a complete snapshot is staged that ends with exactly this entry. Otherwise no log
    /// may be reset to it.
    #[must_use]
    pub fn holds(&self, last: Position) -> bool {
        let holds = |staged: &Staged<D::File>| staged.complete && staged.manifest.last() == last;
        self.staged.as_ref().is_some_and(holds)
    }

    /// The manifest of the staged snapshot.
    #[must_use]
    pub fn manifest(&self) -> Option<&Manifest> {
        self.staged.as_ref().map(|staged| &staged.manifest)
    }

    /// How many bytes the staged files take, of whichever snapshot.
    pub fn bytes(&self) -> Result<u64, DiskError> {
        let names = self.disk.list()?;
        let sizes = names.iter().map(|name| self.disk.open(name)?.len());
        sizes.sum()
    }

    #[must_use]
    pub fn disk(&self) -> &D {
        &self.disk
    }

    /// Begins a snapshot, or resumes it if it is the staged one; another one is removed. Returns
    /// the next place to send: [`Place::file`] is the number of files at the end.
    ///
    /// # Errors
    ///
    /// If the snapshot is refused, which changes nothing, or the disk fails.
    pub fn begin(&mut self, manifest: Manifest) -> Result<Place, SnapshotError> {
        if manifest.cluster() != self.cluster {
            return Err(SnapshotError::WrongCluster {
                found: manifest.cluster(),
                own: self.cluster,
            });
        }
        if manifest.bytes() > self.bytes_max {
            return Err(SnapshotError::TooLarge {
                bytes: manifest.bytes(),
                limit: self.bytes_max,
            });
        }
        if self.manifest() != Some(&manifest) {
            self.clear()?;
            self.write_named(MANIFEST, &manifest.encode())?;
            self.staged = Some(Staged {
                manifest,
                complete: false,
                progress: Some(Progress::default()),
            });
        }
        self.place()
    }

    fn place(&mut self) -> Result<Place, SnapshotError> {
        let staged = self.staged.as_mut().ok_or(SnapshotError::Incomplete)?;
        if staged.complete {
            return Ok(staged.manifest.end());
        }
        let progress = match staged.progress.take() {
            Some(progress) => progress,
            None => scan(&self.disk, &staged.manifest)?,
        };
        let place = advance(&staged.manifest, progress.place, 0);
        staged.progress = Some(Progress { place, ..progress });
        Ok(place)
    }

    /// Writes the expected chunk. Returns the place of the next one.
    ///
    /// # Errors
    /// [`SnapshotError::Chunk`] changes nothing; after [`SnapshotError::Damaged`] the file has to
    /// be sent again; after any other error [`Staging::begin`] returns where to resume.
    pub fn receive(&mut self, chunk: &Chunk) -> Result<Place, SnapshotError> {
        let staged = self.staged.as_mut().ok_or(SnapshotError::Incomplete)?;
        let Some(mut progress) = staged.progress.take() else {
            return Err(SnapshotError::Incomplete);
        };
        if let Err(refusal) = check(&staged.manifest, progress.place, chunk) {
            staged.progress = Some(progress);
            return Err(refusal);
        }
        let entry = staged.manifest.file(chunk.place).expect("it was checked");
        progress.write(&self.disk, entry, chunk)?;
        if chunk.place.offset + chunk.bytes.len() as u64 == entry.bytes {
            // `staged.progress` stays unknown from here on unless all succeeds.
            let file = progress.file.as_ref().expect("it was just written");
            finish_file(&self.disk, entry, file, progress.crc)?;
            let place = advance(&staged.manifest, chunk.place, chunk.bytes.len() as u64);
            progress = Progress {
                place,
                ..Progress::default()
            };
        }
        let place = progress.place;
        staged.progress = Some(progress);
        Ok(place)
    }

    /// Completes the snapshot once everything was received: it then survives a power loss. `look`
    /// opens the state in the files and returns its last applied entry; if that is not the
    /// announced one, everything is removed.
    ///
    /// # Errors
    ///
    /// If something is missing, the state is not the announced one, or the disk fails.
    pub fn finish(
        &mut self,
        look: impl FnOnce(&D) -> Result<Position, StoreError>,
    ) -> Result<(), SnapshotError> {
        let staged = self.staged.as_ref().ok_or(SnapshotError::Incomplete)?;
        if staged.complete {
            return Ok(());
        }
        let place = staged.progress.as_ref().map(|progress| progress.place);
        if place != Some(staged.manifest.end()) {
            return Err(SnapshotError::Incomplete);
        }
        self.make_empty_files()?;
        self.disk.sync_dir()?;
        let staged = self.staged.as_ref().expect("it was there just now");
        let wrong = match look(&self.disk) {
            Ok(found) if found == staged.manifest.last() => None,
            Ok(found) => Some(format!(
                "it ends at entry {} of term {}",
                found.index, found.term
            )),
            Err(error) => Some(error.to_string()),
        };
        if let Some(reason) = wrong {
            self.clear()?;
            return Err(SnapshotError::WrongState(reason));
        }
        self.write_named(COMPLETE, &marker(&staged.manifest))?;
        if let Some(staged) = &mut self.staged {
            staged.complete = true;
        }
        Ok(())
    }

    fn make_empty_files(&self) -> Result<(), SnapshotError> {
        let names = self.disk.list()?;
        let manifest = self.manifest().ok_or(SnapshotError::Incomplete)?;
        for file in manifest.files().iter().filter(|file| file.bytes == 0) {
            if !names.contains(&file.name) {
                self.disk.create(&file.name)?.sync_data()?;
            }
        }
        Ok(())
    }

    /// Removes whatever is staged.
    pub fn clear(&mut self) -> Result<(), SnapshotError> {
        self.staged = None;
        let mut names = self.disk.list()?;
        if let Some(complete) = names.iter().position(|name| name == COMPLETE) {
            self.disk.remove(&names.swap_remove(complete))?;
            self.disk.sync_dir()?;
        }
        // The manifest is removed last, because it was written first.
        names.sort_by_key(|name| name == MANIFEST);
        for name in &names {
            self.disk.remove(name)?;
        }
        Ok(self.disk.sync_dir()?)
    }

    /// Verifies every file.
    fn verify(&self, manifest: &Manifest) -> Result<(), SnapshotError> {
        let names = self.disk.list()?;
        for entry in manifest.files() {
            let damaged = |what| SnapshotError::Damaged {
                file: entry.name.clone(),
                what,
            };
            if !names.contains(&entry.name) {
                return Err(damaged("it is missing"));
            }
            let file = self.disk.open(&entry.name)?;
            if file.len()? != entry.bytes {
                return Err(damaged("its length has changed"));
            }
            if checksum(&file, entry.bytes)? != entry.crc {
                return Err(damaged("its checksum does not match"));
            }
        }
        Ok(())
    }

    /// Writes one of staging's own small files atomically.
    fn write_named(&self, name: &str, bytes: &[u8]) -> Result<(), DiskError> {
        let file = create(&self.disk, UNFINISHED)?;
        file.write_at(0, bytes)?;
        file.sync_data()?;
        self.disk.rename(UNFINISHED, name)?;
        self.disk.sync_dir()
    }
}

impl<F> Default for Progress<F> {
    fn default() -> Self {
        Self {
            place: Place::default(),
            crc: 0,
            unsynced: 0,
            file: None,
        }
    }
}

impl<F: DiskFile> Progress<F> {
    fn write<D>(&mut self, disk: &D, entry: &FileEntry, chunk: &Chunk) -> Result<(), SnapshotError>
    where
        D: Disk<File = F>,
    {
        let file = match self.file.take() {
            Some(file) => file,
            None => create(disk, &entry.name)?,
        };
        file.write_at(chunk.place.offset, &chunk.bytes)?;
        self.unsynced += chunk.bytes.len() as u64;
        if self.unsynced >= SYNC_BYTES {
            sync(disk, entry, &file)?;
            self.unsynced = 0;
        }
        self.crc = crc32c::crc32c_append(self.crc, &chunk.bytes);
        self.place.offset += chunk.bytes.len() as u64;
        self.file = Some(file);
        Ok(())
    }
}

/// Whether this chunk is the expected one.
fn check(manifest: &Manifest, due: Place, chunk: &Chunk) -> Result<(), SnapshotError> {
    let refuse = |what: String| Err(SnapshotError::Chunk(what));
    let Some(entry) = manifest.file(due) else {
        return refuse("the snapshot is received already".to_owned());
    };
    if chunk.place != due {
        return refuse(format!(
            "{:?} is expected, and this is {:?}",
            due, chunk.place
        ));
    }
    if chunk.bytes.is_empty() || chunk.bytes.len() > CHUNK_BYTES_MAX {
        return refuse(format!("it has {} bytes", chunk.bytes.len()));
    }
    if chunk.bytes.len() as u64 > entry.bytes - due.offset {
        return refuse(format!("it reaches past the end of {}", entry.name));
    }
    if chunk.crc != crc32c::crc32c(&chunk.bytes) {
        return refuse("its checksum does not match".to_owned());
    }
    Ok(())
}

/// Finds out how much of the files is there. Complete files are synced, wrong ones removed.
fn scan<D: Disk>(disk: &D, manifest: &Manifest) -> Result<Progress<D::File>, SnapshotError> {
    let names = disk.list()?;
    let mut place = advance(manifest, Place::default(), 0);
    while let Some(entry) = manifest.file(place) {
        let missing = Progress {
            place,
            ..Progress::default()
        };
        if !names.contains(&entry.name) {
            return Ok(missing);
        }
        let file = disk.open(&entry.name)?;
        let bytes = file.len()?;
        let crc = checksum(&file, bytes.min(entry.bytes))?;
        if bytes < entry.bytes {
            return Ok(Progress {
                place: Place {
                    offset: bytes,
                    ..place
                },
                crc,
                unsynced: bytes,
                file: Some(file),
            });
        }
        if bytes > entry.bytes || crc != entry.crc {
            disk.remove(&entry.name)?;
            return Ok(missing);
        }
        sync(disk, entry, &file)?;
        place = advance(manifest, place, entry.bytes);
    }
    Ok(Progress {
        place,
        ..Progress::default()
    })
}

/// The content of the marker that this snapshot is complete.
fn marker(manifest: &Manifest) -> Vec<u8> {
    let mut bytes = COMPLETE_MAGIC.to_vec();
    bytes.extend(crc32c::crc32c(&manifest.encode()).to_le_bytes());
    bytes
}
