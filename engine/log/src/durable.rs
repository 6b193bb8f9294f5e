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
    make_from_the_top(path, Path::is_dir, make_one, sync_folder)
}

/// Each name is durable before the next folder is made in it. So a folder that exists proves all names above its own, and
/// whoever was ended anywhere in between leaves one name to be made sure of: that of the deepest folder there is.
fn make_from_the_top(
    path: &Path,
    is_there: impl Fn(&Path) -> bool,
    mut make: impl FnMut(&Path) -> io::Result<()>,
    mut sync: impl FnMut(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !is_there(folder);
    let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
    if let Some(above) = path.ancestors().nth(missing.len()).and_then(Path::parent) {
        match sync(above) {
            // Who may not look into the folder above has not made this one.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            synced => synced?,
        }
    }
    for folder in missing.into_iter().rev() {
        make(folder)?;
        folder.parent().map_or(Ok(()), &mut sync)?;
    }
    Ok(())
}

/// Makes a folder, unless somebody else was faster.
fn make_one(path: &Path) -> io::Result<()> {
    match std::fs::create_dir(path) {
        Err(_) if path.is_dir() => Ok(()),
        made => made,
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    /// What is done to make `path` when the folders of `there` exist, until `steps` were done.
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
        let result = make_from_the_top(
            Path::new(path),
            |path| there.contains(path),
            |path| step("make", path),
            |path| step("sync", path),
        );
        (done.into_inner(), result)
    }

    #[test]
    fn a_folder_is_made_when_the_names_above_it_are_durable() {
        let (done, result) = steps("/a/b/c", &["/", "/a"], usize::MAX);
        result.unwrap();
        assert_eq!(
            done,
            ["sync /", "make /a/b", "sync /a", "make /a/b/c", "sync /a/b"]
        );
    }

    #[test]
    fn whoever_was_killed_leaves_nothing_that_the_next_does_not_make_sure_of() {
        // It has made `b`, and has not synced `a`.
        let (done, result) = steps("/a/b/c", &["/", "/a"], 2);
        assert_eq!(done, ["sync /", "make /a/b"]);
        result.unwrap_err();
        let (done, _) = steps("/a/b/c", &["/", "/a", "/a/b"], usize::MAX);
        assert_eq!(done, ["sync /a", "make /a/b/c", "sync /a/b"]);
        let (done, _) = steps("/a/b/c", &["/", "/a", "/a/b", "/a/b/c"], usize::MAX);
        assert_eq!(done, ["sync /a/b"]);
    }

    #[test]
    fn paths_from_here_and_the_root_itself_have_what_is_above_them() {
        assert_eq!(steps("/", &["/"], usize::MAX).0, [""; 0]);
        assert_eq!(steps("a", &["a"], usize::MAX).0, ["sync "]);
        let made = ["make a", "sync ", "make a/b", "sync a"];
        assert_eq!(steps("a/b", &[], usize::MAX).0, made);
    }

    #[test]
    fn who_may_not_look_above_the_first_has_not_made_it() {
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let sync = |path: &Path| match path == Path::new("/") {
            true => Err(denied()),
            false => Ok(()),
        };
        let is_there = |path: &Path| path == Path::new("/a") || path == Path::new("/");
        make_from_the_top(Path::new("/a/b"), is_there, |_| Ok(()), sync).unwrap();
        let nothing = |path: &Path| path == Path::new("/");
        make_from_the_top(Path::new("/a/b"), nothing, |_| Ok(()), sync).unwrap_err();
    }

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
