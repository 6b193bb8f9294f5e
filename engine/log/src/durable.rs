//! Directories whose names survive a power loss.
//!
//! A file or directory survives a power loss only if its parent directory was synced after the name
//! was created.

use std::fs::File;
use std::io;
use std::path::Path;

/// Creates a directory and its missing parents, and makes their names durable, also those that
/// exist already: the process that created them may have been killed before the sync.
pub fn create_dir_all(path: &Path) -> io::Result<()> {
    create_from_the_top(path, Path::is_dir, create_dir, sync_dir)
}

/// Makes each name durable before it creates the next directory below it. So an existing directory
/// proves that all names above it are durable, and after a kill only the name of the deepest
/// existing directory is in doubt.
fn create_from_the_top(
    path: &Path,
    is_there: impl Fn(&Path) -> bool,
    mut make: impl FnMut(&Path) -> io::Result<()>,
    mut sync: impl FnMut(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let is_missing = |dir: &&Path| !dir.as_os_str().is_empty() && !is_there(dir);
    let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
    if let Some(above) = path.ancestors().nth(missing.len()).and_then(Path::parent) {
        match sync(above) {
            // A process that may not open the parent did not create this directory.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            synced => synced?,
        }
    }
    for dir in missing.into_iter().rev() {
        make(dir)?;
        dir.parent().map_or(Ok(()), &mut sync)?;
    }
    Ok(())
}

/// Creates a directory, unless another process did so first.
fn create_dir(path: &Path) -> io::Result<()> {
    match std::fs::create_dir(path) {
        Err(_) if path.is_dir() => Ok(()),
        made => made,
    }
}

/// Makes the changes of names in a directory durable.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    use super::*;

    /// The operations that create `path` when the directories of `there` exist, up to `steps` of
    /// them.
    fn steps(path: &str, there: &[&str], steps: usize) -> (Vec<String>, io::Result<()>) {
        let done = RefCell::new(Vec::new());
        let there: BTreeSet<&Path> = there.iter().map(Path::new).collect();
        let step = |name: &str, path: &Path| {
            if done.borrow().len() == steps {
                return Err(io::Error::other("killed"));
            }
            done.borrow_mut().push(format!("{name} {}", path.display()));
            Ok(())
        };
        let result = create_from_the_top(
            Path::new(path),
            |path| there.contains(path),
            |path| step("make", path),
            |path| step("sync", path),
        );
        (done.into_inner(), result)
    }

    #[test]
    fn a_directory_is_created_after_the_names_above_it_are_durable() {
        let (done, result) = steps("/a/b/c", &["/", "/a"], usize::MAX);
        result.unwrap();
        assert_eq!(
            done,
            ["sync /", "make /a/b", "sync /a", "make /a/b/c", "sync /a/b"]
        );
    }

    #[test]
    fn the_name_that_a_killed_process_left_is_synced_by_the_next() {
        // It has created `b`, and has not synced `a`.
        let (done, result) = steps("/a/b/c", &["/", "/a"], 2);
        assert_eq!(done, ["sync /", "make /a/b"]);
        result.unwrap_err();
        let (done, _) = steps("/a/b/c", &["/", "/a", "/a/b"], usize::MAX);
        assert_eq!(done, ["sync /a", "make /a/b/c", "sync /a/b"]);
        let (done, _) = steps("/a/b/c", &["/", "/a", "/a/b", "/a/b/c"], usize::MAX);
        assert_eq!(done, ["sync /a/b"]);
    }

    #[test]
    fn the_parents_of_relative_paths_and_of_the_root_are_found() {
        assert_eq!(steps("/", &["/"], usize::MAX).0, [""; 0]);
        assert_eq!(steps("a", &["a"], usize::MAX).0, ["sync "]);
        let made = ["make a", "sync ", "make a/b", "sync a"];
        assert_eq!(steps("a/b", &[], usize::MAX).0, made);
    }

    #[test]
    fn a_parent_that_may_not_be_opened_is_skipped() {
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let sync = |path: &Path| match path == Path::new("/") {
            true => Err(denied()),
            false => Ok(()),
        };
        let is_there = |path: &Path| path == Path::new("/a") || path == Path::new("/");
        create_from_the_top(Path::new("/a/b"), is_there, |_| Ok(()), sync).unwrap();
        let nothing = |path: &Path| path == Path::new("/");
        create_from_the_top(Path::new("/a/b"), nothing, |_| Ok(()), sync).unwrap_err();
    }

    #[test]
    fn directories_are_created_with_their_parents_and_again() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a/b/c");
        for _ in 0..2 {
            create_dir_all(&path).unwrap();
            assert!(path.is_dir());
        }
        create_dir_all(Path::new("/")).unwrap();
        create_dir_all(Path::new(".")).unwrap();
    }

    #[test]
    fn a_file_in_the_way_is_an_error() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a");
        std::fs::write(&path, "").unwrap();
        create_dir_all(&path).unwrap_err();
        create_dir_all(&path.join("b")).unwrap_err();
    }
}
