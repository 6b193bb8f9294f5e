//! Types of the model that its callers use.

/// A file or directory, whatever its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Inode(pub u64);

impl Inode {
    /// The root directory; FUSE knows it by this number.
    pub const ROOT: Inode = Inode(1);
}

/// Why an operation was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The power is gone.
    #[error("the disk has lost its power")]
    PowerLost,
    /// There is no such name or inode.
    #[error("not found")]
    NotFound,
    /// The name is taken.
    #[error("the name exists")]
    Exists,
    /// It is a file.
    #[error("not a directory")]
    NotADirectory,
    /// It is a directory.
    #[error("a directory")]
    IsADirectory,
    /// The directory holds something.
    #[error("the directory is not empty")]
    NotEmpty,
    /// The file would not fit into memory.
    #[error("too large")]
    TooLarge,
}

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Holds bytes.
    File,
    /// Holds names.
    Directory,
}

/// What is known of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    pub inode: Inode,
    pub kind: Kind,
    /// Length; 0 for a directory.
    pub bytes: u64,
    /// How many names a file has; a directory is said to have two.
    pub links: u32,
}

/// Syncs that a disk acknowledges and does not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Those of files.
    Files,
    /// Those of directories.
    Directories,
}
