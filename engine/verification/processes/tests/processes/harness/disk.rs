//! A disk that may be full: a small file system of the test's own, so it needs root, as `make test`
//! has.

use std::path::PathBuf;
use std::process::Command;

use super::scratch;

const DISK_BYTES: u64 = 256 << 20;

/// A file system of its own; goes with the test.
pub(crate) struct Disk {
    pub(crate) folder: tempfile::TempDir,
}

impl Disk {
    pub(crate) fn mount() -> Self {
        Self::mount_of(DISK_BYTES)
    }

    pub(crate) fn mount_of(bytes: u64) -> Self {
        let folder = scratch();
        let size = format!("size={bytes}");
        let mount = ["-t", "tmpfs", "-o", &size, "tmpfs"];
        let mounted = Command::new("mount")
            .args(mount)
            .arg(folder.path())
            .status();
        assert!(mounted.unwrap().success(), "mount needs root");
        Self { folder }
    }

    fn filler(&self) -> PathBuf {
        self.folder.path().join("filler")
    }

    /// Leaves so many bytes free.
    pub(crate) fn fill(&self, free_bytes: u64) {
        let disk = rustix::fs::statvfs(self.folder.path()).unwrap();
        let filler = rustix::fs::open(
            self.filler(),
            rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY,
            rustix::fs::Mode::RUSR,
        );
        let bytes = (disk.f_bavail * disk.f_frsize).saturating_sub(free_bytes);
        let flags = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(filler.unwrap(), flags, 0, bytes).unwrap();
    }

    pub(crate) fn free(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: a member may still be ending.
        let unmounted = Command::new("umount")
            .arg("--lazy")
            .arg(self.folder.path())
            .status();
        assert!(unmounted.is_ok_and(|status| status.success()));
    }
}
