//! Where the data of members lies that are started to be measured: a durable write to memory costs
//! nothing and shows nothing.

use std::path::Path;

use anyhow::{Result, bail};

/// File systems that lose everything with the power, as `statfs(2)` names them.
const IN_MEMORY: [(i64, &str); 2] = [(0x0102_1994, "tmpfs"), (0x8584_58f6, "ramfs")];

/// Refuses a folder whose file system is in memory.
///
/// # Errors
/// It is, or the system does not say.
pub fn must_be_real(folder: &Path) -> Result<()> {
    let kind = rustix::fs::statfs(folder)?.f_type as i64;
    match IN_MEMORY.iter().find(|(magic, _)| *magic == kind) {
        Some((_, name)) => bail!(
            "{} lies on {name}, where a sync costs nothing: choose a folder on a disk",
            folder.display()
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_refused_and_a_disk_is_not() {
        let refused = must_be_real(Path::new("/dev/shm")).unwrap_err().to_string();
        assert!(refused.contains("lies on tmpfs"), "{refused}");
        must_be_real(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
    }
}
