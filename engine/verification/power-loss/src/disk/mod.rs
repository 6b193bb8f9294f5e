//! Directories and files in memory that know what was synced: the model, without FUSE.
//!
//! What it promises is what POSIX promises, which is less than any file system keeps:
//! - A file's bytes and length are durable once the file was synced. Before, any sector that was
//!   overwritten may be on disk and any may not.
//! - A name is durable once its directory was synced; syncing the file is not enough. Bytes without
//!   a durable name are lost with it, and so is everything below a directory whose own name is
//!   lost.
//! - A rename survives whole or not at all.
//!
//! And two things more, which file systems with a journal keep and RocksDB relies on:
//! - The changes of one directory survive in the order in which they were made. RocksDB names a new
//!   manifest, names it in `CURRENT` by a rename, and syncs their directory once, behind both.
//! - What was appended survives up to some point and not behind it, for a file's length follows its
//!   bytes to the disk. RocksDB takes a manifest that ends within a record for one that was cut
//!   off, and a record with a hole for damage.

mod coins;
mod content;
mod names;
mod power;
#[cfg(test)]
mod tests;
mod types;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};

use coins::Coins;
use content::Content;
use names::{Change, Names};
use power::{Counted, Power};

pub use content::SECTOR_BYTES;
pub use power::{Counts, Cut, CutAt, Moment};
pub use types::{Attributes, Error, Inode, Kind, Lie};

/// A file system that knows what is durable. It frees nothing before its power is lost; runs are
/// short.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    names: Names,
    files: BTreeMap<Inode, Content>,
    /// But the root.
    directories: BTreeSet<Inode>,
    /// How many inodes were ever made, beside the root.
    made: u64,
    power: Power,
    /// And how many syncs are honest.
    lie: Option<(Lie, u64)>,
}

impl Disk {
    /// An empty one, whose power is never cut.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Its power is lost at this operation, if it gets there, or never.
    pub fn set_cut(&mut self, cut: Option<Cut>) {
        self.power.cut = cut;
    }

    /// It acknowledges syncs without doing them, as some disks do, after this many honest ones.
    pub fn set_lie(&mut self, lie: Lie, after_syncs: u64) {
        self.lie = Some((lie, after_syncs));
    }

    /// What it was asked to change so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.power.counts
    }

    /// Whether its power is gone.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.power.is_gone()
    }

    /// What is found when the power comes back: everything durable, and this percentage of the
    /// rest, chosen by `seed`. With 0 nothing that was not synced survives, with 100 everything
    /// does.
    #[must_use]
    pub fn power_loss(&self, percent: u32, seed: u64) -> Self {
        let mut coins = Coins::new(percent, seed);
        let names = self.names.survivor(&mut coins);
        let found = names.inodes();
        let files = self.files.iter().filter(|(inode, _)| found.contains(inode));
        Self {
            files: files
                .map(|(inode, content)| (*inode, content.survivor(&mut coins)))
                .collect(),
            directories: self.directories.intersection(&found).copied().collect(),
            names,
            made: self.made,
            ..Self::default()
        }
    }

    /// # Errors
    /// There is no such inode.
    pub fn attributes(&self, inode: Inode) -> Result<Attributes, Error> {
        self.power.check()?;
        let (kind, bytes, links) = match self.files.get(&inode) {
            Some(content) => (
                Kind::File,
                content.bytes().len() as u64,
                self.names.links(inode) as u32,
            ),
            None => {
                self.check_directory(inode)?;
                (Kind::Directory, 0, 2)
            }
        };
        Ok(Attributes {
            inode,
            kind,
            bytes,
            links,
        })
    }

    /// # Errors
    /// There is no such name.
    pub fn lookup(&self, parent: Inode, name: &OsStr) -> Result<Attributes, Error> {
        self.power.check()?;
        self.attributes(self.find(parent, name)?)
    }

    /// The names in a directory, in order.
    ///
    /// # Errors
    /// There is no such directory.
    pub fn list(&self, directory: Inode) -> Result<Vec<(OsString, Attributes)>, Error> {
        self.power.check()?;
        self.check_directory(directory)?;
        self.names
            .list(directory)
            .map(|(name, inode)| Ok((name.to_owned(), self.attributes(inode)?)))
            .collect()
    }

    /// Up to `length` bytes from `offset` on.
    ///
    /// # Errors
    /// There is no such file.
    pub fn read(&self, file: Inode, offset: u64, length: usize) -> Result<&[u8], Error> {
        self.power.check()?;
        let bytes = self.files.get(&file).ok_or(Error::NotFound)?.bytes();
        let from = usize::try_from(offset).map_or(bytes.len(), |offset| offset.min(bytes.len()));
        let to = from.saturating_add(length).min(bytes.len());
        Ok(&bytes[from..to])
    }

    /// # Errors
    /// There is no such file, or it would become too large.
    pub fn write(&mut self, file: Inode, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let offset = length(offset.saturating_add(bytes.len() as u64))? - bytes.len();
        self.do_counted(Counted::Write, |disk| {
            disk.file(file)?.write(offset, bytes);
            Ok(())
        })
    }

    /// # Errors
    /// There is no such file, or it would become too large.
    pub fn set_length(&mut self, file: Inode, bytes: u64) -> Result<(), Error> {
        let bytes = length(bytes)?;
        self.do_counted(Counted::Other, |disk| {
            disk.file(file)?.set_length(bytes);
            Ok(())
        })
    }

    /// Reserves space; what is new reads as zeros.
    ///
    /// # Errors
    /// There is no such file, or it would become too large.
    pub fn allocate(&mut self, file: Inode, end: u64) -> Result<(), Error> {
        let end = length(end)?;
        self.do_counted(Counted::Other, |disk| {
            let content = disk.file(file)?;
            content.set_length(end.max(content.bytes().len()));
            Ok(())
        })
    }

    /// Makes a file's bytes and length durable, and none of its names.
    ///
    /// # Errors
    /// There is no such file.
    pub fn sync_file(&mut self, file: Inode) -> Result<(), Error> {
        self.do_counted(Counted::FileSync, |disk| {
            let lies = disk.lies(Lie::Files);
            let content = disk.file(file)?;
            if !lies {
                content.sync();
            }
            Ok(())
        })
    }

    /// Makes a directory's names durable, but not its own.
    ///
    /// # Errors
    /// There is no such directory.
    pub fn sync_directory(&mut self, directory: Inode) -> Result<(), Error> {
        self.do_counted(Counted::DirectorySync, |disk| {
            disk.check_directory(directory)?;
            if !disk.lies(Lie::Directories) {
                disk.names.sync(directory);
            }
            Ok(())
        })
    }

    /// Makes an empty file or directory.
    ///
    /// # Errors
    /// The name is taken, or there is no such directory.
    pub fn create(&mut self, parent: Inode, name: &OsStr, kind: Kind) -> Result<Attributes, Error> {
        self.do_counted(Counted::Other, |disk| {
            disk.check_free(parent, name)?;
            disk.made += 1;
            let inode = Inode(Inode::ROOT.0 + disk.made);
            match kind {
                Kind::File => {
                    disk.files.insert(inode, Content::default());
                }
                Kind::Directory => {
                    disk.directories.insert(inode);
                }
            }
            let named = ((parent, name.to_owned()), Some(inode));
            disk.names.change(Change(vec![named]));
            disk.attributes(inode)
        })
    }

    /// Gives a file one more name.
    ///
    /// # Errors
    /// The name is taken, or it is no file.
    pub fn link(&mut self, file: Inode, parent: Inode, name: &OsStr) -> Result<Attributes, Error> {
        self.do_counted(Counted::Other, |disk| {
            disk.file(file)?;
            disk.check_free(parent, name)?;
            let named = ((parent, name.to_owned()), Some(file));
            disk.names.change(Change(vec![named]));
            disk.attributes(file)
        })
    }

    /// Removes a name of a file. Who has it open goes on using it.
    ///
    /// # Errors
    /// There is no such name, or it is a directory's.
    pub fn remove_file(&mut self, parent: Inode, name: &OsStr) -> Result<(), Error> {
        self.do_counted(Counted::Other, |disk| {
            disk.file(disk.find(parent, name)?)?;
            let unnamed = ((parent, name.to_owned()), None);
            disk.names.change(Change(vec![unnamed]));
            Ok(())
        })
    }

    /// # Errors
    /// There is no such name, it is a file's, or the directory is not empty.
    pub fn remove_directory(&mut self, parent: Inode, name: &OsStr) -> Result<(), Error> {
        self.do_counted(Counted::Other, |disk| {
            disk.check_empty_directory(disk.find(parent, name)?)?;
            let unnamed = ((parent, name.to_owned()), None);
            disk.names.change(Change(vec![unnamed]));
            Ok(())
        })
    }

    /// Moves a name, and replaces what had the new one: a file, or an empty directory. A directory
    /// is never moved to below itself, for the kernel does not ask that.
    ///
    /// # Errors
    /// There is no such name, or the new one is that of something that cannot be replaced.
    pub fn rename(&mut self, from: (Inode, &OsStr), to: (Inode, &OsStr)) -> Result<(), Error> {
        self.do_counted(Counted::Other, |disk| {
            let inode = disk.find(from.0, from.1)?;
            disk.check_directory(to.0)?;
            match disk.names.get(to.0, to.1) {
                // POSIX: two names of one file stay as they are.
                Some(replaced) if replaced == inode => return Ok(()),
                Some(replaced) if disk.files.contains_key(&inode) => {
                    disk.file(replaced)?;
                }
                Some(replaced) => disk.check_empty_directory(replaced)?,
                None => {}
            }
            let named = |(parent, name): (Inode, &OsStr), inode| ((parent, name.to_owned()), inode);
            let change = Change(vec![named(from, None), named(to, Some(inode))]);
            disk.names.change(change);
            Ok(())
        })
    }

    /// Does what is counted, as long as there is power; and answers, if there still is.
    fn do_counted<T>(
        &mut self,
        counted: Counted,
        act: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.power.spend(counted)?;
        let done = act(self)?;
        self.power.check()?;
        Ok(done)
    }
}

impl Disk {
    fn lies(&self, what: Lie) -> bool {
        let syncs = self.counts().syncs();
        matches!(self.lie, Some((lie, honest)) if lie == what && syncs > honest)
    }

    fn file(&mut self, inode: Inode) -> Result<&mut Content, Error> {
        let missing = match self.is_directory(inode) {
            true => Error::IsADirectory,
            false => Error::NotFound,
        };
        self.files.get_mut(&inode).ok_or(missing)
    }

    fn find(&self, parent: Inode, name: &OsStr) -> Result<Inode, Error> {
        self.check_directory(parent)?;
        self.names.get(parent, name).ok_or(Error::NotFound)
    }

    fn is_directory(&self, inode: Inode) -> bool {
        inode == Inode::ROOT || self.directories.contains(&inode)
    }

    fn check_directory(&self, inode: Inode) -> Result<(), Error> {
        match self.is_directory(inode) {
            true => Ok(()),
            false if self.files.contains_key(&inode) => Err(Error::NotADirectory),
            false => Err(Error::NotFound),
        }
    }

    fn check_empty_directory(&self, inode: Inode) -> Result<(), Error> {
        self.check_directory(inode)?;
        match self.names.list(inode).next() {
            Some(_) => Err(Error::NotEmpty),
            None => Ok(()),
        }
    }

    fn check_free(&self, parent: Inode, name: &OsStr) -> Result<(), Error> {
        match self.find(parent, name) {
            Ok(_) => Err(Error::Exists),
            Err(Error::NotFound) => self.check_directory(parent),
            Err(error) => Err(error),
        }
    }
}

/// A file's length, if it is one that this disk can hold.
fn length(bytes: u64) -> Result<usize, Error> {
    const FILE_BYTES_MAX: u64 = 1 << 30;
    match usize::try_from(bytes) {
        Ok(length) if bytes <= FILE_BYTES_MAX => Ok(length),
        _ => Err(Error::TooLarge),
    }
}
