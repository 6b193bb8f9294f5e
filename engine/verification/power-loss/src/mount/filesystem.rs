//! What the kernel asks, passed on to a [`Disk`].
//!
//! Nothing is decided here. The kernel caches what it reads, and no write: each one reaches the
//! disk before its caller goes on (FUSE's write-back cache stays off), so the disk knows their
//! order. Locks are the kernel's own.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use crate::disk::{Attributes, Disk, Error, Inode, Kind, SECTOR_BYTES};

/// The kernel asks every time, so that a disk without power answers nothing.
const TTL: Duration = Duration::ZERO;
const GENERATION: Generation = Generation(0);
/// Reported as free: more than is ever used.
const FREE_BYTES: u64 = 1 << 40;
const NAME_BYTES_MAX: u32 = 255;

type Listing = Vec<(OsString, Attributes)>;

pub(super) struct Filesystem {
    disk: Arc<Mutex<Disk>>,
    /// What open directories held when they were opened, so that reading goes on where it was while
    /// names go.
    listings: Mutex<BTreeMap<u64, Listing>>,
    opened: AtomicU64,
}

impl Filesystem {
    pub(super) fn new(disk: Arc<Mutex<Disk>>) -> Self {
        Self {
            disk,
            listings: Mutex::default(),
            opened: AtomicU64::new(0),
        }
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        lock(&self.disk)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn inode(number: INodeNo) -> Inode {
    Inode(number.0)
}

fn errno(error: Error) -> Errno {
    match error {
        Error::PowerLost => Errno::EIO,
        Error::NotFound => Errno::ENOENT,
        Error::Exists => Errno::EEXIST,
        Error::NotADirectory => Errno::ENOTDIR,
        Error::IsADirectory => Errno::EISDIR,
        Error::NotEmpty => Errno::ENOTEMPTY,
        Error::TooLarge => Errno::EFBIG,
    }
}

fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
    }
}

fn attr(attributes: Attributes) -> FileAttr {
    let time = SystemTime::UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(attributes.inode.0),
        size: attributes.bytes,
        blocks: attributes.bytes.div_ceil(512),
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind: file_type(attributes.kind),
        perm: match attributes.kind {
            Kind::File => 0o600,
            Kind::Directory => 0o700,
        },
        nlink: attributes.links,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: SECTOR_BYTES as u32,
        flags: 0,
    }
}

fn answer(result: Result<(), Error>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

fn answer_entry(result: Result<Attributes, Error>, reply: ReplyEntry) {
    match result {
        Ok(attributes) => reply.entry(&TTL, &attr(attributes), GENERATION),
        Err(error) => reply.error(errno(error)),
    }
}

fn answer_attributes(result: Result<Attributes, Error>, reply: ReplyAttr) {
    match result {
        Ok(attributes) => reply.attr(&TTL, &attr(attributes)),
        Err(error) => reply.error(errno(error)),
    }
}

impl fuser::Filesystem for Filesystem {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        answer_entry(self.disk().lookup(inode(parent), name), reply);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        answer_attributes(self.disk().attributes(inode(ino)), reply);
    }

    /// Only lengths mean anything here.
    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut disk = self.disk();
        let sized = size.map_or(Ok(()), |bytes| disk.set_length(inode(ino), bytes));
        answer_attributes(sized.and_then(|()| disk.attributes(inode(ino))), reply);
    }

    fn mkdir(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let made = self.disk().create(inode(parent), name, Kind::Directory);
        answer_entry(made, reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(self.disk().remove_file(inode(parent), name), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(self.disk().remove_directory(inode(parent), name), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let renamed = self
            .disk()
            .rename((inode(parent), name), (inode(newparent), newname));
        answer(renamed, reply);
    }

    fn link(
        &self,
        _: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        answer_entry(
            self.disk().link(inode(ino), inode(newparent), newname),
            reply,
        );
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        match self.disk().create(inode(parent), name, Kind::File) {
            Ok(attributes) => {
                reply.created(
                    &TTL,
                    &attr(attributes),
                    GENERATION,
                    FileHandle(0),
                    FopenFlags::empty(),
                );
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.disk().attributes(inode(ino)) {
            Ok(_) => reply.opened(FileHandle(0), FopenFlags::empty()),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.disk().read(inode(ino), offset, size as usize) {
            Ok(bytes) => reply.data(bytes),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.disk().write(inode(ino), offset, data) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(errno(error)),
        }
    }

    /// A file is closed: that makes nothing durable.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        answer(self.disk().sync_file(inode(ino)), reply);
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        // FALLOC_FL_KEEP_SIZE reserves space behind the end, of which there is enough; RocksDB does
        // it.
        const KEEP_SIZE: i32 = 1;
        match mode {
            0 => answer(
                self.disk()
                    .allocate(inode(ino), offset.saturating_add(length)),
                reply,
            ),
            KEEP_SIZE => reply.ok(),
            _ => reply.error(Errno::EOPNOTSUPP),
        }
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.disk().list(inode(ino)) {
            Ok(listing) => {
                let handle = self.opened.fetch_add(1, Ordering::Relaxed);
                lock(&self.listings).insert(handle, listing);
                reply.opened(FileHandle(handle), FopenFlags::empty());
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listings = lock(&self.listings);
        let listing = listings.get(&fh.0).map(Vec::as_slice).unwrap_or_default();
        for (place, (name, attributes)) in (1..).zip(listing).skip(offset as usize) {
            let number = INodeNo(attributes.inode.0);
            if reply.add(number, place, file_type(attributes.kind), name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        lock(&self.listings).remove(&fh.0);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        answer(self.disk().sync_directory(inode(ino)), reply);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let sector = SECTOR_BYTES as u32;
        let sectors = FREE_BYTES / u64::from(sector);
        reply.statfs(
            sectors,
            sectors,
            sectors,
            sectors,
            sectors,
            sector,
            NAME_BYTES_MAX,
            sector,
        );
    }
}
