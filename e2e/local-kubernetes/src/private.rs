//! Files that only their owner may read.

use std::io::Write as _;
use std::path::Path;

use anyhow::Result;

/// Writes a file of mode 0600, whatever the umask; an old one is replaced.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn write_private(file: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    if file.exists() {
        fs_err::remove_file(file)?;
    }
    let mut options = fs_err::OpenOptions::new();
    fs_err::os::unix::fs::OpenOptionsExt::mode(options.write(true).create_new(true), 0o600);
    options.open(file)?.write_all(content.as_ref())?;
    Ok(())
}
