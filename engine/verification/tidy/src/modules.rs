//! A module with parts of its own is `name/mod.rs`, not `name.rs` beside a folder `name`.
//!
//! Either would do; one of them everywhere means that nobody has to look in two places.

use crate::{Offence, Tree};

pub(crate) fn check(tree: &Tree) -> Vec<Offence> {
    tree.ending(".rs")
        .filter_map(|file| {
            let folder = file.path.strip_suffix(".rs")?;
            let has_parts = tree
                .ending(".rs")
                .any(|it| it.path.starts_with(&format!("{folder}/")));
            has_parts.then(|| Offence {
                path: file.path.clone(),
                line: 1,
                message: format!(
                    "has parts in {folder}/: git mv {0} {folder}/mod.rs",
                    file.path
                ),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_beside_its_folder_is_named() {
        let tree = Tree::of(&[
            ("src/a.rs", ""),
            ("src/a/b.rs", ""),
            ("src/c/mod.rs", ""),
            ("src/c/d.rs", ""),
            ("src/e.rs", ""),
            ("src/e/notes.md", ""),
        ]);
        let found = check(&tree);
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].to_string(),
            "src/a.rs:1: has parts in src/a/: git mv src/a.rs src/a/mod.rs"
        );
    }
}
