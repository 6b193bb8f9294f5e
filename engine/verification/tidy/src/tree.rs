//! The files of a checkout, as git lists them.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::Command;

use fs_err as fs;

/// One file of text.
#[derive(Clone, Debug)]
pub struct File {
    /// Relative to the root, with `/` between names.
    pub path: String,
    pub text: String,
}

/// All files that git tracks or would add: text of what rules read, and the paths of all others.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    files: BTreeMap<String, Option<File>>,
}

/// Whose text is read, unless it is generated. All others are only known to exist.
const READ: [&str; 5] = [".rs", ".md", ".toml", ".proto", "Chart.yaml"];

impl Tree {
    /// Reads the checkout at `root`.
    ///
    /// # Errors
    /// If git cannot be run there, or a file cannot be read.
    pub fn read(root: &Path) -> io::Result<Self> {
        let listed = Command::new("git")
            .current_dir(root)
            .args([
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
            ])
            .output()?;
        if !listed.status.success() {
            let reason = String::from_utf8_lossy(&listed.stderr).into_owned();
            return Err(io::Error::other(format!(
                "git ls-files in {}: {reason}",
                root.display()
            )));
        }
        let mut tree = Self::default();
        for path in String::from_utf8_lossy(&listed.stdout).split_terminator('\0') {
            // Git goes on listing what was deleted and not yet committed.
            if !root.join(path).is_file() {
                continue;
            }
            let is_generated = path.contains("/src/generated/");
            let is_read = !is_generated && READ.iter().any(|ending| path.ends_with(ending));
            let text = is_read
                .then(|| fs::read_to_string(root.join(path)))
                .transpose()?;
            tree.insert(path, text);
        }
        Ok(tree)
    }

    /// A tree of these files, for tests of rules.
    #[must_use]
    pub fn of(files: &[(&str, &str)]) -> Self {
        let mut tree = Self::default();
        for (path, text) in files {
            tree.insert(path, Some((*text).to_owned()));
        }
        tree
    }

    fn insert(&mut self, path: &str, text: Option<String>) {
        let file = text.map(|text| File {
            path: path.to_owned(),
            text,
        });
        self.files.insert(path.to_owned(), file);
    }

    /// The files that were read and whose names end like this.
    pub(crate) fn ending(&self, ending: &str) -> impl Iterator<Item = &File> {
        self.files
            .values()
            .flatten()
            .filter(move |it| it.path.ends_with(ending))
    }

    /// The text of one file, if it was read.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        Some(&self.files.get(path)?.as_ref()?.text)
    }

    /// Every path.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Whether there is such a file or folder.
    pub(crate) fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let folder = format!("{path}/");
        path.is_empty()
            || self.files.contains_key(path)
            || self
                .files
                .range(folder.clone()..)
                .next()
                .is_some_and(|it| it.0.starts_with(&folder))
    }

    /// The folders right below `folder` that have Rust files in them, at any depth.
    pub(crate) fn rust_folders(&self, folder: &str) -> Vec<String> {
        let prefix = format!("{folder}/");
        let mut found: Vec<String> = self
            .paths()
            .filter(|it| it.ends_with(".rs"))
            .filter_map(|it| it.strip_prefix(&prefix)?.split_once('/'))
            .map(|(name, _)| name.to_owned())
            .collect();
        found.dedup();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_folders_are_found() {
        let tree = Tree::of(&[
            ("a/src/b/c.rs", ""),
            ("a/src/b.md", ""),
            ("a/src/d/e.txt", ""),
        ]);
        for path in ["a", "a/", "a/src/b", "a/src/b/c.rs", ""] {
            assert!(tree.has(path), "{path}");
        }
        for path in ["a/s", "b", "a/src/b/c", "src"] {
            assert!(!tree.has(path), "{path}");
        }
        assert_eq!(tree.rust_folders("a/src"), ["b"]);
    }
}
