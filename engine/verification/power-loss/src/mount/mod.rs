//! A [`Disk`] in the file system of this machine.

mod filesystem;

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::{BackgroundSession, Config, MountOption};
use tempfile::TempDir;

use crate::disk::Disk;
use filesystem::Filesystem;

/// Why nothing could be mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// Only root mounts without a helper.
    #[error("mounting the disk that loses power needs root")]
    NotRoot,
    /// The kernel has no FUSE, or the container was not given it.
    #[error(
        "mounting the disk that loses power needs /dev/fuse: modprobe fuse, or give the container \
         that device"
    )]
    NoFuse,
    /// The system refused.
    #[error("mounting the disk that loses power: {0}")]
    Io(#[from] io::Error),
}

/// A mounted disk, in a directory of its own; unmounted, and the directory removed, when dropped.
/// What uses it must have ended by then.
#[derive(Debug)]
pub struct Mount {
    disk: Arc<Mutex<Disk>>,
    session: Option<BackgroundSession>,
    folder: TempDir,
}

impl Mount {
    /// # Errors
    /// This process is not run by root, there is no FUSE, or the system refused.
    pub fn new(disk: Disk) -> Result<Self, MountError> {
        if !rustix::process::geteuid().is_root() {
            return Err(MountError::NotRoot);
        }
        if !Path::new("/dev/fuse").exists() {
            return Err(MountError::NoFuse);
        }
        let disk = Arc::new(Mutex::new(disk));
        let folder = TempDir::with_prefix("dengine-power-loss-")?;
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("dengine-power-loss".to_owned())];
        let session =
            fuser::spawn_mount(Filesystem::new(Arc::clone(&disk)), folder.path(), &config)?;
        Ok(Self {
            disk,
            session: Some(session),
            folder,
        })
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The disk as it is now, locked meanwhile.
    pub fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // This unmounts. The thread that answers is not waited for: it ends with the last copy of
        // the mount, and a container that was started meanwhile may have one.
        drop(self.session.take());
        let is_mounted = std::fs::remove_dir(self.folder.path()).is_err();
        if is_mounted {
            // Busy, because something went wrong before and its process has not ended: the kernel
            // unmounts it then.
            let mut lazily = std::process::Command::new("umount");
            let _ = lazily.arg("--lazy").arg(self.folder.path()).status();
        }
    }
}
