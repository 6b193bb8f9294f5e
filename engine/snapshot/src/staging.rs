//! Puts a snapshot together, in a folder of its own, from chunks that somebody sends.
//!
//! ```text
//! dengine-snapshot.manifest   what is being put together; durable before the first file is
//! (the snapshot's files)      written from front to back, one after the other
//! dengine-snapshot.complete   the manifest's checksum; written when everything else is durable
//! dengine-snapshot.tmp        one of the two above that is being written
//! ```
//! It is removed in the opposite order.

use super::files::{checksum, create, finish_file, read_small, sync};
use super::outgoing::advance;
use super::{CHUNK_BYTES_MAX, Chunk, FileEntry, Manifest, Place, SnapshotError};
use dengine_kv::StoreError;
use dengine_log::{Disk, DiskError, DiskFile, Position};
use dengine_planted::planted;
use dengine_types::{ClusterId, Index};

/// What the names of our own files begin with. No snapshot has such a file.
pub const RESERVED: &str = "dengine-";
const MANIFEST: &str = "dengine-snapshot.manifest";
const COMPLETE: &str = "dengine-snapshot.complete";
const UNFINISHED: &str = "dengine-snapshot.tmp";

const COMPLETE_MAGIC: [u8; 8] = *b"DEngSnC\n";
/// A file is synced whenever so much of it was written, so that no sync has much to write and the log's own
/// do not wait behind it.
const SYNC_BYTES: u64 = 8 << 20;

/// A folder in which at most one snapshot is put together.
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
    /// Unknown after the folder was opened and after a failure: then the files are looked at.
    progress: Option<Progress<F>>,
}

/// How far the files are.
#[derive(Debug)]
struct Progress<F> {
    /// The next byte that is wanted.
    place: Place,
    /// Of the file at `place`, as far as it is there.
    crc: u32,
    /// Of the file at `place`, how much was not synced.
    unsynced: u64,
    /// The file at `place`, if it exists.
    file: Option<F>,
}

/// What a member that is being opened has to do about a staged snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Leave it: there is none, or one that may still become of use.
    Nothing,
    /// Its installation was decided: these files become the state.
    Install,
    /// The state has got further without it.
    Discard,
}

impl<D: Disk> Staging<D> {
    /// Looks at what is staged in `disk`. Snapshots of other clusters and those with more than `bytes_max`
    /// bytes will be refused.
    ///
    /// # Errors
    /// If the disk fails. Nothing is ever changed.
    pub fn open(disk: D, cluster: ClusterId, bytes_max: u64) -> Result<Self, SnapshotError> {
        let names = disk.list()?;
        let has = |name: &str| names.iter().any(|other| other == name);
        let mut staged = None;
        if has(MANIFEST) {
            let bytes = read_small(&disk, MANIFEST)?;
            // What cannot be read is as good as nothing: `decide` knows whether that is bad.
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

    /// What to do before the state is opened. `base` is where the log begins, `applied` the last entry that
    /// the state has; 0 if there is no state. A snapshot that is to be installed was read back whole.
    ///
    /// # Errors
    /// [`SnapshotError::Missing`] if the log begins behind the state and the snapshot between them is not
    /// here, or damaged.
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
                        "the one that is here is damaged: {file}: {what}"
                    ))),
                    verified => verified.map(|()| Decision::Install),
                },
                Some(staged) => Err(missing(format!(
                    "the one that is here is {} and ends at entry {}",
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

    /// Whether a complete snapshot is here that ends with exactly this entry. Without that, no log may be
    /// reset to it.
    #[must_use]
    pub fn holds(&self, last: Position) -> bool {
        let holds = |staged: &Staged<D::File>| staged.complete && staged.manifest.last() == last;
        self.staged.as_ref().is_some_and(holds)
    }

    /// What is staged.
    #[must_use]
    pub fn manifest(&self) -> Option<&Manifest> {
        self.staged.as_ref().map(|staged| &staged.manifest)
    }

    /// How many bytes of the disk the files have, of whichever snapshot.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn bytes(&self) -> Result<u64, DiskError> {
        let names = self.disk.list()?;
        let sizes = names.iter().map(|name| self.disk.open(name)?.len());
        sizes.sum()
    }

    /// Where it is staged.
    #[must_use]
    pub fn disk(&self) -> &D {
        &self.disk
    }

    /// Begins a snapshot, or goes on with it if it is the one that is here; another one is thrown away.
    /// Returns what is to be sent next: [`Place::file`] is the number of files if nothing is.
    ///
    /// # Errors
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

    /// Takes the chunk that is due. Returns the place of the next one.
    ///
    /// # Errors
    /// [`SnapshotError::Chunk`] changes nothing; after [`SnapshotError::Damaged`] the file has to be sent
    /// again; after any other error, ask [`Staging::begin`] where to go on.
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
            // From here on `staged.progress` is unknown unless all goes well.
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

    /// Completes the snapshot once all of it was received: afterwards it outlasts a power loss. `look` opens
    /// the state in the files and tells the last entry that is applied there; if that is not the one that was
    /// announced, everything is thrown away.
    ///
    /// # Errors
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

    /// Throws away whatever is staged.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn clear(&mut self) -> Result<(), SnapshotError> {
        self.staged = None;
        let mut names = self.disk.list()?;
        if let Some(complete) = names.iter().position(|name| name == COMPLETE) {
            self.disk.remove(&names.swap_remove(complete))?;
            self.disk.sync_dir()?;
        }
        // The manifest goes last, as it came first.
        names.sort_by_key(|name| name == MANIFEST);
        for name in &names {
            self.disk.remove(name)?;
        }
        Ok(self.disk.sync_dir()?)
    }

    /// Reads every file back.
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

    /// Writes one of our own small files, whole or not at all.
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

/// Whether this chunk may follow what is there.
fn check(manifest: &Manifest, due: Place, chunk: &Chunk) -> Result<(), SnapshotError> {
    let refuse = |what: String| Err(SnapshotError::Chunk(what));
    let Some(entry) = manifest.file(due) else {
        return refuse("all of the snapshot is here".to_owned());
    };
    if chunk.place != due {
        return refuse(format!("{:?} is due, and this is {:?}", due, chunk.place));
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

/// Finds out how far the files are. What is whole is made durable, what is wrong is removed.
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

/// What marks this very snapshot as complete.
fn marker(manifest: &Manifest) -> Vec<u8> {
    let mut bytes = COMPLETE_MAGIC.to_vec();
    bytes.extend(crc32c::crc32c(&manifest.encode()).to_le_bytes());
    bytes
}
