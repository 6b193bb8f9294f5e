//! A disk that loses power, for the real server with the real RocksDB.
//!
//! [`Disk`] is the model: directories and files in memory that know what was synced, lose their
//! power at a chosen operation, and yield what survives. [`Mount`] puts one into the file system
//! through FUSE. What may not live here: anything of DEngine; it is driven from `tests/power_loss`,
//! as a process.

mod disk;
mod mount;

pub use disk::{
    Attributes, Counts, Cut, CutAt, Disk, Error, Inode, Kind, Lie, Moment, SECTOR_BYTES,
};
pub use mount::{Mount, MountError};
