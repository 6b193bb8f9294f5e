//! Folders whose names survive a power cut.
//!
//! A file or folder is only there after a power cut if the folder above it was synced since it got its name.

use std::fs::File;
use std::io;
use std::path::Path;

/// Makes a folder and those above it that are missing, and their names durable. Also if the folder is there
/// already: whoever made it may have ended before its name was.
///
/// # Errors
/// The file system refused.
pub fn make_folder(path: &Path) -> io::Result<()> {
    let missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
    let made: Vec<&Path> = path.ancestors().take_while(missing).collect();
    std::fs::create_dir_all(path)?;
    if made.is_empty() {
        return match sync_parent(path) {
            // Who may not look into the folder above has not made this one.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            synced => synced,
        };
    }
    made.into_iter().try_for_each(sync_parent)
}

/// Makes what has happened to the names in a folder durable.
///
/// # Errors
/// The file system refused.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    File::open(path)?.sync_all()
}

fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), sync_folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_made_with_those_above_them_and_made_again() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a/b/c");
        for _ in 0..2 {
            make_folder(&path).unwrap();
            assert!(path.is_dir());
        }
        make_folder(Path::new("/")).unwrap();
        make_folder(Path::new(".")).unwrap();
    }

    #[test]
    fn a_file_in_the_way_is_an_error() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a");
        std::fs::write(&path, "").unwrap();
        make_folder(&path).unwrap_err();
        make_folder(&path.join("b")).unwrap_err();
    }
}
